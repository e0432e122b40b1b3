"""Group commit, full disks and failing ones."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, log_files, opened, put, records_of, run, values, with_topic
from trunkline.log.embedded import committer
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import StorageFailure
from trunkline.log.limits import StoreLimits
from trunkline.log.store import Buffer, Durability, TopicPartition

OTHER = TopicPartition("other", 0)


class Disk:
    """Counts fsyncs by file name, holds them back or fails them on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.failing = ""
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)

    def _fdatasync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self.waiting.set()
        assert self.gate.wait(30)
        if self.failing and self.failing in path:
            raise OSError(errno.EIO, "Input/output error")
        self._real(fd)
        self.synced.append(path)

    def logs(self) -> list[str]:
        return [path for path in self.synced if path.endswith(".log") and "/t-0/" in path]


class DiskRing:
    """Stands for a kernel's ring, with the disk above behind it."""

    entries = 64

    def __init__(self) -> None:
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: list[tuple[int, int]] = []

    def sync(self, files: Sequence[tuple[int, int]]) -> None:
        for fd, tag in files:
            threading.Thread(target=self._sync, args=(fd, tag)).start()

    def _sync(self, fd: int, tag: int) -> None:
        try:
            os.fdatasync(fd)
            self._done.append((tag, 0))
        except OSError as error:
            self._done.append((tag, error.errno or errno.EIO))
        os.eventfd_write(self.eventfd, 1)

    def results(self) -> list[tuple[int, int]]:
        os.eventfd_read(self.eventfd)
        return [self._done.pop(0) for _ in range(len(self._done))]

    def close(self) -> None:
        os.close(self.eventfd)


@pytest.fixture(params=["thread", "ring"])
def disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Disk:
    monkeypatch.setattr(committer, "open_ring", lambda _: DiskRing() if request.param == "ring" else None)
    return Disk(monkeypatch)


