"""A segment: a run of a partition's batches in one file.

On disk in the partition's directory, named by the first offset that the segment may hold, in 20 digits:

    <base>.log                    batches, verbatim, one after the other; behind the last batch of an active segment
                                  perhaps zeros, on which the next ones are written (see partition)
    <base>.index, .timeindex      see index
    <base>.txnindex               see aborted

    <base>.<position>.damaged     see damage

What always holds: batches lie in the order of their offsets and are never changed in place. Only the last segment of a
partition grows. A compacted segment may lack offsets. A crash can leave a torn batch at the end of the last segment, and
indexes that are old or missing. Whoever finds something else raises DamagedLog, and the segment is mended (see damage).

A batch is found from the index entry before it and a scan of headers from there: at most `index.interval.bytes` and one batch.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from trunkline.log.aborted import AbortedEntry, decode_aborted, encode_aborted
from trunkline.log.batch import HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MIN_BATCH_LENGTH, BatchHeader, check_crc
from trunkline.log.embedded.files import FILE_MODE, write_atomically
from trunkline.log.embedded.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from trunkline.log.errors import CorruptBatch, DamagedLog, StorageFailure

_SCAN_WINDOW_BYTES = 16 << 10
_WALK_WINDOW_BYTES = 6 << 10
_WALK = struct.Struct(">qi4xb6xi")  # base offset, batch length, magic, last offset delta
_CHECK_WINDOW_BYTES = 4 << 20
MAX_RELATIVE_OFFSET = 2**31 - 1
OFFSET_DIGITS = 20


def offset_name(offset: int) -> str:
    return f"{offset:0{OFFSET_DIGITS}d}"


class TornLog(Exception):
    """The file holds no whole, checksummed batch at `position`."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no valid batch at position {position}: {reason}")
        self.position = position
        self.reason = reason


class Location(NamedTuple):
    """Where a batch begins, and what its header says."""

    position: int
    header: BatchHeader


