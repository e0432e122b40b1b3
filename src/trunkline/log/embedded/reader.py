"""Reading a partition: by offset, by time.

A read is one `pread` of whole batches out of one segment. Where it begins comes from where an earlier read ended, which a
partition remembers for its last few readers, else from the sparse index; where it must be cut comes from the index and a
walk over the headers behind the last entry. So a read costs the same whether it holds ten batches or ten thousand. A read
that goes on where another ended, and leaves more than it takes, is followed by a read ahead (see ahead).

Bytes go to a client as they are; who decodes them in the broker asks for a verified read, which has checked every batch.

What lies in the page cache is read on the event loop. What does not would stop everyone while the disk turns, so it is read in
a thread, with the file pinned: a segment that is removed or replaced meanwhile stays readable until the read ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct

from trunkline.log.batch import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MIN_BATCH_LENGTH,
    BatchHeader,
    check_crc,
)
from trunkline.log.checksum import crc32c_of
from trunkline.log.decoding import DecodingLimits
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.segment import Location, Segment
from trunkline.log.errors import CorruptBatch, DamagedLog, OffsetOutOfRange, StorageFailure
from trunkline.log.records import OpenBatch, unpacked
from trunkline.log.store import AbortedTransaction, Buffer, OffsetAndTimestamp, Slice

_LENGTH = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CHECKED = struct.Struct(">qi4xbI2xi")  # base offset, batch length, magic, CRC, last offset delta
_HOT_TAIL_BYTES = 32 << 20  # of the active segment: written so recently that it is in the page cache
_AT_ONCE_RECORDS = 1_024  # searched on the event loop; more in a thread, so many at a time
_NO_WAIT_REFUSED = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))


async def read(
    partition: Partition, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool, verified: bool
) -> Slice:
    bounds = partition.bounds()
    if not bounds.log_start_offset <= offset <= bounds.high_watermark:
        raise OffsetOutOfRange(
            f"offset {offset} of {partition.tp} is outside {bounds.log_start_offset} to {bounds.high_watermark}"
        )
    limit = bounds.last_stable_offset if committed else bounds.high_watermark
    if offset >= limit:
        return Slice(b"", bounds)
    start = _find(partition, offset)
    if start is None:
        return Slice(b"", bounds)
    segment, position = start
    end, next_offset = _end(partition, segment, limit)
    if end <= position:
        return Slice(b"", bounds)
    max_bytes = max(0, min(max_bytes, partition.limits.max_read_bytes))
    records: Buffer
    if end - position <= max_bytes:
        records = await _pread(partition, segment, position, end - position)
    else:
        # A header more than asked for: it tells the length of the first batch and the offset behind the last.
        size = min(max_bytes + HEADER_BYTES, end - position)
        sequential = offset in partition.positions
        window = partition.ahead.take(segment, position, size)
        if window is None:
            window = memoryview(await _pread(partition, segment, position, size))
        cut = _cut(partition, segment, position, window, max_bytes)
        if cut == 0:
            if not at_least_one:
                return Slice(b"", bounds)
            cut = LENGTH_PREFIX_BYTES + _LENGTH.unpack_from(window, 8)[0]
            if cut > end - position:
                raise DamagedLog(segment.log_path, position, "not a batch header")
            whole = await _pread(partition, segment, position, min(cut + HEADER_BYTES, end - position))
            window = memoryview(whole)
        records = window[:cut]
        if cut + 8 <= len(window):
            (next_offset,) = _INT64.unpack_from(window, cut)
        if sequential and position + cut + size <= end:
            partition.ahead.expect(segment, position + cut, size)
        end = position + cut
    if verified:
        _verify(partition, segment, position, records, offset, next_offset)
    _remember(partition, next_offset, segment, end)
    aborted = _aborted(partition, offset, next_offset) if committed else ()
    return Slice(records, bounds, aborted)


def _find(partition: Partition, offset: int) -> tuple[Segment, int] | None:
    """Where the batch begins that holds `offset` or, where that was compacted away, the next one."""
    known = partition.positions.get(offset)
    if known is not None and known[1] < known[0].size:
        return known
    segments = partition.segments
    for number in range(partition.segment_number(offset), len(segments)):
        segment = segments[number]
        if segment.size == 0:
            continue
        position = segment.find(partition.open_segment(segment), offset, partition.config.index_interval_bytes)
        if position is not None:
            return segment, position
    return None


def _end(partition: Partition, segment: Segment, limit: int) -> tuple[int, int]:
    """Where a read out of `segment` must end at the latest, and the offset that follows."""
    segments = partition.segments
    if segment is segments[-1]:
        following = partition.end_offset
    else:
        following = segments[partition.segment_number(segment.base_offset) + 1].base_offset
    if following <= limit:
        return segment.size, following
    stop = _find(partition, limit)
    if stop is None or stop[0] is not segment:
        return segment.size, following
    _remember(partition, limit, segment, stop[1])
    return stop[1], limit


def _verify(
    partition: Partition, segment: Segment, position: int, records: Buffer, offset: int, next_offset: int
) -> None:
    """DamagedLog unless what was read is whole batches that match their CRC and follow one another."""
    view = memoryview(records)
    size = len(view)
    contiguous = not partition.may_have_gaps(segment)
    first = max(offset, segment.base_offset)
    expected = -1
    at = 0
    while at < size:
        if at + HEADER_BYTES > size:
            raise DamagedLog(segment.log_path, position + at, "no whole batch header")
        base_offset, length, magic, crc, delta = _CHECKED.unpack_from(view, at)
        end = at + LENGTH_PREFIX_BYTES + length
        if magic != 2 or length < MIN_BATCH_LENGTH or end > size:
            raise DamagedLog(segment.log_path, position + at, "not a batch header")
        if crc32c_of(view[at + CRC_START : end]) != crc:
            raise DamagedLog(segment.log_path, position + at, "the batch does not match its checksum")
        if base_offset < expected or delta < 0 or (contiguous and base_offset > (expected if at else first)):
            raise DamagedLog(segment.log_path, position + at, f"a batch with base offset {base_offset} does not fit")
        expected = base_offset + delta + 1
        at = end
    if expected > next_offset or (contiguous and expected < next_offset):
        raise DamagedLog(segment.log_path, position + at, f"offset {next_offset} follows on {expected - 1}")


def _cut(partition: Partition, segment: Segment, position: int, window: memoryview, max_bytes: int) -> int:
    """The end of the last whole batch within `max_bytes` of the window."""
    fd = partition.open_segment(segment)
    index = segment.load(fd, partition.config.index_interval_bytes)
    cut = max(0, index.position_at_or_before(position + max_bytes) - position)
    if cut and not index.holds(position + cut, segment.base_offset, window, cut):
        segment.rebuild(fd, partition.config.index_interval_bytes)
        index = segment.load(fd, partition.config.index_interval_bytes)
        cut = max(0, index.position_at_or_before(position + max_bytes) - position)
    unpack = _LENGTH.unpack_from
    last = len(window) - LENGTH_PREFIX_BYTES
    while cut <= last:
        length = unpack(window, cut + 8)[0]
        if length <= 0:
            raise DamagedLog(segment.log_path, position + cut, "not a batch header")
        following: int = cut + LENGTH_PREFIX_BYTES + length
        if following > max_bytes:
            break
        cut = following
    return cut


def _remember(partition: Partition, offset: int, segment: Segment, position: int) -> None:
    if partition.segments[partition.segment_number(segment.base_offset)] is not segment:
        return  # removed or replaced while the read waited for the disk
    positions = partition.positions
    if offset in positions:
        del positions[offset]
    elif len(positions) >= partition.limits.max_remembered_positions:
        del positions[next(iter(positions))]
    positions[offset] = (segment, position)


def _aborted(partition: Partition, offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions with records between the offsets. They are entered where they end, so later segments count."""
    found: list[AbortedTransaction] = []
    for segment in partition.segments[partition.segment_number(offset) :]:
        for entry in segment.aborted_from(offset):
            if entry.first_offset < end_offset:
                found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= end_offset:
                return found  # every later entry began after that
    return found


