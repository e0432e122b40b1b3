"""The attributes of a queue: what clients set, what that means to the queue, and what they are shown.

What was set is kept in the queue's declaration, under the argument `x-sqs`: {"attributes", "tags", "created", "modified"}; so it
is in the log with the queue, and one record. What it means to the queue's cursor is in its settings:

    MessageRetentionPeriod        how long messages wait before they are dropped
    RedrivePolicy                 dead letters, to the queue that it names, after so many receives
    FifoQueue                     order by key: a message group is with one receiver at a time
    DeduplicationScope            where ids are told apart
    the others                    are asked for by each request

A queue that another protocol declared has the defaults, and what SQS never set of it stays as it was declared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.cursors.queue import QueueSettings
from trunkline.protocols.aws.errors import AwsError, invalid
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.names import FIFO, name_in_arn

ARGUMENT: Final = "x-sqs"
_YEARS_S: Final = 1_209_600


class Range(NamedTuple):
    low: int
    high: int
    default: int


NUMBERS: Final[Mapping[str, Range]] = {
    "DelaySeconds": Range(0, 900, 0),
    "MaximumMessageSize": Range(1_024, 1 << 20, 1 << 20),
    "MessageRetentionPeriod": Range(60, _YEARS_S, 345_600),
    "ReceiveMessageWaitTimeSeconds": Range(0, 20, 0),
    "VisibilityTimeout": Range(0, 43_200, 30),
    "KmsDataKeyReusePeriodSeconds": Range(60, 86_400, 300),
}
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
    "SqsManagedSseEnabled": ("true", "false"),
}
_FIFO_ONLY: Final = frozenset({"ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"})
_DOCUMENTS: Final = frozenset({"Policy", "RedrivePolicy", "RedriveAllowPolicy"})
_OTHERS: Final = frozenset({"KmsMasterKeyId"})
_COUNTED: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_SHOWN: Final = frozenset({*_COUNTED, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"})
SETTABLE: Final = frozenset({*NUMBERS, *_WORDS, *_DOCUMENTS, *_OTHERS})
_BY_PERMISSION: Final = ("allowAll", "denyAll", "byQueue")
_MAX_SOURCES: Final = 10


class RedrivePolicy(NamedTuple):
    target: str  # the name of the queue for dead letters
    target_arn: str
    max_receive_count: int


class RedriveAllowPolicy(NamedTuple):
    permission: str = "allowAll"
    sources: frozenset[str] = frozenset()

    def allows(self, source: str) -> bool:
        return self.permission == "allowAll" or (self.permission == "byQueue" and source in self.sources)


class Kept(NamedTuple):
    """What a queue's declaration keeps for SQS."""

    attributes: Mapping[str, str]
    tags: Mapping[str, str]
    created_s: int
    modified_s: int

    def argument(self) -> dict[str, object]:
        return {
            "attributes": dict(self.attributes),
            "tags": dict(self.tags),
            "created": self.created_s,
            "modified": self.modified_s,
        }


def kept_of(declaration: QueueDeclaration) -> Kept:
    """Anybody can declare a queue with such an argument: what is none counts for nothing."""
    kept = declaration.arguments.get(ARGUMENT)
    if not isinstance(kept, dict):
        return Kept({}, {}, 0, 0)
    created, modified = kept.get("created"), kept.get("modified")
    return Kept(
        _text_map(kept.get("attributes")),
        _text_map(kept.get("tags")),
        created if isinstance(created, int) else 0,
        modified if isinstance(modified, int) else 0,
    )


def _text_map(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(name): text for name, text in value.items() if isinstance(text, str)}


def declared(before: QueueDeclaration, kept: Kept) -> QueueDeclaration:
    """The declaration of a queue with other attributes or tags than before."""
    arguments = {**before.arguments, ARGUMENT: kept.argument()}
    return replace(before, settings=settings_of(before.settings, kept.attributes), arguments=arguments)


def settings_of(before: QueueSettings, attributes: Mapping[str, str]) -> QueueSettings:
    settings = before
    if "MessageRetentionPeriod" in attributes:
        lifetime_ms = int(attributes["MessageRetentionPeriod"]) * 1000
        settings = replace(settings, message_ttl_ms=lifetime_ms, drop_expired=True)
    if "RedrivePolicy" in attributes:
        policy = read_redrive_policy(attributes["RedrivePolicy"])
        limit = None if policy is None else policy.max_receive_count - 1
        settings = replace(settings, dead_letter=None if policy is None else ("", policy.target), delivery_limit=limit)
    if settings.deduplicate:
        by_group = attributes.get("DeduplicationScope") == "messageGroup"
        settings = replace(settings, deduplicate_by_key=by_group)
    return settings


def check(given: Mapping[str, str], limits: AwsLimits, *, fifo: bool) -> dict[str, str]:
    """The attributes that a client sets, in the form in which they are kept."""
    checked: dict[str, str] = {}
    for name, value in given.items():
        if name not in SETTABLE or (name in _FIFO_ONLY and not fifo):
            raise AwsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
        checked[name] = _checked(name, value.strip(), limits)
    return checked