class Segment:
    __slots__ = (
        "_aborted", "_first_timestamp_ms", "_indexed_size", "_offset_index", "_time_index", "base_offset", "created_ms",
        "indexes_changed", "last_indexed_position", "log_path", "max_timestamp_ms", "max_timestamp_offset", "reserved_to",
        "size", "stem",
    )  # fmt: skip

    def __init__(self, directory: str, base_offset: int, *, size: int, created_ms: int, new: bool) -> None:
        self.base_offset = base_offset
        self.stem = os.path.join(directory, offset_name(base_offset))
        self.log_path = self.stem + ".log"
        self.size = size
        self.reserved_to = 0  # where the zeros behind the batches end, if there are any
        self.created_ms = created_ms
        self.indexes_changed = new
        self.last_indexed_position = 0
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = base_offset
        self._first_timestamp_ms: int | None = None
        self._offset_index: OffsetIndex | None = OffsetIndex() if new else None
        self._time_index: TimeIndex | None = TimeIndex() if new else None
        self._aborted: list[AbortedEntry] | None = [] if new else None

    def __repr__(self) -> str:
        return f"Segment({self.log_path}, {self.size} bytes)"

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.stem + end for end in (".log", ".index", ".timeindex", ".txnindex"))

    # -- growing -----------------------------------------------------------------------------------------------------

    def note(self, header: BatchHeader, base_offset: int, size: int, interval_bytes: int) -> None:
        """Take account of a batch of `size` bytes that was just written at the end."""
        position = self.size
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms
            self.max_timestamp_offset = base_offset
        if position == 0:
            self._first_timestamp_ms = header.max_timestamp_ms
        elif position - self.last_indexed_position > interval_bytes:
            self.last_indexed_position = position
            assert self._offset_index is not None
            assert self._time_index is not None
            self._offset_index.append(base_offset + header.last_offset_delta - self.base_offset, position)
            self._time_index.append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
            self.indexes_changed = True
        self.size = position + size

    def index_full(self, max_index_bytes: int) -> bool:
        if self._offset_index is None or self._time_index is None:
            return False
        return (
            len(self._offset_index.raw) + OFFSET_ENTRY_BYTES > max_index_bytes
            or len(self._time_index.raw) + TIME_ENTRY_BYTES > max_index_bytes
        )

    def write_indexes(self) -> list[str]:
        """Put the indexes on disk as the segment is closed; returns the files written.

        A log so short that its offset index is empty gets none: to build them anew takes one read.
        """
        if self._offset_index is None or self._time_index is None:
            return []
        before = len(self._time_index)
        if self.max_timestamp_ms >= 0:
            self._time_index.append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        if not self.indexes_changed and len(self._time_index) == before:
            return []
        try:
            if not len(self._offset_index):
                for path in self.paths[1:3]:
                    if os.path.exists(path):
                        os.unlink(path)
                self.indexes_changed = False
                return []
            write_atomically(self.stem + ".index", bytes(self._offset_index.raw), durable=False)
            write_atomically(self.stem + ".timeindex", bytes(self._time_index.raw), durable=False)
        except OSError as error:
            raise StorageFailure(self.stem + ".index", error.strerror or "cannot be written") from None
        self.indexes_changed = False
        return [self.stem + ".index", self.stem + ".timeindex"]

    # -- indexes -----------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        return self._offset_index is not None

    def load(self, fd: int, interval_bytes: int) -> OffsetIndex:
        """Have the indexes in memory, from their files or, if these are missing or lie, from the log."""
        if self._offset_index is not None and self._time_index is not None:
            return self._offset_index
        offsets, times = OffsetIndex(_read_file(self.stem + ".index")), TimeIndex(_read_file(self.stem + ".timeindex"))
        if not self._trusted(fd, offsets, times):
            self.rebuild(fd, interval_bytes)
            assert self._offset_index is not None
            return self._offset_index
        self._offset_index, self._time_index = offsets, times
        if len(offsets):
            self.last_indexed_position = offsets.entry(len(offsets) - 1)[1]
        stamp, relative = times.last()
        if stamp > self.max_timestamp_ms:
            self.max_timestamp_ms, self.max_timestamp_offset = stamp, self.base_offset + relative
        return offsets

    def unload(self) -> None:
        """Drop the indexes of a closed segment from memory; they are read, or built, again when needed."""
        self._offset_index = self._time_index = None

    def _trusted(self, fd: int, offsets: OffsetIndex, times: TimeIndex) -> bool:
        """Whether both indexes are there and their last entries say what the log says."""
        if self.size == 0:
            return not len(offsets) and not len(times)
        if not os.path.exists(self.stem + ".index") or not os.path.exists(self.stem + ".timeindex"):
            return False
        if len(offsets) and not self._entry_holds(fd, *offsets.entry(len(offsets) - 1)):
            return False
        stamp, relative = times.last()
        if stamp < 0:
            return self.first_timestamp_ms(fd) < 0
        entry = offsets.at_or_before(relative)
        try:
            for location in self.scan(fd, entry[1] if entry else 0):
                if location.header.last_offset >= self.base_offset + relative:
                    return location.header.max_timestamp_ms == stamp
        except StorageFailure:
            return False
        return False

    def _entry_holds(self, fd: int, relative_offset: int, position: int) -> bool:
        if position + HEADER_BYTES > self.size:
            return False
        header = BatchHeader._make(HEADER.unpack(os.pread(fd, HEADER_BYTES, position)))
        return header.magic == 2 and header.last_offset == self.base_offset + relative_offset

    def rebuild(self, fd: int, interval_bytes: int) -> None:
        """Build the indexes from the batch headers."""
        end = self.size
        self.reset()
        expected = self.base_offset
        try:
            for position, header in self.scan(fd, 0, end):
                if not expected <= header.base_offset <= header.last_offset <= self.base_offset + MAX_RELATIVE_OFFSET:
                    raise DamagedLog(self.log_path, position, f"base offset {header.base_offset} does not fit here")
                self.note(header, header.base_offset, header.size_bytes, interval_bytes)
                expected = header.last_offset + 1
        except StorageFailure:
            self.size = end
            self.unload()
            raise

    def reset(self) -> None:
        """Begin anew as an empty segment, before `note` is called for each batch."""
        self._offset_index, self._time_index = OffsetIndex(), TimeIndex()
        self.max_timestamp_ms, self.max_timestamp_offset = -1, self.base_offset
        self._first_timestamp_ms = None
        self.last_indexed_position = 0
        self.size = 0
        self.indexes_changed = True

    # -- finding -----------------------------------------------------------------------------------------------------

    def scan(self, fd: int, position: int, end: int | None = None) -> Iterator[Location]:
        """Walk batch headers from a batch's start. Reads headers only; DamagedLog where there is none."""
        stop = self.size if end is None else end
        window = b""
        window_start = position
        while position < stop:
            at = position - window_start
            if at + HEADER_BYTES > len(window):
                window = os.pread(fd, min(_SCAN_WINDOW_BYTES, stop - position), position)
                window_start, at = position, 0
                if len(window) < HEADER_BYTES:
                    raise DamagedLog(self.log_path, position, "no whole batch header")
            header = BatchHeader._make(HEADER.unpack_from(window, at))
            following = position + LENGTH_PREFIX_BYTES + header.batch_length
            if header.magic != 2 or header.batch_length < MIN_BATCH_LENGTH or following > stop:
                raise DamagedLog(self.log_path, position, "not a batch header")
            yield Location(position, header)
            position = following

    def find(self, fd: int, offset: int, interval_bytes: int) -> int | None:
        """The position of the first batch whose last offset is not before `offset`."""
        for attempt in (1, 2):
            entry = self.load(fd, interval_bytes).at_or_before(offset - self.base_offset)
            if entry is None or self._entry_holds(fd, *entry):
                break
            if attempt == 2:
                raise DamagedLog(self.log_path, entry[1], "index and log do not match")
            self.rebuild(fd, interval_bytes)
        return self._walk_to(fd, offset, entry[1] if entry else 0)

    def _walk_to(self, fd: int, offset: int, position: int) -> int | None:
        """As `scan` until the batch of `offset`, but reads only the four fields that this takes: every seek comes here."""
        unpack, size = _WALK.unpack_from, self.size
        window, window_start = b"", position
        while position < size:
            at = position - window_start
            if at + _WALK.size > len(window):
                window, window_start, at = os.pread(fd, _WALK_WINDOW_BYTES, position), position, 0
                if len(window) < _WALK.size:
                    raise DamagedLog(self.log_path, position, "no whole batch header")
            base_offset, length, magic, last_offset_delta = unpack(window, at)
            following = position + LENGTH_PREFIX_BYTES + length
            if magic != 2 or length < MIN_BATCH_LENGTH or following > size:
                raise DamagedLog(self.log_path, position, "not a batch header")
            if base_offset + last_offset_delta >= offset:
                return position
            position = following
        return None

    def find_time(self, fd: int, timestamp_ms: int, interval_bytes: int) -> Iterator[Location]:
        """Batches that may hold a record at least this new, from the first on."""
        self.load(fd, interval_bytes)
        assert self._time_index is not None
        start = self.find(fd, self.base_offset + self._time_index.before(timestamp_ms), interval_bytes)
        if start is not None:
            for location in self.scan(fd, start):
                if location.header.max_timestamp_ms >= timestamp_ms:
                    yield location

    def first_timestamp_ms(self, fd: int) -> int:
        """The largest timestamp of the first batch, from which the segment's age counts; -1 when it is empty."""
        if self._first_timestamp_ms is None:
            if self.size < HEADER_BYTES:
                return -1
            self._first_timestamp_ms = HEADER.unpack(os.pread(fd, HEADER_BYTES, 0))[8]
        return self._first_timestamp_ms

    # -- aborted transactions ----------------------------------------------------------------------------------------

    @property
    def aborted(self) -> list[AbortedEntry]:
        if self._aborted is None:
            self._aborted = decode_aborted(_read_file(self.stem + ".txnindex"))
        return self._aborted

    def add_aborted(self, entry: AbortedEntry) -> str:
        """Enter a transaction, on disk first; returns the file written."""
        path = self.stem + ".txnindex"
        entries = self.aborted
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            position, encoded = len(encode_aborted(entries)), encode_aborted([entry])
            try:
                if os.pwrite(fd, encoded, position) < len(encoded):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(fd, position)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageFailure(path, error.strerror or "cannot be written") from None
        entries.append(entry)
        return path

    def drop_last_aborted(self) -> None:
        """Take back the last entry: its marker could not be written."""
        path = self.stem + ".txnindex"
        self.aborted.pop()
        try:
            os.truncate(path, len(encode_aborted(self.aborted)))
        except OSError as error:
            raise StorageFailure(path, error.strerror or "cannot be cut") from None

    def replace_aborted(self, entries: list[AbortedEntry]) -> None:
        """Write the whole index anew; without entries there is no file."""
        self._aborted = entries
        path = self.stem + ".txnindex"
        if entries:
            write_atomically(path, encode_aborted(entries), durable=False)
        elif os.path.exists(path):
            os.unlink(path)

    def aborted_from(self, offset: int) -> list[AbortedEntry]:
        """The aborted transactions that end at `offset` or later, in the order of their markers."""
        entries = self.aborted
        return entries[bisect_left(entries, offset, key=lambda entry: entry.last_offset) :]


