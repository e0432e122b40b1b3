"""The store in memory: what every store promises, and nothing that outlives the process.

It checks, numbers and fences as the embedded store does, with the same code for both. An append that asks for the disk is
acknowledged in a later turn of the event loop, never in its own: whoever relies on the difference is found out here too.
It has no files, no retention and no compaction: records stay until they are trimmed or their topic is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID, uuid4

from trunkline.clock import Clock, SystemClock
from trunkline.log.config import TopicConfig
from trunkline.log.coordinated import CoordinatedStore
from trunkline.log.errors import (
    UnknownTopicOrPartition,
)
from trunkline.log.limits import StoreLimits
from trunkline.log.memory.partition import MemoryPartition
from trunkline.log.names import folded
from trunkline.log.store import (
    Bounds,
    Buffer,
    Durability,
    OffsetAndTimestamp,
    ProducerState,
    Slice,
    TopicInfo,
    TopicPartition,
)
from trunkline.log.ticket import Appended, Ticket
from trunkline.log.topic_rules import TopicRules


class MemoryStore(CoordinatedStore):
    def __init__(
        self,
        *,
        clock: Clock | None = None,
        defaults: Mapping[str, str] | None = None,
        limits: StoreLimits | None = None,
    ) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._defaults = dict(defaults or {})
        TopicConfig({}, self._defaults)  # refuses bad defaults now, not at the first topic
        self._limits = limits if limits is not None else StoreLimits()
        self.decoding = self._limits.decoding
        self._rules = TopicRules(self, self._limits.max_partitions)
        self._topics: dict[str, TopicInfo] = {}
        self._topics_view = MappingProxyType(self._topics)
        self._partitions: dict[TopicPartition, MemoryPartition] = {}

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        for partition in self._partitions.values():
            partition.changed()

    # -- topics ------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics_view

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return next((info for info in self._topics.values() if info.id == topic_id), None)

    def colliding_topic(self, name: str) -> str | None:
        return next((other for other in self._topics if other != name and folded(other) == folded(name)), None)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> TopicInfo:
        return self._create(name, partitions, config, topic_id, ephemeral=False)

    @property
    def ephemeral_topics(self) -> MemoryStore:
        return self

    async def create_ephemeral_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicInfo:
        return self._create(name, partitions, config, None, ephemeral=True)

    def _create(
        self, name: str, partitions: int, config: Mapping[str, str] | None, topic_id: UUID | None, *, ephemeral: bool
    ) -> TopicInfo:
        self._rules.check_creation(name, partitions, len(self._partitions), ephemeral=ephemeral)
        info = TopicInfo(
            name, topic_id or uuid4(), partitions, TopicConfig(config, self._defaults), ephemeral=ephemeral
        )
        self._topics[name] = info
        self._open_partitions(info)
        return info

    async def delete_topic(self, name: str) -> None:
        info = self._rules.require(name)
        del self._topics[name]
        for number in range(info.partitions):
            partition = self._partitions.pop(TopicPartition(name, number))
            partition.failure = UnknownTopicOrPartition(f"topic {name!r} was deleted")
            partition.changed()

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        old = self._rules.require(name)
        self._rules.check_growth(old, partitions, len(self._partitions))
        info = self._topics[name] = old._replace(partitions=partitions)
        self._open_partitions(info)
        return info

    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        old = self._rules.require(name)
        info = self._topics[name] = old._replace(config=TopicConfig(config, self._defaults))
        for number in range(info.partitions):
            self._partitions[TopicPartition(name, number)].configure(info.config)
        return info

    def _open_partitions(self, info: TopicInfo) -> None:
        for number in range(info.partitions):
            tp = TopicPartition(info.name, number)
            if tp not in self._partitions:
                self._partitions[tp] = MemoryPartition(tp, info.config, self._clock, self.decoding, self.passed_over)

    def _partition(self, tp: TopicPartition) -> MemoryPartition:
        found = self._partitions.get(tp)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no {tp}")
        return found

    # -- append ------------------------------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        batches: Buffer,
        durability: Durability = Durability.OS,
        *,
        foreign: bool = False,
    ) -> Ticket:
        return self.acknowledge(tp, self._partition(tp).append(batches, foreign=foreign), durability)

    def append_marker(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        durability: Durability = Durability.DISK,
    ) -> Ticket:
        appended = self._partition(tp).append_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
        )
        return self.acknowledge(tp, appended, durability)

    def acknowledge(self, tp: TopicPartition, appended: Appended, durability: Durability) -> Ticket:
        """The ticket of an append that has its place."""
        ticket = Ticket(loop=asyncio.get_running_loop())
        ticket.place = appended
        if durability is Durability.DISK:
            ticket.get_loop().call_soon(_complete, ticket, appended)
        else:
            ticket.set_result(appended)
        return ticket

    # -- read --------------------------------------------------------------------------------------------------------

    def bounds(self, tp: TopicPartition) -> Bounds:
        return self._partition(tp).bounds()

    async def read(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        committed: bool = False,
        at_least_one: bool = True,
        verified: bool = False,
    ) -> Slice:
        return self._partition(tp).read(offset, max_bytes, committed=committed, at_least_one=at_least_one)

    async def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return self._partition(tp).first_record(timestamp_ms)

    async def max_timestamp(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        partition = self._partition(tp)
        newest_ms = partition.newest_timestamp_ms()
        return None if newest_ms is None else partition.first_record(newest_ms)

    async def producers(self, tp: TopicPartition) -> Sequence[ProducerState]:
        return self._partition(tp).producers.describe()

    # -- wait --------------------------------------------------------------------------------------------------------

    def watch(self, tp: TopicPartition, wake: Callable[[], None], *, decodes: bool = False) -> None:
        self._partition(tp).watchers[wake] = decodes

    def unwatch(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        partition = self._partitions.get(tp)
        if partition is not None:
            partition.watchers.pop(wake, None)

    # -- trim --------------------------------------------------------------------------------------------------------

    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        return self._partition(tp).trim(before_offset)


def _complete(ticket: Ticket, appended: Appended) -> None:
    if not ticket.done():
        ticket.set_result(appended)
