"""Arrow columns turned into record batches: what the sink sends.

A `BytesInput` is a column of byte strings as Arrow keeps it (see `columns` for the layout), a `HeadersInput` one of lists
of names and values. A `BatchBody` is the records of one batch to come, for one partition; `append_rows` writes rows
into the bodies that `targets` names for them and stops where one of them is full, so that its owner can send it.

`choose_targets` is the partitioner of Java clients (murmur2 of the key), so that a key goes where every Kafka client
puts it; rows without a key get the target that the caller gives.

This module is compiled where a C compiler is present. All records of a body have one timestamp, that of its batch.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_le, write_i32_le
from mypy_extensions import i32, i64

_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_FACTOR: Final = 0x5BD1E995
_LOW_32: Final = 0xFFFFFFFF
_LOW_31: Final = 0x7FFFFFFF


class BytesInput:
    """A column of byte strings; `first` is the row of its buffers at which it begins."""

    def __init__(self, validity: bytes | None, ends: bytes, data: bytes, first: int) -> None:
        self.validity: bytes | None = validity
        self.ends: bytes = ends
        self.data: bytes = data
        self.first: i64 = first

    def is_null(self, row: i64) -> bool:
        validity = self.validity
        if validity is None:
            return False
        at: i64 = self.first + row
        byte: i64 = validity[at >> 3]
        return (byte >> (at & 7)) & 1 == 0


class HeadersInput:
    """A column of lists of (name, value); null lists count as empty."""

    def __init__(self, validity: bytes | None, ends: bytes, first: int, names: BytesInput, values: BytesInput) -> None:
        self.lists: BytesInput = BytesInput(validity, ends, b"", first)
        self.names: BytesInput = names
        self.values: BytesInput = values


class BatchBody:
    """The records of a batch that is being filled."""

    def __init__(self) -> None:
        self.out: BytesWriter = BytesWriter()
        self._count: i64 = 0

    @property
    def count(self) -> int:
        return int(self._count)

    def put(self, keys: BytesInput | None, values: BytesInput, headers: bytes, row: i64) -> None:
        key_start: i64 = 0
        key_bytes: i64 = -1
        if keys is not None and not keys.is_null(row):
            key_at: i64 = (keys.first + row) * 4
            key_start = i64(read_i32_le(keys.ends, key_at))
            key_bytes = i64(read_i32_le(keys.ends, key_at + 4)) - key_start
        value_start: i64 = 0
        value_bytes: i64 = -1
        if not values.is_null(row):
            value_at: i64 = (values.first + row) * 4
            value_start = i64(read_i32_le(values.ends, value_at))
            value_bytes = i64(read_i32_le(values.ends, value_at + 4)) - value_start
        delta = self._count
        out = self.out
        size: i64 = 2 + _varint_bytes(delta) + _varint_bytes(key_bytes) + _varint_bytes(value_bytes) + len(headers)
        size += max(key_bytes, 0) + max(value_bytes, 0)
        _put_varint(out, size)
        out.append(0)  # record attributes
        out.append(0)  # the timestamp is the batch's
        _put_varint(out, delta)
        _put_varint(out, key_bytes)
        if key_bytes > 0 and keys is not None:
            out.write(keys.data[key_start : key_start + key_bytes])
        _put_varint(out, value_bytes)
        if value_bytes > 0:
            out.write(values.data[value_start : value_start + value_bytes])
        out.write(headers)
        self._count = delta + 1


def append_rows(
    bodies: list[BatchBody],
    targets: bytes,
    keys: BytesInput | None,
    values: BytesInput,
    headers: HeadersInput | None,
    from_row: int,
    to_row: int,
    max_body_bytes: int,
) -> int:
    """Write rows into the bodies of their targets. Returns the row after the one that filled a body, or `to_row`."""
    row: i64 = from_row
    last: i64 = to_row
    limit: i64 = max_body_bytes
    none: bytes = b"\x00"
    while row < last:
        body = bodies[i64(read_i32_le(targets, row * 4))]
        body.put(keys, values, none if headers is None else _header_section(headers, row), row)
        row += 1
        if len(body.out) >= limit:
            break
    return int(row)


def choose_targets(keys: BytesInput | None, rows: int, partitions: int, otherwise: int) -> bytes:
    """The partition of each row as int32, little endian: by the key's hash, or `otherwise` where there is none."""
    out = BytesWriter()
    count: i64 = rows
    wide: i64 = partitions
    default: i32 = i32(otherwise)
    row: i64 = 0
    while row < count:
        if keys is None or keys.is_null(row):
            write_i32_le(out, default)
        else:
            at: i64 = (keys.first + row) * 4
            hashed = _murmur2(keys.data, i64(read_i32_le(keys.ends, at)), i64(read_i32_le(keys.ends, at + 4)))
            write_i32_le(out, i32((hashed & _LOW_31) % wide))
        row += 1
    return out.getvalue()


def _murmur2(data: bytes, start: i64, end: i64) -> i64:
    """In 32 bits, held in 64: every product is cut off before the next."""
    left: i64 = end - start
    state: i64 = _MURMUR_SEED ^ left
    at = start
    while left >= 4:
        word: i64 = i64(read_i32_le(data, at)) & _LOW_32
        word = _times(word)
        word ^= word >> 24
        state = _times(state) ^ _times(word)
        at += 4
        left -= 4
    if left > 0:
        tail: i64 = 0
        while left > 0:
            left -= 1
            tail = (tail << 8) | i64(data[at + left])
        state = _times(state ^ tail)
    state ^= state >> 13
    state = _times(state)
    return state ^ (state >> 15)


def _times(value: i64) -> i64:
    """The low 32 bits of a product with the hash's factor; in two halves, so that no 64 bits overflow."""
    low: i64 = (value & 0xFFFF) * _MURMUR_FACTOR
    high: i64 = ((value >> 16) & 0xFFFF) * _MURMUR_FACTOR
    return (low + ((high & 0xFFFF) << 16)) & _LOW_32


def _header_section(headers: HeadersInput, row: i64) -> bytes:
    lists = headers.lists
    if lists.is_null(row):
        return b"\x00"
    at: i64 = (lists.first + row) * 4
    element: i64 = i64(read_i32_le(lists.ends, at))
    end: i64 = i64(read_i32_le(lists.ends, at + 4))
    if element == end:
        return b"\x00"
    out = BytesWriter()
    _put_varint(out, end - element)
    while element < end:
        _put_element(out, headers.names, element, False)
        _put_element(out, headers.values, element, True)
        element += 1
    return out.getvalue()


def _put_element(out: BytesWriter, column: BytesInput, row: i64, nullable: bool) -> None:
    if column.is_null(row):
        if not nullable:
            raise ValueError("a header has no name")
        _put_varint(out, -1)
        return
    at: i64 = (column.first + row) * 4
    start: i64 = i64(read_i32_le(column.ends, at))
    end: i64 = i64(read_i32_le(column.ends, at + 4))
    _put_varint(out, end - start)
    out.write(column.data[start:end])


def _varint_bytes(value: i64) -> i64:
    """How many bytes the zigzag varint of a value of at least -1 takes."""
    rest: i64 = value >> 6 if value >= 0 else 0
    size: i64 = 1
    while rest > 0:
        size += 1
        rest >>= 7
    return size


def _put_varint(out: BytesWriter, value: i64) -> None:
    """Of a value of at least -1."""
    rest: i64 = value << 1 if value >= 0 else 1
    while rest > 0x7F:
        out.append(int((rest & 0x7F) | 0x80))
        rest >>= 7
    out.append(int(rest))