class LoadedIndexes:
    """The closed segments whose indexes are in memory, at most so many, the least recently used dropped first."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max(1, max_segments)
        self._segments: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def touch(self, segment: Segment) -> None:
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        while len(self._segments) > self._max_segments:
            self._segments.popitem(last=False)[0].unload()

    def forget(self, segment: Segment) -> None:
        self._segments.pop(segment, None)


def check_batches(fd: int, end: int, position: int = 0) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Walk whole batches and check each against its CRC; TornLog at the first that is not whole."""
    window = memoryview(b"")
    window_start = position
    while position < end:
        at = position - window_start
        if at + HEADER_BYTES > len(window):
            window, window_start, at = _window(fd, position, end, _CHECK_WINDOW_BYTES), position, 0
            if len(window) < HEADER_BYTES:
                raise TornLog(position, "the file ends in a batch header")
        header = BatchHeader._make(HEADER.unpack_from(window, at))
        size = header.size_bytes
        if header.magic != 2 or size < HEADER_BYTES:
            raise TornLog(position, "not a batch header")
        if position + size > end:
            raise TornLog(position, f"the file ends in a batch of {size} bytes")
        if at + size > len(window):
            window, window_start, at = _window(fd, position, end, max(size, _CHECK_WINDOW_BYTES)), position, 0
            if len(window) < size:
                raise TornLog(position, f"the file ends in a batch of {size} bytes")
        batch = window[at : at + size]
        try:
            check_crc(batch)
        except CorruptBatch as error:
            raise TornLog(position, str(error)) from None
        yield position, header, batch
        position += size


def _window(fd: int, position: int, end: int, size: int) -> memoryview:
    return memoryview(os.pread(fd, min(size, end - position), position))


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageFailure(path, error.strerror or "cannot be read") from None
