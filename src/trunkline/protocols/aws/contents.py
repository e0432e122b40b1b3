"""What is in a message: a request's parameters as a record for the log, and a delivery as the message that a receiver sees.

    record key        MessageGroupId
    record value      the body, UTF-8
    record headers    amqp.message-id         MessageId, which also tells SentTimestamp and SequenceNumber (`message_ids`)
                      amqp.user-id            SenderId, of who has logged in
                      sqs.deduplication-id    MessageDeduplicationId, given or made of the body
                      sqs.trace               AWSTraceHeader
                      the others              message attributes (`message_attributes`)

A body of another protocol that is no text, or has characters that XML cannot say, is given in base64, and the attribute
`trunkline.body-encoding` says so.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from trunkline.broker.messaging.deduplication import DEDUPLICATION_HEADER
from trunkline.broker.messaging.envelope import MESSAGE_ID_HEADER, USER_ID_HEADER
from trunkline.cursors.queue import Delivery, Message
from trunkline.log.records import decode_headers, encode_headers
from trunkline.protocols.aws import md5
from trunkline.protocols.aws.call import Parameters, optional_text
from trunkline.protocols.aws.errors import AwsError, invalid, missing
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.message_attributes import (
    Headers,
    MessageAttribute,
    as_headers,
    attributes_in,
    legal,
    read_attributes,
)
from trunkline.protocols.aws.message_ids import derived_id, sent_ms_of, sequence_of
from trunkline.protocols.aws.names import ACCOUNT

TRACE_HEADER: Final = "sqs.trace"
TRACE_ATTRIBUTE: Final = "AWSTraceHeader"
BASE64: Final = MessageAttribute("trunkline.body-encoding", "String", b"base64")
_LAST_DEATH: Final = "x-last-death-queue"
_MAX_ID_CHARS: Final = 100
SYSTEM_ATTRIBUTES: Final = frozenset(
    {
        "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SequenceNumber",
        "MessageDeduplicationId", "MessageGroupId", TRACE_ATTRIBUTE, "DeadLetterQueueSourceArn", "All",
    }
)  # fmt: skip


class Content(NamedTuple):
    """What a client sends: body, attributes and system attributes."""

    body: bytes
    attributes: list[MessageAttribute]
    trace: list[MessageAttribute]

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(attribute.size_bytes for attribute in self.attributes)

    def digests(self) -> dict[str, object]:
        told: dict[str, object] = {"MD5OfMessageBody": md5.of_body(self.body)}
        if self.attributes:
            told["MD5OfMessageAttributes"] = md5.of_attributes(self.attributes)
        if self.trace:
            told["MD5OfMessageSystemAttributes"] = md5.of_attributes(self.trace)
        return told

    def message(
        self, id: str, now_ms: int, *, sender: str = "", group: str | None = None, deduplication_id: str | None = None
    ) -> Message:
        headers: Headers = [(MESSAGE_ID_HEADER, id.encode())]
        if sender:
            headers.append((USER_ID_HEADER, sender.encode()))
        if deduplication_id is not None:
            headers.append((DEDUPLICATION_HEADER, deduplication_id.encode()))
        if self.trace:
            headers.append((TRACE_HEADER, self.trace[0].value))
        if self.attributes:
            headers += as_headers(self.attributes)
        return Message(self.body, encode_headers(headers), None if group is None else group.encode(), now_ms)


def read_content(parameters: Parameters, limits: AwsLimits) -> Content:
    body = optional_text(parameters, "MessageBody")
    if body is None:
        raise missing("MessageBody")
    if not body:
        raise invalid("The request must contain the parameter MessageBody.") if "MessageBody" in parameters else missing("MessageBody")  # fmt: skip
    if not legal(body):
        raise AwsError("InvalidMessageContents", "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.")  # fmt: skip
    attributes = read_attributes(parameters.get("MessageAttributes"), limits)
    trace = read_attributes(parameters.get("MessageSystemAttributes"), limits)
    for attribute in trace:
        if attribute.name != TRACE_ATTRIBUTE or attribute.data_type != "String":
            raise invalid(f"Message system attribute name '{attribute.name}' is invalid.")
    return Content(body.encode(), attributes, trace)


# -- what a receiver sees ------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """Which attributes a receiver asks for."""

    system: frozenset[str]
    names: frozenset[str]
    prefixes: tuple[str, ...]

    def takes(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)


NOTHING: Final = Wanted(frozenset(), frozenset(), ())


def read_wanted(system: list[str], names: list[str]) -> Wanted:
    if not system and not names:
        return NOTHING
    for name in system:
        if name not in SYSTEM_ATTRIBUTES:
            raise AwsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
    wanted_system = SYSTEM_ATTRIBUTES if "All" in system else frozenset(system)
    prefixes = tuple(
        "" if name in ("All", ".*") else name[:-2] for name in names if name == "All" or name.endswith(".*")
    )
    return Wanted(wanted_system, frozenset(names), prefixes)


class Seen(NamedTuple):
    """A delivery, read: what does not depend on who asks."""

    id: str
    body: str
    attributes: list[MessageAttribute]
    headers: Headers


def see(delivery: Delivery, topic: str) -> Seen:
    message = delivery.message
    headers = decode_headers(message.headers)
    id = ""
    for name, value in headers:
        if name == MESSAGE_ID_HEADER:
            id = (value or b"").decode("utf-8", "replace")
            break
    if not id or len(id) > _MAX_ID_CHARS or not legal(id):
        id = derived_id(topic, delivery.offset, message.timestamp_ms)
    attributes = attributes_in(message.headers, headers) if len(headers) > 1 or not id else []
    if len(headers) == 1 and headers[0][0] != MESSAGE_ID_HEADER:
        attributes = attributes_in(message.headers, headers)
    try:
        body = message.value.decode()
        if legal(body):
            return Seen(id, body, attributes, headers)
    except UnicodeDecodeError:
        pass
    kept = [attribute for attribute in attributes if attribute.name != BASE64.name]
    return Seen(id, base64.b64encode(message.value).decode(), [*kept, BASE64], headers)


def shown(
    delivery: Delivery, topic: str, handle: str, wanted: Wanted, first_received_ms: int, region: str
) -> dict[str, object]:
    seen = see(delivery, topic)
    told: dict[str, object] = {
        "MessageId": seen.id,
        "ReceiptHandle": handle,
        "MD5OfBody": md5.of_body(seen.body.encode()),
        "Body": seen.body,
    }
    if wanted is NOTHING:
        return told
    if wanted.system:
        system = _system(delivery, seen, first_received_ms, region)
        told["Attributes"] = {name: value for name, value in system.items() if name in wanted.system}
    attributes = [attribute for attribute in seen.attributes if wanted.takes(attribute.name)]
    if attributes:
        told["MessageAttributes"] = {attribute.name: attribute.shown() for attribute in attributes}
        told["MD5OfMessageAttributes"] = md5.of_attributes(attributes)
    return told


def _system(delivery: Delivery, seen: Seen, first_received_ms: int, region: str) -> dict[str, str]:
    message = delivery.message
    headers = dict(seen.headers)
    sent_ms = sent_ms_of(seen.id)
    sender = headers.get(USER_ID_HEADER)
    system = {
        "SenderId": ACCOUNT if sender is None else sender.decode("utf-8", "replace"),
        "SentTimestamp": str(max(message.timestamp_ms, 0) if sent_ms is None else sent_ms),
        "ApproximateReceiveCount": str(delivery.delivery_count),
        "ApproximateFirstReceiveTimestamp": str(first_received_ms),
    }
    if message.key is not None:
        try:
            group = message.key.decode()
        except UnicodeDecodeError:
            group = message.key.hex()
        if legal(group):
            system["MessageGroupId"] = group
    deduplication_id = headers.get(DEDUPLICATION_HEADER)
    if deduplication_id is not None:
        system["MessageDeduplicationId"] = deduplication_id.decode("utf-8", "replace")
        system["SequenceNumber"] = sequence_of(seen.id)
    trace = headers.get(TRACE_HEADER)
    if trace is not None:
        system[TRACE_ATTRIBUTE] = trace.decode("utf-8", "replace")
    source = headers.get(_LAST_DEATH)
    if source is not None:
        system["DeadLetterQueueSourceArn"] = f"arn:aws:sqs:{region}:{ACCOUNT}:{source.decode('utf-8', 'replace')}"
    return system
