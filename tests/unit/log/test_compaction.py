"""Compaction: the latest record of each key, tombstones, transactions, crashes in the middle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.log.stores import NOW_MS, TP, batch_of, keyed, log_files, opened, records_of, run, with_topic
from trunkline.clock import ManualClock
from trunkline.log.batch import NewRecord, build_batch, check_crc, iter_batches
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.limits import StoreLimits
from trunkline.log.store import Durability

COMPACT = {"cleanup_policy": "compact", "segment_bytes": "400", "min_cleanable_dirty_ratio": "0.01"}


async def _fill(store: EmbeddedStore, count: int, *, keys: int = 5, codec: str = "none", start: int = 0) -> None:
    for number in range(start, start + count):
        pairs = [(b"k%d" % ((number + n) % keys), b"v%d.%d" % (number, n)) for n in range(3)]
        await store.append(TP, keyed(*pairs, compression=codec))


async def _pairs(store: EmbeddedStore) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {record.key: (record.offset, record.value) for record in await records_of(store) if not record.control}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_latest_record_of_each_key_stays_at_its_offset(tmp_path: Path, codec: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, COMPACT) as store:
            await _fill(store, 60, codec=codec)
            before = await _pairs(store)
            size = (await store.directories())[0].sizes[TP]
            await store.run_cleaner_once()
            assert await _pairs(store) == before
            assert (await store.directories())[0].sizes[TP] < size / 4
            stored = await records_of(store)
            closed_end = int(log_files(tmp_path)[-1].stem)
            closed = [record.key for record in stored if record.offset < closed_end]
            assert len(closed) == len(set(closed))
            for _, batch in iter_batches((await store.read(TP, 0, 1 << 20)).records):
                check_crc(batch)
            assert store.bounds(TP).high_watermark == 180
        async with opened(tmp_path) as store:
            assert await _pairs(store) == before
            await _fill(store, 60, start=60)
            before = await _pairs(store)
            await store.run_cleaner_once()
            assert await _pairs(store) == before

    run(main())


def test_every_offset_can_still_be_read_from(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, COMPACT, index_interval_bytes="50") as store:
            await _fill(store, 60)
            await store.run_cleaner_once()
            offsets = [record.offset for record in await records_of(store)]
            for offset in range(180):
                expected = [o for o in offsets if o >= offset]
                assert [r.offset for r in await records_of(store, start=offset, max_bytes=200)] == expected

    run(main())


def test_records_younger_than_the_lag_stay(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, COMPACT, clock=clock, min_compaction_lag_ms="1000") as store:
            await _fill(store, 30)
            clock.advance(999)
            await store.run_cleaner_once()
            assert len(await records_of(store)) == 90
            clock.advance(2)
            await store.run_cleaner_once()
            assert len(await records_of(store)) < 30

    run(main())


def test_the_dirty_ratio_and_the_longest_lag_decide_when(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        config = COMPACT | {"min_cleanable_dirty_ratio": "1", "max_compaction_lag_ms": "5000"}
        async with with_topic(tmp_path, config, clock=clock) as store:
            await _fill(store, 30)
            await store.run_cleaner_once()  # everything is dirty: ratio 1
            cleaned = len(await records_of(store))
            assert cleaned < 30
            await _fill(store, 10, start=30)
            await store.run_cleaner_once()
            assert len(await records_of(store)) == cleaned + 30
            clock.advance(5001)
            await store.run_cleaner_once()
            assert len(await records_of(store)) == 5  # the active segment was rolled for it

    run(main())


def test_tombstones_stay_for_their_time_and_then_go(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, COMPACT, clock=clock, delete_retention_ms="10000") as store:
            await store.append(TP, keyed((b"gone", b"x"), (b"stays", b"y")))
            await store.append(TP, keyed((b"gone", None)))
            await _fill(store, 10)
            await store.run_cleaner_once()
            found = await _pairs(store)
            assert found[b"gone"] == (2, None)
            assert found[b"stays"] == (1, b"y")
            assert [r.timestamp_ms for r in await records_of(store)] == [NOW_MS] * len(await records_of(store))
            clock.advance(9999)
            await _fill(store, 10)
            await store.run_cleaner_once()
            assert b"gone" in await _pairs(store)
            clock.advance(1)
            await _fill(store, 10)
            await store.run_cleaner_once()
            found = await _pairs(store)
            assert b"gone" not in found
            assert found[b"stays"] == (1, b"y")

    run(main())


def test_aborted_records_go_and_hide_nothing_and_their_marker_follows(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, COMPACT, clock=clock, delete_retention_ms="1000") as store:

            async def send(pid: int, sequence: int, key: bytes, value: bytes) -> None:
                record = NewRecord(key, value)
                batch = build_batch(
                    [record], timestamp_ms=NOW_MS, producer_id=pid, producer_epoch=0, base_sequence=sequence, transactional=True
                )  # fmt: skip
                await store.append(TP, batch)

            async def committed() -> dict[bytes | None, bytes | None]:
                return {r.key: r.value for r in await records_of(store, committed=True) if r.key in (b"a", b"b", b"c")}

            await store.append(TP, keyed((b"a", b"old")))
            await send(1, 0, b"a", b"aborted")
            await send(2, 0, b"b", b"committed")
            await store.append_marker(TP, 1, 0, commit=False)
            await store.append_marker(TP, 2, 0, commit=True)
            await send(1, 1, b"c", b"aborted again")
            await store.append_marker(TP, 1, 0, commit=False)
            await _fill(store, 20)
            expected = {b"a": b"old", b"b": b"committed"}
            assert await committed() == expected
            for _ in range(5):
                await store.run_cleaner_once()
                assert await committed() == expected
                assert all(r.value not in (b"aborted",) for r in await records_of(store))
                clock.advance(1001)
                await _fill(store, 5)
            # Producer 1's last batch is kept, empty, for its sequence; with it stays its marker.
            assert [state.last_sequence for state in await store.producers(TP) if state.producer_id == 1] == [1]
            clock.advance(86_400_001)
            for _ in range(3):
                await _fill(store, 5)
                await store.run_cleaner_once()
                clock.advance(1001)
            headers = [header for header, _ in iter_batches((await store.read(TP, 0, 1 << 20)).records)]
            assert not any(header.control and header.producer_id == 1 for header in headers)
            assert any(header.control and header.producer_id == 2 for header in headers)
            assert await committed() == expected
        async with opened(tmp_path, clock=clock) as store:
            assert (await store.read(TP, 0, 1 << 20, committed=True)).aborted == []

    run(main())


def test_an_open_transaction_is_not_touched(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, COMPACT) as store:
            await store.append(TP, batch_of(b"open", pid=1, epoch=0, sequence=0, transactional=True))
            await _fill(store, 30)
            count = len(await records_of(store))
            await store.run_cleaner_once()
            assert len(await records_of(store)) == count
            await store.append_marker(TP, 1, 0, commit=True)
            await store.run_cleaner_once()
            assert len(await records_of(store)) < count

    run(main())


def test_sequences_are_remembered_by_a_compacted_log_after_a_crash(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live", COMPACT) as store:
            await store.append(TP, batch_of(b"x", key=b"k1", pid=8, epoch=2, sequence=0))
            await store.append(TP, batch_of(b"y", key=b"k1", pid=8, epoch=2, sequence=1))
            await _fill(store, 30)
            await store.run_cleaner_once()
            shutil.copytree(tmp_path / "live", tmp_path / "copy")
        for path in (tmp_path / "copy" / "t-0").glob("*.snapshot"):
            path.unlink()
        async with opened(tmp_path / "copy") as store:
            assert (await store.append(TP, batch_of(b"y", key=b"k1", pid=8, epoch=2, sequence=1))).duplicate

    run(main())


def test_a_key_map_that_is_too_small_takes_several_passes(tmp_path: Path) -> None:
    async def main() -> None:
        limits = StoreLimits(cleaner_key_map_bytes=200 * 10)
        async with opened(tmp_path, limits=limits) as store:
            await store.create_topic("t", 1, {name.replace("_", "."): value for name, value in COMPACT.items()})
            await _fill(store, 100, keys=40)
            before = await _pairs(store)
            sizes = []
            for _ in range(40):
                await store.run_cleaner_once()
                assert await _pairs(store) == before
                sizes.append(len(await records_of(store)))
            assert sizes[0] > sizes[-1]
            assert sizes[-1] <= 40 + 20

    run(main())


def test_reads_go_on_while_segments_are_swapped(tmp_path: Path) -> None:
    async def main() -> None:
        import asyncio

        async with with_topic(tmp_path, COMPACT) as store:
            await _fill(store, 200)
            cleaning = asyncio.ensure_future(store.run_cleaner_once())
            rounds = 0
            while not cleaning.done():
                latest = await _pairs(store)
                assert len(latest) == 5
                rounds += 1
                await asyncio.sleep(0)
            await cleaning
            assert rounds
            assert len(await _pairs(store)) == 5

    run(main())


def test_a_crash_at_any_point_of_the_swap_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    async def main() -> None:
        live = tmp_path / "live"
        copies: list[Path] = []

        def snapshot() -> None:
            copy = tmp_path / f"copy{len(copies)}"
            shutil.copytree(live, copy)
            copies.append(copy)

        def spy(name: str) -> None:
            real = getattr(os, name)

            def call(*arguments: object, **keywords: object) -> object:
                inside = "t-0" in str(arguments[0])
                if inside:
                    snapshot()
                result = real(*arguments, **keywords)
                if inside:
                    snapshot()
                return result

            monkeypatch.setattr(os, name, call)

        async with with_topic(live, COMPACT) as store:
            await store.append(TP, batch_of(b"aborted", key=b"x", pid=1, epoch=0, sequence=0, transactional=True))
            await _fill(store, 6)
            await store.append_marker(TP, 1, 0, commit=False, durability=Durability.OS)
            await _fill(store, 6, start=6)
            before = await _pairs(store)
            del before[b"x"]
            for name in ("rename", "unlink", "replace"):
                spy(name)
            await store.run_cleaner_once()
            monkeypatch.undo()
        assert len(copies) > 20
        for copy in copies:
            async with opened(copy) as store:
                found = {r.key: (r.offset, r.value) for r in await records_of(store, committed=True) if not r.control}
                assert found == before
                assert store.bounds(TP).high_watermark == 38
                leftovers = [p.name for p in (copy / "t-0").iterdir() if p.suffix in (".swap", ".cleaned", ".deleted")]
                assert leftovers == []

    run(main())