async def _pread(partition: Partition, segment: Segment, position: int, size: int) -> bytes | bytearray:
    path = segment.log_path
    fd = partition.pool.fd(path)
    try:
        if segment is partition.segments[-1] and position + _HOT_TAIL_BYTES >= segment.size:
            data: bytes | bytearray = os.pread(fd, size, position)
        else:
            data = await _pread_cold(partition, path, position, size)
    except OSError as error:
        raise StorageFailure(path, f"cannot be read at position {position}: {error.strerror}") from None
    if len(data) != size:
        raise DamagedLog(path, position, f"{size} bytes were expected and {len(data)} are there")
    return data


async def _pread_cold(partition: Partition, path: str, position: int, size: int) -> bytes | bytearray:
    if hasattr(os, "RWF_NOWAIT"):
        buffer = bytearray(size)
        try:
            if os.preadv(partition.pool.fd(path), [buffer], position, os.RWF_NOWAIT) == size:
                return buffer
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_WAIT_REFUSED:
                raise
    file = partition.pool.pin(path)
    try:
        return await asyncio.to_thread(os.pread, file.fd, size, position)
    finally:
        partition.pool.unpin(file)


# -- by time -----------------------------------------------------------------------------------------------------


async def offset_for_time(partition: Partition, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """The first record that is at least this new. Segments by their largest timestamp, then the time index, then a scan."""
    start_offset = partition.bounds().log_start_offset
    interval_bytes = partition.config.index_interval_bytes
    for segment in list(partition.segments[partition.segment_number(start_offset) :]):
        if segment.size == 0:
            continue
        partition.open_segment(segment)
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        file = partition.pool.pin(segment.log_path)
        try:
            for location in segment.find_time(file.fd, timestamp_ms, interval_bytes):
                found = await _first_record(partition, file.fd, segment, location, start_offset, timestamp_ms)
                if found is not None:
                    return found
        finally:
            partition.pool.unpin(file)
    return None


async def max_timestamp(partition: Partition) -> OffsetAndTimestamp | None:
    start_offset = partition.bounds().log_start_offset
    best: Segment | None = None
    for segment in partition.segments[partition.segment_number(start_offset) :]:
        if segment.size:
            partition.open_segment(segment)
            if segment.max_timestamp_ms >= 0 and (best is None or segment.max_timestamp_ms > best.max_timestamp_ms):
                best = segment
    if best is None:
        return None
    return await offset_for_time(partition, best.max_timestamp_ms)


async def _first_record(
    partition: Partition, fd: int, segment: Segment, location: Location, start_offset: int, timestamp_ms: int
) -> OffsetAndTimestamp | None:
    header = location.header
    if header.last_offset < start_offset or header.control:
        return None
    if header.log_append_time:
        return OffsetAndTimestamp(max(header.base_offset, start_offset), header.max_timestamp_ms)
    batch = os.pread(fd, header.size_bytes, location.position)
    limits = partition.limits.decoding
    try:
        check_crc(batch)
    except CorruptBatch as error:
        raise DamagedLog(segment.log_path, location.position, str(error)) from None
    try:
        if header.codec == 0 and header.record_count <= _AT_ONCE_RECORDS:
            return _search(header, batch, limits, start_offset, timestamp_ms)
        return await asyncio.to_thread(_search, header, batch, limits, start_offset, timestamp_ms)
    except CorruptBatch as error:
        partition.passed_over.note(partition.tp, header, f"{segment.log_path} at {location.position}: {error}")
        return None


def _search(
    header: BatchHeader, batch: bytes, limits: DecodingLimits, start_offset: int, timestamp_ms: int
) -> OffsetAndTimestamp | None:
    data, position = unpacked(header, batch, limits.max_decompressed_bytes, limits.max_batch_records)
    opened = OpenBatch(header, data, position)
    opened.check()
    while opened.left:
        for offset, stamp_ms, _, _, _ in opened.take(_AT_ONCE_RECORDS):
            if offset >= start_offset and stamp_ms >= timestamp_ms:
                return OffsetAndTimestamp(offset, stamp_ms)
    return None
