"""Records of a partition, decoded, a portion at a time: how everyone in the broker reads records from the log.

A portion is what one turn of the event loop can bear: at most `PORTION_RECORDS` records, and `PORTION_BYTES` with the batch
that goes beyond them. `following` is where to read on; it may lie within a batch, which is opened again then. What is
long is not done on the loop: a batch that decompresses to more than `_AT_ONCE_BYTES` is decompressed in a thread.

Control batches, records of aborted transactions, and batches that do not decode are left out; the last are noted (see
`decoding`). What does not match its checksum the store leaves out of a verified read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trunkline.log.batch import BatchHeader, iter_batches
from trunkline.log.compression import TooLarge
from trunkline.log.decoding import DecodingLimits
from trunkline.log.errors import CorruptBatch
from trunkline.log.records import LightRecord, OpenBatch, unpacked
from trunkline.log.store import LogStore, Slice, TopicPartition

PORTION_RECORDS = 16_384
PORTION_BYTES = 8 << 20
_AT_ONCE_BYTES = 1 << 20


class Portion(NamedTuple):
    records: list[LightRecord]
    following: int


async def read_portion(
    store: LogStore,
    tp: TopicPartition,
    offset: int,
    max_bytes: int,
    wanted: Callable[[BatchHeader], bool] | None = None,
) -> Portion:
    """The committed records from `offset` on. At the end of what can be read it is empty, and `following` is `offset`.

    With `wanted`, only those in batches of which it is true; others are not looked into.
    """
    part = await store.read(tp, offset, max_bytes, committed=True, verified=True)
    return await decode_portion(store, tp, part, offset, wanted)


async def decode_portion(
    store: LogStore, tp: TopicPartition, part: Slice, offset: int, wanted: Callable[[BatchHeader], bool] | None = None
) -> Portion:
    """The records of a committed read, from `offset` on."""
    found: list[LightRecord] = []
    following = offset
    size_bytes = 0
    for header, batch in data_batches(part):
        if batch is not None and (wanted is None or wanted(header)):
            if found and (len(found) + header.record_count > PORTION_RECORDS or size_bytes > PORTION_BYTES):
                return Portion(found, following)
            try:
                opened = await _open(header, batch, store.decoding)
                size_bytes += opened.size_bytes
                if header.record_count > PORTION_RECORDS:
                    opened.check()  # before any of it is handed out
                    await asyncio.sleep(0)
                    opened.skip_before(offset)
                records = opened.take(PORTION_RECORDS)
                if opened.left:
                    return Portion(records, records[-1][0] + 1)
                if header.base_offset < offset:
                    records = [record for record in records if record[0] >= offset]
                found += records
            except CorruptBatch as error:
                store.passed_over.note(tp, header, error)
        following = max(following, header.last_offset + 1)
    return Portion(found, following)


def data_batches(part: Slice) -> Iterator[tuple[BatchHeader, memoryview | None]]:
    """Each batch of a committed read; None instead of one without data: control, or of an aborted transaction."""
    coming = sorted(part.aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    aborted: set[int] = set()
    for header, batch in iter_batches(part.records):
        while coming and coming[-1].first_offset <= header.last_offset:
            aborted.add(coming.pop().producer_id)
        if header.control:
            aborted.discard(header.producer_id)
            yield header, None
        elif header.transactional and header.producer_id in aborted:
            yield header, None
        else:
            yield header, batch


async def _open(header: BatchHeader, batch: memoryview, limits: DecodingLimits) -> OpenBatch:
    at_once = min(_AT_ONCE_BYTES, limits.max_decompressed_bytes)
    try:
        data, position = unpacked(header, batch, at_once, limits.max_batch_records)
    except TooLarge:
        data, position = await asyncio.to_thread(
            unpacked, header, batch, limits.max_decompressed_bytes, limits.max_batch_records
        )
    return OpenBatch(header, data, position)
