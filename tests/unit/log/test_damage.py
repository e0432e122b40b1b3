"""Damaged files: what is whole is served, what is not is named and kept, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.log.stores import (
    NOW_MS,
    TP,
    batch_of,
    keyed,
    log_files,
    opened,
    put,
    records_of,
    run,
    values,
    with_topic,
)
from trunkline.clock import ManualClock
from trunkline.log.batch import HEADER_BYTES, iter_batches, iter_records
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import Durability, OffsetAndTimestamp, TopicPartition

TOPOLOGY = TopicPartition("__topology", 0)
ONE = len(batch_of(b"0000"))  # the size of every batch of `filled`


def crash_copy(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    (target / ".clean_shutdown").unlink(missing_ok=True)
    return target


async def filled(directory: Path, count: int, **config: str) -> None:
    """A topic of batches of one record each, whose values are their offsets; shut down in order."""
    async with with_topic(directory, {name.replace("_", "."): value for name, value in config.items()}) as store:
        for number in range(count):
            await store.append(TP, batch_of(b"%04d" % number), Durability.OS)


def flip(path: Path, position: int, mask: int = 0x40) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


async def offsets_of(store: EmbeddedStore, tp: TopicPartition = TP, *, verified: bool = True) -> list[int]:
    """The offsets of all records, each of which is checked to be what was written there."""
    bounds = store.bounds(tp)
    offset = bounds.log_start_offset
    found: list[int] = []
    while offset < bounds.high_watermark:
        piece = await store.read(tp, offset, 500, verified=verified)
        if not len(piece.records):
            break
        for header, batch in iter_batches(piece.records):
            for record in iter_records(batch):
                assert record.value == b"%04d" % record.offset
                found.append(record.offset)
            offset = header.last_offset + 1
    return found


def kept(directory: Path, tp: TopicPartition = TP) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / str(tp)).glob("*.damaged")}


def test_after_a_crash_one_flipped_byte_costs_one_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await filled(tmp_path, 2000, segment_bytes="30000")
        (tmp_path / ".clean_shutdown").unlink()
        (tmp_path / "checkpoint.json").unlink()  # it was never saved
        first, *later = log_files(tmp_path)
        assert len(later) > 2
        flip(first, 7 * ONE + 66)
        damaged = first.read_bytes()[7 * ONE : 8 * ONE]
        async with opened(tmp_path) as store:
            assert await offsets_of(store) == [n for n in range(2000) if n != 7]
            assert log_files(tmp_path) == [first, *later]
            assert kept(tmp_path) == {f"{first.stem}.{7 * ONE}.damaged": damaged}
            assert (await put(store, b"2000")).base_offset == 2000
        assert str(first) in caplog.text
        assert f"position {7 * ONE} to {8 * ONE}" in caplog.text
        assert "offsets 7 to 7 are missing" in caplog.text
        caplog.clear()
        async with opened(tmp_path) as store:  # it is told once
            assert len(await offsets_of(store)) == 2000
        assert "damaged" not in caplog.text

    run(main())


@pytest.mark.parametrize("place", [0, 5, 9])
@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("mask", [0x01, 0x40])
def test_a_base_offset_with_one_wrong_byte_is_put_right(tmp_path: Path, place: int, byte: int, mask: int) -> None:
    async def main() -> None:
        await filled(tmp_path, 10)
        (tmp_path / ".clean_shutdown").unlink()
        (tmp_path / "checkpoint.json").unlink()
        (log,) = log_files(tmp_path)
        flip(log, place * ONE + byte, mask)
        async with opened(tmp_path) as store:
            assert store.bounds(TP).high_watermark == 10
            assert await offsets_of(store) == list(range(10))
            assert (await put(store, b"0010")).base_offset == 10
        assert len(kept(tmp_path)) == 1

    run(main())


@pytest.mark.parametrize("byte", [*range(12), *range(16, HEADER_BYTES, 5)])
def test_damage_anywhere_in_a_header_costs_its_batch_at_most(tmp_path: Path, byte: int) -> None:
    async def main() -> None:
        await filled(tmp_path, 12, segment_bytes=str(4 * ONE))
        second = log_files(tmp_path)[1]
        before = second.read_bytes()
        flip(second, ONE + byte)
        async with opened(tmp_path) as store:  # after a clean stop: found when it is read
            found = await offsets_of(store)
            assert set(range(12)) - set(found) <= {5}
            assert store.bounds(TP).high_watermark == 12
        rest = before[:ONE] + before[2 * ONE :]
        mended = second.read_bytes()
        if len(found) == 11:
            assert mended.startswith(rest[:ONE])
            assert mended.endswith(rest[ONE:])
        else:
            assert mended == before

    run(main())


def test_damage_that_had_been_synced_is_served_around_and_no_offset_is_given_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live") as store:
            await store.create_topic("other", 1)
            for number in range(10):
                await store.append(TP, batch_of(b"%04d" % number), Durability.DISK)
            await store.save_checkpoint()
            copy = crash_copy(tmp_path / "live", tmp_path / "copy")
        (log,) = log_files(copy)
        os.truncate(log, 7 * ONE + 20)  # three batches that were on disk
        flip(log, 2 * ONE + 70)
        async with opened(copy) as store:
            assert await offsets_of(store) == [0, 1, 3, 4, 5, 6]
            assert store.bounds(TP).high_watermark == 10
            assert (await put(store, b"0010")).base_offset == 10
            assert not (await store.directories())[0].failed
            other = TopicPartition("other", 0)
            await put(store, b"fine", tp=other)
            assert values(await records_of(store, other)) == [b"fine"]
        assert len(kept(copy)) == 2

    run(main())


def test_a_torn_tail_is_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await filled(tmp_path / "live", 4)
        copy = crash_copy(tmp_path / "live", tmp_path / "copy")
        (copy / "checkpoint.json").unlink()
        (log,) = log_files(copy)
        os.truncate(log, 3 * ONE + 50)
        torn = log.read_bytes()[3 * ONE :]
        async with opened(copy) as store:
            assert await offsets_of(store) == [0, 1, 2]
            assert (await put(store, b"0003")).base_offset == 3
        assert kept(copy) == {f"{log.stem}.{3 * ONE}.damaged": torn}
        assert "is cut after a crash" in caplog.text
        assert not [record for record in caplog.records if record.levelname == "ERROR" and "t-0" in record.message]

    run(main())


def test_a_closed_segment_that_is_missing_or_cut_is_named_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        for clean in (True, False):
            for what in ("missing", "cut", "first missing", "last missing"):
                caplog.clear()
                directory = tmp_path / f"{what} {clean}"
                await filled(directory, 20, segment_bytes=str(4 * ONE))
                files = log_files(directory)
                expected = set(range(20))
                if what == "missing":
                    files[2].unlink()
                    expected -= set(range(8, 12))
                    named = files[1]
                elif what == "cut":
                    os.truncate(files[2], 2 * ONE)
                    expected -= {10, 11}
                    named = files[2]
                elif what == "first missing":
                    files[0].unlink()
                    expected -= set(range(4))
                    named = files[1]
                else:
                    files[-1].unlink()
                    expected -= set(range(16, 20))
                    named = files[-2]
                if not clean:
                    (directory / ".clean_shutdown").unlink()
                async with opened(directory) as store:
                    assert str(named) in caplog.text
                    assert "missing" in caplog.text
                    assert await offsets_of(store) == sorted(expected)
                    assert (await put(store, b"0020")).base_offset == 20
                caplog.clear()
                async with opened(directory) as store:
                    assert await offsets_of(store) == [*sorted(expected), 20]
                assert "missing" not in caplog.text

    run(main())


def test_a_partition_without_its_files_is_named_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await filled(tmp_path, 5)
        shutil.rmtree(tmp_path / "t-0")
        async with opened(tmp_path) as store:
            assert "offsets 0 to 4 were there" in caplog.text
            assert (await put(store, b"0005")).base_offset == 5

    run(main())


def test_who_decodes_reads_around_a_damaged_value_that_a_client_would_get(tmp_path: Path) -> None:
    async def main() -> None:
        await filled(tmp_path, 12, segment_bytes=str(4 * ONE))
        flip(log_files(tmp_path)[1], 2 * ONE + 66)
        async with opened(tmp_path) as store:
            first, second = await asyncio.gather(offsets_of(store), offsets_of(store))
            assert first == second == [n for n in range(12) if n != 6]
        assert len(kept(tmp_path)) == 1, "mended once, though two found it"

    run(main())


def test_a_damaged_active_segment_takes_no_more_and_is_mended(tmp_path: Path) -> None:
    async def main() -> None:
        await filled(tmp_path, 6, index_interval_bytes="50")
        for index in (tmp_path / "t-0").glob("*index"):
            index.unlink()
        flip(log_files(tmp_path)[0], 2 * ONE + 16)  # the magic
        async with opened(tmp_path) as store:
            assert (await put(store, b"0006")).base_offset == 6
            assert await offsets_of(store, verified=False) == [0, 1, 3, 4, 5, 6]
            assert (await put(store, b"0007")).base_offset == 7
        async with opened(tmp_path) as store:
            assert await offsets_of(store) == [0, 1, 3, 4, 5, 6, 7]

    run(main())


def test_a_lookup_by_time_does_not_believe_a_damaged_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for number in range(5):
                await put(store, b"%04d" % number, timestamp_ms=NOW_MS + number)
        flip(log_files(tmp_path)[0], 2 * ONE + 65)
        async with opened(tmp_path) as store:
            assert await store.offset_for_time(TP, NOW_MS + 2) == OffsetAndTimestamp(3, NOW_MS + 3)

    run(main())


def test_compaction_goes_on_around_damage(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        settings = {"cleanup.policy": "compact", "segment.bytes": "700", "min.cleanable.dirty.ratio": "0.01"}
        async with with_topic(tmp_path, settings, clock=clock) as store:
            for number in range(60):
                await store.append(TP, keyed((b"k%d" % (number % 7), b"%04d" % number)))
        victim = log_files(tmp_path)[1]
        flip(victim, 70)
        async with opened(tmp_path, clock=clock) as store:
            await store.run_cleaner_once()
            found = await records_of(store)
            assert {record.key for record in found} == {b"k%d" % n for n in range(7)}
            assert found[-1].value == b"0059"
            assert len(found) < 30
        assert len(kept(tmp_path)) == 1

    run(main())


def test_a_lost_abort_marker_is_written_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for number, commit in enumerate((False, True)):
                batch = batch_of(b"%d" % number, pid=7, epoch=0, sequence=number, transactional=True)
                await store.append(TP, batch)
                await store.append_marker(TP, 7, 0, commit=commit)
        (log,) = log_files(tmp_path)
        first = next(iter_batches(log.read_bytes()))[0].size_bytes
        flip(log, first + 70)
        async with opened(tmp_path) as store:
            await offsets_unchecked(store)
            assert values(await records_of(store, committed=True)) == [b"1"]

    async def offsets_unchecked(store: EmbeddedStore) -> None:
        piece = await store.read(TP, 0, 1 << 20, verified=True)
        assert len(list(iter_batches(piece.records))) == 4

    run(main())


def test_a_snapshot_that_is_gone_is_missed(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"v", pid=3, epoch=1, sequence=0, transactional=True))
            expected = await store.producers(TP)
        for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
            snapshot.unlink()
        async with opened(tmp_path) as store:
            assert await store.producers(TP) == expected
            assert store.bounds(TP).last_stable_offset == 0

    run(main())


def test_a_checkpoint_with_one_changed_digit_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await filled(tmp_path, 12, segment_bytes=str(4 * ONE))
        path = tmp_path / "checkpoint.json"
        document = json.loads(path.read_text())
        document["partitions"]["t-0"][0] = 9  # the log start: everything before would be deleted
        path.write_text(json.dumps(document))
        async with opened(tmp_path) as store:
            assert await offsets_of(store) == list(range(12))
        assert str(path) in caplog.text
        assert Path(f"{path}.damaged").exists()

    run(main())


def test_a_checkpoint_of_an_older_version_is_believed(tmp_path: Path) -> None:
    async def main() -> None:
        await filled(tmp_path, 12, segment_bytes=str(4 * ONE))
        path = tmp_path / "checkpoint.json"
        document = json.loads(path.read_text())
        document["partitions"] = {name: fields[:6] for name, fields in document["partitions"].items()}
        document["partitions"]["t-0"][0] = 9
        del document["crc"]
        path.write_text(json.dumps(document))
        async with opened(tmp_path) as store:
            assert await offsets_of(store) == [9, 10, 11]

    run(main())


def test_the_checkpoint_of_a_deleted_topic_does_not_speak_for_a_new_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live") as store:
            for number in range(9):
                await put(store, b"%04d" % number)
            await store.trim(TP, 5)  # saves a checkpoint
            await store.delete_topic("t")
            await store.create_topic("t", 1)
            for number in range(3):
                await put(store, b"%04d" % number)
            copy = crash_copy(tmp_path / "live", tmp_path / "copy")
        async with opened(copy) as store:
            assert store.bounds(TP).log_start_offset == 0
            assert await offsets_of(store) == [0, 1, 2]

    run(main())


@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_topics_whose_records_are_lost_are_served_all_the_same(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            for name in ("a", "b", "c"):
                await store.create_topic(name, 2, {"segment.bytes": "777"})
                for number in range(5):
                    await put(store, b"%04d" % number, tp=TopicPartition(name, 1))
        (log,) = log_files(tmp_path, TOPOLOGY)
        if how == "removed":
            log.unlink()
        else:
            sizes = [header.size_bytes for header, _ in iter_batches(log.read_bytes())]
            if how == "flipped":
                flip(log, sizes[0] + 90)
            else:
                os.truncate(log, sizes[0])
        for _ in range(2):
            async with opened(tmp_path) as store:
                for name in ("a", "b", "c"):
                    info = store.topic(name)
                    assert info is not None
                    assert info.partitions == 2
                    assert await offsets_of(store, TopicPartition(name, 1)) == [0, 1, 2, 3, 4]
                    if info.config.segment_bytes != 777:
                        assert info.config.retention_ms == -1
                assert not [name for name in os.listdir(tmp_path) if name.endswith("-stray")]
        assert str(log) in caplog.text or str(log.parent) in caplog.text
        assert "topic b is lost" in caplog.text

    run(main())


def test_an_index_that_lies_in_the_middle_is_built_anew(tmp_path: Path) -> None:
    async def main() -> None:
        await filled(tmp_path, 200, index_interval_bytes="100")
        (index,) = (tmp_path / "t-0").glob("*.index")
        for position in range(3, index.stat().st_size - 8, 56):
            flip(index, position)
            flip(index, position + 4, 0x01)
        async with opened(tmp_path) as store:
            assert await offsets_of(store, verified=False) == list(range(200))

    run(main())
