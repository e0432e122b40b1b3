"""Record batches taken apart into columns, in the layout of Arrow's buffers.

A `ColumnBuilder` is fed record batches, one after the other, and gives what it gathered as raw buffers:

    validity   one bit per row, least significant first; None when no row is null
    ends       int32, little endian: 0, then where each row's bytes end
    data       the rows' bytes, one after the other

for keys and values, int64 for offsets and timestamps (microseconds), int32 for whose clock a timestamp is of (0 the producer's,
1 the broker's), and, where headers are asked for, a list of names
and values: `ends` of the list, and the two columns of its elements. Nothing becomes a Python object of its own but the
slice that is copied, so a record costs what its varints and bytes cost.

The layout of a record is the one drawn in `trunkline.log.batch`; what that module calls corrupt is `CorruptBatch` here
too. Records outside of the offsets asked for are stepped over. A builder that has raised is at an end.

This module is compiled where a C compiler is present. Limit: the data of one column stays below 2 GiB, because Arrow's
ends are 32 bits; whoever feeds the builder looks at `size_bytes` after each batch, and a batch has a limit of its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from trunkline.log.batch import BatchHeader
from trunkline.log.errors import CorruptBatch

MAX_COLUMN_BYTES: Final = 2**31 - 1
_LOGICAL_SHIFT_MASK: Final = 0x7FFF_FFFF_FFFF_FFFF


class BytesBuffers(NamedTuple):
    """A column of byte strings."""

    validity: bytes | None
    ends: bytes
    data: bytes


class HeaderBuffers(NamedTuple):
    """A column of lists of (name, value); `elements` is how many there are in all."""

    ends: bytes
    elements: int
    names: BytesBuffers
    values: BytesBuffers


class ColumnBuffers(NamedTuple):
    rows: int
    offsets: bytes
    timestamps_us: bytes
    timestamp_types: bytes
    keys: BytesBuffers
    values: BytesBuffers
    headers: HeaderBuffers | None


class _BytesColumn:
    """A column of byte strings that grows."""

    def __init__(self) -> None:
        self.data: BytesWriter = BytesWriter()
        self.ends: BytesWriter = BytesWriter()
        self.bits: BytesWriter = BytesWriter()
        self.filled: i64 = 0
        self.rows: i64 = 0
        self.nulls: i64 = 0
        self.pending: i64 = 0
        write_i32_le(self.ends, 0)

    def put(self, source: bytes, start: i64, length: i64) -> None:
        """Append `length` bytes from `start` on; -1 for null."""
        bit: i64 = self.rows & 7
        if length >= 0:
            self.pending |= 1 << bit
            if length > 0:
                self.data.write(source[start : start + length])
                self.filled += length
                if self.filled > MAX_COLUMN_BYTES:
                    raise CorruptBatch(f"more than {MAX_COLUMN_BYTES} bytes in one column")
        else:
            self.nulls += 1
        if bit == 7:
            self.bits.append(int(self.pending))
            self.pending = 0
        self.rows += 1
        write_i32_le(self.ends, i32(self.filled))

    def buffers(self) -> BytesBuffers:
        if self.nulls == 0:
            return BytesBuffers(None, self.ends.getvalue(), self.data.getvalue())
        if self.rows & 7:
            self.bits.append(int(self.pending))
        return BytesBuffers(self.bits.getvalue(), self.ends.getvalue(), self.data.getvalue())


class ColumnBuilder:
    """Rows gathered since the last `take`."""

    def __init__(self, with_headers: bool) -> None:
        self.with_headers: bool = with_headers
        self._data: bytes = b""
        self._position: i64 = 0
        self._end: i64 = 0
        self._reset()

    def _reset(self) -> None:
        self._rows: i64 = 0
        self._offsets: BytesWriter = BytesWriter()
        self._timestamps: BytesWriter = BytesWriter()
        self._timestamp_types: BytesWriter = BytesWriter()
        self._keys: _BytesColumn = _BytesColumn()
        self._values: _BytesColumn = _BytesColumn()
        self._header_ends: BytesWriter = BytesWriter()
        self._header_names: _BytesColumn = _BytesColumn()
        self._header_values: _BytesColumn = _BytesColumn()
        write_i32_le(self._header_ends, 0)

    @property
    def rows(self) -> int:
        return int(self._rows)

    @property
    def size_bytes(self) -> int:
        """Of the keys, values and headers."""
        headers = self._header_names.filled + self._header_values.filled
        return int(self._keys.filled + self._values.filled + headers)

    def take(self) -> ColumnBuffers:
        """What was gathered; the builder begins anew."""
        headers: HeaderBuffers | None = None
        if self.with_headers:
            headers = HeaderBuffers(
                self._header_ends.getvalue(),
                int(self._header_names.rows),
                self._header_names.buffers(),
                self._header_values.buffers(),
            )
        taken = ColumnBuffers(
            int(self._rows),
            self._offsets.getvalue(),
            self._timestamps.getvalue(),
            self._timestamp_types.getvalue(),
            self._keys.buffers(),
            self._values.buffers(),
            headers,
        )
        self._reset()
        return taken

    def add(self, header: BatchHeader, data: bytes, position: int, first_offset: int, end_offset: int) -> None:
        """Append the records with `first_offset` <= offset < `end_offset` of a batch.

        `data` holds the records, decompressed, from `position` on to its end.
        """
        self._data = data
        self._position = position
        self._end = len(data)
        try:
            self._add(header, first_offset, end_offset)
        except IndexError:
            raise CorruptBatch("batch ends in the middle of a record") from None
        if self._position != self._end:
            raise CorruptBatch(f"{self._end - self._position} bytes are left over after the last record")
        self._data = b""

    def _add(self, header: BatchHeader, first_offset: i64, end_offset: i64) -> None:
        data = self._data
        keys, values = self._keys, self._values
        base: i64 = header.base_offset
        base_ms: i64 = header.base_timestamp_ms
        max_ms: i64 = header.max_timestamp_ms
        append_time: bool = header.log_append_time
        stamp_type: i32 = 1 if append_time else 0
        last_delta: i64 = header.last_offset_delta
        count: i64 = header.record_count
        with_headers = self.with_headers
        if count < 0:
            raise CorruptBatch(f"batch with {count} records")
        while count > 0:
            count -= 1
            length = self._varint()
            if length < 0 or length > self._end - self._position:
                raise CorruptBatch(f"record of {length} bytes does not fit its batch")
            end: i64 = self._position + length
            self._position += 1  # record attributes are unused
            stamp_delta = self._varint()
            delta = self._varint()
            if delta < 0 or delta > last_delta:
                raise CorruptBatch(f"record has offset delta {delta} in a batch whose last is {last_delta}")
            key_bytes = self._varint()
            key_start: i64 = self._position
            self._skip(key_bytes, end)
            value_bytes = self._varint()
            value_start: i64 = self._position
            self._skip(value_bytes, end)
            if self._position >= end:
                raise CorruptBatch("record's length does not match its content")
            offset: i64 = base + delta
            if first_offset <= offset < end_offset:
                stamp: i64 = max_ms if append_time else base_ms + stamp_delta
                write_i64_le(self._offsets, offset)
                write_i64_le(self._timestamps, stamp * 1000)
                write_i32_le(self._timestamp_types, stamp_type)
                keys.put(data, key_start, key_bytes)
                values.put(data, value_start, value_bytes)
                self._rows += 1
                if with_headers:
                    self._add_headers(end)
            self._position = end

    def _add_headers(self, end: i64) -> None:
        count = self._varint()
        if count < 0 or count > end - self._position:
            raise CorruptBatch(f"record with {count} headers in {end - self._position} bytes")
        while count > 0:
            count -= 1
            name_bytes = self._varint()
            if name_bytes < 0:
                raise CorruptBatch("header without a name")
            name_start: i64 = self._position
            self._skip(name_bytes, end)
            value_bytes = self._varint()
            value_start: i64 = self._position
            self._skip(value_bytes, end)
            self._header_names.put(self._data, name_start, name_bytes)
            self._header_values.put(self._data, value_start, value_bytes)
        if self._position != end:
            raise CorruptBatch("record's length does not match its content")
        write_i32_le(self._header_ends, i32(self._header_names.rows))

    def _skip(self, length: i64, end: i64) -> None:
        if length < 0:
            if length != -1:
                raise CorruptBatch(f"length {length} in a record")
        elif length > end - self._position:
            raise CorruptBatch(f"{length} bytes do not fit their record")
        else:
            self._position += length

    def _varint(self) -> i64:
        data = self._data
        position = self._position
        if position >= self._end:
            raise IndexError
        byte: i64 = data[position]
        position += 1
        value: i64 = byte & 0x7F
        shift: i64 = 7
        while byte & 0x80:
            if position >= self._end:
                raise IndexError
            byte = data[position]
            position += 1
            if shift == 63 and byte > 1:
                raise CorruptBatch("varint does not fit 64 bits")
            value |= (byte & 0x7F) << shift
            shift += 7
        self._position = position
        return ((value >> 1) & _LOGICAL_SHIFT_MASK) ^ -(value & 1)
