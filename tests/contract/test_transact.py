"""Transactions as an operation of the store: all of the parts or none, for every reader of committed records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from tests.contract.conftest import MakeStore
from tests.contract.scenario import TP, put, run, seen, values
from trunkline.broker.transactions.coordinator import TransactionCoordinator
from trunkline.broker.transactions.own import MAX_CONCURRENT, OwnTransactions
from trunkline.clock import ManualClock
from trunkline.cursors.stream import GroupCoordinator
from trunkline.log.batch import NewRecord
from trunkline.log.coordinated import CoordinatedStore, TransactionalProducer
from trunkline.log.errors import BatchTooLarge, InvalidTransactionState, TransactionRefused, UnknownTopicOrPartition
from trunkline.log.state_topic import StateTopic
from trunkline.log.store import LogStore, TopicPartition

OTHER = TopicPartition("t", 1)
LIMIT_S = 30


class Coordination:
    """What a broker puts beside a store of this process. A store with a coordinator of its own needs none of it."""

    def __init__(self, store: LogStore) -> None:
        clock = ManualClock()
        self._groups = GroupCoordinator(store, clock)
        self.coordinator = TransactionCoordinator(store, self._groups, clock)
        self.own = OwnTransactions(self.coordinator, clock)
        self._store = store

    async def start(self) -> Coordination:
        await self._groups.start()
        await self.coordinator.start()
        await self.own.start()
        if isinstance(self._store, CoordinatedStore):
            self._store.coordinated_by(self.own)
        return self

    async def close(self) -> None:
        await self.coordinator.close()
        await self._groups.close()


class Undecided:
    """The process is killed when everything is appended and nothing is decided."""

    def __init__(self, own: OwnTransactions) -> None:
        self._own = own
        self.appended = asyncio.Event()

    @asynccontextmanager
    async def transaction(self, partitions: Collection[TopicPartition]) -> AsyncIterator[TransactionalProducer]:
        opened = self._own.transaction(partitions)
        yield await opened.__aenter__()
        self.appended.set()
        await asyncio.Event().wait()


def records(*values: bytes) -> list[NewRecord]:
    return [NewRecord(b"k", value) for value in values]


async def visible(store: LogStore) -> tuple[list[bytes | None], list[bytes | None]]:
    return values(await seen(store, committed=True)), values(await seen(store, OTHER, committed=True))


def test_all_parts_are_seen_when_it_returns(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        beside = await Coordination(store).start()
        await put(store, b"before")
        for number in range(3):
            value = b"%d" % number
            places = await store.transact({TP: records(value, value), OTHER: records(value)})
            for tp, part in ((TP, [value, value]), (OTHER, [value])):
                found = await seen(store, tp, start=places[tp].base_offset, committed=True)
                assert values(found) == part
                assert found[-1].offset == places[tp].last_offset
        await put(store, b"after")
        assert await visible(store) == ([b"before", b"0", b"0", b"1", b"1", b"2", b"2", b"after"], [b"0", b"1", b"2"])
        await beside.close()

    run(make_store, scenario)


def test_a_part_larger_than_a_batch_is_whole_and_in_order(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        beside = await Coordination(store).start()
        large = [bytes([number]) * 200_000 for number in range(20)]
        await store.transact({TP: records(*large), OTHER: records(b"small")})
        assert await visible(store) == (large, [b"small"])
        await beside.close()

    run(make_store, scenario)


def test_a_state_topic_takes_part(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        beside = await Coordination(store).start()
        state = StateTopic(store, ManualClock(), "__sessions", {"cleanup.policy": "compact"})
        await state.open()
        await store.transact({TP: records(b"message"), state.tp: [NewRecord(b"place", b"7")]})
        with pytest.raises(UnknownTopicOrPartition):
            await store.transact({state.tp: [NewRecord(b"place", b"8")], TopicPartition("t", 9): records(b"x")})
        assert await state.latest() == {b"place": b"7"}
        assert values(await seen(store, committed=True)) == [b"message"]
        await beside.close()

    run(make_store, scenario)


def test_nothing_is_seen_if_one_part_has_no_partition(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        beside = await Coordination(store).start()
        with pytest.raises(UnknownTopicOrPartition):
            await store.transact({TP: records(b"x"), TopicPartition("nowhere", 0): records(b"x")})
        await put(store, b"after")
        assert await visible(store) == ([b"after"], [])
        await beside.close()

    run(make_store, scenario)


def test_nothing_is_seen_if_one_part_is_refused(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        beside = await Coordination(store).start()
        await store.create_topic("small", 1, {"max.message.bytes": "100"})
        small = TopicPartition("small", 0)
        with pytest.raises(BatchTooLarge):
            await store.transact({TP: records(b"x"), small: records(b"x" * 200), OTHER: records(b"x")})
        await put(store, b"after")
        await store.transact({TP: records(b"again"), OTHER: records(b"again")})
        assert await visible(store) == ([b"after", b"again"], [b"again"])
        assert values(await seen(store, small, committed=True)) == []
        await beside.close()

    run(make_store, scenario)


def test_what_a_crash_leaves_undecided_is_never_seen(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        if not isinstance(store, CoordinatedStore):
            pytest.skip("who decides is not in this process")
        killed = await Coordination(store).start()
        undecided = Undecided(killed.own)
        store.coordinated_by(undecided)
        work = asyncio.create_task(store.transact({TP: records(b"lost"), OTHER: records(b"lost")}))
        await asyncio.wait_for(undecided.appended.wait(), LIMIT_S)
        assert await visible(store) == ([], [])
        after = await Coordination(store).start()
        await put(store, b"after")
        assert await visible(store) == ([b"after"], [])
        await store.transact({TP: records(b"again"), OTHER: records(b"again")})
        assert await visible(store) == ([b"after", b"again"], [b"again"])
        work.cancel()
        await asyncio.wait({work})
        await after.close()

    run(make_store, scenario)


def test_who_gives_up_before_the_decision_leaves_nothing(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        if not isinstance(store, CoordinatedStore):
            pytest.skip("who decides is not in this process")
        beside = await Coordination(store).start()
        held = asyncio.Event()

        class Held:
            @asynccontextmanager
            async def transaction(self, partitions: Collection[TopicPartition]) -> AsyncIterator[TransactionalProducer]:
                async with beside.own.transaction(partitions) as producer:
                    yield producer
                    held.set()
                    await asyncio.Event().wait()

        store.coordinated_by(Held())
        work = asyncio.create_task(store.transact({TP: records(b"no"), OTHER: records(b"no")}))
        await asyncio.wait_for(held.wait(), LIMIT_S)
        work.cancel()
        await asyncio.wait({work})
        await put(store, b"after")
        assert await visible(store) == ([b"after"], [])
        await beside.close()

    run(make_store, scenario)


def test_many_at_once_do_not_mix(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        beside = await Coordination(store).start()
        count = MAX_CONCURRENT + 10
        await asyncio.gather(
            *(store.transact({TP: records(b"%d" % n), OTHER: records(b"%d" % n)}) for n in range(count))
        )
        found = await visible(store)
        assert [sorted(part, key=lambda value: int(value or b"")) for part in found] == [
            [b"%d" % n for n in range(count)]
        ] * 2
        await beside.close()

    run(make_store, scenario)


def test_it_is_refused_when_nobody_coordinates(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        if not isinstance(store, CoordinatedStore):
            pytest.skip("it has a coordinator of its own")
        with pytest.raises(InvalidTransactionState):
            await store.transact({TP: records(b"x")})
        beside = await Coordination(store).start()
        await beside.close()
        with pytest.raises(TransactionRefused):
            await store.transact({TP: records(b"x")})
        assert await visible(store) == ([], [])

    run(make_store, scenario)
