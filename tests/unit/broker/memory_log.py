"""A LogStore in memory whose process can be killed and whose partitions can fail, for tests of what stands on a log.

`kill_after(n)` lets n more appends reach the log; then nothing is stored and no future completes, as for a process that was
killed. `reborn()` is the store that the next process finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from trunkline.log.batch import build_marker, iter_batches, iter_records, parse_header, read_marker, rebase
from trunkline.log.config import TopicConfig
from trunkline.log.errors import LogError, ProducerFenced, StorageFailure, UnknownTopicOrPartition
from trunkline.log.store import (
    AbortedTransaction,
    Appended,
    Bounds,
    Buffer,
    Durability,
    LogDirectory,
    LogStore,
    OffsetAndTimestamp,
    ProducerState,
    Slice,
    TopicInfo,
    TopicPartition,
)


@dataclass
class MemoryPartition:
    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def place(self, batches: Buffer) -> Appended:
        data = bytearray(batches)
        header = parse_header(data)
        if header.producer_id >= 0:
            if header.producer_epoch < self.epochs.get(header.producer_id, -1):
                raise ProducerFenced(f"producer {header.producer_id} has a newer epoch")
            self.epochs[header.producer_id] = header.producer_epoch
        base = self.end_offset
        self.end_offset = rebase(data, base)
        self.batches.append(bytes(data))
        if header.control:
            marker = read_marker(data)
            assert marker is not None
            first = self.open.pop(header.producer_id, None)
            if first is not None and not marker.commit:
                self.aborted.append((header.producer_id, first, base))
        elif header.transactional:
            self.open.setdefault(header.producer_id, base)
        return Appended(base, self.end_offset - 1, -1, 0)


class MemoryLog(LogStore):
    def __init__(self) -> None:
        self._topics: dict[str, TopicInfo] = {}
        self.partitions: dict[TopicPartition, MemoryPartition] = {}
        self.failing: set[TopicPartition] = set()  # appends to these are refused
        self.unsynced: set[TopicPartition] = set()  # appends to these are stored, but the fsync fails
        self.held: set[TopicPartition] = set()  # appends to these are stored, but their futures wait
        self._holding: list[tuple[TopicPartition, asyncio.Future[Appended], Appended]] = []
        self.appends = 0
        self._appends_left: int | None = None

    # -- what a test does to it ------------------------------------------------------------------------------------

    def kill_after(self, appends: int) -> None:
        self._appends_left = appends

    @property
    def killed(self) -> bool:
        return self._appends_left == -1

    def reborn(self) -> MemoryLog:
        found = MemoryLog()
        found._topics = dict(self._topics)
        for tp, partition in self.partitions.items():
            found.partitions[tp] = MemoryPartition(
                list(partition.batches),
                partition.end_offset,
                dict(partition.epochs),
                dict(partition.open),
                list(partition.aborted),
            )
        return found

    def release(self, tp: TopicPartition) -> None:
        self.held.discard(tp)
        for at, future, appended in self._holding:
            if at == tp and not future.done():
                future.set_result(appended)

    def markers(self, tp: TopicPartition) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, commit) of every marker in the partition."""
        found = []
        for data in self.partitions[tp].batches:
            header = parse_header(data)
            if header.control:
                marker = read_marker(data)
                assert marker is not None
                found.append((header.producer_id, header.producer_epoch, marker.commit))
        return found

    def committed(self, tp: TopicPartition) -> list[bytes]:
        """The values that a read_committed consumer sees."""
        partition = self.partitions[tp]
        stable = min(partition.open.values(), default=partition.end_offset)
        seen = []
        for data in partition.batches:
            header = parse_header(data)
            if header.control or header.base_offset >= stable:
                continue
            if any(
                producer_id == header.producer_id and first <= header.base_offset < last
                for producer_id, first, last in partition.aborted
            ):
                continue
            seen += [record.value for record in iter_records(data) if record.value is not None]
        return seen

    # -- LogStore --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def colliding_topic(self, name: str) -> str | None:
        return None

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return next((info for info in self._topics.values() if info.id == topic_id), None)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
        ephemeral: bool = False,
    ) -> TopicInfo:
        info = TopicInfo(name, topic_id or uuid4(), partitions, TopicConfig(config))
        self._topics[name] = info
        for number in range(partitions):
            self.partitions[TopicPartition(name, number)] = MemoryPartition()
        return info

    async def delete_topic(self, name: str) -> None:
        info = self._topics.pop(name)
        for number in range(info.partitions):
            del self.partitions[TopicPartition(name, number)]

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        info = self._topics[name] = self._topics[name]._replace(partitions=partitions)
        for number in range(partitions):
            self.partitions.setdefault(TopicPartition(name, number), MemoryPartition())
        return info

    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        info = self._topics[name] = self._topics[name]._replace(config=TopicConfig(config))
        return info

    def append(
        self, tp: TopicPartition, batches: Buffer, durability: Durability = Durability.OS
    ) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self._appends_left is not None:
            self._appends_left = max(-1, self._appends_left - 1)
            if self._appends_left < 0:
                return future
        if tp in self.failing:
            raise StorageFailure(str(tp), "no space left")
        appended = self._partition(tp).place(batches)
        self.appends += 1
        if tp in self.unsynced and durability is Durability.DISK:
            future.set_exception(StorageFailure(str(tp), "input/output error"))
        elif tp in self.held and durability is Durability.DISK:
            self._holding.append((tp, future, appended))
        elif durability is Durability.DISK:
            # As from the committer's thread: never in the same turn of the loop.
            future.get_loop().call_soon(_complete, future, appended)
        else:
            future.set_result(appended)
        return future

    def append_marker(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        durability: Durability = Durability.DISK,
    ) -> asyncio.Future[Appended]:
        self._partition(tp)
        marker = build_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=0
        )
        return self.append(tp, marker, durability)

    def bounds(self, tp: TopicPartition) -> Bounds:
        partition = self._partition(tp)
        return Bounds(0, partition.end_offset, min(partition.open.values(), default=partition.end_offset))

    async def read(
        self, tp: TopicPartition, offset: int, max_bytes: int, *, committed: bool = False, at_least_one: bool = True
    ) -> Slice:
        partition = self._partition(tp)
        found = bytearray()
        for data in partition.batches:
            if parse_header(data).last_offset >= offset and (not found or len(found) + len(data) <= max_bytes):
                found += data
        aborted = [AbortedTransaction(producer_id, first) for producer_id, first, _ in partition.aborted]
        return Slice(bytes(found), self.bounds(tp), aborted if committed else ())

    async def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> OffsetAndTimestamp | None:
        for data in self._partition(tp).batches:
            for record in iter_records(data):
                if record.timestamp_ms >= timestamp_ms:
                    return OffsetAndTimestamp(record.offset, record.timestamp_ms)
        return None

    async def max_timestamp(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        found = [
            OffsetAndTimestamp(record.offset, record.timestamp_ms)
            for data in self._partition(tp).batches
            for _, batch in iter_batches(data)
            for record in iter_records(batch)
        ]
        return max(found, key=lambda item: item.timestamp_ms, default=None)

    async def producers(self, tp: TopicPartition) -> Sequence[ProducerState]:
        partition = self._partition(tp)
        return [ProducerState(pid, epoch, -1, 0, 0, partition.open.get(pid)) for pid, epoch in partition.epochs.items()]

    def watch(self, tp: TopicPartition, wake: Callable[[], None], *, client_waits: bool = False) -> None:
        raise LogError("nothing waits on this store")

    def unwatch(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        raise LogError("nothing waits on this store")

    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        raise LogError("this store keeps everything")

    async def directories(self) -> Sequence[LogDirectory]:
        return ()

    def _partition(self, tp: TopicPartition) -> MemoryPartition:
        found = self.partitions.get(tp)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no {tp}")
        return found


def _complete(future: asyncio.Future[Appended], appended: Appended) -> None:
    if not future.done():
        future.set_result(appended)
