"""A coordinator on a log in memory with a clock that is moved by hand, and a producer that speaks to both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tests.faulty_log import FaultyLog
from trunkline.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator, TransactionLimits
from trunkline.broker.transactions.errors import TransactionError
from trunkline.clock import ManualClock
from trunkline.cursors.stream import OFFSETS_PARTITION
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.store import Durability, LogStore, TopicPartition

P0 = TopicPartition("orders", 0)
P1 = TopicPartition("orders", 1)
OFFSETS = OFFSETS_PARTITION
TIMEOUT_MS = 60_000


class Groups:
    """Remembers how each producer's offsets ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, bool]] = []
        self.broken = False

    async def txn_end(self, producer_id: int, commit: bool) -> None:
        if self.broken:
            raise RuntimeError("the groups have a fault")
        self.ends.append((producer_id, commit))


class Bench:
    def __init__(self, store: LogStore, clock: ManualClock, limits: TransactionLimits | None = None) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits
        self.groups = Groups()
        self.coordinator = TransactionCoordinator(store, self.groups, clock, limits=limits)

    @property
    def memory(self) -> FaultyLog:
        assert isinstance(self.store, FaultyLog)
        return self.store

    async def start(self) -> Bench:
        if self.store.topic("orders") is None:
            await self.store.create_topic("orders", 2)
            await self.store.create_topic("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        await self.coordinator.start()
        return self

    async def restarted(self) -> Bench:
        """What the next process makes of the log, without a word from this one."""
        return await Bench(self.memory.reborn(), self.clock, self.limits).start()

    async def pass_time(self, ms: float) -> None:
        self.clock.advance(ms)
        self.coordinator.expire()
        await self.coordinator.settle()

    async def init(self, transactional_id: str = "t", timeout_ms: int = TIMEOUT_MS) -> ProducerIdentity:
        return await self.coordinator.init_producer_id(transactional_id, timeout_ms)

    async def add(self, who: ProducerIdentity, *partitions: TopicPartition, transactional_id: str = "t") -> None:
        errors = await self.coordinator.add_partitions(
            transactional_id, who.producer_id, who.producer_epoch, partitions or (P0,)
        )
        assert set(errors.values()) == {"NONE"}

    async def produce(self, who: ProducerIdentity, value: bytes, tp: TopicPartition = P0, sequence: int = -1) -> None:
        self.coordinator.check_append(who.producer_id, who.producer_epoch, tp)
        batch = build_batch(
            [NewRecord(None, value)],
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            transactional=True,
            timestamp_ms=self.clock.wall_ms(),
        )
        await self.store.append(tp, batch, Durability.DISK)

    async def end(
        self, who: ProducerIdentity, commit: bool = True, *, bump: bool = False, transactional_id: str = "t"
    ) -> ProducerIdentity:
        return await self.coordinator.end(
            transactional_id, who.producer_id, who.producer_epoch, commit, bump_epoch=bump
        )

    def state(self, transactional_id: str = "t") -> str:
        return self.coordinator.describe(transactional_id).state


def bench(limits: TransactionLimits | None = None) -> Coroutine[None, None, Bench]:
    return Bench(FaultyLog(), ManualClock(), limits).start()


def scenario(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run an async test on a loop of its own; nothing may take longer than its deadline."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def refused(name: str, work: Coroutine[None, None, object]) -> None:
    with pytest.raises(TransactionError) as caught:
        await work
    assert caught.value.name == name
