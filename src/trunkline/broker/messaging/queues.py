"""The broker's queues: which there are, how they come, and how they go.

The registry is the virtual hosts' `queues`, by name; everything that changes it is here. A queue is in the registry, in the
routes of its virtual host and in the claims on topics (`queue_topics`), or in none of them.

A durable queue has a record (`queue_record`). It is written before the topic's and both are on disk when `declare` returns. A
crash in between leaves a queue without a topic, and the next start makes it. A queue that is not durable, or is exclusive to an
owner, has no record; its topic is ephemeral.

What cannot be had is `Refused`, in RabbitMQ's words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from trunkline.broker.messaging import refusals, streams
from trunkline.broker.messaging.deduplication import Deduplication
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.queue_record import KEY_PREFIX, QueueRecord, record_key
from trunkline.broker.messaging.queue_topics import QueueTopics, TopicFollower, check_not_reserved, topic_name
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.arguments import table_from_json, to_json
from trunkline.broker.state.topology import Topology
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.clock import Clock
from trunkline.cursors.queue import (
    Delivery,
    QueueError,
    QueueLimits,
    QueueRuntime,
    QueueSettings,
    RestoredQueue,
    restore_queues,
)
from trunkline.cursors.queue.runtime import DealingTurn
from trunkline.log.errors import LogError, TopicExists, UnknownTopicOrPartition
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore, TopicInfo, TopicPartition
from trunkline.log.ticket import Appended
from trunkline.security.users import DEFAULT_VHOST

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Nobody watches."""


class DeadLetters(Protocol):
    def dead_letter(self, queue: Queue, delivery: Delivery, reason: str) -> None:
        """Send on a message that a queue gave up."""