async def until(condition: object, *, deadline_s: float = 20) -> None:
    assert callable(condition)
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def test_all_that_wait_share_one_fsync(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            disk.synced.clear()
            disk.gate.clear()
            disk.waiting.clear()
            first = store.append(TP, batch_of(b"0"), Durability.DISK)
            await until(disk.waiting.is_set)
            rest = [store.append(TP, batch_of(b"%d" % n), Durability.DISK) for n in range(1, 200)]
            assert not first.done()
            disk.gate.set()
            await asyncio.gather(first, *rest)
            assert len(disk.logs()) == 2

    run(main())


def test_an_ack_waits_for_its_fsync_and_os_durability_does_not(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            disk.gate.clear()
            waiting = store.append(TP, batch_of(b"a"), Durability.DISK)
            assert store.append(TP, batch_of(b"b"), Durability.OS).done()
            assert values(await records_of(store)) == [b"a", b"b"]
            assert not waiting.done()
            disk.gate.set()
            assert (await waiting).base_offset == 0

    run(main())


@pytest.mark.parametrize(
    ("flush", "durability", "waits"),
    [
        ("acks", Durability.OS, False),
        ("acks", Durability.DISK, True),
        ("os", Durability.DISK, False),
        ("interval", Durability.DISK, False),
        ("commit", Durability.NONE, True),
        ("commit", Durability.OS, True),
    ],
)
def test_a_topics_flush_policy_overrides_the_producer(
    tmp_path: Path, disk: Disk, flush: str, durability: Durability, waits: bool
) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, flush=flush) as store:
            disk.gate.clear()
            future = store.append(TP, batch_of(b"a"), durability)
            assert future.done() != waits
            disk.gate.set()
            await future

    run(main())


def test_flush_messages_and_flush_ms_sync_without_being_asked(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 1, {"flush": "interval", "flush.messages": "5"})
            await store.create_topic("timed", 1, {"flush": "interval", "flush.ms": "5"})
            disk.synced.clear()
            await put(store, b"1", b"2", b"3", b"4")
            await put(store, b"5")
            await until(disk.logs)
            await put(store, b"x", tp=TopicPartition("timed", 0))
            await until(lambda: any("timed-0" in path for path in disk.synced))

    run(main())


def test_a_failed_fsync_fails_its_partition_for_good_and_no_other(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.create_topic("other", 1)
            disk.failing = "/t-0/"
            woken: list[int] = []
            store.watch(TP, lambda: woken.append(1))
            with pytest.raises(StorageFailure, match=r"t-0/.*fsync failed: Input/output error"):
                await store.append(TP, batch_of(b"a"), Durability.DISK)
            assert woken
            disk.failing = ""
            with pytest.raises(StorageFailure):
                await store.append(TP, batch_of(b"a"), Durability.OS)
            with pytest.raises(StorageFailure):
                await store.read(TP, 0, 100)
            await store.append(OTHER, batch_of(b"fine"), Durability.DISK)
            assert TP in (await store.directories())[0].failed
        async with opened(tmp_path) as store:  # a restart finds out what is there
            assert values(await records_of(store)) == [b"a"]

    run(main())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_failed_write_leaves_nothing_and_the_partition_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.pwritev

    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await put(store, b"before")
            size = log_files(tmp_path)[0].stat().st_size

            def half(fd: int, parts: Sequence[Buffer], position: int) -> int:
                real(fd, [b"".join(parts)[:50]], position)
                raise OSError(code, os.strerror(code))

            monkeypatch.setattr(os, "pwritev", half)
            with pytest.raises(StorageFailure, match=os.strerror(code)) as caught:
                await put(store, b"lost")
            assert caught.value.path == str(log_files(tmp_path)[0])
            assert log_files(tmp_path)[0].stat().st_size == size
            assert store.bounds(TP).high_watermark == 1
            monkeypatch.setattr(os, "pwritev", real)
            assert (await put(store, b"after")).base_offset == 1
            assert values(await records_of(store)) == [b"before", b"after"]

    run(main())


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    async def main() -> None:
        async with with_topic(tmp_path) as store:
            monkeypatch.setattr(os, "pwritev", lambda fd, parts, position: real(fd, [b"".join(parts)[:30]], position))
            await put(store, b"whole")
            assert values(await records_of(store)) == [b"whole"]

    run(main())


def test_a_roll_that_finds_the_disk_full_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        async with with_topic(tmp_path, segment_bytes="300") as store:
            for number in range(3):
                await put(store, b"%d" % number)
            with monkeypatch.context() as patched:
                patched.setattr("trunkline.log.embedded.partition.write_atomically", full)
                with pytest.raises(StorageFailure, match="No space left"):
                    await put(store, b"x" * 300)
            count = store.bounds(TP).high_watermark
            assert (await put(store, b"on")).base_offset == count
            assert len(await records_of(store)) == count + 1

    run(main())


def test_a_directory_that_cannot_be_written_is_named_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")

    async def main() -> None:
        with pytest.raises(StorageFailure, match=str(blocker / "data")):
            await EmbeddedStore(blocker / "data").start()
        real = os.open

        def readonly(path: str, flags: int, *rest: int) -> int:
            if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and str(path).startswith(str(tmp_path)):
                raise OSError(errno.EROFS, "Read-only file system")
            return real(path, flags, *rest)

        (tmp_path / "data").mkdir()
        monkeypatch.setattr(os, "open", readonly)
        with pytest.raises(StorageFailure, match=r"data: cannot write .*Read-only file system"):
            await EmbeddedStore(tmp_path / "data").start()

    run(main())


def test_a_file_that_is_closed_while_it_waits_to_be_synced_is_synced_all_the_same(tmp_path: Path, disk: Disk) -> None:
    async def work() -> None:
        async with opened(tmp_path, limits=StoreLimits(max_open_files=1)) as store:
            for name in ("t", "other", "more"):
                await store.create_topic(name, 1)
            disk.synced.clear()
            disk.waiting.clear()
            disk.gate.clear()
            partitions = (TP, OTHER, TopicPartition("more", 0))
            futures = [store.append(tp, batch_of(b"x"), Durability.DISK) for tp in partitions]
            await until(disk.waiting.is_set)
            futures += [store.append(tp, batch_of(b"y"), Durability.DISK) for tp in partitions]
            disk.gate.set()
            await asyncio.gather(*futures)
            synced = {Path(path).parent.name for path in disk.synced if path.endswith(".log")}
            assert synced == {"t-0", "other-0", "more-0"}
            assert not any("(deleted)" in path for path in disk.synced)

    run(work())


@pytest.mark.parametrize("where", ["entry", "marker"])
def test_an_abort_that_finds_the_disk_full_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """The marker and its entry in the aborted index: each may be what does not fit any more."""

    def full(fd: int, *rest: object) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith(".txnindex" if where == "entry" else ".log"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_pwrite(fd, *rest)  # type: ignore[arg-type]

    real_pwrite = os.pwrite

    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"gone", pid=1, epoch=0, sequence=0, transactional=True))
            with monkeypatch.context() as patched:
                patched.setattr(os, "pwrite", full)
                patched.setattr(os, "pwritev", full)
                for _ in range(3):
                    with pytest.raises(StorageFailure, match="No space left"):
                        store.append_marker(TP, 1, 0, commit=False)
            assert not await records_of(store, committed=True), "it is still open"
            assert len(await records_of(store)) == 1
            await store.append_marker(TP, 1, 0, commit=False)
            await put(store, b"after")
            assert values(await records_of(store, committed=True)) == [b"after"]
        async with opened(tmp_path) as store:
            assert values(await records_of(store, committed=True)) == [b"after"]
        assert caplog.text.count("takes no records") == 1
        assert caplog.text.count("takes records again") == 1

    run(main())


def test_every_name_on_the_way_to_a_new_record_is_on_disk_before_its_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is lost with the power while its name, or that of a directory above it, is not on disk."""
    steps: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "mkdir")}

    def synced(name: str) -> Callable[[int], None]:
        def call(fd: int) -> None:
            real[name](fd)
            steps.append(f"synced {os.readlink(f'/proc/self/fd/{fd}')}")

        return call

    def mkdir(path: str, *rest: int) -> None:
        real["mkdir"](path, *rest)
        steps.append(f"made {path}")

    async def main() -> None:
        data = tmp_path / "above" / "data"
        async with opened(data, limits=StoreLimits(io_uring=False)) as store:
            made = [step for step in steps if step.startswith("made") and str(tmp_path) in step]
            assert made == [f"made {tmp_path / 'above'}", f"made {data}", f"made {data / '__topology-0'}"]
            in_order(f"made {tmp_path / 'above'}", f"synced {tmp_path}")
            in_order(f"made {data}", f"synced {data.parent}")
            in_order(f"made {data / '__topology-0'}", f"synced {data}")
            await store.create_topic("t", 1)
            (topology,) = log_files(data, TopicPartition("__topology", 0))
            in_order(f"synced {topology}", f"synced {topology.parent}", f"made {data / 't-0'}", f"synced {data}")
            steps.append("topic is there")
            await store.append(TP, batch_of(b"a"), Durability.DISK)
            steps.append("acknowledged")
            (log,) = log_files(data)
            in_order("topic is there", f"synced {log}", f"synced {log.parent}", "acknowledged")

    def in_order(*wanted: str) -> None:
        rest = iter(steps)
        assert all(any(step == each for step in rest) for each in wanted), steps

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced("fsync"))
        patched.setattr(os, "fdatasync", synced("fdatasync"))
        patched.setattr(os, "mkdir", mkdir)
        run(main())
