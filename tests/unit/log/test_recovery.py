"""What a crash leaves, and what a start makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, log_files, opened, put, records_of, run, values, with_topic
from trunkline.log.embedded import segment as segment_module
from trunkline.log.errors import DataDirectoryInUse
from trunkline.log.limits import StoreLimits
from trunkline.log.store import Durability


def crash_copy(directory: Path, target: Path) -> Path:
    """What a killed process leaves: the files as they are now, without the mark of a clean shutdown."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(directory, target)
    (target / ".clean_shutdown").unlink(missing_ok=True)
    return target


def test_what_was_appended_is_there_after_a_kill(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live", segment_bytes="700") as store:
            for number in range(40):
                await put(store, b"%02d" % number)
                if number % 9 == 0:
                    copy = crash_copy(tmp_path / "live", tmp_path / "copy")
                    async with opened(copy) as again:
                        assert values(await records_of(again)) == [b"%02d" % n for n in range(number + 1)]
                        assert (await put(again, b"next")).base_offset == number + 1

    run(main())


def test_a_tail_torn_at_any_byte_is_cut_to_the_last_whole_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live") as store:
            await put(store, b"first", b"second")
            await store.append(TP, batch_of(b"torn", pid=5, epoch=0, sequence=0))
            copy = crash_copy(tmp_path / "live", tmp_path / "base")
        (log,) = log_files(copy)
        content = log.read_bytes()
        whole = len(batch_of(b"first", b"second"))
        for size in range(whole, len(content)):
            victim = crash_copy(copy, tmp_path / "victim")
            (log,) = log_files(victim)
            os.truncate(log, size)
            async with opened(victim) as store:
                assert values(await records_of(store)) == [b"first", b"second"]
                assert log.stat().st_size == whole
                assert not await store.producers(TP)
                again = await store.append(TP, batch_of(b"torn", pid=5, epoch=0, sequence=0))
                assert (again.base_offset, again.duplicate) == (2, False)

    run(main())


def test_a_tail_with_any_flipped_byte_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live") as store:
            await put(store, b"first")
            await put(store, b"torn")
            copy = crash_copy(tmp_path / "live", tmp_path / "base")
        (log,) = log_files(copy)
        content = log.read_bytes()
        whole = len(batch_of(b"first"))
        for position in range(whole, len(content), 3):
            if position - whole in range(8, 16) or position - whole < 8:
                continue  # length, leader epoch and a base offset that grew are not covered by the CRC
            victim = crash_copy(copy, tmp_path / "victim")
            (log,) = log_files(victim)
            log.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
            async with opened(victim) as store:
                assert values(await records_of(store)) == [b"first"]

    run(main())


def test_garbage_after_the_last_batch_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        for garbage in (b"\0" * 5000, b"\xff" * 61, os.urandom(300), b"x"):
            live = tmp_path / "live"
            async with with_topic(live) as store:
                await put(store, b"a")
                copy = crash_copy(live, tmp_path / "copy")
            shutil.rmtree(live)
            (log,) = log_files(copy)
            with log.open("ab") as file:
                file.write(garbage)
            async with opened(copy) as store:
                assert values(await records_of(store)) == [b"a"]

    run(main())


def test_lost_and_false_indexes_are_built_anew(tmp_path: Path) -> None:
    def remove(path: Path) -> None:
        path.unlink()

    def empty(path: Path) -> None:
        path.write_bytes(b"")

    def lie(path: Path) -> None:
        path.write_bytes(b"\0\0\0\7" * (path.stat().st_size // 4))

    async def main() -> None:
        for damage in (remove, empty, lie):
            directory = tmp_path / damage.__name__
            async with with_topic(directory, segment_bytes="3000", index_interval_bytes="100") as store:
                for number in range(100):
                    await put(store, b"%03d" % number)
            for suffix in ("*.index", "*.timeindex"):
                damaged = sorted((directory / "t-0").glob(suffix))
                assert damaged
                for path in damaged:
                    damage(path)
            async with opened(directory) as store:
                for offset in range(0, 100, 3):
                    piece = await store.read(TP, offset, 1)
                    assert bytes(piece.records)[:8] == offset.to_bytes(8, "big")
                assert (await put(store, b"more")).base_offset == 100

    run(main())


def test_a_clean_start_reads_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="700") as store:
            for number in range(40):
                await put(store, b"%02d" % number)
        scanned: list[int] = []
        real = segment_module.check_batches

        def spy(fd: int, end: int) -> object:
            scanned.append(fd)
            return real(fd, end)

        monkeypatch.setattr("trunkline.log.embedded.recovery.check_batches", spy)
        async with opened(tmp_path) as store:
            assert not scanned
            assert store.bounds(TP).high_watermark == 40
        os.unlink(tmp_path / ".clean_shutdown")
        async with opened(tmp_path) as store:
            assert scanned
            assert store.bounds(TP).high_watermark == 40

    run(main())


def test_after_a_crash_only_what_was_not_known_to_be_synced_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="700") as store:
            for number in range(40):
                await put(store, b"%02d" % number)
        os.unlink(tmp_path / ".clean_shutdown")
        scanned: list[int] = []
        real = segment_module.check_batches

        def spy(fd: int, end: int) -> object:
            scanned.append(end)
            return real(fd, end)

        monkeypatch.setattr("trunkline.log.embedded.recovery.check_batches", spy)
        async with opened(tmp_path) as store:
            assert len(scanned) == 2  # the active segments of t and of the topology
            assert store.bounds(TP).high_watermark == 40

    run(main())


def test_producers_are_rebuilt_from_the_log_when_the_snapshot_is_lost_or_torn(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path / "live", segment_bytes="700") as store:
            for sequence in range(30):
                await store.append(TP, batch_of(b"v", pid=3, epoch=1, sequence=sequence))
            expected = await store.producers(TP)
            base = crash_copy(tmp_path / "live", tmp_path / "base")
        assert list((base / "t-0").glob("*.snapshot"))

        def tear(path: Path) -> None:
            path.write_bytes(path.read_bytes()[:-1])

        for damage in (Path.unlink, tear, Path.touch):
            copy = crash_copy(base, tmp_path / "copy")
            for path in (copy / "t-0").glob("*.snapshot"):
                damage(path)
            async with opened(copy) as store:
                assert await store.producers(TP) == expected
                assert (await store.append(TP, batch_of(b"v", pid=3, epoch=1, sequence=25))).duplicate

    run(main())


def test_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path):
            script = (
                "import asyncio, sys\n"
                "from trunkline.log.embedded.store import EmbeddedStore\n"
                "asyncio.run(EmbeddedStore(sys.argv[1]).start())\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
            )
            assert done.returncode != 0
            assert "DataDirectoryInUse" in done.stderr
            assert f"pid {os.getpid()}" in done.stderr
            with pytest.raises(DataDirectoryInUse, match=str(tmp_path)):
                async with opened(tmp_path):
                    pass
        async with opened(tmp_path):
            pass

    run(main())


