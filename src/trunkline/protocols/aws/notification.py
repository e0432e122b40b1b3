"""A notification: what was published to a topic, and how each subscriber sees it.

Wrapped, it is a JSON document with the message in it; raw, it is the message, and its attributes are those of the SQS message or
are left out. With `MessageStructure=json` each protocol may have a text of its own, and `default` is for the others. There is no
certificate to sign with, so `Signature` is empty; who checks signatures must leave that out here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from trunkline.broker.state.notifications import Subscription
from trunkline.protocols.aws.filter_policy import attribute_fields, body_fields
from trunkline.protocols.aws.message_attributes import MessageAttribute

_UNREAD: Final = object()


@dataclass(slots=True)
class Notification:
    id: str
    topic_arn: str
    text: str  # of those protocols that have no text of their own
    texts: dict[str, str] = field(default_factory=dict)
    subject: str | None = None
    attributes: list[MessageAttribute] = field(default_factory=list)
    group: str | None = None
    deduplication_id: str | None = None
    sequence: str | None = None
    sent_ms: int = 0
    base_url: str = ""  # where this broker is found
    _body_fields: object = _UNREAD
    _attribute_fields: dict[str, object] | None = None

    def text_for(self, protocol: str) -> str:
        return self.texts.get(protocol, self.text)

    def attribute_fields(self) -> dict[str, object]:
        if self._attribute_fields is None:
            self._attribute_fields = attribute_fields(self.attributes)
        return self._attribute_fields

    def body_fields(self) -> dict[str, object] | None:
        if self._body_fields is _UNREAD:
            self._body_fields = body_fields(self.text)
        return self._body_fields if isinstance(self._body_fields, dict) else None

    def wrapped(self, subscription: Subscription) -> str:
        document: dict[str, object] = {"Type": "Notification", "MessageId": self.id}
        if self.sequence is not None:
            document["SequenceNumber"] = self.sequence
        document["TopicArn"] = self.topic_arn
        if self.subject is not None:
            document["Subject"] = self.subject
        document["Message"] = self.text_for(subscription.protocol)
        document["Timestamp"] = timestamp(self.sent_ms)
        document["SignatureVersion"] = "1"
        document["Signature"] = ""
        document["SigningCertURL"] = ""
        document["UnsubscribeURL"] = (
            f"{self.base_url}/?Action=Unsubscribe&Version=2010-03-31&SubscriptionArn={subscription.arn}"
        )
        if self.attributes:
            document["MessageAttributes"] = {each.name: _told(each) for each in self.attributes}
        return json.dumps(document, ensure_ascii=False)


def _told(attribute: MessageAttribute) -> dict[str, object]:
    shown = attribute.shown()
    return {"Type": attribute.data_type, "Value": shown.get("StringValue", shown.get("BinaryValue"))}


def timestamp(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{wall_ms % 1000:03d}Z"


def confirmation(subscription: Subscription, id: str, base_url: str, sent_ms: int, topic_arn: str) -> str:
    """What an HTTP endpoint is sent before anything else: it visits the URL, or confirms with the token."""
    visit = f"{base_url}/?Action=ConfirmSubscription&Version=2010-03-31&TopicArn={topic_arn}&Token={subscription.token}"
    return json.dumps(
        {
            "Type": "SubscriptionConfirmation",
            "MessageId": id,
            "Token": subscription.token,
            "TopicArn": topic_arn,
            "Message": f"You have chosen to subscribe to the topic {topic_arn}.\nTo confirm the subscription, visit the SubscribeURL included in this message.",
            "SubscribeURL": visit,
            "Timestamp": timestamp(sent_ms),
            "SignatureVersion": "1",
            "Signature": "",
            "SigningCertURL": "",
        }
    )  # fmt: skip
