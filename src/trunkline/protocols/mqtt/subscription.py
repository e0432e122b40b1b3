"""Subscriptions, and the routes that follow from them: which sessions a topic name reaches, and how.

A route is worked out once per topic name and kept until a subscription of a connected session changes (`Routes`), so
that routing a publication is one dictionary look-up, whatever the number of subscriptions. Working it out asks the topic
tree and then merges: a session that several of its filters match gets one copy, at the highest QoS among them, with
all their identifiers [MQTT-3.3.4-2, MQTT-3.3.4-3]. A subscription with No Local does not count for what its own client
publishes; a target therefore has a second form, without those, for that one publisher.

Only sessions with a connection are in the tree; the others find their messages in the log when they return. Shared
subscriptions are there through their group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trunkline.broker.messaging.mapping import Mapped, Mapping, filter_matches
from trunkline.protocols.mqtt.errors import NOT_AUTHORIZED, TOPIC_NAME_INVALID
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.routing.dialect import MQTT
from trunkline.routing.topic_tree import TopicTree

if TYPE_CHECKING:
    from trunkline.broker.messaging.queue import Queue
    from trunkline.protocols.mqtt.share_group import ShareGroup
    from trunkline.protocols.mqtt.source import Source
    from trunkline.protocols.mqtt.state import SessionState

SHARE_PREFIX = "$share/"
SYS_TOPIC = "$SYS"
MAX_ROUTES = 65_536


class Subscription:
    """One filter of one session. `filter` is without the `$share/<name>/` of a shared one; `name` is as given."""

    __slots__ = ("filter", "group", "identifier", "levels", "name", "no_local", "qos", "retain_as_published", "retain_handling", "since", "state")  # fmt: skip

    def __init__(
        self,
        state: SessionState,
        name: str,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None:
        self.state = state
        self.name = name
        self.group, self.filter = split_shared(name)
        self.levels = tuple(self.filter.split("/"))
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifier = identifier
        # Where the log's partitions ended when a session that was still behind subscribed: what is older is not meant.
        self.since: dict[str, int] | None = None


def split_shared(name: str) -> tuple[str | None, str]:
    """The share name, if there is one, and the filter."""
    if not name.startswith(SHARE_PREFIX):
        return None, name
    group, separator, topic_filter = name[len(SHARE_PREFIX) :].partition("/")
    if not separator or not group or not topic_filter or "+" in group or "#" in group:
        raise ValueError(f"{name!r} is not $share/<name>/<filter>")
    return group, topic_filter


class Delivery(NamedTuple):
    """How a session gets the messages of a topic."""

    qos: int
    retain_as_published: bool = False
    identifiers: tuple[int, ...] = ()


class Target:
    """A session that a topic reaches. `local` is how, if it is the publisher itself; None: not at all."""

    __slots__ = ("delivery", "local", "state")

    def __init__(self, state: SessionState, delivery: Delivery, local: Delivery | None) -> None:
        self.state = state
        self.delivery = delivery
        self.local = local


class Route:
    """Where the messages of one topic name go."""

    __slots__ = ("groups", "key", "knows_publishers", "mapped", "named", "queues", "queues_version", "refusal", "source", "targets", "topic")  # fmt: skip

    def __init__(
        self,
        topic: str,
        mapped: Mapped | None,
        targets: tuple[Target, ...],
        groups: tuple[ShareGroup, ...],
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
        self.knows_publishers = any(target.local is not target.delivery for target in targets)


def merge(subscriptions: list[Subscription]) -> Delivery:
    if len(subscriptions) == 1:
        only = subscriptions[0]
        return Delivery(only.qos, only.retain_as_published, (only.identifier,) if only.identifier else ())
    return Delivery(
        max(each.qos for each in subscriptions),
        any(each.retain_as_published for each in subscriptions),
        tuple(dict.fromkeys(each.identifier for each in subscriptions if each.identifier)),
    )


def deliveries(subscriptions: list[Subscription]) -> tuple[Delivery, Delivery | None]:
    """How the session gets what others publish, and what it publishes itself."""
    delivery = merge(subscriptions)
    if not any(each.no_local for each in subscriptions):
        return delivery, delivery
    others = [each for each in subscriptions if not each.no_local]
    return delivery, merge(others) if others else None


class Routes:
    def __init__(self, mapping: Mapping, limits: MqttLimits) -> None:
        self.mapping = mapping
        self._limits = limits
        self._tree: TopicTree[Subscription | ShareGroup] = TopicTree(MQTT)
        self.known: dict[str, Route] = {}  # read directly by the hot path

    def __len__(self) -> int:
        return len(self._tree)

    def add(self, topic_filter: str, value: Subscription | ShareGroup) -> None:
        self._tree.add(topic_filter, value)
        self.known.clear()

    def remove(self, topic_filter: str, value: Subscription | ShareGroup) -> None:
        self._tree.remove(topic_filter, value)
        self.known.clear()

    def route(self, topic: str) -> Route:
        found = self.known.get(topic)
        if found is not None:
            return found
        by_state: dict[SessionState, list[Subscription]] = {}
        groups: list[ShareGroup] = []
        for value in self._tree.match(topic):
            if isinstance(value, Subscription):
                by_state.setdefault(value.state, []).append(value)
            else:
                groups.append(value)
        targets = tuple(Target(state, *deliveries(matched)) for state, matched in by_state.items())
        route = Route(topic, self.mapping.resolve(topic), targets, tuple(groups), self.refusal(topic))
        if len(self.known) >= MAX_ROUTES:
            self.known.clear()
        self.known[topic] = route
        return route

    def refusal(self, topic: str) -> int:
        """Why a client may not publish to this topic; 0 if it may."""
        if topic == SYS_TOPIC or topic.startswith(SYS_TOPIC + "/"):
            return NOT_AUTHORIZED
        limits = self._limits
        if topic.count("/") >= limits.max_topic_levels or len(topic.encode()) > limits.max_topic_bytes:
            return TOPIC_NAME_INVALID
        return 0


def matching(subscriptions: list[Subscription], topic: str) -> list[Subscription]:
    """Those whose filter matches the name; for a session that reads the log alone. O(subscriptions)."""
    levels = topic.split("/")
    return [each for each in subscriptions if filter_matches(each.levels, levels)]
