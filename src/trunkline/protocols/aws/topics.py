"""Operations on topics: create, delete, list, attributes, tags, permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trunkline.broker.core import BrokerCore
from trunkline.broker.state.notifications import Notifications, NotificationTopic
from trunkline.protocols.aws.access import Access, Asked
from trunkline.protocols.aws.call import Call, Result, optional_text, structures, text_map, texts
from trunkline.protocols.aws.errors import AwsError, invalid_parameter, sns_error
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.names import ACCOUNT, FIFO, name_in_arn, topic_arn
from trunkline.protocols.aws.paging import page
from trunkline.protocols.aws.subscribers import Subscribers
from trunkline.protocols.aws.tags import check_tags

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
_DOCUMENTS: Final = frozenset({"Policy", "DeliveryPolicy", "ArchivePolicy"})
_FLAGS: Final = frozenset({"FifoTopic", "ContentBasedDeduplication"})
_TEXTS: Final = frozenset({"DisplayName", "KmsMasterKeyId", "SignatureVersion", "TracingConfig", "FifoThroughputScope"})
_PAGE: Final = 100


class Topics:
    def __init__(self, broker: BrokerCore, notifications: Notifications, subscribers: Subscribers, access: Access, limits: AwsLimits) -> None:  # fmt: skip
        self._clock = broker.clock
        self._notifications = notifications
        self._subscribers = subscribers
        self._access = access
        self._limits = limits

    def find(self, call: Call, asked: Asked, parameter: str = "TopicArn") -> NotificationTopic:
        """The topic that the call names."""
        arn = optional_text(call.parameters, parameter)
        if not arn:
            raise invalid_parameter(f"{parameter} Reason: no value for required parameter")
        name = name_in_arn(arn, "sns")
        if name is None:
            raise invalid_parameter(
                f"{parameter} Reason: An ARN must have at least 6 elements, not {len(arn.split(':'))}"
            )
        self._access.check(call, asked, name, kind="exchange")
        topic = self._notifications.topics.get(name)
        if topic is None:
            raise sns_error("NotFound", "Topic does not exist", status=404)
        return topic

    async def create_topic(self, call: Call) -> Result:
        name = call.text("Name")
        self._access.check(call, Asked.CREATE, name, kind="exchange")
        if _NAME.fullmatch(name.removesuffix(FIFO)) is None or len(name) > 256:
            raise invalid_parameter("Topic Name")
        attributes = self._checked(text_map(call.parameters, "Attributes"))
        fifo = attributes.get("FifoTopic") == "true"
        if fifo != name.endswith(FIFO):
            raise invalid_parameter("Topic Name: a FIFO topic has FifoTopic=true and a name that ends with .fifo")
        tags = _tags(call)
        check_tags(tags, self._limits)
        found = self._notifications.topics.get(name)
        if found is not None:
            for attribute, value in attributes.items():
                if found.attributes.get(attribute, "") != value:
                    raise invalid_parameter("Attributes Reason: Topic already exists with different attributes")
            if tags and dict(found.tags) != tags:
                raise invalid_parameter("Tags Reason: Topic already exists with different tags")
            return {"TopicArn": found.arn}
        if len(self._notifications.topics) >= self._limits.max_topics:
            raise sns_error("TopicLimitExceeded", f"There are {self._limits.max_topics} topics already.", status=403)
        arn = topic_arn(call, name)
        await self._notifications.put_topic(
            NotificationTopic(name, arn, attributes, tags, self._clock.wall_ms() // 1000)
        )
        return {"TopicArn": arn}

    def _checked(self, given: Mapping[str, str]) -> dict[str, str]:
        return {name: self._check(name, value) for name, value in given.items()}

    def _check(self, name: str, value: str) -> str:
        if name in _FLAGS:
            if value.lower() not in ("true", "false"):
                raise invalid_parameter(f"{name} Reason: must be true or false")
            return value.lower()
        if name in _DOCUMENTS:
            if value:
                _document(name, value)
            return value
        if name in _TEXTS:
            return value[:1024]
        raise invalid_parameter(f"AttributeName: {name[:80]}")

    async def delete_topic(self, call: Call) -> Result:
        try:
            topic = self.find(call, Asked.DELETE)
        except AwsError as error:
            if error.code == "NotFound":
                return {}  # a second time is no error
            raise
        self._subscribers.forget(topic.name)
        await self._notifications.remove_topic(topic.name)
        return {}

    def list_topics(self, call: Call) -> Result:
        names, token = page(sorted(self._notifications.topics), optional_text(call.parameters, "NextToken"), _PAGE)
        result: Result = {"Topics": [{"TopicArn": self._notifications.topics[name].arn} for name in names]}
        if token:
            result["NextToken"] = token
        return result

    def get_topic_attributes(self, call: Call) -> Result:
        topic = self.find(call, Asked.LOOK)
        subscriptions = self._notifications.of_topic(topic.name)
        pending = sum(bool(each.token) for each in subscriptions)
        shown = {
            "TopicArn": topic.arn,
            "Owner": ACCOUNT,
            "DisplayName": "",
            "Policy": json.dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": []}),
            "SubscriptionsConfirmed": str(len(subscriptions) - pending),
            "SubscriptionsPending": str(pending),
            "SubscriptionsDeleted": "0",
            **topic.attributes,
        }
        return {"Attributes": shown}

    async def set_topic_attributes(self, call: Call) -> Result:
        topic = self.find(call, Asked.ALTER)
        name, value = call.text("AttributeName"), optional_text(call.parameters, "AttributeValue") or ""
        if name == "FifoTopic":
            raise invalid_parameter("AttributeName: FifoTopic is set when the topic is created")
        changed = {**topic.attributes, name: self._check(name, value)}
        await self._notifications.put_topic(replace(topic, attributes=changed))
        return {}

    # -- tags and permissions --------------------------------------------------------------------------------------

    async def tag_resource(self, call: Call) -> Result:
        topic = self.find(call, Asked.ALTER, "ResourceArn")
        tags = {**topic.tags, **_tags(call)}
        check_tags(tags, self._limits)
        await self._notifications.put_topic(replace(topic, tags=tags))
        return {}

    async def untag_resource(self, call: Call) -> Result:
        topic = self.find(call, Asked.ALTER, "ResourceArn")
        gone = set(texts(call.parameters, "TagKeys"))
        kept = {name: tag for name, tag in topic.tags.items() if name not in gone}
        await self._notifications.put_topic(replace(topic, tags=kept))
        return {}

    def list_tags_for_resource(self, call: Call) -> Result:
        topic = self.find(call, Asked.LOOK, "ResourceArn")
        return {"Tags": [{"Key": name, "Value": tag} for name, tag in topic.tags.items()]}

    async def add_permission(self, call: Call) -> Result:
        """Kept and shown as the topic's policy. Who may do what is decided by the broker's own permissions."""
        topic = self.find(call, Asked.ALTER)
        label = call.text("Label")
        policy, statements = _policy(topic)
        if any(isinstance(each, dict) and each.get("Sid") == label for each in statements):
            raise invalid_parameter("Statement already exists")
        statement = {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam::{each}:root" for each in texts(call.parameters, "AWSAccountId")]},
            "Action": [f"SNS:{each}" for each in texts(call.parameters, "ActionName")],
            "Resource": topic.arn,
        }
        await self._put_policy(topic, {**policy, "Statement": [*statements, statement]})
        return {}

    async def remove_permission(self, call: Call) -> Result:
        topic = self.find(call, Asked.ALTER)
        label = call.text("Label")
        policy, statements = _policy(topic)
        kept = [each for each in statements if not (isinstance(each, dict) and each.get("Sid") == label)]
        await self._put_policy(topic, {**policy, "Statement": kept})
        return {}

    async def _put_policy(self, topic: NotificationTopic, policy: dict[str, object]) -> None:
        changed = {**topic.attributes, "Policy": json.dumps(policy)}
        await self._notifications.put_topic(replace(topic, attributes=changed))


def _tags(call: Call) -> dict[str, str]:
    return {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in structures(call.parameters, "Tags")}


def _policy(topic: NotificationTopic) -> tuple[dict[str, object], list[object]]:
    text = topic.attributes.get("Policy", "")
    policy: dict[str, object] = json.loads(text) if text else {"Version": "2008-10-17"}
    statements = policy.get("Statement", [])
    return policy, statements if isinstance(statements, list) else [statements]


def _document(name: str, text: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid_parameter(f"{name}: failed to parse JSON")
    return document
