"""Every share group's view of every partition that it reads: a fold of `__share_group_state`.

The state is kept as that of queues is (see `cursors/queue/state`), under the id of the topic, the number of the partition and
the group. That records were given out is written to the operating system before a member sees them; what a member says of
them is on disk before it is answered. After a crash a record that was held is free, with its delivery count.

The topic is made when the first share group needs it. Locks end by the injected clock: `run_timers` sleeps to the next
deadline, and tests call `expire` instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from trunkline.clock import Clock
from trunkline.cursors.queue.journal import QueueJournal, StateRecord
from trunkline.cursors.queue.progress import Progress
from trunkline.cursors.queue.restored import RestoredQueue, restore_queues
from trunkline.cursors.share.partition import Acknowledgement, SharePartition
from trunkline.cursors.share.reading import NOTHING, Taken, Wanted, take
from trunkline.cursors.stream.group_settings import (
    SHARE_DELIVERY_LIMIT,
    SHARE_ISOLATION,
    SHARE_LOCK_DURATION,
    SHARE_MAX_LOCKS,
    SHARE_OFFSET_RESET,
    SHARE_RENEW,
    GroupSettings,
    reset_duration_ms,
)
from trunkline.deadlines import AwaitedDeadlines
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.log.names import SHARE_STATE_TOPIC
from trunkline.log.store import Durability, LogStore, TopicInfo, TopicPartition

_logger = logging.getLogger(__name__)

PartitionKey = tuple[str, UUID, int]  # group, topic, partition


class ShareOffset(NamedTuple):
    """Where a group stands in a partition: Kafka's share-partition start offset, and how much is not done with."""

    tp: TopicPartition
    topic_id: UUID
    start_offset: int
    lag: int


