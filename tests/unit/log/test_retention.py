"""When segments are rolled, and when they go."""

from __future__ import annotations

from pathlib import Path

from tests.unit.log.stores import NOW_MS, TP, batch_of, log_files, opened, put, records_of, run, values, with_topic
from trunkline.clock import ManualClock

HOUR_MS = 3_600_000


def test_segments_roll_by_size(tmp_path: Path) -> None:
    async def main() -> None:
        size = len(batch_of(b"0"))
        async with with_topic(tmp_path, segment_bytes=str(3 * size)) as store:
            for _ in range(7):
                await put(store, b"0")
            assert [int(path.stem) for path in log_files(tmp_path)] == [0, 3, 6]

    run(main())


def test_segments_roll_by_the_age_of_their_first_record(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, clock=clock, segment_ms=str(HOUR_MS)) as store:
            for minutes in (0, 59, 61, 100, 125):
                clock.advance(NOW_MS + minutes * 60_000 - clock.wall_ms())
                await put(store, b"v", timestamp_ms=clock.wall_ms())
            assert [int(path.stem) for path in log_files(tmp_path)] == [0, 2, 4]

    run(main())


def test_segments_roll_when_their_index_is_full(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_index_bytes="36", index_interval_bytes="0") as store:
            for number in range(20):
                await put(store, b"v", timestamp_ms=NOW_MS + number)
            assert len(log_files(tmp_path)) > 3
            assert len(await records_of(store)) == 20

    run(main())


def test_old_segments_go_and_an_idle_active_one_too(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, clock=clock, segment_bytes="300", retention_ms=str(HOUR_MS)) as store:
            for _ in range(10):
                await put(store, b"old", timestamp_ms=NOW_MS)
            clock.advance(HOUR_MS)
            await put(store, b"new", timestamp_ms=clock.wall_ms())
            await store.run_cleaner_once()
            assert len(await records_of(store)) == 11
            clock.advance(1)
            await store.run_cleaner_once()
            left = values(await records_of(store))
            assert left[-1] == b"new"
            assert len(left) <= 3
            start = store.bounds(TP).log_start_offset
            assert int(log_files(tmp_path)[0].stem) == start > 0
            clock.advance(HOUR_MS + 1)
            await store.run_cleaner_once()
            assert store.bounds(TP).log_start_offset == store.bounds(TP).high_watermark == 11
            assert [path.stat().st_size for path in log_files(tmp_path)] == [0]
        async with opened(tmp_path, clock=clock) as store:
            assert (await put(store, b"next", timestamp_ms=clock.wall_ms())).base_offset == 11

    run(main())


def test_retention_bytes_keeps_at_least_that_much(tmp_path: Path) -> None:
    async def main() -> None:
        size = len(batch_of(b"0"))
        config = {"segment_bytes": str(2 * size), "retention_bytes": str(5 * size)}
        async with with_topic(tmp_path, config) as store:
            for _ in range(20):
                await put(store, b"0")
            await store.run_cleaner_once()
            total = (await store.directories())[0].sizes[TP]
            assert 5 * size <= total < 7 * size
            assert len(await records_of(store)) == total // size

    run(main())


def test_retention_stops_before_an_open_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, clock=clock, segment_bytes="200", retention_ms="1000") as store:
            await put(store, b"gone")
            await store.append(TP, batch_of(b"open", pid=1, epoch=0, sequence=0, transactional=True))
            for _ in range(5):
                await put(store, b"v")
            clock.advance(5000)
            await store.run_cleaner_once()
            assert store.bounds(TP).log_start_offset <= 1
            await store.append_marker(TP, 1, 0, commit=True)
            clock.advance(5000)
            await store.run_cleaner_once()
            assert store.bounds(TP).log_start_offset == 8

    run(main())


def test_unlimited_retention_and_compacted_topics_lose_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with opened(tmp_path, clock=clock) as store:
            await store.create_topic("t", 1, {"retention.ms": "-1", "segment.bytes": "200"})
            for _ in range(10):
                await put(store, b"v")
            clock.advance(10**12)
            await store.run_cleaner_once()
            assert len(await records_of(store)) == 10

    run(main())


def test_new_settings_apply_at_once_and_last(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, clock=clock, segment_bytes="200") as store:
            for _ in range(10):
                await put(store, b"v")
            clock.advance(1001)
            await store.run_cleaner_once()
            assert len(await records_of(store)) == 10
            info = await store.configure_topic("t", {"retention.ms": "1000"})
            assert dict(info.config.overrides) == {"retention.ms": "1000"}
            await store.run_cleaner_once()
            assert await records_of(store) == []
        async with opened(tmp_path) as store:
            found = store.topic("t")
            assert found is not None
            assert dict(found.config.overrides) == {"retention.ms": "1000"}

    run(main())
