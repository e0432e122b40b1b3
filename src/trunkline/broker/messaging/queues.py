"""The broker's queues: which there are, on which topics, and their cursors.

A durable queue is a record of `__topology` with key `queue:<vhost> NUL <name>` and, as value, JSON {"vhost", "name", "topic",
"adopted", "auto_delete", "settings", "arguments"}; a tombstone deletes it. The queue's record is written before its topic's and
both are on disk when `declare` returns. A crash in between leaves a queue without a topic, and the next start makes it.

A queue that is not durable, or is exclusive to an owner, has no record; its topic is ephemeral.

The topic of queue `q` is `q` in the virtual host "/" and `<vhost>.q` in others, so that Kafka clients find it. A name that is no
legal topic name, begins as the broker's own do, or is taken becomes the legal part of it, a dot and twelve hex digits of a
SHA-256 (`topic_name`). In "/" a queue may be declared on a topic that exists and is no other queue's: its records are the
queue's messages then, and deleting the queue leaves the topic (`adopted`).

A topic is one queue's, of whichever virtual host: what names a queue is its virtual host and its name, never its topic.

A queue has one order, and so one partition. A topic with several is refused, and a queue's topic is given no more (`growing`).
Where that has happened nevertheless, the queue is its partition 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from trunkline.broker import guard
from trunkline.broker.guard import Operation
from trunkline.broker.latest_values import latest_values
from trunkline.clock import Clock
from trunkline.cursors.queue import (
    QueueCursor,
    QueueError,
    QueueInUse,
    QueueLimits,
    QueueLocked,
    QueueNotEmpty,
    QueueRuntime,
    QueueSettings,
    QueueTopicRefused,
    RestoredQueue,
    TooManyQueues,
    UnknownQueue,
    restore_queues,
)
from trunkline.cursors.queue.limits import EPHEMERAL_TOPIC_CONFIG, QUEUE_TOPIC_CONFIG, RETAINED_TOPIC_CONFIG
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import (
    InvalidPartitionCount,
    InvalidTopicName,
    LogError,
    TopicExists,
    UnknownTopicOrPartition,
)
from trunkline.log.names import MAX_TOPIC_NAME_LENGTH, check_topic_name
from trunkline.log.store import Durability, LogStore, TopicInfo, TopicPartition
from trunkline.log.ticket import Appended

logger = logging.getLogger(__name__)

TOPOLOGY = TopicPartition("__topology", 0)
DEFAULT_VHOST = "/"
_KEY_PREFIX = b"queue:"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")
_DIGEST_DIGITS = 12
_RESERVED_PREFIX = "__"

Arguments = Mapping[str, object]


@dataclass(slots=True, eq=False)
class DeclaredQueue:
    vhost: str
    name: str
    topic: str
    cursor: QueueCursor
    durable: bool
    auto_delete: bool
    exclusive_owner: object | None
    adopted: bool  # the topic was there before the queue, and stays after it
    arguments: Arguments = field(default_factory=dict)  # the protocol's own, as JSON values

    @property
    def settings(self) -> QueueSettings:
        return self.cursor.settings


class _Description(NamedTuple):
    """What the record of a queue says."""

    vhost: str
    name: str
    topic: str
    adopted: bool
    auto_delete: bool
    settings: QueueSettings
    arguments: Arguments


class Queues:
    def __init__(self, store: LogStore, clock: Clock, limits: QueueLimits | None = None) -> None:
        self._store = store
        self._clock = clock
        self.runtime = QueueRuntime(store, clock, limits)
        self.runtime.on_unused = self._on_unused
        self.runtime.on_gone = self._on_gone
        self.runtime.on_expired = self._on_expired
        # Called for each queue that went, for whatever reason, after its consumers were told.
        self.on_deleted: Callable[[DeclaredQueue], None] | None = None
        self.on_topics_changed: Callable[[], None] | None = None
        self.on_topic_deleted: Callable[[str], Awaitable[None]] | None = None
        self._queues: dict[tuple[str, str], DeclaredQueue] = {}
        self._by_cursor: dict[QueueCursor, DeclaredQueue] = {}
        self._by_topic: dict[str, DeclaredQueue] = {}
        self._declaring: dict[tuple[str, str], asyncio.Lock] = {}
        self._unserved: dict[tuple[str, str], _Description] = {}  # recorded, but could not be opened at the start
        self._making: set[str] = set()  # topics of queues that are being declared
        self._growing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Rebuild every durable queue from the log. Reads state, not messages."""
        await self.runtime.journal.open()
        descriptions = await self._fold_topology()
        restored = await restore_queues(self.runtime.journal)
        for description in descriptions:
            try:
                await self._reopen(description, restored.get(description.topic))
            except (LogError, QueueError) as error:
                logger.error("queue %s of vhost %s is not served: %s", description.name, description.vhost, error)
                self._unserved[description.vhost, description.name] = description
            restored.pop(description.topic, None)
        leftover = [record for queue_id, queue in restored.items() for record in queue.keys(queue_id)]
        if leftover:
            self.runtime.journal.write(leftover, Durability.OS)
        self._spawn(self._warm, "warm queues")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.close()
        for queue in self._queues.values():
            queue.cursor.close()

    async def _fold_topology(self) -> list[_Description]:
        descriptions: list[_Description] = []
        for key, value in (await latest_values(self._store, TOPOLOGY)).items():
            if not key.startswith(_KEY_PREFIX):
                continue
            try:
                descriptions.append(_decode(value))
            except ValueError as error:
                logger.error("the record %r of a queue is passed over: %s", key, error)
        return descriptions

    async def _reopen(self, description: _Description, restored: RestoredQueue | None) -> None:
        info = self._store.topic(description.topic)
        if info is None:
            if description.adopted:
                logger.warning("queue %s is gone: its topic was deleted", description.name)
                self._write_record(description.vhost, description.name, None)
                return
            config = RETAINED_TOPIC_CONFIG if description.settings.retain else QUEUE_TOPIC_CONFIG
            info = await self._store.create_topic(description.topic, 1, config)
        guard.check(Operation.OPEN_AS_QUEUE, info.name)
        if info.partitions != 1:
            logger.error(
                "queue %s of vhost %s serves partition 0 of topic %s only: what is written to its other %d is not delivered",
                description.name,
                description.vhost,
                info.name,
                info.partitions - 1,
            )
        self._add(description, info, durable=True, owner=None, restored=restored)

    async def _warm(self) -> None:
        """Look at the front of each queue once, so that what expired meanwhile is dealt with though nobody consumes."""
        for queue in list(self._queues.values()):
            if self.runtime.held_bytes > self.runtime.limits.total_buffer_bytes // 2:
                return
            if queue.cursor.ready and not queue.cursor.gone:
                await queue.cursor.load()
            await asyncio.sleep(0)

    # -- what there is -----------------------------------------------------------------------------------------------

    def get(self, name: str, vhost: str = DEFAULT_VHOST) -> DeclaredQueue | None:
        return self._queues.get((vhost, name))

    def require(self, name: str, vhost: str = DEFAULT_VHOST) -> DeclaredQueue:
        queue = self._queues.get((vhost, name))
        if queue is None:
            raise UnknownQueue(f"no queue {name!r} in vhost {vhost!r}")
        return queue

    def of_cursor(self, cursor: QueueCursor) -> DeclaredQueue | None:
        return self._by_cursor.get(cursor)

    def owns(self, topic: str) -> bool:
        """Whether a topic is a queue's, also of one that is being declared or could not be opened."""
        return (
            topic in self._by_topic
            or topic in self._making
            or any(description.topic == topic for description in self._unserved.values())
        )

    def list(self, vhost: str | None = None) -> list[DeclaredQueue]:
        return [queue for queue in self._queues.values() if vhost is None or queue.vhost == vhost]

    def __iter__(self) -> Iterator[DeclaredQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    # -- declare -----------------------------------------------------------------------------------------------------

    async def declare(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        vhost: str = DEFAULT_VHOST,
        durable: bool = True,
        exclusive_owner: object | None = None,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> DeclaredQueue:
        """The queue of that name, made if it is not there. Whether an existing one is what was asked for, the caller says."""
        place = (vhost, name)
        found = self._queues.get(place)
        if found is None:
            lock = self._declaring.setdefault(place, asyncio.Lock())
            try:
                async with lock:
                    found = self._queues.get(place)
                    if found is None:
                        kept = durable and exclusive_owner is None
                        description = _Description(
                            vhost, name, "", False, auto_delete, settings or QueueSettings(), dict(arguments or {})
                        )
                        return await self._create(description, kept, exclusive_owner)
            finally:
                if not lock.locked():
                    self._declaring.pop(place, None)
        if found.exclusive_owner is not None and found.exclusive_owner is not exclusive_owner:
            raise QueueLocked(f"queue {name!r} in vhost {vhost!r} is exclusive to another connection")
        found.cursor.touch()
        return found

    async def _create(self, wish: _Description, durable: bool, owner: object | None) -> DeclaredQueue:
        if len(self._queues) >= self.runtime.limits.max_queues:
            raise TooManyQueues(f"there are {len(self._queues)} queues already, the most that the broker takes")
        place = (wish.vhost, wish.name)
        left = self._unserved.get(place)
        while True:
            topic = self._choose_topic(*place, ephemeral=not durable) if left is None else left.topic
            self._making.add(topic)
            try:
                queue = await self._create_on(topic, wish, left, durable=durable, owner=owner)
                self._unserved.pop(place, None)
                return queue
            except TopicExists:
                continue  # a Kafka client was quicker: choose again
            finally:
                self._making.discard(topic)

    async def _create_on(
        self, topic: str, wish: _Description, left: _Description | None, *, durable: bool, owner: object | None
    ) -> DeclaredQueue:
        info = self._store.topic(topic)
        adopted = info is not None if left is None else left.adopted
        if info is not None:
            self.check_topic(info)
            durable = durable or not info.ephemeral
        description = _Description(
            wish.vhost, wish.name, topic, adopted, wish.auto_delete, wish.settings, wish.arguments
        )
        recorded: asyncio.Future[Appended] | None = None
        if durable and owner is None:
            recorded = self._write_record(wish.vhost, wish.name, description)
        if info is None:
            info = await self._create_topic(topic, wish.settings, ephemeral=not durable)
        if recorded is not None:
            await recorded
        return self._add(description, info, durable=durable and owner is None, owner=owner, restored=None)

    async def _create_topic(self, topic: str, settings: QueueSettings, *, ephemeral: bool) -> TopicInfo:
        if ephemeral:
            config = EPHEMERAL_TOPIC_CONFIG
        else:
            config = RETAINED_TOPIC_CONFIG if settings.retain else QUEUE_TOPIC_CONFIG
        info = await self._store.create_topic(topic, 1, config, ephemeral=ephemeral)
        if self.on_topics_changed is not None:
            self.on_topics_changed()
        return info

    def _choose_topic(self, vhost: str, name: str, *, ephemeral: bool) -> str:
        """A topic that is there, if the queue may be declared on it; else a name that nothing has."""
        if may_adopt(vhost, name) and self._store.topic(name) is not None and not self.owns(name):
            return name
        names = (topic_name(vhost, name, attempt) for attempt in count())
        return next(topic for topic in names if self._is_free(topic, ephemeral=ephemeral))

    def _is_free(self, topic: str, *, ephemeral: bool) -> bool:
        if self._store.topic(topic) is not None or self.owns(topic):
            return False
        return ephemeral or self._store.colliding_topic(topic) is None

    def check_topic(self, info: TopicInfo) -> None:
        """Raise unless a queue can be declared on this topic. Whether it is another's already, `owns` says."""
        guard.check(Operation.OPEN_AS_QUEUE, info.name)
        if info.name in self._growing:
            raise QueueTopicRefused(f"topic {info.name!r} is being given more partitions; a queue has one")
        if info.partitions != 1:
            raise QueueTopicRefused(
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

    def _add(
        self,
        description: _Description,
        info: TopicInfo,
        *,
        durable: bool,
        owner: object | None,
        restored: RestoredQueue | None,
    ) -> DeclaredQueue:
        cursor = QueueCursor(
            info.name, description.name, info, description.settings, self.runtime, durable=durable, restored=restored
        )
        queue = DeclaredQueue(
            description.vhost,
            description.name,
            info.name,
            cursor,
            durable,
            description.auto_delete,
            owner,
            description.adopted,
            description.arguments,
        )
        self._queues[queue.vhost, queue.name] = queue
        self._by_cursor[cursor] = queue
        self._by_topic[info.name] = queue
        return queue

    async def open_topic_as_queue(self, topic: str, settings: QueueSettings | None = None) -> DeclaredQueue:
        """The queue of "/" on a topic that a Kafka client made; declared, durably, if it is not one yet."""
        if not self.may_open(topic):
            raise UnknownTopicOrPartition(f"there is no topic {topic!r} that is no queue's")
        return await self.declare(topic, settings or QueueSettings(retain=True))

    def may_open(self, topic: str, vhost: str = DEFAULT_VHOST) -> bool:
        """Whether there is a topic of that name for a queue of that name to be declared on. Raises if none can be.

        Also if there is the queue already, or it is being declared.
        """
        if (vhost, topic) in self._queues or (vhost, topic) in self._declaring:
            return True
        if vhost == DEFAULT_VHOST:
            guard.check(Operation.OPEN_AS_QUEUE, topic)
        info = self._store.topic(topic)
        if info is None or not may_adopt(vhost, topic) or self.owns(topic):
            return False
        self.check_topic(info)
        return True

    # -- delete ------------------------------------------------------------------------------------------------------

    async def delete(
        self, name: str, vhost: str = DEFAULT_VHOST, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue with its messages; returns how many were ready."""
        queue = self.require(name, vhost)
        if if_unused and len(queue.cursor.consumers):
            raise QueueInUse(f"queue {name!r} in vhost {vhost!r} in use")
        ready = queue.cursor.ready
        if if_empty and ready:
            raise QueueNotEmpty(f"queue {name!r} in vhost {vhost!r} not empty")
        await self._delete(queue, "the queue was deleted")
        return ready

    async def drop_owner(self, owner: object) -> None:
        """Delete the queues that are exclusive to an owner: its connection is gone."""
        for queue in [queue for queue in self._queues.values() if queue.exclusive_owner is owner]:
            await self._delete(queue, "its owner is gone")

    async def _delete(self, queue: DeclaredQueue, reason: str) -> None:
        if not self._forget(queue, reason):
            return
        recorded = self._write_tombstones(queue)
        await self._delete_topic_of(queue)
        if recorded is not None:
            await recorded

    async def _delete_topic_of(self, queue: DeclaredQueue) -> None:
        if queue.adopted or self._store.topic(queue.topic) is None:
            return
        try:
            await self._store.delete_topic(queue.topic)
        except UnknownTopicOrPartition:
            pass  # a Kafka client was quicker
        if self.on_topic_deleted is not None:
            await self.on_topic_deleted(queue.topic)
        if self.on_topics_changed is not None:
            self.on_topics_changed()

    def _forget(self, queue: DeclaredQueue, reason: str) -> bool:
        if self._queues.get((queue.vhost, queue.name)) is not queue:
            return False
        del self._queues[queue.vhost, queue.name]
        del self._by_cursor[queue.cursor]
        del self._by_topic[queue.topic]
        queue.cursor.vanish(reason)
        if self.on_deleted is not None:
            self.on_deleted(queue)
        return True

    def _write_tombstones(self, queue: DeclaredQueue) -> asyncio.Future[Appended] | None:
        if not queue.durable:
            return None
        self.runtime.journal.write(queue.cursor.tombstones(), Durability.OS)
        return self._write_record(queue.vhost, queue.name, None)

    def _on_unused(self, cursor: QueueCursor) -> None:
        queue = self._by_cursor.get(cursor)
        if queue is not None and queue.auto_delete:
            self._spawn(lambda: self._delete_unused(queue), f"delete queue {queue.name}")

    async def _delete_unused(self, queue: DeclaredQueue) -> None:
        if not len(queue.cursor.consumers):
            await self._delete(queue, "its last consumer is gone")

    def _on_expired(self, cursor: QueueCursor) -> None:
        queue = self._by_cursor.get(cursor)
        if queue is not None:
            self._spawn(lambda: self._delete(queue, "it was not used"), f"delete queue {queue.name}")

    def _on_gone(self, cursor: QueueCursor) -> None:
        """The topic was deleted under the queue; or a queue that is not durable could not write, and goes with its topic."""
        queue = self._by_cursor.get(cursor)
        if queue is not None and self._forget(queue, "its topic was deleted"):
            self._write_tombstones(queue)
            if not queue.durable:
                self._spawn(lambda: self._delete_topic_of(queue), f"delete queue {queue.name}")

    # -- records -----------------------------------------------------------------------------------------------------

    def _write_record(self, vhost: str, name: str, description: _Description | None) -> asyncio.Future[Appended]:
        record = NewRecord(_key(vhost, name), None if description is None else _encode(description))
        batch = build_batch([record], timestamp_ms=self._clock.wall_ms())
        return self._store.append(TOPOLOGY, batch, Durability.DISK)

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def guarded() -> None:
            try:
                await work()
            except (LogError, QueueError) as error:
                logger.error("could not %s: %s", name, error)

        task = asyncio.get_running_loop().create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def may_adopt(vhost: str, name: str) -> bool:
    """Whether a queue of this name could be declared on a topic of its name."""
    return vhost == DEFAULT_VHOST and topic_name(vhost, name) == name


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


def _key(vhost: str, name: str) -> bytes:
    return _KEY_PREFIX + vhost.encode() + b"\0" + name.encode()


def _encode(description: _Description) -> bytes:
    document = {
        "vhost": description.vhost,
        "name": description.name,
        "topic": description.topic,
        "adopted": description.adopted,
        "auto_delete": description.auto_delete,
        "settings": description.settings.encode(),
        "arguments": dict(description.arguments),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _decode(value: bytes) -> _Description:
    try:
        document = json.loads(value)
        return _Description(
            str(document["vhost"]),
            str(document["name"]),
            str(document["topic"]),
            bool(document["adopted"]),
            bool(document["auto_delete"]),
            QueueSettings.decode(document["settings"]),
            dict(document["arguments"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a description of a queue: {error!r}") from None
