"""Zeros behind the last batch, which small commits are written on: when they are there, and that nobody takes them for batches."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, log_files, opened, put, records_of, run, values, with_topic
from trunkline.log.batch import iter_file
from trunkline.log.embedded.segment import offset_name
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import Durability

VALUE = b"v" * (100 << 10)


async def fill(store: EmbeddedStore, count: int, durability: Durability = Durability.DISK) -> list[bytes]:
    """Appends of 100 KB, each acknowledged before the next is sent."""
    sent = [b"%03d" % number + VALUE for number in range(count)]
    for value in sent:
        await store.append(TP, batch_of(value), durability)
    return sent


async def crash(directory: Path, target: Path) -> tuple[list[bytes], Path]:
    """What five commits leave when the process is killed: their values, and the log with its zeros."""
    async with with_topic(directory) as store:
        sent = await fill(store, 5)
        shutil.copytree(directory, target)
    (log,) = log_files(target)
    assert zeros_in(log) > 100 << 10
    return sent, log


def zeros_in(log: Path) -> int:
    content = log.read_bytes()
    return len(content) - len(content.rstrip(b"\0"))


def test_small_commits_are_written_on_zeros_that_a_clean_stop_cuts_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            sent = await fill(store, 5)
            (log,) = log_files(tmp_path)
            reserved = log.stat().st_size
            assert zeros_in(log) > 100 << 10
            await put(store, b"small")
            assert log.stat().st_size == reserved
            assert values(await records_of(store)) == [*sent, b"small"]
        assert log.stat().st_size == sum(len(batch_of(value)) for value in [*sent, b"small"])
        async with opened(tmp_path) as store:
            assert values(await records_of(store)) == [*sent, b"small"]

    run(main())


def test_a_short_log_a_large_write_and_one_that_nobody_waits_for_reserve_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        for name, value, durability in (
            ("short", VALUE[:1000], Durability.DISK),
            ("large", VALUE * 4, Durability.DISK),
            ("unsynced", VALUE, Durability.OS),
        ):
            async with with_topic(tmp_path / name) as store:
                for _ in range(6):
                    await store.append(TP, batch_of(value), durability)
                (log,) = log_files(tmp_path / name)
                assert log.stat().st_size == 6 * len(batch_of(value)), name

    run(main())


def test_zeros_after_a_crash_are_no_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sent, log = await crash(tmp_path / "live", tmp_path / "copy")
        with caplog.at_level(logging.WARNING):
            async with opened(tmp_path / "copy") as store:
                assert values(await records_of(store)) == sent
                assert log.stat().st_size == sum(len(batch_of(value)) for value in sent)
                assert (await put(store, b"next")).base_offset == len(sent)
        assert not caplog.records

    run(main())


def test_a_batch_torn_on_the_zeros_is_cut_with_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sent, log = await crash(tmp_path / "live", tmp_path / "copy")
        whole = log.stat().st_size - zeros_in(log) + 1  # a record ends in its count of headers: a zero
        with log.open("r+b") as file:
            file.seek(whole + 100)  # the start of the batch did not reach the disk, something behind it did
            file.write(VALUE[:1000])
        async with opened(tmp_path / "copy") as store:
            assert values(await records_of(store)) == sent
            assert log.stat().st_size == whole
        assert "is cut after a crash: position" in caplog.text

    run(main())


def test_a_closed_segment_has_no_zeros(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes=str(1 << 20)) as store:
            sent = await fill(store, 25)
            logs = log_files(tmp_path)
            assert len(logs) == 3
            for log in logs[:-1]:
                assert log.stat().st_size == sum(header.size_bytes for _, header, _ in iter_file(log))
            assert values(await records_of(store)) == sent

    run(main())


def test_zeros_that_a_power_cut_left_in_a_closed_segment_are_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            sent = await fill(store, 5)
        (log,) = log_files(tmp_path)
        size = log.stat().st_size
        (tmp_path / ".clean_shutdown").unlink()
        os.truncate(log, size + 5000)
        (log.parent / (offset_name(len(sent)) + ".log")).touch()
        async with opened(tmp_path) as store:
            assert values(await records_of(store)) == sent
            assert (await put(store, b"next")).base_offset == len(sent)
            assert values(await records_of(store)) == [*sent, b"next"]
        assert log.stat().st_size == size

    run(main())


def test_without_room_for_zeros_the_append_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        async with with_topic(tmp_path) as store:
            monkeypatch.setattr(os, "pwrite", full)
            sent = await fill(store, 5)
            monkeypatch.undo()
            (log,) = log_files(tmp_path)
            assert log.stat().st_size == sum(len(batch_of(value)) for value in sent)
            assert values(await records_of(store)) == sent

    run(main())


def test_who_reads_the_file_stops_at_zeros_but_not_at_what_follows_them(tmp_path: Path) -> None:
    log = tmp_path / (offset_name(0) + ".log")
    log.write_bytes(batch_of(b"a") + batch_of(b"b") + bytes(30))
    assert len(list(iter_file(log))) == 2
    log.write_bytes(batch_of(b"a") + bytes(3000) + b"x")
    with pytest.raises(CorruptBatch):
        list(iter_file(log))