def test_a_checkpoint_that_is_damaged_counts_as_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await put(store, b"a")
        for content in (b"", b"{", b"[]", b'{"format": 1, "partitions": {"t-0": ["x"]}}'):
            (tmp_path / "checkpoint.json").write_bytes(content)
            async with opened(tmp_path) as store:
                assert values(await records_of(store)) == [b"a"]

    run(main())


def test_killed_during_appends_nothing_acknowledged_is_missing(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from tests.unit.log.stores import TP, batch_of, with_topic
from trunkline.log.store import Durability
from pathlib import Path

async def main():
    async with with_topic(Path(sys.argv[1]), segment_bytes="5000") as store:
        number = store.bounds(TP).high_watermark
        while True:
            await store.append(TP, batch_of(b"%d" % number), Durability.DISK if number % 7 == 0 else Durability.OS)
            print(number, flush=True)
            number += 1

asyncio.run(main())
"""
    acknowledged = -1
    for kill_after in (3, 40, 160):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(kill_after):
            line = process.stdout.readline()
            assert line
            acknowledged = int(line)
        process.kill()
        rest = process.stdout.read()
        process.wait(30)
        lines = [text for text in rest.split("\n")[:-1] if text]
        acknowledged = int(lines[-1]) if lines else acknowledged

    async def check() -> None:
        async with opened(tmp_path) as store:
            found = values(await records_of(store))
            assert found == [b"%d" % n for n in range(len(found))]
            assert len(found) > acknowledged > 100

    run(check())


def test_the_clean_mark_is_gone_while_the_store_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        mark = tmp_path / ".clean_shutdown"
        for _ in range(2):
            async with opened(tmp_path):
                assert not mark.exists()
            assert mark.exists()

    run(main())


def test_a_repeat_of_what_only_the_page_cache_kept_is_acknowledged_after_an_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        batch = batch_of(b"v", pid=3, epoch=0, sequence=0)
        async with with_topic(tmp_path / "live") as store:
            await store.append(TP, batch, Durability.OS)
            copy = crash_copy(tmp_path / "live", tmp_path / "copy")
        async with opened(copy, limits=StoreLimits(io_uring=False)) as store:
            synced: list[str] = []
            real = os.fdatasync

            def spy(fd: int) -> None:
                synced.append(os.readlink(f"/proc/self/fd/{fd}"))
                real(fd)

            monkeypatch.setattr(os, "fdatasync", spy)
            assert (await store.append(TP, batch, Durability.DISK)).duplicate
            assert str(log_files(copy)[0]) in synced

    run(main())
