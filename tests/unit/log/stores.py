"""What the log's tests share: stores in temporary directories, batches, and reads of everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from trunkline.clock import ManualClock
from trunkline.log.batch import NewRecord, Record, build_batch, iter_batches, iter_records
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.limits import StoreLimits
from trunkline.log.store import TopicPartition
from trunkline.log.ticket import Appended

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)


def run(coroutine: Coroutine[None, None, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, 60)

    return asyncio.run(bounded())


@asynccontextmanager
async def opened(
    directory: Path,
    *,
    clock: ManualClock | None = None,
    limits: StoreLimits | None = None,
    defaults: Mapping[str, str] | None = None,
) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(directory, clock=clock or ManualClock(NOW_MS), limits=limits, defaults=defaults)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def with_topic(
    directory: Path, config: Mapping[str, str] | None = None, *, clock: ManualClock | None = None, **more: str
) -> AsyncIterator[EmbeddedStore]:
    """A store with topic `t` of one partition; underscores in setting names stand for dots."""
    settings = {**(config or {}), **more}
    async with opened(directory, clock=clock) as store:
        if store.topic("t") is None:
            await store.create_topic("t", 1, {name.replace("_", "."): value for name, value in settings.items()})
        yield store


def batch_of(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp_ms: int = NOW_MS,
    compression: str = "none",
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    return build_batch(
        [NewRecord(key, value) for value in values],
        timestamp_ms=timestamp_ms,
        compression=compression,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def keyed(*pairs: tuple[bytes, bytes | None], timestamp_ms: int = NOW_MS, compression: str = "none") -> bytes:
    return build_batch([NewRecord(k, v) for k, v in pairs], timestamp_ms=timestamp_ms, compression=compression)


async def put(store: EmbeddedStore, *values: bytes, tp: TopicPartition = TP, timestamp_ms: int = NOW_MS) -> Appended:
    return await store.append(tp, batch_of(*values, timestamp_ms=timestamp_ms))


async def records_of(
    store: EmbeddedStore, tp: TopicPartition = TP, *, start: int | None = None, max_bytes: int = 1 << 20, committed: bool = False
) -> list[Record]:  # fmt: skip
    """Every record from the start on, as a consumer would see it: aborted ones and markers left out when `committed`."""
    bounds = store.bounds(tp)
    offset = bounds.log_start_offset if start is None else start
    found: list[Record] = []
    while True:
        piece = await store.read(tp, offset, max_bytes, committed=committed)
        if not len(piece.records):
            return found
        coming = sorted(piece.aborted, key=lambda transaction: transaction.first_offset)
        aborted: set[int] = set()
        for header, batch in iter_batches(piece.records):
            while coming and coming[0].first_offset <= header.last_offset:
                aborted.add(coming.pop(0).producer_id)
            if header.control:
                aborted.discard(header.producer_id)
            if not (committed and (header.control or (header.transactional and header.producer_id in aborted))):
                found += [record for record in iter_records(batch) if record.offset >= offset]
            last_offset = header.last_offset
        assert last_offset >= offset
        offset = last_offset + 1
        await asyncio.sleep(0)  # as between two fetches: what is to be read ahead is read now


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def log_files(directory: Path, tp: TopicPartition = TP) -> list[Path]:
    return sorted((directory / str(tp)).glob("*.log"))
