"""The sparse indexes of a segment, in Kafka's formats.

On disk, beside `<base offset>.log`:

    .index      8 bytes per entry: uint32 last offset of a batch minus the segment's base, uint32 position of that batch
    .timeindex  12 bytes per entry: int64 timestamp, uint32 offset minus base; no record up to that offset is newer

Both ascend strictly. An entry is added when `index.interval.bytes` of log have passed since the last one; the time index
gets a final entry with the segment's largest timestamp when the segment is closed.

In memory an index is the file's bytes; lookups bisect them. The active segment's indexes live in memory alone and are
written when it is rolled or the store is closed, so a crash leaves none or old ones: recovery builds them anew. An index
that lies is found out at its first use, because the batch at an entry's position must end at the entry's offset, and
is built anew as well.
"""

from __future__ import annotations

import struct

from trunkline.log.store import Buffer

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_BATCH = struct.Struct(">q8xb6xi")  # base offset, magic, last offset delta
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size


class OffsetIndex:
    __slots__ = ("raw",)

    def __init__(self, raw: bytes = b"") -> None:
        self.raw = bytearray(raw[: len(raw) - len(raw) % OFFSET_ENTRY_BYTES])

    def __len__(self) -> int:
        return len(self.raw) // OFFSET_ENTRY_BYTES

    def append(self, relative_offset: int, position: int) -> None:
        self.raw += _OFFSET_ENTRY.pack(relative_offset, position)

    def entry(self, number: int) -> tuple[int, int]:
        relative_offset, position = _OFFSET_ENTRY.unpack_from(self.raw, number * OFFSET_ENTRY_BYTES)
        return relative_offset, position

    def at_or_before(self, relative_offset: int) -> tuple[int, int] | None:
        """The last entry whose offset is not past this one. O(log n)."""
        number = self._count_up_to(relative_offset, 0)
        return self.entry(number - 1) if number else None

    def position_at_or_before(self, position: int) -> int:
        """The last indexed batch start that is not past this position; 0 when there is none. O(log n)."""
        number = self._count_up_to(position, 4)
        return self.entry(number - 1)[1] if number else 0

    def holds(self, position: int, base_offset: int, window: Buffer, at: int) -> bool:
        """Whether the batch at a position of the index, which lies in `window` at `at`, is the one that the entry names."""
        if len(window) - at < _BATCH.size:
            return False
        batch_base, magic, delta = _BATCH.unpack_from(window, at)
        entry = self.entry(self._count_up_to(position, 4) - 1)
        return magic == 2 and entry == (batch_base + delta - base_offset, position)

    def _count_up_to(self, value: int, field: int) -> int:
        raw, unpack = self.raw, _UINT32.unpack_from
        low, high = 0, len(raw) // OFFSET_ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if unpack(raw, middle * OFFSET_ENTRY_BYTES + field)[0] <= value:
                low = middle + 1
            else:
                high = middle
        return low


class TimeIndex:
    __slots__ = ("raw",)

    def __init__(self, raw: bytes = b"") -> None:
        self.raw = bytearray(raw[: len(raw) - len(raw) % TIME_ENTRY_BYTES])

    def __len__(self) -> int:
        return len(self.raw) // TIME_ENTRY_BYTES

    def entry(self, number: int) -> tuple[int, int]:
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack_from(self.raw, number * TIME_ENTRY_BYTES)
        return timestamp_ms, relative_offset

    def append(self, timestamp_ms: int, relative_offset: int) -> None:
        """Ignored unless it is newer than the last entry."""
        if timestamp_ms > self.last()[0]:
            self.raw += _TIME_ENTRY.pack(timestamp_ms, relative_offset)

    def last(self) -> tuple[int, int]:
        """The largest timestamp and its relative offset; (-1, 0) when there is none."""
        if not self.raw:
            return -1, 0
        return self.entry(len(self) - 1)

    def before(self, timestamp_ms: int) -> int:
        """A relative offset before which every record is older than `timestamp_ms`. O(log n)."""
        raw, unpack = self.raw, _INT64.unpack_from
        low, high = 0, len(raw) // TIME_ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if unpack(raw, middle * TIME_ENTRY_BYTES)[0] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if not low:
            return 0
        relative_offset: int = _TIME_ENTRY.unpack_from(raw, (low - 1) * TIME_ENTRY_BYTES)[1]
        return relative_offset
