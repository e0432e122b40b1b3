"""Reading for a share group: which batches of the log are given out, as they are, and which of their offsets are meant.

A batch is never opened: its header says which offsets it covers and whether it holds data. What is returned are whole batches
from the first of which something was acquired to the last, and the ranges of offsets that were acquired; a client passes over
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trunkline.cursors.share.partition import Acquired, SharePartition, Span
from trunkline.log.buffer import Buffer
from trunkline.log.errors import OffsetOutOfRange
from trunkline.log.portions import data_batches
from trunkline.log.store import LogStore

# One read is of about as many bytes as the records take that are wanted, by the size of those before; within these bounds.
_LEAST_READ_BYTES = 64 << 10
_SPARE = 1.25
_MAX_TRIES = 8  # of a read whose records were all taken by others meanwhile


class Wanted(NamedTuple):
    """What a member asks for, and under which settings of its group."""

    member: str
    max_records: int
    max_bytes: int
    batch_records: int
    strict: bool
    committed: bool
    max_locks: int
    delivery_limit: int
    until_ms: float


class Taken(NamedTuple):
    records: Buffer
    acquired: Sequence[Acquired]

    @property
    def record_count(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.acquired)


NOTHING = Taken(b"", ())


async def take(store: LogStore, partition: SharePartition, wanted: Wanted, *, at_least_one: bool) -> Taken:
    """Acquire records of a partition. Nothing when there are none, or as many are held as may be."""
    for _ in range(_MAX_TRIES):
        partition.trim(store.bounds(partition.tp).log_start_offset)
        if not partition.can_give(wanted.max_locks):
            return NOTHING
        offset = partition.next_offset
        try:
            part = await store.read(
                partition.tp,
                offset,
                min(wanted.max_bytes, _read_bytes(partition, wanted)),
                committed=wanted.committed,
                at_least_one=at_least_one,
            )
        except OffsetOutOfRange:
            if store.bounds(partition.tp).log_start_offset <= offset:
                raise
            continue  # the log was trimmed meanwhile
        spans: list[Span] = []
        ends: list[int] = []
        size = 0
        for header, batch in data_batches(part):
            size += header.size_bytes
            spans.append(Span(header.base_offset, header.last_offset, batch is not None and header.record_count > 0))
            ends.append(size)
        if not spans:
            return NOTHING
        end = partition.end
        acquired = partition.acquire(
            wanted.member,
            spans,
            read_from=offset,
            max_records=wanted.max_records,
            batch_records=wanted.batch_records,
            strict=wanted.strict,
            max_locks=wanted.max_locks,
            delivery_limit=wanted.delivery_limit,
            until_ms=wanted.until_ms,
        )
        if acquired:
            partition.progress.mean_bytes = size // (spans[-1].last - spans[0].first + 1)
            return Taken(_cut(part.records, spans, ends, acquired[0].first, acquired[-1].last), acquired)
        if partition.end == end and partition.next_offset == offset:
            return NOTHING  # it was not others who took it: what is there is beyond what may be held
    return NOTHING


def _read_bytes(partition: SharePartition, wanted: Wanted) -> int:
    return max(_LEAST_READ_BYTES, int(partition.progress.mean_bytes * wanted.max_records * _SPARE))


def _cut(records: Buffer, spans: Sequence[Span], ends: Sequence[int], first: int, last: int) -> memoryview:
    """The whole batches from the one with `first` to the one with `last`."""
    begin = next(index for index, span in enumerate(spans) if span.last >= first)
    end = next(index for index, span in enumerate(spans) if span.last >= last)
    return memoryview(records)[ends[begin - 1] if begin else 0 : ends[end]]
