"""A log in memory, with only what the coordinator asks of a store, and switches to make it slow or broken.

It keeps the promise that matters here: an append has its place at once, and its future completes when `sync` says that the
disk has it. `crash_copy` is what a machine that lost power would find: only what was synced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID, uuid4

from trunkline.log.batch import build_marker, parse_header, rebase
from trunkline.log.config import TopicConfig
from trunkline.log.errors import LogError, StorageFailure, UnknownTopicOrPartition
from trunkline.log.store import (
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


class MemoryStore(LogStore):
    def __init__(self, *, automatic_sync: bool = True) -> None:
        self._topics: dict[str, TopicInfo] = {}
        self._logs: dict[TopicPartition, list[tuple[int, int, bytes]]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._synced: dict[TopicPartition, int] = {}
        self._unsynced: list[tuple[asyncio.Future[Appended], Appended, TopicPartition]] = []
        self.automatic_sync = automatic_sync
        self.failure: LogError | None = None
        self.appends = 0

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        self.sync()

    def crash_copy(self) -> MemoryStore:
        copy = MemoryStore()
        copy._topics = dict(self._topics)
        for tp, log in self._logs.items():
            copy._logs[tp] = [entry for entry in log if entry[1] < self._synced[tp]]
            copy._ends[tp] = copy._synced[tp] = self._synced[tp]
        return copy

    def sync(self) -> None:
        waiting, self._unsynced = self._unsynced, []
        for future, appended, tp in waiting:
            self._synced[tp] = max(self._synced[tp], appended.last_offset + 1)
            if not future.done():
                future.set_result(appended)

    def fail_unsynced(self) -> None:
        waiting, self._unsynced = self._unsynced, []
        for future, _, _ in waiting:
            future.set_exception(StorageFailure("memory", "fsync failed"))

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def colliding_topic(self, name: str) -> str | None:
        return None

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return next((info for info in self._topics.values() if info.id == topic_id), None)

    def add_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> TopicInfo:
        info = self._topics[name] = TopicInfo(name, uuid4(), partitions, TopicConfig(config))
        for number in range(partitions):
            tp = TopicPartition(name, number)
            self._logs[tp], self._ends[tp], self._synced[tp] = [], 0, 0
        return info

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
        ephemeral: bool = False,
    ) -> TopicInfo:
        return self.add_topic(name, partitions, config)

    async def delete_topic(self, name: str) -> None:
        del self._topics[name]

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        info = self._topics[name]
        self._topics[name] = TopicInfo(name, info.id, partitions, info.config)
        return self._topics[name]

    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        raise AssertionError("groups never configure topics")

    def append(
        self, tp: TopicPartition, batches: Buffer, durability: Durability = Durability.OS
    ) -> asyncio.Future[Appended]:
        assert durability is Durability.DISK
        if self.failure is not None:
            raise self.failure
        data = bytearray(batches)
        base = self._ends[tp]
        self._ends[tp] = rebase(data, base)
        self._logs[tp].append((base, parse_header(data).last_offset, bytes(data)))
        self.appends += 1
        appended = Appended(base, self._ends[tp] - 1, -1, 0)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._unsynced.append((future, appended, tp))
        if self.automatic_sync:
            self.sync()
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
        marker = build_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=0
        )
        return self.append(tp, marker, durability)

    def bounds(self, tp: TopicPartition) -> Bounds:
        if tp not in self._ends:
            raise UnknownTopicOrPartition(str(tp))
        return Bounds(0, self._ends[tp], self._ends[tp])

    async def read(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        committed: bool = False,
        at_least_one: bool = True,
    ) -> Slice:
        found = bytearray()
        for _, last, data in self._logs[tp]:
            if last >= offset:
                if found and len(found) + len(data) > max_bytes:
                    break
                found += data
        return Slice(bytes(found), self.bounds(tp))

    async def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return None

    async def max_timestamp(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        return None

    async def producers(self, tp: TopicPartition) -> Sequence[ProducerState]:
        return ()

    def watch(self, tp: TopicPartition, wake: Callable[[], None], *, client_waits: bool = False) -> None:
        return None

    def unwatch(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        return None

    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        return 0

    async def directories(self) -> Sequence[LogDirectory]:
        return ()
