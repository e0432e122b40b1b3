"""Compaction: of each key only the latest record stays, at its offset.

One pass reads the part that was not compacted before and remembers the last offset of each key (a 16-byte digest of it, at most
`cleaner_key_map_bytes` in all; when that is full the pass covers what it has seen and the next one goes on from there). Then it
rewrites the segments from the first one on, in groups that fit one segment, and drops every record that has a later one
with its key. Offsets do not change; a batch keeps its base and last offset, whatever is left of it.

- A tombstone stays `delete.retention.ms` after the pass that first met it: that pass notes the time in the batch (the delete
  horizon, in place of the base timestamp), and the first pass after it drops the tombstone.
- Records of aborted transactions go, and count for nothing. Nothing at or after the last stable offset is touched, so every
  transaction in reach is decided.
- A transaction's marker stays until none of its batches is left, then as long as a tombstone. Its entry in the aborted index
  goes with it: a reader would wait for the marker and skip what the producer commits later.
- A producer's last batch stays, though it may be empty: its sequence numbers are what the next batch is checked against.
- A batch whose records do not parse stays as it is (see decoding), and what is in it counts for nothing.

Files: `<base>-<end>.cleaned` is being written; once fsynced it is renamed to `.swap`, which is the moment the pass counts; the
segments from base up to (not including) end are then removed and the swap file takes the name of the first. A crash before
that moment leaves the old segments, after it the new one (recovery finishes the renames).

All of this runs in the cleaner's thread on files that do not change, in slices that leave the processor to the event loop.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from trunkline.log.aborted import AbortedEntry
from trunkline.log.batch import BatchHeader, Record, iter_records, parse_header, refill_batch
from trunkline.log.embedded.files import fsync_directory, private_opener
from trunkline.log.embedded.segment import Segment, TornLog, check_batches, offset_name
from trunkline.log.errors import CorruptBatch, DamagedLog, StorageFailure
from trunkline.log.records import LightRecord, OpenBatch, decode_headers, unpacked
from trunkline.log.store import Buffer

_KEY_BYTES = 16
_ENTRY_BYTES = 200  # what a dict entry of a 16-byte digest and an offset takes, rounded up
_PORTION_RECORDS = 4_096
_SLICE_MS = 4
_PAUSE_MS = 4
SWAP_SUFFIX = ".swap"
CLEANED_SUFFIX = ".cleaned"


class Abandoned(Exception):
    """The store is closing, or the partition is gone."""


class Source(NamedTuple):
    """A closed segment, as the pass sees it."""

    base_offset: int
    log_path: str
    size: int
    created_ms: int
    aborted: Sequence[AbortedEntry]


class Plan(NamedTuple):
    """Everything a pass needs to know; nothing in it changes while it runs."""

    directory: str
    sources: Sequence[Source]
    interval_bytes: int
    dirty_from: int  # offsets before this one were compacted by earlier passes
    now_ms: int
    delete_retention_ms: int
    kept_offsets: frozenset[int]  # last offsets of batches that must stay for their producer's sequence numbers
    key_map_bytes: int
    max_decompressed_bytes: int
    passed_over: Callable[[BatchHeader, str], None]  # told of what does not decode
    abandoned: Callable[[], bool]


@dataclass(slots=True)
class Rewritten:
    """A group of segments, written anew to `swap_path`; `segment` knows its content and awaits its place."""

    sources: Sequence[Source]
    swap_path: str
    segment: Segment
    aborted: list[AbortedEntry] = field(default_factory=list)


class _Slices:
    """Gives the processor away after every few milliseconds of work."""

    def __init__(self, abandoned: Callable[[], bool]) -> None:
        self._abandoned = abandoned
        self._until = time.monotonic() + _SLICE_MS / 1000

    def breathe(self) -> None:
        if time.monotonic() >= self._until:
            if self._abandoned():
                raise Abandoned
            time.sleep(_PAUSE_MS / 1000)
            self._until = time.monotonic() + _SLICE_MS / 1000


class _Transactions:
    """Follows transactions while batches are read in order: which data is aborted, which marker has data left."""

    def __init__(self, entries: Iterable[AbortedEntry]) -> None:
        self._coming = sorted(set(entries), key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: set[int] = set()
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch; says whether its transaction was aborted."""
        if not header.transactional:
            return False
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborted.add(self._coming.pop().producer_id)
        self._with_data.add(header.producer_id)
        return header.producer_id in self._aborted

    def marker_needed(self, header: BatchHeader) -> bool:
        """Take in a marker; says whether batches of its transaction were still there."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborted.add(self._coming.pop().producer_id)  # its first batch is gone; later ones may be there
        self._aborted.discard(header.producer_id)
        needed = header.producer_id in self._with_data
        self._with_data.discard(header.producer_id)
        return needed


def digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_KEY_BYTES).digest()


def map_keys(plan: Plan) -> tuple[dict[bytes, int], int]:
    """The last offset of each key in the dirty part, and the offset up to which the map goes."""
    slices = _Slices(plan.abandoned)
    latest: dict[bytes, int] = {}
    max_keys = max(1, plan.key_map_bytes // _ENTRY_BYTES)
    covered = plan.dirty_from
    bases = [source.base_offset for source in plan.sources]
    dirty = plan.sources[max(0, bisect_right(bases, plan.dirty_from) - 1) :]
    transactions = _Transactions(entry for source in dirty for entry in source.aborted)
    for source in dirty:
        for header, batch in _batches(source):
            slices.breathe()
            if header.control:
                transactions.marker_needed(header)
            elif not transactions.is_aborted(header) and header.last_offset >= plan.dirty_from:
                latest.update(_last_offsets(source, header, batch, plan, slices))
            covered = max(covered, header.last_offset + 1)
            if len(latest) >= max_keys:
                return latest, covered
    return latest, covered


def _last_offsets(
    source: Source, header: BatchHeader, batch: memoryview, plan: Plan, slices: _Slices
) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    try:
        for record in _records(header, batch, plan, slices):
            if record[2] is not None:
                found[digest(record[2])] = record[0]
    except CorruptBatch as error:
        plan.passed_over(header, f"{source.log_path}: {error}")
        return {}
    return found


def rewrite(plan: Plan, groups: Sequence[Sequence[Source]], latest: dict[bytes, int]) -> Iterator[Rewritten]:
    """Write each group anew, in order. A yielded group's file is durable under its `.swap` name."""
    slices = _Slices(plan.abandoned)
    sieve = _Sieve(plan, latest, slices)
    for group in groups:
        base_offset = group[0].base_offset
        stem = os.path.join(plan.directory, f"{offset_name(base_offset)}-{offset_name(group[-1].base_offset + 1)}")
        segment = Segment(plan.directory, base_offset, size=0, created_ms=group[-1].created_ms, new=True)
        result = Rewritten(group, stem + SWAP_SUFFIX, segment)
        try:
            with open(stem + CLEANED_SUFFIX, "wb", opener=private_opener) as out:
                for source in group:
                    markers: set[int] = set()
                    for header, batch in _batches(source):
                        slices.breathe()
                        kept = sieve.keep(header, batch)
                        if kept is not None:
                            if header.control:
                                markers.add(header.base_offset)
                            out.write(kept[1])
                            segment.note(kept[0], kept[0].base_offset, len(kept[1]), plan.interval_bytes)
                    result.aborted += [entry for entry in source.aborted if entry.last_offset in markers]
                out.flush()
                os.fsync(out.fileno())
            os.rename(stem + CLEANED_SUFFIX, result.swap_path)
            fsync_directory(plan.directory)
        except FileNotFoundError:
            raise Abandoned from None
        except OSError as error:
            raise StorageFailure(stem + CLEANED_SUFFIX, error.strerror or "cannot be written") from None
        yield result


