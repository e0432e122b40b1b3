"""Which topics are queues', and what the topic of a queue is called.

The topic of queue `q` is `q` in the virtual host "/" and `<vhost>.q` in others, so that Kafka clients find it. A name that is no
legal topic name, begins as the broker's own do, or is taken becomes the legal part of it, a dot and twelve hex digits of a
SHA-256 (`topic_name`). In "/" a queue may be declared on a topic that exists and is no other queue's: its records are the
queue's messages then, and deleting the queue leaves the topic (`adopted`).

A topic is one queue's, of whichever virtual host: what names a queue is its virtual host and its name, never its topic.

A queue has one order, and so one partition. A topic with several is refused, and a queue's topic is given no more (`growing`).
Where that has happened nevertheless, the queue is its partition 0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Protocol

from trunkline.broker import guard
from trunkline.broker.guard import Operation, TopicForbidden
from trunkline.broker.messaging import refusals
from trunkline.cursors.queue.limits import EPHEMERAL_TOPIC_CONFIG, QUEUE_TOPIC_CONFIG, RETAINED_TOPIC_CONFIG
from trunkline.log.errors import InvalidPartitionCount, InvalidTopicName, UnknownTopicOrPartition
from trunkline.log.names import MAX_TOPIC_NAME_LENGTH, check_topic_name
from trunkline.log.store import LogStore, TopicInfo
from trunkline.security.users import DEFAULT_VHOST

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")
_DIGEST_DIGITS = 12
_RESERVED_PREFIX = "__"


class TopicFollower(Protocol):
    """Who must know that topics came or went: the consumer groups."""

    def topics_changed(self) -> None: ...

    def topic_deleted(self, topic: str) -> Awaitable[None]: ...


class QueueTopics:
    def __init__(self, store: LogStore, followers: TopicFollower) -> None:
        self._store = store
        self._followers = followers
        self._claimed: set[str] = set()  # also those of queues that are being declared or could not be opened
        self._growing: set[str] = set()

    # -- whose a topic is ------------------------------------------------------------------------------------------

    def owns(self, topic: str) -> bool:
        """Whether a topic is a queue's, also of one that is being declared or could not be opened."""
        return topic in self._claimed

    def claim(self, topic: str) -> None:
        self._claimed.add(topic)

    def release(self, topic: str) -> None:
        self._claimed.discard(topic)

    def may_adopt(self, vhost: str, name: str) -> bool:
        """Whether there is a topic of that name, nobody's yet, for a queue of that name to be declared on."""
        return _leads_to_itself(vhost, name) and self._store.topic(name) is not None and not self.owns(name)

    def choose(self, vhost: str, name: str, *, ephemeral: bool) -> str:
        """A topic that is there, if the queue may be declared on it; else a name that nothing has."""
        if self.may_adopt(vhost, name):
            return name
        names = (topic_name(vhost, name, attempt) for attempt in count())
        return next(topic for topic in names if self._is_free(topic, ephemeral=ephemeral))

    def _is_free(self, topic: str, *, ephemeral: bool) -> bool:
        if self._store.topic(topic) is not None or self.owns(topic):
            return False
        may_collide = ephemeral and self._store.ephemeral_topics is not None
        return may_collide or self._store.colliding_topic(topic) is None

    # -- partitions --------------------------------------------------------------------------------------------------

    def check(self, info: TopicInfo) -> None:
        """Refused unless a queue can be declared on this topic. Whether it is another's already, `owns` says."""
        check_not_reserved(info.name)
        if info.name in self._growing:
            raise refusals.precondition(f"topic {info.name!r} is being given more partitions; a queue has one")
        if info.partitions != 1:
            raise refusals.precondition(
                f"topic {info.name!r} has {info.partitions} partitions; a queue has one order, and so one partition"
            )

    def check_growth(self, topic: str) -> None:
        """Raise unless the topic may be given more partitions: not while it is a queue's."""
        if self.owns(topic):
            raise InvalidPartitionCount(
                f"topic {topic!r} is worked off as a queue, which has one order, and so one partition"
            )

    @contextmanager
    def growing(self, topic: str) -> Iterator[None]:
        """While a topic is given more partitions, no queue is declared on it."""
        self.check_growth(topic)
        self._growing.add(topic)
        try:
            yield
        finally:
            self._growing.discard(topic)

    # -- making and deleting -------------------------------------------------------------------------------------------

    async def create(
        self, topic: str, *, ephemeral: bool, retain: bool, config: Mapping[str, str] | None = None
    ) -> TopicInfo:
        """`config` instead of the settings that topics of queues have."""
        kept = RETAINED_TOPIC_CONFIG if retain else QUEUE_TOPIC_CONFIG
        config = config or (EPHEMERAL_TOPIC_CONFIG if ephemeral else kept)
        # Where there are none an ordinary topic does: it goes with its queue, but what a crash leaves of it stays a topic.
        able = self._store.ephemeral_topics if ephemeral else None
        if able is None:
            info = await self._store.create_topic(topic, 1, config)
        else:
            info = await able.create_ephemeral_topic(topic, 1, config)
        self._followers.topics_changed()
        return info

    async def delete(self, topic: str) -> None:
        if self._store.topic(topic) is None:
            return
        try:
            await self._store.delete_topic(topic)
        except UnknownTopicOrPartition:
            pass  # a Kafka client was quicker
        await self._followers.topic_deleted(topic)
        self._followers.topics_changed()


def check_not_reserved(topic: str) -> None:
    try:
        guard.check(Operation.OPEN_AS_QUEUE, topic)
    except TopicForbidden as forbidden:
        raise refusals.access_refused(str(forbidden)) from None


def topic_name(vhost: str, name: str, attempt: int = 0) -> str:
    """The topic of a queue: its name where that is legal, else what is legal of it and a hash.

    Anybody can make a topic of any such name: each further `attempt` gives another.
    """
    plain = name if vhost == DEFAULT_VHOST else f"{vhost}.{name}"
    if attempt == 0 and not plain.startswith(_RESERVED_PREFIX):
        try:
            check_topic_name(plain)
        except InvalidTopicName:
            pass
        else:
            return plain
    salt = f"\0{attempt}" if attempt > 1 else ""
    digest = hashlib.sha256(f"{vhost}\0{name}{salt}".encode()).hexdigest()[:_DIGEST_DIGITS]
    legal = _ILLEGAL.sub("-", plain).lstrip("_")[: MAX_TOPIC_NAME_LENGTH - _DIGEST_DIGITS - 1]
    return f"{legal}.{digest}"


def _leads_to_itself(vhost: str, name: str) -> bool:
    return vhost == DEFAULT_VHOST and topic_name(vhost, name) == name
