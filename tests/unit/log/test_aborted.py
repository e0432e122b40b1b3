"""Transactions in a partition: the last stable offset, markers, and what a committed read leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, log_files, put, records_of, run, values, with_topic
from trunkline.log.batch import iter_batches
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import InvalidTransactionState, ProducerFenced
from trunkline.log.store import AbortedTransaction, Durability


async def _send(store: EmbeddedStore, pid: int, sequence: int, *payload: bytes, epoch: int = 0) -> None:
    await store.append(TP, batch_of(*payload, pid=pid, epoch=epoch, sequence=sequence, transactional=True))


async def _end(store: EmbeddedStore, pid: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> None:
    await store.append_marker(
        TP, pid, epoch, commit=commit, coordinator_epoch=coordinator_epoch, durability=Durability.OS
    )


async def _committed(store: EmbeddedStore, max_bytes: int = 1 << 20) -> list[bytes | None]:
    return values(await records_of(store, committed=True, max_bytes=max_bytes))


def test_a_committed_read_stops_at_the_oldest_open_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await put(store, b"before")
            await _send(store, 1, 0, b"one")
            await _send(store, 2, 0, b"two")
            await put(store, b"after")
            assert store.bounds(TP).last_stable_offset == 1
            assert await _committed(store) == [b"before"]
            assert len(values(await records_of(store))) == 4
            assert not len((await store.read(TP, 2, 1000, committed=True)).records)
            await _end(store, 1, commit=True)
            assert store.bounds(TP).last_stable_offset == 2
            assert await _committed(store) == [b"before", b"one"]
            await _end(store, 2, commit=False)
            assert store.bounds(TP).last_stable_offset == store.bounds(TP).high_watermark == 6
            for max_bytes in (1, 100, 1 << 20):
                assert await _committed(store, max_bytes) == [b"before", b"one", b"after"]

    run(main())


def test_a_slice_lists_the_aborted_transactions_that_touch_it_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for number in range(5):
                await _send(store, number, 0, b"x")
                await put(store, b"between")
                await _end(store, number, commit=number % 2 == 0)
            size = len(batch_of(b"x"))
            assert (await store.read(TP, 0, 1 << 20, committed=True)).aborted == [(1, 3), (3, 9)]
            assert (await store.read(TP, 0, size, committed=True)).aborted == []
            assert (await store.read(TP, 4, size, committed=True)).aborted == [AbortedTransaction(1, 3)]
            assert (await store.read(TP, 6, 2 * size, committed=True)).aborted == []
            assert (await store.read(TP, 0, 1 << 20)).aborted == ()

    run(main())


def test_aborted_transactions_span_segments_and_survive_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="600") as store:
            await _send(store, 9, 0, b"aborted")
            for number in range(30):
                await put(store, b"%d" % number)
            await _send(store, 9, 1, b"aborted")
            await _end(store, 9, commit=False)
            assert len(log_files(tmp_path)) > 2
        for _ in range(2):
            async with with_topic(tmp_path) as store:
                for max_bytes in (1, 300, 1 << 20):
                    assert await _committed(store, max_bytes) == [b"%d" % n for n in range(30)]

    run(main())


def test_an_open_transaction_is_open_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await put(store, b"a")
            await _send(store, 1, 0, b"b")
        async with with_topic(tmp_path) as store:
            assert store.bounds(TP).last_stable_offset == 1
            (state,) = await store.producers(TP)
            assert (state.producer_id, state.last_sequence, state.transaction_start_offset) == (1, 0, 1)
            await _end(store, 1, commit=True)
            assert await _committed(store) == [b"a", b"b"]

    run(main())


def test_a_marker_without_a_transaction_is_written_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await _end(store, 5, commit=False)
            await put(store, b"a")
            assert store.bounds(TP).last_stable_offset == 2
            piece = await store.read(TP, 0, 1 << 20, committed=True)
            assert piece.aborted == []
            assert [header.control for header, _ in iter_batches(piece.records)] == [True, False]

    run(main())


def test_markers_are_fenced_by_producer_and_coordinator_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await _send(store, 1, 0, b"a", epoch=3)
            with pytest.raises(ProducerFenced):
                await _end(store, 1, commit=True, epoch=2)
            await _end(store, 1, commit=True, epoch=4, coordinator_epoch=5)
            with pytest.raises(ProducerFenced):
                await _send(store, 1, 1, b"late", epoch=3)
            with pytest.raises(InvalidTransactionState):
                await _end(store, 1, commit=True, epoch=4, coordinator_epoch=4)
            await _send(store, 1, 0, b"b", epoch=4)
            (state,) = await store.producers(TP)
            assert (state.producer_epoch, state.coordinator_epoch) == (4, 5)

    run(main())


def test_a_marker_wakes_waiting_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await _send(store, 1, 0, b"a")
            woken: list[int] = []
            store.watch(TP, lambda: woken.append(store.bounds(TP).last_stable_offset))
            await _end(store, 1, commit=True)
            assert woken == [2]

    run(main())


def test_batches_without_a_sequence_may_follow_each_other_in_and_across_transactions(tmp_path: Path) -> None:
    """The groups write the offsets of a transaction for its producer, as often as it commits some."""

    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for value in (b"first", b"second"):
                await _send(store, 1, -1, value)
                await _send(store, 1, -1, value)
                await _end(store, 1, commit=True)
            assert await _committed(store) == [b"first", b"first", b"second", b"second"]

    run(main())