class _Sieve:
    """Decides batch by batch, in order, what a pass keeps."""

    def __init__(self, plan: Plan, latest: dict[bytes, int], slices: _Slices) -> None:
        self._plan = plan
        self._latest = latest
        self._slices = slices
        self._transactions = _Transactions(entry for source in plan.sources for entry in source.aborted)

    def keep(self, header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, Buffer] | None:
        """What is left of a batch; None when it goes as a whole."""
        expired = header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._plan.now_ms
        if header.control:
            return self._keep_marker(header, batch, expired)
        wanted = not self._transactions.is_aborted(header)
        count = tombstones = 0
        try:
            if wanted:
                for record in self._kept(header, batch, expired):
                    count += 1
                    tombstones += record[3] is None
        except CorruptBatch:
            return header, batch
        if not count and header.last_offset not in self._plan.kept_offsets:
            return None
        horizon_ms = self._horizon_ms() if tombstones and header.delete_horizon_ms is None else None
        if horizon_ms is None and count == header.record_count:
            return header, batch
        return _refilled(header, self._whole(header, batch, expired) if count else (), horizon_ms)

    def _kept(self, header: BatchHeader, batch: memoryview, expired: bool) -> Iterator[LightRecord]:
        for record in _records(header, batch, self._plan, self._slices):
            if _is_kept(record, self._latest, expired):
                yield record

    def _whole(self, header: BatchHeader, batch: memoryview, expired: bool) -> Iterator[Record]:
        for offset, timestamp_ms, key, value, section in self._kept(header, batch, expired):
            yield Record(offset, timestamp_ms, key, value, decode_headers(section), header.attributes)

    def _keep_marker(self, header: BatchHeader, batch: memoryview, expired: bool) -> tuple[BatchHeader, Buffer] | None:
        needed = self._transactions.marker_needed(header)
        if expired and not needed:
            return None
        if needed or header.delete_horizon_ms is not None:
            return header, batch
        return _refilled(header, iter_records(batch), self._horizon_ms())

    def _horizon_ms(self) -> int:
        return self._plan.now_ms + self._plan.delete_retention_ms


def _is_kept(record: LightRecord, latest: dict[bytes, int], expired: bool) -> bool:
    offset, _, key, value, _ = record
    if key is None or (value is None and expired):
        return False
    return latest.get(digest(key), -1) <= offset


def _refilled(header: BatchHeader, records: Iterable[Record], horizon_ms: int | None) -> tuple[BatchHeader, Buffer]:
    built = refill_batch(header, records, delete_horizon_ms=horizon_ms)
    return parse_header(built), built


def _batches(source: Source) -> Iterable[tuple[BatchHeader, memoryview]]:
    try:
        fd = os.open(source.log_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Abandoned from None
    except OSError as error:
        raise StorageFailure(source.log_path, error.strerror or "cannot be opened") from None
    try:
        for _, header, batch in check_batches(fd, source.size):
            yield header, batch
    except TornLog as torn:
        raise DamagedLog(source.log_path, torn.position, torn.reason) from None
    finally:
        os.close(fd)


def _records(header: BatchHeader, batch: memoryview, plan: Plan, slices: _Slices) -> Iterator[LightRecord]:
    """The records of a batch, a portion in memory at a time. CorruptBatch, perhaps after some of them."""
    data, position = unpacked(header, batch, plan.max_decompressed_bytes)
    opened = OpenBatch(header, data, position)
    while opened.left:
        slices.breathe()
        yield from opened.take(_PORTION_RECORDS)
