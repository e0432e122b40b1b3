"""Topics that notify, and their subscriptions, as records of `__topology`.

    notification-topic:<name>         {"arn", "attributes", "tags", "created"}
    notification-subscription:<arn>   {"topic", "protocol", "endpoint", "attributes", "token", "owner"}

A tombstone removes. As with the rest of the topology, a change is made in memory first and recorded in the same step; what it
returns is done when the record is on disk. Subscriptions go with their topic. A record that cannot be read is passed over and
told of.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trunkline.clock import Clock
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Ticket

logger = logging.getLogger(__name__)

_TOPIC: Final = "notification-topic:"
_SUBSCRIPTION: Final = "notification-subscription:"


@dataclass(frozen=True, slots=True)
class Subscription:
    arn: str
    topic: str
    protocol: str
    endpoint: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    token: str = ""  # until it is confirmed: what confirms it
    owner: str = ""


@dataclass(frozen=True, slots=True)
class NotificationTopic:
    name: str
    arn: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    created_s: int = 0


class Notifications:
    def __init__(self, store: LogStore, clock: Clock) -> None:
        self._state = StateTopic(store, clock, TOPOLOGY_TOPIC)
        self.topics: dict[str, NotificationTopic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.by_topic: dict[str, dict[str, Subscription]] = {}

    async def start(self) -> None:
        """Fold the records."""
        subscriptions: list[Subscription] = []
        for key, value in (await self._state.latest()).items():
            text = key.decode("utf-8", "replace")
            try:
                if text.startswith(_TOPIC):
                    topic = _read_topic(text.removeprefix(_TOPIC), json.loads(value))
                    self.topics[topic.name] = topic
                elif text.startswith(_SUBSCRIPTION):
                    subscriptions.append(_read_subscription(text.removeprefix(_SUBSCRIPTION), json.loads(value)))
            except (ValueError, KeyError, TypeError) as error:
                logger.error("the record %s is passed over: %s", text[:300], error)
        for subscription in subscriptions:
            if subscription.topic in self.topics:
                self._keep(subscription)

    def of_topic(self, name: str) -> list[Subscription]:
        return list(self.by_topic.get(name, {}).values())

    def put_topic(self, topic: NotificationTopic) -> Ticket:
        self.topics[topic.name] = topic
        document = {
            "arn": topic.arn,
            "attributes": dict(topic.attributes),
            "tags": dict(topic.tags),
            "created": topic.created_s,
        }
        return self._record({_TOPIC + topic.name: document})

    def remove_topic(self, name: str) -> Ticket:
        """With its subscriptions."""
        self.topics.pop(name, None)
        gone = self.by_topic.pop(name, {})
        for arn in gone:
            del self.subscriptions[arn]
        return self._record({_TOPIC + name: None, **{_SUBSCRIPTION + arn: None for arn in gone}})

    def put_subscription(self, subscription: Subscription) -> Ticket:
        self._keep(subscription)
        document = {
            "topic": subscription.topic,
            "protocol": subscription.protocol,
            "endpoint": subscription.endpoint,
            "attributes": dict(subscription.attributes),
            "token": subscription.token,
            "owner": subscription.owner,
        }
        return self._record({_SUBSCRIPTION + subscription.arn: document})

    def remove_subscription(self, arn: str) -> Ticket | None:
        found = self.subscriptions.pop(arn, None)
        if found is None:
            return None
        del self.by_topic[found.topic][arn]
        return self._record({_SUBSCRIPTION + arn: None})

    def _keep(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.arn] = subscription
        self.by_topic.setdefault(subscription.topic, {})[subscription.arn] = subscription

    def _record(self, changes: Mapping[str, Mapping[str, object] | None]) -> Ticket:
        records = [
            state_record(key.encode(), None if value is None else json.dumps(value, separators=(",", ":")).encode())
            for key, value in changes.items()
        ]
        return self._state.put(records, Durability.DISK)


def _read_topic(name: str, document: dict[str, object]) -> NotificationTopic:
    created = document.get("created")
    return NotificationTopic(
        name,
        str(document["arn"]),
        _texts(document.get("attributes")),
        _texts(document.get("tags")),
        created if isinstance(created, int) else 0,
    )


def _read_subscription(arn: str, document: dict[str, object]) -> Subscription:
    return Subscription(
        arn,
        str(document["topic"]),
        str(document["protocol"]),
        str(document["endpoint"]),
        _texts(document.get("attributes")),
        str(document.get("token", "")),
        str(document.get("owner", "")),
    )


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}
