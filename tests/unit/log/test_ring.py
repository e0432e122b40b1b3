"""The kernel's ring itself, and what a committer does when it fails. Where there is no io_uring the tests of it are skipped."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import select
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, opened, put, records_of, run, values, with_topic
from trunkline.log.embedded import committer
from trunkline.log.embedded.ring import Ring, open_ring
from trunkline.log.errors import StorageFailure
from trunkline.log.limits import StoreLimits
from trunkline.log.store import Durability, TopicPartition


@pytest.fixture
def ring() -> Iterator[Ring]:
    opened_ring = open_ring(4)
    if opened_ring is None:
        pytest.skip("this kernel has no io_uring for us")
    yield opened_ring
    opened_ring.close()


def results(ring: Ring, count: int) -> dict[int, int]:
    found: dict[int, int] = {}
    while len(found) < count:
        assert select.select([ring.eventfd], [], [], 20)[0], "no result in time"
        found.update(ring.results())
    return found


def test_files_are_synced_over_and_over(ring: Ring, tmp_path: Path) -> None:
    descriptors = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(ring.entries)]
    try:
        tag = 2**40
        for _ in range(50):  # so the rings go round many times
            for fd in descriptors:
                os.pwrite(fd, b"x" * 5000, 0)
            files = [(fd, tag + number) for number, fd in enumerate(descriptors)]
            ring.sync(files)
            assert results(ring, len(files)) == {number: 0 for _, number in files}
            tag += len(files)
        assert ring.results() == []
    finally:
        for fd in descriptors:
            os.close(fd)


def test_each_file_has_its_own_error(ring: Ring, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    reading, writing = os.pipe()
    try:
        ring.sync([(fd, 1), (writing, 2), (1_000_000, 3)])
        assert results(ring, 3) == {1: 0, 2: errno.EINVAL, 3: errno.EBADF}
    finally:
        for each in (fd, reading, writing):
            os.close(each)


def test_a_kernel_that_refuses_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))

    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            self.syscall = self

        def __call__(self, *_: int) -> int:
            ctypes.set_errno(errno.EPERM)
            return -1

    monkeypatch.setattr(ctypes, "PyDLL", Refusing)
    assert open_ring(4) is None
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_store_gives_its_ring_back(tmp_path: Path) -> None:
    async def main() -> None:
        await put_some(tmp_path)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await put_some(tmp_path)
        assert len(os.listdir("/proc/self/fd")) == before

    async def put_some(directory: Path) -> None:
        async with with_topic(directory) as store:
            await asyncio.gather(*(store.append(TP, batch_of(b"v"), Durability.DISK) for _ in range(10)))

    run(main())


class FailingRing:
    """Takes the first round, and nothing after it."""

    entries = 64

    def __init__(self) -> None:
        real = open_ring(self.entries)
        assert real is not None
        self._real = real
        self.eventfd = real.eventfd
        self.results = real.results
        self.close = real.close
        self.rounds = 0

    def sync(self, files: Sequence[tuple[int, int]]) -> None:
        self.rounds += 1
        if self.rounds == 1:
            self._real.sync(files)
        elif self.rounds == 2:
            self._real.sync(files[:1])  # the kernel may take a part
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        else:
            raise AssertionError("a ring that failed is not asked again")


@pytest.mark.usefixtures("ring")
def test_when_the_ring_fails_a_thread_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailingRing()
    monkeypatch.setattr(committer, "open_ring", lambda _: failing)

    async def main() -> None:
        async with with_topic(tmp_path) as store:
            with caplog.at_level(logging.WARNING):
                for number in range(8):
                    await store.append(TP, batch_of(b"%d" % number), Durability.DISK)
            assert values(await records_of(store)) == [b"%d" % number for number in range(8)]

    run(main())
    assert failing.rounds == 2
    assert [record.message.startswith("io_uring is not used any more") for record in caplog.records] == [True]


@pytest.mark.usefixtures("ring")
def test_a_thread_that_breaks_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:

            def broken(_: object) -> None:
                raise MemoryError

            monkeypatch.setattr(committer, "_sync_all", broken)
            with pytest.raises(StorageFailure, match="fsync failed"):
                await store.append(TP, batch_of(b"in a new file"), Durability.DISK)

    run(main())


def test_more_files_at_once_than_the_ring_holds(tmp_path: Path) -> None:
    count = 3 * 64

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", count)
            for _ in range(2):  # the second time the files are not new, and a ring could take them
                await asyncio.gather(
                    *(store.append(TopicPartition("t", n), batch_of(b"v"), Durability.DISK) for n in range(count))
                )
            for number in range(count):
                assert store.bounds(TopicPartition("t", number)).high_watermark == 2

    run(main())


@pytest.mark.parametrize("io_uring", [True, False])
def test_appends_are_acknowledged_either_way(tmp_path: Path, io_uring: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path, limits=StoreLimits(io_uring=io_uring)) as store:
            await store.create_topic("t", 1, {})
            for _ in range(5):
                await asyncio.gather(*(store.append(TP, batch_of(b"v"), Durability.DISK) for _ in range(20)))
            await put(store, b"last")
            assert len(await records_of(store)) == 101

    run(main())


@pytest.mark.parametrize(
    ("clients", "others", "order"),
    [(1, 0, ["served", "sync"]), (0, 1, ["sync", "served"]), (2, 3, [*["served"] * 5, "sync"]), (9, 0, ["sync", *["served"] * 9])],
    ids=["one client", "no client", "a few clients", "many clients"],
)  # fmt: skip
def test_a_few_waiting_clients_are_served_before_the_disk_is_asked(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int, others: int, order: list[str]
) -> None:
    happened: list[str] = []
    sync = Ring.sync

    def noted(self: Ring, files: Sequence[tuple[int, int]]) -> None:
        happened.append("sync")
        sync(self, files)

    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"the file is no longer new"), Durability.DISK)
            monkeypatch.setattr(Ring, "sync", noted)
            loop = asyncio.get_running_loop()

            def serve(number: int) -> None:
                loop.call_soon(happened.append, "served")

            watchers: list[Callable[[], None]] = [partial(serve, number) for number in range(clients + others)]
            for number, watch in enumerate(watchers):
                (store.watch_for_client if number < clients else store.watch)(TP, watch)
            await store.append(TP, batch_of(b"v"), Durability.DISK)
            assert happened == order
            for watch in watchers:
                store.unwatch(TP, watch)
                store.unwatch(TP, watch)
            happened.clear()
            await store.append(TP, batch_of(b"w"), Durability.DISK)
            assert happened == ["sync"]

    run(main())
