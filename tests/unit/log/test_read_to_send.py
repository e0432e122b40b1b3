"""Records that are sent from where they lie: the same bytes as a read gives, whatever happens to the file meanwhile."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from tests.unit.log.stores import TP, batch_of, opened, run, with_topic
from trunkline.log.embedded import reader
from trunkline.log.embedded.limits import StoreLimits
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.embedded.stored_range import MIN_STORED_BYTES
from trunkline.log.errors import OffsetOutOfRange
from trunkline.log.store import Buffer, StoredRecords

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="records are sent from the log on Linux only")


def content(records: Buffer | StoredRecords) -> bytes:
    """All bytes, half of them through a socket and half through memory."""
    if not isinstance(records, StoredRecords):
        return bytes(records)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        found = b""
        while records:
            before = len(records)
            records.send(ours.fileno())
            sent = before - len(records)
            while sent:
                part = theirs.recv(sent)
                found += part
                sent -= len(part)
            found += records.take(10_000)
        return found


async def fill(store: EmbeddedStore, total_bytes: int, *, batch_bytes: int, seed: int = 1) -> None:
    """Batches of about this size, until there is this much."""
    chance = random.Random(seed)
    written = 0
    while written < total_bytes:
        size = chance.randint(batch_bytes // 2, batch_bytes * 3 // 2)
        await store.append(TP, batch_of(chance.randbytes(size)))
        written += size


async def read_all(store: EmbeddedStore, max_bytes: int, *, committed: bool) -> int:
    """Follow the log both ways side by side; returns how many pieces were not read into memory."""
    offset, stored = 0, 0
    while offset < store.bounds(TP).high_watermark:
        wanted = await store.read(TP, offset, max_bytes, committed=committed)
        given = await store.read_to_send(TP, offset, max_bytes, committed=committed)
        stored += isinstance(given.records, StoredRecords)
        assert (given.bounds, given.aborted) == (wanted.bounds, wanted.aborted)
        assert len(given.records) == len(wanted.records)
        assert content(given.records) == bytes(wanted.records)
        offset = reader_offset(bytes(wanted.records))
    return stored


def reader_offset(records: bytes) -> int:
    """The offset behind the last batch; each holds one record here."""
    at = 0
    while at < len(records):
        base = int.from_bytes(records[at : at + 8], "big")
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
    return base + 1


@pytest.mark.parametrize("batch_bytes", [700, 30_000, 400_000])
@pytest.mark.parametrize("max_bytes", [300_000, 1_000_000, 50_000_000])
@pytest.mark.parametrize("hot_tail_bytes", [32 << 20, 0])
def test_what_is_sent_from_the_log_is_what_a_read_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int, max_bytes: int, hot_tail_bytes: int
) -> None:
    monkeypatch.setattr(reader, "_HOT_TAIL_BYTES", hot_tail_bytes)

    async def test() -> None:
        async with with_topic(tmp_path, segment_bytes="2000000") as store:
            await fill(store, 5_000_000, batch_bytes=batch_bytes)
            stored = await read_all(store, max_bytes, committed=False)
            assert stored or batch_bytes > max_bytes // 2

    run(test())


def test_reads_of_committed_records_end_at_the_same_place_both_ways(tmp_path: Path) -> None:
    async def test() -> None:
        async with with_topic(tmp_path) as store:
            await fill(store, 600_000, batch_bytes=10_000)
            end = store.bounds(TP).high_watermark
            await store.append(TP, batch_of(b"x" * 400_000, pid=7, epoch=0, sequence=0, transactional=True))
            await fill(store, 600_000, batch_bytes=10_000, seed=2)
            given = await store.read_to_send(TP, 0, 5_000_000, committed=True)
            assert isinstance(given.records, StoredRecords)
            assert reader_offset(content(given.records)) == end == given.bounds.last_stable_offset
            await store.append_marker(TP, 7, 0, commit=False)
            given = await store.read_to_send(TP, 0, 5_000_000, committed=True)
            assert [gone.producer_id for gone in given.aborted] == [7]

    run(test())


def test_little_is_read_and_what_is_wrong_is_said_as_by_a_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with with_topic(tmp_path) as store:
            await fill(store, MIN_STORED_BYTES // 2, batch_bytes=1_000)
            given = await store.read_to_send(TP, 0, 5_000_000)
            assert not isinstance(given.records, StoredRecords)
            end = store.bounds(TP).high_watermark
            assert len((await store.read_to_send(TP, end, 5_000_000)).records) == 0
            for outside in (-1, end + 1):
                with pytest.raises(OffsetOutOfRange):
                    await store.read_to_send(TP, outside, 5_000_000)

    run(test())


def test_records_under_way_outlive_their_topic_and_let_go_of_the_file_when_dropped(tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        targets = {os.readlink(link) for link in links if os.path.lexists(link)}
        return {target for target in targets if "/t-0" in target and ".log" in target}

    async def test() -> None:
        async with opened(tmp_path, limits=StoreLimits(max_open_files=1)) as store:
            await store.create_topic("t", 1)
            await fill(store, 1_000_000, batch_bytes=10_000)
            wanted = bytes((await store.read(TP, 0, 5_000_000)).records)
            given = (await store.read_to_send(TP, 0, 5_000_000)).records
            await store.delete_topic("t")
            assert len(descriptors()) == 1
            assert content(given) == wanted
            del given
            assert not descriptors()

    run(test())
