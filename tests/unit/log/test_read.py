"""Reads: by offset within limits, by time, across segments; waiting and trimming."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.log.stores import NOW_MS, TP, batch_of, log_files, opened, put, records_of, run, values, with_topic
from trunkline.log.batch import NewRecord, build_batch, iter_batches
from trunkline.log.errors import OffsetOutOfRange
from trunkline.log.limits import StoreLimits
from trunkline.log.store import OffsetAndTimestamp, TopicPartition


def test_a_read_never_exceeds_max_bytes_and_ends_at_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, index_interval_bytes="200") as store:
            for number in range(100):
                await put(store, *[b"%d" % number] * (1 + number % 3))
            end = store.bounds(TP).high_watermark
            size = len(batch_of(b"0"))
            for max_bytes in (size, size + 1, 3 * size, 1000, 5000, 1 << 20):
                for start in range(0, end, 7):
                    piece = await store.read(TP, start, max_bytes, at_least_one=False)
                    assert len(piece.records) <= max_bytes
                    headers = [header for header, _ in iter_batches(piece.records)]
                    if headers:
                        assert headers[0].base_offset <= start <= headers[0].last_offset
                assert values(await records_of(store, max_bytes=max_bytes)) == [
                    b"%d" % n for n in range(100) for _ in range(1 + n % 3)
                ]

    run(main())


def test_a_first_batch_that_is_too_large_is_returned_whole_or_not_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await put(store, b"x" * 5000)
            await put(store, b"y" * 5000)
            for max_bytes in (-1, 0, 1, 12, 61, 5000):
                piece = await store.read(TP, 0, max_bytes)
                assert [header.base_offset for header, _ in iter_batches(piece.records)] == [0]
                assert not len((await store.read(TP, 0, max_bytes, at_least_one=False)).records)

    run(main())


def test_offsets_outside_the_log_are_refused_and_its_end_is_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            assert not len((await store.read(TP, 0, 100)).records)
            await put(store, b"a", b"b")
            assert not len((await store.read(TP, 2, 100)).records)
            for offset in (-1, 3, 2**62):
                with pytest.raises(OffsetOutOfRange):
                    await store.read(TP, offset, 100)

    run(main())


def test_a_read_stops_at_the_end_of_a_segment_and_the_next_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="1000") as store:
            for number in range(60):
                await put(store, b"%03d" % number)
            assert len(log_files(tmp_path)) > 3
            assert values(await records_of(store)) == [b"%03d" % n for n in range(60)]
            for offset in range(60):
                assert (await records_of(store, start=offset))[0].value == b"%03d" % offset

    run(main())


@pytest.mark.parametrize("nowait", [True, False])
def test_closed_segments_are_read_with_and_without_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowait: bool
) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError

    if not nowait:
        monkeypatch.setattr(os, "preadv", refuse)

    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="1000") as store:
            for number in range(60):
                await put(store, b"%03d" % number)
            assert values(await records_of(store)) == [b"%03d" % n for n in range(60)]

    run(main())


def test_many_partitions_work_with_few_descriptors(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, limits=StoreLimits(max_open_files=8)) as store:
            await store.create_topic("t", 100)
            for round_number in range(3):
                for partition in range(100):
                    await put(store, b"%d" % round_number, tp=TopicPartition("t", partition))
            for partition in range(100):
                assert values(await records_of(store, TopicPartition("t", partition))) == [b"0", b"1", b"2"]
            open_logs = [
                path
                for name in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{name}")
                and (path := os.readlink(f"/proc/self/fd/{name}")).startswith(str(tmp_path)) and path.endswith(".log")
            ]  # fmt: skip
            assert len(open_logs) <= 8

    run(main())


def test_watchers_are_woken_by_every_append_until_they_leave(tmp_path: Path) -> None:
    async def main() -> None:
        woken: list[str] = []

        def first() -> None:
            woken.append("first")
            store.unwatch(TP, first)

        def second() -> None:
            woken.append("second")

        async with with_topic(tmp_path) as store:
            store.watch(TP, first)
            store.watch(TP, second)
            await put(store, b"a")
            assert woken == ["first", "second"]
            await put(store, b"a")
            assert woken == ["first", "second", "second"]
            await store.trim(TP, 1)
            assert woken[3:] == ["second"]
            await store.delete_topic("t")
            assert woken[4:] == ["second"]
            store.unwatch(TP, second)

    run(main())


def test_waiters_are_woken_when_the_store_closes(tmp_path: Path) -> None:
    async def main() -> None:
        woken: list[int] = []
        async with with_topic(tmp_path) as store:
            store.watch(TP, lambda: woken.append(1))
        assert woken

    run(main())


# -- time --------------------------------------------------------------------------------------------------------


def test_offsets_are_found_by_time_to_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="2000", index_interval_bytes="100") as store:
            stamps: list[int] = []
            for number in range(60):
                inside = [NOW_MS + 100 * number + delta for delta in (0, 20, 10)]
                stamps += inside
                records = [NewRecord(b"k", b"v", (), stamp) for stamp in inside]
                await store.append(TP, build_batch(records, compression="gzip" if number % 2 else "none"))
            assert len(log_files(tmp_path)) > 2
            for wanted in (0, NOW_MS, *range(NOW_MS - 5, NOW_MS + 6100, 37)):
                expected = next((n for n, stamp in enumerate(stamps) if stamp >= wanted), None)
                found = await store.offset_for_time(TP, wanted)
                assert found == (None if expected is None else OffsetAndTimestamp(expected, stamps[expected]))
            newest = max(stamps)
            assert await store.max_timestamp(TP) == OffsetAndTimestamp(stamps.index(newest), newest)

    run(main())


def test_time_does_not_need_to_ascend(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, index_interval_bytes="1") as store:
            assert await store.max_timestamp(TP) is None
            assert await store.offset_for_time(TP, 0) is None
            stamps = [5, 900, 3, 901, 7, 2, 1000, 4]
            for stamp in stamps:
                await put(store, b"v", timestamp_ms=NOW_MS + stamp)
            for wanted in range(1002):
                expected = next((n for n, stamp in enumerate(stamps) if stamp >= wanted), None)
                found = await store.offset_for_time(TP, NOW_MS + wanted)
                assert (None if found is None else found.offset) == expected
            await store.trim(TP, 4)
            assert await store.offset_for_time(TP, 0) == OffsetAndTimestamp(4, NOW_MS + 7)

    run(main())


# -- trim --------------------------------------------------------------------------------------------------------


def test_trim_removes_records_and_whole_segments_durably(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="1000") as store:
            for number in range(60):
                await put(store, b"%03d" % number)
            before = len(log_files(tmp_path))
            assert await store.trim(TP, 33) == 33
            assert len(log_files(tmp_path)) < before
            with pytest.raises(OffsetOutOfRange):
                await store.read(TP, 32, 1000)
            assert await store.trim(TP, 10) == 33
            for offset in (-2, 61):
                with pytest.raises(OffsetOutOfRange):
                    await store.trim(TP, offset)
        async with with_topic(tmp_path) as store:
            assert store.bounds(TP).log_start_offset == 33
            assert values(await records_of(store)) == [b"%03d" % n for n in range(33, 60)]
            assert await store.trim(TP, -1) == 60
            assert (await store.directories())[0].sizes[TP] == 0
            assert (await put(store, b"next")).base_offset == 60
        async with with_topic(tmp_path) as store:
            assert values(await records_of(store)) == [b"next"]

    run(main())


def test_few_indexes_in_memory_are_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, limits=StoreLimits(max_loaded_indexes=2)) as store:
            await store.create_topic("t", 1, {"segment.bytes": "600", "index.interval.bytes": "100"})
            for number in range(60):
                await put(store, b"%03d" % number, timestamp_ms=NOW_MS + number)
            segments = len(log_files(tmp_path))
            assert segments > 5
            for offset in range(60):
                assert (await records_of(store, start=offset, max_bytes=1))[0].value == b"%03d" % offset
                found = await store.offset_for_time(TP, NOW_MS + offset)
                assert found == OffsetAndTimestamp(offset, NOW_MS + offset)

    run(main())
