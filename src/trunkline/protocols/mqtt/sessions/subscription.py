"""Subscriptions: one filter of one session each, and how a session that several of them match gets its messages.

A session that several of its filters match gets one copy, at the highest QoS among them, with all their identifiers
[MQTT-3.3.4-2, MQTT-3.3.4-3]. A subscription with No Local does not count for what its own client publishes.

Our own, in user properties of SUBSCRIBE: `filter` is a condition on what a message says (see `content`), `expiry` so many seconds
after which the subscription goes by itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from trunkline.broker.messaging.mapping import filter_matches
from trunkline.protocols.mqtt.content import fields_of
from trunkline.protocols.mqtt.message import Message
from trunkline.protocols.mqtt.run import Run
from trunkline.routing.filter import Filter

SHARE_PREFIX = "$share/"


class Delivery(NamedTuple):
    """How a session gets the messages of a topic."""

    qos: int
    retain_as_published: bool = False
    identifiers: tuple[int, ...] = ()


class Subscriber(Protocol):
    """A session, as the routes know it."""

    def deliver(self, run: Run, target: Target) -> None:
        """Take a run of messages of one topic, as they are published."""

    def may_get(self, topic: str) -> bool:
        """Whether its client may be given messages of this topic."""


class SharedAmong(Hashable, Protocol):
    """A group of sessions, as the routes know it."""

    def deliver(self, run: Run) -> None: ...


class Target:
    """A session that a topic reaches. `local` is how, if it is the publisher itself; None: not at all."""

    __slots__ = ("chosen_by", "delivery", "local", "session")

    def __init__(
        self,
        session: Subscriber,
        delivery: Delivery,
        local: Delivery | None,
        chosen_by: list[Subscription] | None = None,
    ) -> None:
        self.session = session
        self.delivery = delivery
        self.local = local
        self.chosen_by = chosen_by  # its subscriptions, if what messages say decides which of them match


class Subscription:
    """One filter of one session. `filter` is without the `$share/<name>/` of a shared one; `name` is as given."""

    __slots__ = ("content", "expires_ms", "filter", "group", "identifier", "levels", "name", "no_local", "qos", "retain_as_published", "retain_handling", "session", "since")  # fmt: skip

    def __init__(
        self,
        session: Subscriber,
        name: str,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None:
        self.session = session
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
        self.content: Filter | None = None
        self.expires_ms: int | None = None  # on the wall clock


def split_shared(name: str) -> tuple[str | None, str]:
    """The share name, if there is one, and the filter."""
    if not name.startswith(SHARE_PREFIX):
        return None, name
    group, separator, topic_filter = name[len(SHARE_PREFIX) :].partition("/")
    if not separator or not group or not topic_filter or "+" in group or "#" in group:
        raise ValueError(f"{name!r} is not $share/<name>/<filter>")
    return group, topic_filter


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


def matching(subscriptions: list[Subscription], topic: str) -> list[Subscription]:
    """Those whose filter matches the name; for a session that reads the log alone. O(subscriptions)."""
    levels = topic.split("/")
    return [each for each in subscriptions if filter_matches(each.levels, levels)]


def chosen(subscriptions: list[Subscription], message: Message, client_id: str) -> Delivery | None:
    """How a session gets a message by those of these subscriptions whose condition it meets; None: not at all."""
    own = message.publisher == client_id
    fields = fields_of(message)
    found = [
        each
        for each in subscriptions
        if not (own and each.no_local) and (each.content is None or each.content.matches(fields))
    ]
    return merge(found) if found else None
