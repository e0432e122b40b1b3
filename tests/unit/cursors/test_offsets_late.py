"""Offsets on a store that tells places late: nothing counts before its place is known, and the log's order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random

import pytest

from tests.late_log import LateLog
from trunkline.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from trunkline.clock import ManualClock
from trunkline.cursors.stream import FetchedOffset, GroupCoordinator, GroupErrorName, OffsetEntry
from trunkline.log.memory.store import MemoryStore
from trunkline.log.store import TopicPartition

T0 = TopicPartition("t", 0)
SEEDS = range(12)
LIMIT_S = 30


class Late:
    """Groups and transactions on one late store."""

    def __init__(self, below: MemoryStore, seed: int) -> None:
        clock = ManualClock()
        self.below = below
        self.seed = seed
        self.store = LateLog(below, Random(seed))
        self.groups = GroupCoordinator(self.store, clock)
        self.transactions = TransactionCoordinator(self.store, self.groups, clock)

    async def start(self) -> Late:
        await self.groups.start()
        await self.transactions.start()
        return self

    async def restarted(self) -> Late:
        await self.transactions.close()
        await self.groups.close()
        await self.store.rest()
        return await Late(self.below, self.seed + 1).start()

    def commit(self, offset: int) -> asyncio.Task[object]:
        return asyncio.create_task(self.groups.commit("g", "", -1, None, [OffsetEntry("t", 0, offset)]))

    async def begin(self) -> ProducerIdentity:
        identity = await self.transactions.init_producer_id("x", 60_000)
        await self.transactions.add_offsets("x", *identity, "g")
        return identity

    def txn_commit(self, identity: ProducerIdentity, offset: int) -> asyncio.Task[object]:
        return asyncio.create_task(self.groups.txn_commit("g", *identity, [OffsetEntry("t", 0, offset)]))

    async def end(self, identity: ProducerIdentity, *, commit: bool) -> None:
        await self.transactions.end("x", *identity, commit)

    def fetched(self) -> FetchedOffset:
        return self.groups.fetch("g", [T0], require_stable=True)[T0]


def run(scenario: Callable[[Late], Coroutine[None, None, None]]) -> None:
    async def each(seed: int) -> None:
        below = MemoryStore()
        await below.create_topic("t", 1)
        late = await Late(below, seed).start()
        await scenario(late)
        await late.transactions.close()
        await late.groups.close()
        await late.store.rest()

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(each(seed) for seed in SEEDS)), LIMIT_S)

    asyncio.run(main())


def test_a_transactional_commit_is_pending_from_its_place_on() -> None:
    async def scenario(late: Late) -> None:
        identity = await late.begin()
        under_way = late.txn_commit(identity, 10)
        await asyncio.sleep(0)
        assert late.fetched() == FetchedOffset(), "it has no place yet"
        await under_way
        assert late.fetched().error is GroupErrorName.UNSTABLE_OFFSET_COMMIT
        await late.end(identity, commit=True)
        assert late.fetched().offset == 10

    run(scenario)


def test_the_order_of_the_log_decides_between_plain_and_transactional_commits() -> None:
    async def scenario(late: Late) -> None:
        identity = await late.begin()
        under_way = [late.commit(1), late.txn_commit(identity, 2), late.commit(3)]
        await asyncio.gather(*under_way)
        await late.end(identity, commit=True)
        assert late.fetched().offset == 3
        assert (await late.restarted()).fetched().offset == 3

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_under_way_when_its_transaction_ends_ends_with_it(commit: bool) -> None:
    async def scenario(late: Late) -> None:
        await late.commit(1)
        identity = await late.begin()
        under_way = late.txn_commit(identity, 10)
        await asyncio.sleep(0)  # it is on its way before the marker
        await late.end(identity, commit=commit)
        await under_way
        assert late.fetched() == FetchedOffset(10 if commit else 1)
        assert (await late.restarted()).fetched() == FetchedOffset(10 if commit else 1)

    run(scenario)


def test_commits_under_way_to_a_deleted_topic_go_with_it_and_those_to_its_successor_stay() -> None:
    async def scenario(late: Late) -> None:
        under_way = late.commit(1)
        await asyncio.sleep(0)
        await late.below.delete_topic("t")
        forgotten = late.groups.topic_deleted("t")
        await late.below.create_topic("t", 1)
        await asyncio.gather(under_way, forgotten, late.commit(2))
        assert late.fetched().offset == 2
        assert (await late.restarted()).fetched().offset == 2

    run(scenario)


def test_commits_under_way_to_a_deleted_topic_go_with_it() -> None:
    async def scenario(late: Late) -> None:
        under_way = late.commit(1)
        await asyncio.sleep(0)
        await late.below.delete_topic("t")
        await late.groups.topic_deleted("t")
        await under_way
        assert late.fetched() == FetchedOffset()
        await late.below.create_topic("t", 1)
        assert (await late.restarted()).fetched() == FetchedOffset()

    run(scenario)


def test_a_transactional_commit_that_was_under_way_is_deleted_with_its_group() -> None:
    async def scenario(late: Late) -> None:
        await late.commit(1)
        identity = await late.begin()
        under_way = late.txn_commit(identity, 10)
        await asyncio.sleep(0)
        await late.groups.delete_group("g")
        await under_way
        assert late.fetched() == FetchedOffset()

    run(scenario)
