"""Routes: which sessions a topic name reaches, and how; which log partition and which queues of AMQP.

A route is worked out once per topic name and kept until a subscription of a connected session changes (`Routes`), so
that routing a publication is one dictionary look-up, whatever the number of subscriptions. Working it out asks the topic
tree and then merges (see `sessions.subscription`). A target has a second form, for what it publishes itself.

Only sessions with a connection are in the tree; the others find their messages in the log when they return. Shared
subscriptions are there through their group.
"""

from __future__ import annotations

from trunkline.broker.access import AccessControl
from trunkline.broker.messaging.mapping import Mapped, Mapping
from trunkline.broker.messaging.queue import Queue
from trunkline.protocols.mqtt.errors import NOT_AUTHORIZED, TOPIC_NAME_INVALID
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.sessions.subscription import SharedAmong, Subscriber, Subscription, Target, deliveries
from trunkline.protocols.mqtt.source import Source
from trunkline.routing.dialect import MQTT
from trunkline.routing.topic_tree import TopicTree

SYS_TOPIC = "$SYS"
MAX_ROUTES = 65_536


class Route:
    """Where the messages of one topic name go."""

    __slots__ = ("groups", "key", "knows_publishers", "mapped", "named", "queues", "queues_version", "refusal", "source", "targets", "topic")  # fmt: skip

    def __init__(
        self,
        topic: str,
        mapped: Mapped | None,
        targets: tuple[Target, ...],
        groups: tuple[SharedAmong, ...],
        refusal: int = 0,
    ) -> None:
        self.topic = topic
        self.refusal = refusal  # why a client may not publish to it; 0 if it may
        self.mapped = mapped
        name = topic.encode()
        self.key = mapped.key if mapped is not None else name
        self.named = self.key == name  # whether the record's key is the topic name
        self.queues: tuple[Queue, ...] = ()  # of AMQP, as of this version of their routes
        self.queues_version = -1
        self.source: Source | None = None  # filled in once the log topic is known to exist
        self.targets = targets
        self.groups = groups
        # Whether it matters to some target who has published.
        self.knows_publishers = any(target.local is not target.delivery or target.chosen_by for target in targets)


class Routes:
    def __init__(self, mapping: Mapping, limits: MqttLimits, control: AccessControl) -> None:
        self.mapping = mapping
        self._control = control
        self._limits = limits
        self._tree: TopicTree[Subscription | SharedAmong] = TopicTree(MQTT)
        self.known: dict[str, Route] = {}  # read directly by the hot path

    def __len__(self) -> int:
        return len(self._tree)

    def add(self, topic_filter: str, value: Subscription | SharedAmong) -> None:
        self._tree.add(topic_filter, value)
        self.known.clear()

    def remove(self, topic_filter: str, value: Subscription | SharedAmong) -> None:
        self._tree.remove(topic_filter, value)
        self.known.clear()

    def route(self, topic: str) -> Route:
        found = self.known.get(topic)
        if found is not None:
            return found
        by_session: dict[Subscriber, list[Subscription]] = {}
        groups: list[SharedAmong] = []
        for value in self._tree.match(topic):
            if isinstance(value, Subscription):
                by_session.setdefault(value.session, []).append(value)
            else:
                groups.append(value)
        unguarded = self._control.open
        targets = tuple(
            Target(session, *deliveries(matched), matched if any(each.content for each in matched) else None)
            for session, matched in by_session.items()
            if unguarded or session.may_get(topic)
        )
        route = Route(topic, self.mapping.resolve(topic), targets, tuple(groups), self.refusal(topic))
        if len(self.known) >= MAX_ROUTES:
            self.known.clear()
        self.known[topic] = route
        return route

    def log_topic(self, topic: str) -> str | None:
        """Where publications of this topic are stored; None if they are not."""
        found = self.known.get(topic)
        mapped = self.mapping.resolve(topic) if found is None else found.mapped
        return None if mapped is None else mapped.topic

    def refusal(self, topic: str) -> int:
        """Why a client may not publish to this topic; 0 if it may."""
        if topic == SYS_TOPIC or topic.startswith(SYS_TOPIC + "/"):
            return NOT_AUTHORIZED
        limits = self._limits
        if topic.count("/") >= limits.max_topic_levels or len(topic.encode()) > limits.max_topic_bytes:
            return TOPIC_NAME_INVALID
        return 0