def _checked(name: str, value: str, limits: AwsLimits) -> str:
    span = NUMBERS.get(name)
    if span is not None:
        high = min(span.high, limits.max_message_bytes) if name == "MaximumMessageSize" else span.high
        try:
            number = int(value) if len(value) < 20 else -1
        except ValueError:
            number = -1
        if not span.low <= number <= high:
            raise _bad_value(name)
        return str(number)
    words = _WORDS.get(name)
    if words is not None and value not in words and value.lower() not in words:
        raise _bad_value(name)
    if words is not None and value not in words:
        return value.lower()
    if value and name == "RedrivePolicy":
        read_redrive_policy(value)
    elif value and name == "RedriveAllowPolicy":
        read_redrive_allow_policy(value)
    elif value and name == "Policy":
        _document(name, value)
    return value


def _bad_value(name: str) -> AwsError:
    return AwsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def read_redrive_policy(text: str) -> RedrivePolicy | None:
    if not text:
        return None
    document = _document("RedrivePolicy", text)
    arn, count = document.get("deadLetterTargetArn"), document.get("maxReceiveCount")
    if set(document) != {"deadLetterTargetArn", "maxReceiveCount"} or not isinstance(arn, str):
        raise _bad_policy(text, "Redrive policy must contain deadLetterTargetArn and maxReceiveCount, and nothing else")
    target = name_in_arn(arn, "sqs")
    if target is None:
        raise _bad_policy(text, "Invalid value for deadLetterTargetArn.")
    try:
        number = int(count) if isinstance(count, int | str) and not isinstance(count, bool) else 0
    except ValueError:
        number = 0
    if not 1 <= number <= 1_000:
        raise _bad_policy(text, f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.")  # fmt: skip
    return RedrivePolicy(target, arn, number)


def read_redrive_allow_policy(text: str) -> RedriveAllowPolicy:
    if not text:
        return RedriveAllowPolicy()
    document = _document("RedriveAllowPolicy", text)
    permission = document.get("redrivePermission", "allowAll")
    arns = document.get("sourceQueueArns")
    if permission not in _BY_PERMISSION or (permission == "byQueue") != (arns is not None):
        raise invalid(f"Value {text[:500]} for parameter RedriveAllowPolicy is invalid.")
    if arns is None:
        return RedriveAllowPolicy(str(permission))
    names = [name_in_arn(str(arn), "sqs") for arn in arns] if isinstance(arns, list) else [None]
    if len(names) > _MAX_SOURCES or not names or None in names:
        raise invalid(f"Value {text[:500]} for parameter RedriveAllowPolicy is invalid. Reason: sourceQueueArns has one to ten ARNs of queues.")  # fmt: skip
    return RedriveAllowPolicy("byQueue", frozenset(name for name in names if name is not None))


def _document(name: str, text: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid(f"Value {text[:500]} for parameter {name} is invalid. Reason: {name} is not valid JSON.")
    return document


def _bad_policy(text: str, reason: str) -> AwsError:
    return invalid(f"Value {text[:500]} for parameter RedrivePolicy is invalid. Reason: {reason}")


# -- what is shown -----------------------------------------------------------------------------------------------------


def shown(queue: Queue, arn: str, names: list[str], limits: AwsLimits) -> dict[str, str]:
    """The attributes that a client asks for; those that have no value are left out."""
    for name in names:
        if name not in SETTABLE and name not in _SHOWN and name != "All":
            raise AwsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
    found = all_of(queue, arn, limits)
    return found if "All" in names else {name: found[name] for name in names if name in found}


def all_of(queue: Queue, arn: str, limits: AwsLimits) -> dict[str, str]:
    kept = kept_of(queue.declaration)
    stats = queue.cursor.stats()
    settings = queue.settings
    found = {
        "QueueArn": arn,
        "ApproximateNumberOfMessages": str(stats.ready),
        "ApproximateNumberOfMessagesNotVisible": str(stats.unacked),
        "ApproximateNumberOfMessagesDelayed": str(stats.delayed),
        "CreatedTimestamp": str(kept.created_s),
        "LastModifiedTimestamp": str(kept.modified_s),
        **{name: str(NUMBERS[name].default) for name in NUMBERS if name != "KmsDataKeyReusePeriodSeconds"},
        "MaximumMessageSize": str(limits.max_message_bytes),
        "SqsManagedSseEnabled": "false",
    }
    if settings.message_ttl_ms is None:
        found["MessageRetentionPeriod"] = str(_YEARS_S)  # for ever is not among the values that clients know
    else:
        found["MessageRetentionPeriod"] = str(max(settings.message_ttl_ms // 1000, 60))
    if queue.name.endswith(FIFO) and queue.orders_by_key:
        found |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "false",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }
    found |= kept.attributes
    return {name: value for name, value in found.items() if value}
