"""Reading: whole batches from any offset, by size, by time; waiting; trimming."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.conftest import MakeStore
from tests.contract.scenario import NOW_MS, TP, batch, put, run, seen, values
from trunkline.log.batch import iter_batches
from trunkline.log.errors import OffsetOutOfRange, UnknownTopicOrPartition
from trunkline.log.store import LogStore, OffsetAndTimestamp, TopicPartition


def test_a_read_begins_with_the_batch_that_holds_the_offset(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await put(store, b"a", b"b", b"c")
        await put(store, b"d", b"e")
        piece = await store.read(TP, 1, 1 << 20)
        assert [header.base_offset for header, _ in iter_batches(piece.records)] in ([0, 3], [0])
        piece = await store.read(TP, 3, 1 << 20)
        assert [header.base_offset for header, _ in iter_batches(piece.records)] == [3]

    run(make_store, scenario)


def test_a_read_at_the_end_is_empty_and_one_outside_is_refused(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await put(store, b"a", b"b")
        piece = await store.read(TP, 2, 1 << 20)
        assert len(piece.records) == 0
        assert piece.bounds == store.bounds(TP)
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRange):
                await store.read(TP, offset, 1 << 20)
        with pytest.raises(UnknownTopicOrPartition):
            await store.read(TopicPartition("t", 9), 0, 1 << 20)

    run(make_store, scenario)


def test_a_read_keeps_to_its_size_but_for_a_first_batch_that_is_larger(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        for _ in range(4):
            await put(store, b"x" * 1000)
        size = len(batch(b"x" * 1000))
        assert len((await store.read(TP, 0, 3 * size)).records) in (size, 2 * size, 3 * size)
        assert len((await store.read(TP, 0, 3 * size - 1)).records) in (size, 2 * size)
        assert len((await store.read(TP, 0, 10)).records) == size
        assert len((await store.read(TP, 0, 10, at_least_one=False)).records) == 0
        assert len((await store.read(TP, 0, 0)).records) == size

    run(make_store, scenario)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=5), min_size=1, max_size=30),
    max_bytes=st.integers(0, 2000),
)
def test_portions_of_any_size_make_the_whole(make_store: MakeStore, sizes: list[list[int]], max_bytes: int) -> None:
    async def scenario(store: LogStore) -> None:
        tp = TopicPartition("t", 1)
        already = values(await seen(store, tp))
        sent = [[b"v" * size for size in group] for group in sizes]
        for group in sent:
            await store.append(tp, batch(*group))
        assert values(await seen(store, tp, max_bytes=max_bytes)) == already + [v for group in sent for v in group]

    run(make_store, scenario)


def test_a_time_leads_to_the_first_record_that_is_not_older(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        assert await store.offset_for_time(TP, 0) is None
        assert await store.max_timestamp(TP) is None
        for number, ms in enumerate((NOW_MS - 300, NOW_MS - 100, NOW_MS - 200, NOW_MS)):
            await store.append(TP, batch(b"%d" % number, timestamp_ms=ms))
        assert await store.offset_for_time(TP, 0) == OffsetAndTimestamp(0, NOW_MS - 300)
        assert await store.offset_for_time(TP, NOW_MS - 250) == OffsetAndTimestamp(1, NOW_MS - 100)
        assert await store.offset_for_time(TP, NOW_MS - 50) == OffsetAndTimestamp(3, NOW_MS)
        assert await store.offset_for_time(TP, NOW_MS + 1) is None
        assert await store.max_timestamp(TP) == OffsetAndTimestamp(3, NOW_MS)
        await store.trim(TP, 2)
        assert await store.offset_for_time(TP, 0) == OffsetAndTimestamp(2, NOW_MS - 200)

    run(make_store, scenario)


def test_whoever_watches_is_woken_by_every_change_until_it_lets_go(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        changed = asyncio.Event()
        store.watch(TP, changed.set)
        await put(store, b"elsewhere", tp=TopicPartition("t", 1))
        assert not changed.is_set()
        await put(store, b"a")
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
        await store.append(TP, batch(b"b", producer=3, sequence=0, transactional=True))
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
        await store.append_marker(TP, 3, 0, commit=True)
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
        await store.trim(TP, 1)
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
        store.unwatch(TP, changed.set)
        await put(store, b"c")
        assert not changed.is_set()
        with pytest.raises(UnknownTopicOrPartition):
            store.watch(TopicPartition("nowhere", 0), changed.set)

    run(make_store, scenario)


def test_one_watcher_that_raises_does_not_keep_the_others_asleep(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        def raises() -> None:
            raise RuntimeError("a fault of the watcher")

        changed = asyncio.Event()
        store.watch(TP, raises)
        store.watch(TP, changed.set)
        assert (await put(store, b"a")).base_offset == 0
        await asyncio.wait_for(changed.wait(), 10)

    run(make_store, scenario)


def test_what_is_trimmed_is_gone_and_offsets_go_on(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        for number in range(5):
            await put(store, b"%d" % number)
        assert await store.trim(TP, 3) == 3
        assert store.bounds(TP).log_start_offset == 3
        with pytest.raises(OffsetOutOfRange):
            await store.read(TP, 2, 1000)
        assert values(await seen(store)) == [b"3", b"4"]
        assert await store.trim(TP, 1) == 3  # a start never goes back
        for offset in (6, -2):
            with pytest.raises(OffsetOutOfRange):
                await store.trim(TP, offset)
        assert await store.trim(TP, -1) == 5
        assert await seen(store) == []
        assert (await put(store, b"5")).base_offset == 5
        assert values(await seen(store)) == [b"5"]

    run(make_store, scenario)


def test_a_trim_within_a_batch_hides_what_lies_before(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await put(store, b"a", b"b", b"c")
        assert await store.trim(TP, 1) == 1
        assert store.bounds(TP).log_start_offset == 1
        assert values(await seen(store)) == [b"b", b"c"]

    run(make_store, scenario)
