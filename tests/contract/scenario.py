"""How a test of the contract speaks to a store: a topic, batches, and everything that a reader sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager

from tests.contract.conftest import MakeStore
from trunkline.log.batch import NewRecord, Record, build_batch, iter_batches, iter_records
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)
SCENARIO_LIMIT_S = 60


def run(make_store: MakeStore, scenario: Callable[[LogStore], Coroutine[None, None, None]]) -> None:
    """Run a scenario on a started store with topic `t` of two partitions; an earlier example may have used the store."""

    async def bounded() -> None:
        async with started(make_store) as store:
            if store.topic("t") is None:
                await store.create_topic("t", 2)
            await asyncio.wait_for(scenario(store), SCENARIO_LIMIT_S)

    asyncio.run(bounded())


@asynccontextmanager
async def started(make_store: MakeStore) -> AsyncIterator[LogStore]:
    store = make_store()
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp_ms: int = NOW_MS,
    compression: str = "none",
    producer: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    return build_batch(
        [NewRecord(key, value) for value in values],
        timestamp_ms=timestamp_ms,
        compression=compression,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence,
        transactional=transactional,
    )


async def put(store: LogStore, *values: bytes, tp: TopicPartition = TP) -> Appended:
    return await store.append(tp, batch(*values), Durability.DISK)


async def noticed(store: LogStore, condition: Callable[[], bool], tp: TopicPartition = TP) -> None:
    """Wait until the partition is seen as it is: what others do to it, and how far it is stable, is noticed in time."""
    changed = asyncio.Event()
    store.watch(tp, changed.set)
    while not condition():
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
    store.unwatch(tp, changed.set)


async def seen(
    store: LogStore, tp: TopicPartition = TP, *, start: int | None = None, max_bytes: int = 1 << 20, committed: bool = False
) -> list[Record]:  # fmt: skip
    """Every record from `start` on, as a consumer sees it: with `committed`, without aborted ones and markers."""
    offset = store.bounds(tp).log_start_offset if start is None else start
    found: list[Record] = []
    while True:
        piece = await store.read(tp, offset, max_bytes, committed=committed)
        if not len(piece.records):
            return found
        coming = sorted(piece.aborted, key=lambda transaction: transaction.first_offset)
        aborted: set[int] = set()
        last_offset = -1
        for header, data in iter_batches(piece.records):
            while coming and coming[0].first_offset <= header.last_offset:
                aborted.add(coming.pop(0).producer_id)
            last_offset = header.last_offset
            if header.control:
                aborted.discard(header.producer_id)
            if committed and (header.control or (header.transactional and header.producer_id in aborted)):
                continue
            found += [record for record in iter_records(data) if record.offset >= offset]
        assert last_offset >= offset, "a read that returns batches gets on"
        offset = last_offset + 1


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records if not record.control]