class SharePartitions:
    def __init__(self, store: LogStore, clock: Clock, settings: GroupSettings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._partitions: dict[PartitionKey, SharePartition] = {}
        self._beginning: dict[PartitionKey, asyncio.Lock] = {}
        self._deadlines: AwaitedDeadlines[SharePartition] = AwaitedDeadlines(clock)
        self._journal = QueueJournal(store, clock, self._touched, SHARE_STATE_TOPIC)
        self._flush_at_end = False
        self._opened = False

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, groups: Iterable[str]) -> None:
        """Be what the log says, but for groups and topics that are gone."""
        if self._store.topic(SHARE_STATE_TOPIC) is None:
            return
        known = frozenset(groups)
        gone: list[StateRecord] = []
        for queue_id, restored in (await restore_queues(self._journal)).items():
            partition = self._restored(queue_id, restored, known)
            if partition is None:
                gone += restored.keys(queue_id)
        self._opened = True
        if gone:
            await self._journal.write(gone, Durability.OS)

    def _restored(self, queue_id: str, restored: RestoredQueue, groups: frozenset[str]) -> SharePartition | None:
        try:
            group_id, topic_id, number = _decode_id(queue_id)
        except ValueError as error:
            _logger.error("the state of share partition %r is left out: %s", queue_id, error)
            return None
        info = self._store.topic_by_id(topic_id)
        head = restored.head
        if info is None or number >= info.partitions or head is None or group_id not in groups:
            return None
        partition = self._made(group_id, info, number, head.head)
        bounds = self._store.bounds(partition.tp)
        partition.restore(restored, bounds.log_start_offset, bounds.high_watermark)
        return partition

    def _made(self, group_id: str, info: TopicInfo, number: int, start: int) -> SharePartition:
        tp = TopicPartition(info.name, number)
        progress = Progress(_encode_id(group_id, info.id, number), info.id, start, in_order=True)
        partition = self._partitions[group_id, info.id, number] = SharePartition(group_id, tp, progress)
        return partition

    async def close(self) -> None:
        self._deadlines.clear()
        self._journal.flush()

    def expire(self) -> None:
        """End every lock whose time is over."""
        now_ms = self._clock.monotonic_ms()
        for partition in self._deadlines.due(now_ms):
            if partition.release_late(now_ms, self._delivery_limit(partition.group_id)):
                self._journal.touch(partition.progress)
            self._arm(partition)

    def next_deadline_ms(self) -> float | None:
        return self._deadlines.next_ms()

    async def run_timers(self) -> None:
        """End locks as their time is over, until cancelled."""
        while True:
            self._deadlines.arm()
            self.expire()
            await self._deadlines.sleep(self._deadlines.next_ms())

    def _arm(self, partition: SharePartition) -> None:
        next_ms = partition.next_deadline_ms()
        if next_ms is not None:
            self._deadlines.set(partition, next_ms)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _touched(self) -> None:
        if not self._flush_at_end:
            self._flush_at_end = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_at_end = False
        self._journal.flush()

    def flush(self) -> None:
        """Write what changed to the operating system, before it is told."""
        if self._journal.pending:
            self._journal.flush()

    def commit(self) -> Awaitable[object] | None:
        """Write what changed to disk; None if it is there already. Raises LogError, at once or when awaited."""
        return self._journal.commit()

    # -- settings ----------------------------------------------------------------------------------------------------

    def _number(self, group_id: str, name: str) -> int:
        return int(self._settings.value(group_id, name))

    def lock_ms(self, group_id: str) -> int:
        return self._number(group_id, SHARE_LOCK_DURATION)

    def _delivery_limit(self, group_id: str) -> int:
        return self._number(group_id, SHARE_DELIVERY_LIMIT)

    def wanted(self, group_id: str, member: str, *, max_records: int, batch_records: int, strict: bool) -> Wanted:
        """A request for records, under the settings that the group has now."""
        return Wanted(
            member,
            max_records,
            0,
            batch_records,
            strict,
            self._settings.value(group_id, SHARE_ISOLATION) == "read_committed",
            self._number(group_id, SHARE_MAX_LOCKS),
            self._delivery_limit(group_id),
            self._clock.monotonic_ms() + self.lock_ms(group_id),
        )

    # -- partitions --------------------------------------------------------------------------------------------------

    async def open(self, group_id: str, topic_id: UUID, number: int) -> SharePartition:
        """A group's view of a partition; where it begins, if it is new, is a setting of the group's."""
        key = (group_id, topic_id, number)
        found = self._partitions.get(key)
        if found is not None:
            return found
        info = self._info(topic_id, number)
        async with self._beginning.setdefault(key, asyncio.Lock()):
            found = self._partitions.get(key)
            if found is None:
                start = await self._start_offset(group_id, TopicPartition(info.name, number))
                await self._ready()
                found = self._made(group_id, self._info(topic_id, number), number, start)
                self._journal.touch(found.progress)
                self.flush()  # where it begins is told, in a way, by the first answer
        self._beginning.pop(key, None)
        return found

    def _info(self, topic_id: UUID, number: int) -> TopicInfo:
        info = self._store.topic_by_id(topic_id)
        if info is None or not 0 <= number < info.partitions:
            raise UnknownTopicOrPartition(f"partition {number} of topic {topic_id}")
        return info

    async def _ready(self) -> None:
        if not self._opened:
            await self._journal.open()
            self._opened = True

    async def _start_offset(self, group_id: str, tp: TopicPartition) -> int:
        reset = self._settings.value(group_id, SHARE_OFFSET_RESET)
        bounds = self._store.bounds(tp)
        if reset == "earliest":
            return bounds.log_start_offset
        if reset != "latest":
            since_ms = self._clock.wall_ms() - reset_duration_ms(reset)
            found = await self._store.offset_for_time(tp, max(since_ms, 0))
            if found is not None:
                return found.offset
        return self._store.bounds(tp).high_watermark

    # -- records -----------------------------------------------------------------------------------------------------

    async def take(self, partition: SharePartition, wanted: Wanted, *, at_least_one: bool) -> Taken:
        """Lock records for a member. Written down with the next `flush` or `commit`."""
        head, end = partition.head, partition.end
        taken = await take(self._store, partition, wanted, at_least_one=at_least_one)
        if partition.progress.gone:
            return NOTHING  # the group was moved or deleted meanwhile: this view of the partition counts no more
        if taken.acquired:
            deadline_ms = self._deadlines.get(partition)
            if deadline_ms is None or wanted.until_ms < deadline_ms:
                self._deadlines.set(partition, wanted.until_ms)
        if taken.acquired or (head, end) != (partition.head, partition.end):
            self._journal.touch(partition.progress)
        return taken

    def acknowledge(
        self, group_id: str, topic_id: UUID, number: int, member: str, said: Sequence[Acknowledgement]
    ) -> None:
        """Do what a member says of records that it holds. On disk after the next `commit`."""
        partition = self._partitions.get((group_id, topic_id, number))
        if partition is None:
            self._info(topic_id, number)
            raise UnknownTopicOrPartition(f"group {group_id} has nothing of partition {number} of topic {topic_id}")
        partition.acknowledge(
            member,
            said,
            delivery_limit=self._delivery_limit(group_id),
            renewable=self._settings.value(group_id, SHARE_RENEW) == "true",
            until_ms=self._clock.monotonic_ms() + self.lock_ms(group_id),
        )
        self._journal.touch(partition.progress)

    def may_give(self, partition: SharePartition, wanted: Wanted) -> bool:
        """Whether there is anything to take, as far as can be seen without reading."""
        if not partition.can_give(wanted.max_locks):
            return False
        bounds = self._store.bounds(partition.tp)
        end = bounds.last_stable_offset if wanted.committed else bounds.high_watermark
        if partition.progress.gone:
            return False
        return partition.next_offset < end or bounds.log_start_offset > partition.head

    def release_all(self, group_id: str, member: str, partitions: Iterable[tuple[UUID, int]]) -> None:
        """A member's session is over."""
        for topic_id, number in partitions:
            partition = self._partitions.get((group_id, topic_id, number))
            if partition is not None and partition.release_all(member, self._delivery_limit(group_id)):
                self._journal.touch(partition.progress)

    def watch(self, partition: SharePartition, wake: Callable[[], None]) -> None:
        """Have `wake` called when records may be had: they were appended, or are free again."""
        hurrying = self._store.client_watches
        (self._store.watch if hurrying is None else hurrying.watch_for_client)(partition.tp, wake)
        partition.watch(wake)

    def unwatch(self, partition: SharePartition, wake: Callable[[], None]) -> None:
        self._store.unwatch(partition.tp, wake)
        partition.unwatch(wake)

    # -- administration ----------------------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> list[ShareOffset]:
        """Where a group stands, in every partition that it has read."""
        found = []
        for (group, topic_id, _), partition in self._partitions.items():
            if group == group_id:
                try:
                    end = self._store.bounds(partition.tp).high_watermark
                except LogError:
                    continue  # deleted a moment ago
                found.append(ShareOffset(partition.tp, topic_id, partition.head, partition.lag(end)))
        return sorted(found)

    async def reset(self, group_id: str, starts: Sequence[tuple[UUID, int, int]]) -> None:
        """Begin anew at these offsets (topic, partition, offset). On disk when it returns."""
        await self._ready()
        for topic_id, number, offset in starts:
            info = self._info(topic_id, number)
            bounds = self._store.bounds(TopicPartition(info.name, number))
            start = min(max(offset, bounds.log_start_offset), bounds.high_watermark)
            self._forget((group_id, topic_id, number))
            self._journal.touch(self._made(group_id, info, number, start).progress)
        await self._committed()

    async def delete(self, group_id: str, topic_id: UUID | None = None) -> bool:
        """Forget what the group has of a topic, or of all. False if that was nothing."""
        keys = [key for key in self._partitions if key[0] == group_id and topic_id in (None, key[1])]
        for key in keys:
            self._forget(key)
        if keys:
            await self._committed()
        return bool(keys)

    def topic_deleted(self, topic_id: UUID) -> None:
        """Forget what every group has of a topic."""
        for key in [key for key in self._partitions if key[1] == topic_id]:
            self._forget(key)

    def _forget(self, key: PartitionKey) -> None:
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        progress = partition.progress
        progress.gone = True
        self._deadlines.cancel(partition)
        self._journal.forget(progress)
        self._journal.write(progress.tombstones(), Durability.OS)
        partition.close()

    async def _committed(self) -> None:
        written = self.commit()
        if written is not None:
            await asyncio.shield(asyncio.ensure_future(written))


def _encode_id(group_id: str, topic_id: UUID, number: int) -> str:
    return f"{topic_id.hex}:{number}:{group_id}"


def _decode_id(queue_id: str) -> PartitionKey:
    topic, number, group_id = queue_id.split(":", 2)
    return group_id, UUID(hex=topic), int(number)
