"""Reading ahead: what is had ready, for whom, within which bounds, and that nobody is given what is no longer there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, opened, records_of, run, values
from trunkline.clock import ManualClock
from trunkline.log.batch import iter_batches
from trunkline.log.embedded import ahead
from trunkline.log.embedded.ahead import ReadAhead
from trunkline.log.embedded.files import FilePool
from trunkline.log.embedded.segment import Segment
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import OffsetOutOfRange
from trunkline.log.limits import StoreLimits

BATCH_BYTES = len(batch_of(b"x" * 10_000))
READ_BYTES = 10 * BATCH_BYTES

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="nothing is read ahead here")


@asynccontextmanager
async def filled(
    directory: Path, *, max_read_ahead_bytes: int = 16 << 20, batches: int = 100, **settings: str
) -> AsyncIterator[EmbeddedStore]:
    """Topic `t` with batches of one record of 10,000 bytes, numbered."""
    async with opened(directory, limits=StoreLimits(max_read_ahead_bytes=max_read_ahead_bytes)) as store:
        await store.create_topic("t", 1, {name.replace("_", "."): value for name, value in settings.items()})
        for number in range(batches):
            await store.append(TP, batch_of(b"%03d" % number + b"x" * 9997))
        yield store


class Preads:
    """Counts the reads of batches; those for an index are smaller."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(os, "preadv", self.preadv)

    def _note(self, size: int) -> None:
        if size >= 5 * BATCH_BYTES:
            self.sizes.append(size)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._note(size)
        return self._pread(fd, size, position)

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        self._note(sum(map(len, buffers)))
        return self._preadv(fd, buffers, position, flags)


async def read(store: EmbeddedStore, offset: int, max_bytes: int = READ_BYTES) -> list[int]:
    """The offsets of the batches of one read."""
    piece = await store.read(TP, offset, max_bytes)
    return [header.base_offset for header, _ in iter_batches(piece.records)]


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_who_reads_on_finds_the_next_window_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with filled(tmp_path) as store:
            preads = Preads(monkeypatch)
            assert await read(store, 0) == list(range(10))
            await turns()
            assert len(preads.sizes) == 1, "a first read says nothing about a second"
            assert await read(store, 10) == list(range(10, 20))
            assert len(preads.sizes) == 2
            await turns()
            for start in range(20, 80, 10):
                assert len(preads.sizes) == 1 + start // 10, "read before it is asked for"
                assert await read(store, start) == list(range(start, start + 10))
                assert len(preads.sizes) == 1 + start // 10, "and not again"
                await turns()

    run(main())


def test_who_asks_before_the_loop_has_turned_reads_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with filled(tmp_path) as store:
            preads = Preads(monkeypatch)
            for start in range(0, 60, 10):
                assert await read(store, start) == list(range(start, start + 10))
            assert len(preads.sizes) == 6
            await turns()
            assert len(preads.sizes) == 7, "only what was not asked for meanwhile"

    run(main())


def test_everything_arrives_once_and_in_order_whatever_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path, segment_bytes="300000") as store:
            sizes = [READ_BYTES, 7 * BATCH_BYTES + 5, 12 * BATCH_BYTES - 1, BATCH_BYTES]
            offset, found = 0, list[int]()
            while offset < 100:
                found += await read(store, offset, sizes[len(found) % len(sizes)])
                offset = found[-1] + 1
                await turns()
            assert found == list(range(100))
            assert values(await records_of(store, max_bytes=READ_BYTES)) == [
                b"%03d" % n + b"x" * 9997 for n in range(100)
            ]

    run(main())


@pytest.mark.parametrize(("most_bytes", "batches"), [(16 << 20, 5), (0, 10)], ids=["reads are small", "the limit is 0"])
def test_nothing_is_read_ahead_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, batches: int
) -> None:
    async def main() -> None:
        async with filled(tmp_path, max_read_ahead_bytes=most_bytes) as store:
            preads = Preads(monkeypatch)
            for start in range(0, 50, batches):
                assert await read(store, start, batches * BATCH_BYTES) == list(range(start, start + batches))
                await turns()
            assert len(preads.sizes) == 50 // batches

    run(main())