class Queues:
    """Is the `QueueEvents` of its queues."""

    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        *,
        topology: Topology,
        turn: DealingTurn,
        dead_letters: DeadLetters,
        followers: TopicFollower,
        limits: QueueLimits | None = None,
    ) -> None:
        self._store = store
        self._state = StateTopic(store, clock, TOPOLOGY_TOPIC)
        self._topology = topology
        self._dead_letters = dead_letters
        self.runtime = QueueRuntime(store, clock, turn, limits)
        self.topics = QueueTopics(store, followers)
        self.watch: Callable[[], None] = _nothing  # called when a topic has become a queue, or is none any more
        self._by_topic: dict[str, Queue] = {}
        self._declaring: dict[tuple[str, str], asyncio.Lock] = {}
        self._unserved: dict[tuple[str, str], QueueRecord] = {}  # recorded, but could not be opened at the start
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Rebuild every durable queue from the log. Reads state, not messages. The topology has started before."""
        await self.runtime.journal.open()
        records = await self._fold_topology()
        restored = await restore_queues(self.runtime.journal)
        for record in records:
            try:
                await self._reopen(record, restored.get(record.topic))
            except (LogError, QueueError, Refused) as error:
                name = record.declaration.name
                logger.error("queue %s of vhost %s is not served: %s", name, record.vhost, error)
                self._unserved[record.vhost, name] = record
                self.topics.claim(record.topic)
            restored.pop(record.topic, None)
        leftover = [entry for queue_id, queue in restored.items() for entry in queue.keys(queue_id)]
        if leftover:
            self.runtime.journal.write(leftover, Durability.OS)
        self._spawn(self._warm, "warm queues")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.close()
        for queue in self:
            queue.cursor.close()

    async def _fold_topology(self) -> list[QueueRecord]:
        records: list[QueueRecord] = []
        for key, value in (await self._state.latest()).items():
            if not key.startswith(KEY_PREFIX):
                continue
            try:
                records.append(QueueRecord.decode(value))
            except ValueError as error:
                logger.error("the record %r of a queue is passed over: %s", key, error)
        return records

    async def _reopen(self, record: QueueRecord, restored: RestoredQueue | None) -> None:
        name = record.declaration.name
        info = self._store.topic(record.topic)
        if info is None:
            if record.adopted:
                logger.warning("queue %s is gone: its topic was deleted", name)
                self._write_record(record.vhost, name, None)
                return
            info = await self._make_topic(record.topic, record.declaration)
        check_not_reserved(info.name)
        if info.partitions != 1:
            logger.error(
                "queue %s of vhost %s serves partition 0 of topic %s only: what is written to its other %d is not delivered",
                name,
                record.vhost,
                info.name,
                info.partitions - 1,
            )
        window = await self._deduplication(record.declaration.settings, info, restored)
        self._add(record, info, durable=True, restored=restored, deduplication=window)

    async def _deduplication(
        self, settings: QueueSettings, info: TopicInfo, restored: RestoredQueue | None
    ) -> Deduplication | None:
        if not settings.deduplicate:
            return None
        window, tp = Deduplication(self.runtime.clock), TopicPartition(info.name, 0)
        by_group = settings.deduplicate_by_key
        await window.rebuild(self._store, tp, self.runtime.journal, restored, by_group=by_group)
        return window

    async def _warm(self) -> None:
        """Look at the front of each queue once, so that what expired meanwhile is dealt with though nobody consumes."""
        for queue in self:
            if self.runtime.held_bytes > self.runtime.limits.total_buffer_bytes // 2:
                return
            if queue.cursor.ready and not queue.cursor.gone:
                await queue.cursor.load()
            await asyncio.sleep(0)

    # -- what there is -----------------------------------------------------------------------------------------------

    def get(self, name: str, vhost: str = DEFAULT_VHOST) -> Queue | None:
        host = self._topology.vhosts.get(vhost)
        return None if host is None else host.queues.get(name)

    def require(self, name: str, vhost: str = DEFAULT_VHOST) -> Queue:
        queue = self.get(name, vhost)
        if queue is None:
            raise refusals.not_found("queue", name, vhost)
        return queue

    def named_by(self, topic: str) -> tuple[str, str] | None:
        """The virtual host and the name of the queue that a topic is."""
        queue = self._by_topic.get(topic)
        return None if queue is None else (queue.vhost, queue.name)

    def topic_of(self, vhost: str, name: str) -> str:
        """The topic of a queue, also of one that is not there yet."""
        queue = self.get(name, vhost)
        return topic_name(vhost, name) if queue is None else queue.topic

    def __iter__(self) -> Iterator[Queue]:
        """All of them, as of now."""
        return iter([queue for vhost in self._topology.vhosts.values() for queue in vhost.queues.values()])

    def __len__(self) -> int:
        return sum(len(vhost.queues) for vhost in self._topology.vhosts.values())

    # -- declare -----------------------------------------------------------------------------------------------------

    async def declare(self, vhost: VirtualHost, wish: QueueDeclaration, asker: object = None) -> Queue:
        """The queue, made if it is not there; Refused if it is there otherwise. An exclusive one is the asker's."""
        found = vhost.queues.get(wish.name)
        if found is None:
            async with self._alone(vhost, wish.name):
                found = vhost.queues.get(wish.name)
                if found is None:
                    return await self._create(vhost, wish, asker)
        found.check_equivalent(wish, asker)
        found.cursor.touch()
        return found

    async def open(self, vhost: VirtualHost, name: str) -> Queue:
        """The queue on a topic that another protocol made. Its records stay in the topic when they are settled."""
        self.check_openable(vhost, name)
        found = vhost.queues.get(name)
        if found is None:
            async with self._alone(vhost, name):
                found = vhost.queues.get(name)
                if found is None:
                    self._check_adoptable(vhost, name)
                    return await self._create(vhost, QueueDeclaration(name, QueueSettings(retain=True)), None)
        found.cursor.touch()
        return found

    def check_openable(self, vhost: VirtualHost, name: str) -> None:
        """Refused unless the queue is there, is being declared, or can be opened on a topic of its name."""
        if name not in vhost.queues and (vhost.name, name) not in self._declaring:
            self._check_adoptable(vhost, name)

    def _check_adoptable(self, vhost: VirtualHost, name: str) -> None:
        if vhost.name == DEFAULT_VHOST:
            check_not_reserved(name)
        info = self._store.topic(name)
        if info is None or not self.topics.may_adopt(vhost.name, name):
            raise refusals.not_found("queue", name, vhost.name)
        self.topics.check(info)

    @asynccontextmanager
    async def _alone(self, vhost: VirtualHost, name: str) -> AsyncIterator[None]:
        """While a queue is made, others that want the same one wait."""
        place = (vhost.name, name)
        lock = self._declaring.setdefault(place, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._declaring.pop(place, None)

    async def _create(self, vhost: VirtualHost, wish: QueueDeclaration, asker: object) -> Queue:
        if len(self) >= self.runtime.limits.max_queues:
            raise Refused(
                Reason.RESOURCE_ERROR, f"there are {len(self)} queues already, the most that the broker takes"
            )
        if streams.is_stream(wish.arguments):
            _check_stream(vhost, wish)
        # The arguments as they will be read from the record, so that they are the same before and after a restart.
        wish = replace(wish, arguments=table_from_json(to_json(wish.arguments)))
        left = self._unserved.get((vhost.name, wish.name))
        ephemeral = not wish.durable or wish.exclusive
        queue: Queue | None = None
        while queue is None:
            topic = self.topics.choose(vhost.name, wish.name, ephemeral=ephemeral) if left is None else left.topic
            self.topics.claim(topic)
            try:
                queue = await self._create_on(topic, vhost, wish, left, asker if wish.exclusive else None)
            except TopicExists:
                continue  # a Kafka client was quicker: choose again
            except UnknownTopicOrPartition:
                raise refusals.not_found("queue", wish.name, vhost.name) from None
            finally:
                if queue is None and left is None:
                    self.topics.release(topic)
        self._unserved.pop((vhost.name, wish.name), None)
        return queue

    async def _create_on(
        self, topic: str, vhost: VirtualHost, wish: QueueDeclaration, left: QueueRecord | None, owner: object | None
    ) -> Queue:
        info = self._store.topic(topic)
        durable = wish.durable and owner is None
        if info is not None:
            self.topics.check(info)
            durable = (durable or not info.ephemeral) and owner is None
        record = QueueRecord(vhost.name, topic, info is not None if left is None else left.adopted, wish)
        recorded = self._write_record(vhost.name, wish.name, record) if durable else None
        if info is None:
            info = await self._make_topic(topic, wish, ephemeral=not durable)
        if recorded is not None:
            await recorded
        window = await self._deduplication(wish.settings, info, None)
        return self._add(record, info, durable=durable, owner=owner, deduplication=window)

    async def _make_topic(self, topic: str, wish: QueueDeclaration, *, ephemeral: bool = False) -> TopicInfo:
        config = streams.topic_config(wish.arguments) if streams.is_stream(wish.arguments) else None
        return await self.topics.create(topic, ephemeral=ephemeral, retain=wish.settings.retain, config=config)

    def _add(
        self,
        record: QueueRecord,
        info: TopicInfo,
        *,
        durable: bool,
        owner: object | None = None,
        restored: RestoredQueue | None = None,
        deduplication: Deduplication | None = None,
    ) -> Queue:
        vhost = self._topology.vhost_of_record(record.vhost)
        queue = Queue(
            vhost.name,
            record.declaration,
            info,
            self.runtime,
            self,
            durable=durable,
            adopted=record.adopted,
            exclusive_owner=owner,
            restored=restored,
            deduplication=deduplication,
        )
        vhost.add_queue(queue)
        self.topics.claim(info.name)
        self._by_topic[info.name] = queue
        self.watch()
        return queue

    async def change(self, queue: Queue, declaration: QueueDeclaration) -> None:
        """Declare a queue otherwise, while it is used; on disk when this returns."""
        declaration = replace(declaration, arguments=table_from_json(to_json(declaration.arguments)))
        recorded = None
        if queue.durable:
            record = QueueRecord(queue.vhost, queue.topic, queue.adopted, declaration)
            recorded = self._write_record(queue.vhost, queue.name, record)
        queue.change(declaration)
        if recorded is not None:
            await recorded

    # -- delete ------------------------------------------------------------------------------------------------------

    async def delete(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with its messages; returns how many were ready."""
        if self.get(queue.name, queue.vhost) is not queue:
            raise refusals.not_found("queue", queue.name, queue.vhost)
        if if_unused and len(queue.cursor.consumers):
            raise refusals.precondition(f"queue '{queue.name}' in vhost '{queue.vhost}' in use")
        ready = queue.cursor.ready
        if if_empty and ready:
            raise refusals.precondition(f"queue '{queue.name}' in vhost '{queue.vhost}' not empty")
        await self._delete(queue, "the queue was deleted")
        return ready

    def delete_owned(self, owner: object) -> None:
        """The owner of exclusive queues is gone: so are they, in a moment."""
        self._spawn(lambda: self.drop_owner(owner), "delete exclusive queues")

    async def drop_owner(self, owner: object) -> None:
        for queue in [queue for queue in self if queue.exclusive_owner is owner]:
            await self._delete(queue, "its owner is gone")

    async def _delete(self, queue: Queue, reason: str) -> None:
        if not self._forget(queue, reason):
            return
        recorded = self._write_tombstones(queue)
        if not queue.adopted:
            await self.topics.delete(queue.topic)
        if recorded is not None:
            await recorded

    def _forget(self, queue: Queue, reason: str) -> bool:
        vhost = self._topology.vhosts.get(queue.vhost)
        if vhost is None or vhost.queues.get(queue.name) is not queue:
            return False
        self.topics.release(queue.topic)
        self._by_topic.pop(queue.topic, None)
        self.watch()
        queue.cursor.vanish(reason)
        text = f"remove the bindings of queue {queue.name} from the log"
        try:
            recorded = self._topology.forget_queue(vhost, queue)
        except LogError as error:
            logger.error("could not %s: %s", text, error)
        else:
            if recorded is not None:
                self._spawn(lambda: recorded, text)
        return True

    def _write_tombstones(self, queue: Queue) -> asyncio.Future[Appended] | None:
        if not queue.durable:
            return None
        self.runtime.journal.write(queue.cursor.tombstones(), Durability.OS)
        return self._write_record(queue.vhost, queue.name, None)

    # -- what queues tell --------------------------------------------------------------------------------------------

    def dead_letter(self, queue: Queue, delivery: Delivery, reason: str) -> None:
        self._dead_letters.dead_letter(queue, delivery, reason)

    def unused(self, queue: Queue) -> None:
        if queue.auto_delete:
            self._spawn(lambda: self._delete_unused(queue), f"delete queue {queue.name}")

    async def _delete_unused(self, queue: Queue) -> None:
        if not len(queue.cursor.consumers):
            await self._delete(queue, "its last consumer is gone")

    def expired(self, queue: Queue) -> None:
        self._spawn(lambda: self._delete(queue, "it was not used"), f"delete queue {queue.name}")

    def gone(self, queue: Queue) -> None:
        """The topic was deleted under the queue; or a queue that is not durable could not write, and goes with its topic."""
        if self._forget(queue, "its topic was deleted"):
            self._write_tombstones(queue)
            if not queue.durable and not queue.adopted:
                self._spawn(lambda: self.topics.delete(queue.topic), f"delete queue {queue.name}")

    # -- records -----------------------------------------------------------------------------------------------------

    def _write_record(self, vhost: str, name: str, record: QueueRecord | None) -> asyncio.Future[Appended]:
        new = state_record(record_key(vhost, name), None if record is None else record.encode())
        return self._state.put([new], Durability.DISK)

    def _spawn(self, work: Callable[[], Awaitable[object]], name: str) -> None:
        async def guarded() -> None:
            try:
                await work()
            except (LogError, QueueError) as error:
                logger.error("could not %s: %s", name, error)

        task = asyncio.get_running_loop().create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_stream(vhost: VirtualHost, wish: QueueDeclaration) -> None:
    """A stream is everybody's, and stays."""
    for wrong, name in (
        (not wish.durable, "non-durable"),
        (wish.exclusive, "exclusive-owner"),
        (wish.auto_delete, "auto-delete"),
    ):
        if wrong:
            raise refusals.precondition(f"invalid property '{name}' for queue '{wish.name}' in vhost '{vhost.name}'")