def test_no_more_than_the_limit_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with filled(tmp_path, max_read_ahead_bytes=2 * READ_BYTES + 200) as store:
            readers = range(0, 8)  # eight of them, each at another place
            for start in readers:
                await read(store, start)
            preads = Preads(monkeypatch)
            for start in readers:
                await read(store, start + 10)
            await turns(20)
            assert len(preads.sizes) == len(readers) + 2
            for start in readers:
                assert await read(store, start + 20) == list(range(start + 20, start + 30))

    run(main())


def test_a_window_that_nobody_takes_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_KEEP_S", 0.05)
    segment = Segment(str(tmp_path), 0, size=4 << 20, created_ms=0, new=True)
    Path(segment.log_path).write_bytes(bytes(segment.size))
    pool = FilePool(8)

    async def main() -> None:
        windows = ReadAhead(pool, 2 << 20)
        pool.fd(segment.log_path)
        for position in (0, 1 << 20, 2 << 20):
            windows.expect(segment, position, 1 << 20)
        await turns(5)
        assert windows.kept_bytes == 2 << 20
        assert windows.take(segment, 2 << 20, 1 << 20) is None
        while windows.kept_bytes:
            await asyncio.sleep(0.01)
        assert windows.take(segment, 0, 1 << 20) is None
        windows.expect(segment, 0, 1 << 20)
        await turns()
        window = windows.take(segment, 0, 1000)
        assert window is not None
        assert len(window) == 1000
        assert windows.kept_bytes == 0
        windows.close()

    try:
        run(main())
    finally:
        pool.close()


def test_what_is_not_in_the_page_cache_is_left_to_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError

    async def main() -> None:
        async with filled(tmp_path) as store:
            monkeypatch.setattr(os, "preadv", refuse)
            for start in range(0, 50, 10):
                assert await read(store, start) == list(range(start, start + 10))
                await turns()

    run(main())


def test_removed_records_are_not_served_from_a_window(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path, segment_bytes="500000") as store:
            await read(store, 0)
            await read(store, 10)
            await turns()  # 20 to 29 are at hand
            await store.trim(TP, 60)
            with pytest.raises(OffsetOutOfRange):
                await read(store, 20)
            assert (await read(store, 60))[-1] == 69

    run(main())


def test_a_segment_that_is_let_go_before_it_is_read_is_not_opened_again(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path), 0, size=1 << 20, created_ms=0, new=True)
    Path(segment.log_path).write_bytes(bytes(segment.size))
    pool = FilePool(8)

    async def main() -> None:
        windows = ReadAhead(pool, 2 << 20)
        pool.fd(segment.log_path)
        windows.expect(segment, 0, 1 << 20)
        pool.forget(segment.log_path)  # as when retention removes it
        await turns()
        assert windows.kept_bytes == 0
        assert pool.pin_if_open(segment.log_path) is None
        windows.close()

    try:
        run(main())
    finally:
        pool.close()


def test_a_topic_of_the_same_name_begins_without_windows(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path) as store:
            await read(store, 0)
            await read(store, 10)
            await store.delete_topic("t")
            await store.create_topic("t", 1)
            await turns()
            for _ in range(50):
                await store.append(TP, batch_of(b"y" * 10_000))
            assert values(await records_of(store, max_bytes=READ_BYTES)) == [b"y" * 10_000] * 50

    run(main())


def test_a_compacted_segment_is_read_anew(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(1_700_000_000_000)
        async with opened(tmp_path, clock=clock) as store:
            config = {"cleanup.policy": "compact", "segment.bytes": "500000", "min.cleanable.dirty.ratio": "0.01"}
            await store.create_topic("t", 1, config)
            for number in range(100):
                await store.append(TP, batch_of(b"%03d" % number + b"x" * 9997, key=b"%d" % (number % 30)))
            await read(store, 0)
            await read(store, 10)
            await turns()  # 20 to 29 are at hand, and their keys come again
            await store.run_cleaner_once()
            left = [record.offset for record in await records_of(store)]
            assert 25 not in left
            assert (await read(store, 20))[0] == left[0]

    run(main())


def test_a_store_closes_with_windows_and_wishes_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path) as store:
            await read(store, 0)
            await read(store, 10)
            await turns()
            await read(store, 20)
        async with opened(tmp_path) as store:
            assert len(await records_of(store)) == 100

    run(main())
