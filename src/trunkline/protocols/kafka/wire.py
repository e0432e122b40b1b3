"""The primitive types of the Kafka wire format: the words that generated messages are spelled with.

Readers take `(buffer, at)` and return `(value, at)`; writers append to a `bytearray`.  Two dialects exist.
In the plain one a string carries an int16 length, bytes, records and arrays an int32 length, and -1 is null.
In the flexible one ("compact") every length is an unsigned varint of length + 1, 0 is null, and each struct
ends with tagged fields: `count, (tag, size, data)*`.

The buffer comes from a hostile socket, so:

* a length is compared with what remains before anything is allocated for it;
* an array can hold no more elements than bytes remain, and one message no more than `MAX_ELEMENTS` in all its
  arrays (`budget`, a one-element list that a decode carries along), since two bytes of input can otherwise
  become two hundred of objects;
* whatever is wrong becomes `DecodeError`.  Readers may let `FAULTS` escape; `decode` of a message turns them
  into `DecodeError`, which keeps bounds checks that `struct` and indexing already do out of the readers.

Records are never copied: they are read as a view of the frame and written as a cut, an offset at which the
caller's own buffer is spliced into the output.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import ClassVar, Protocol, Self, TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
Cuts: TypeAlias = list[tuple[int, Buffer]]

MAX_ELEMENTS = 250_000
"""Elements of all arrays of one message together."""

MAX_STRING_BYTES = 0x7FFF
"""Longest string, in both dialects: the plain one has only an int16 for its length."""

INLINE_RECORDS_BYTES = 2048
"""Records up to this size are copied into the message: one more buffer for the socket costs more than that."""

ZERO_UUID = UUID(int=0)

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")

FAULTS = (struct.error, IndexError, UnicodeDecodeError)
"""What a reader may raise, besides DecodeError, when the buffer ends early or holds bad text."""


class DecodeError(ValueError):
    """The bytes are not a message of the stated type and version."""


class Message(Protocol):
    """What every generated request and response can do."""

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]

    @classmethod
    def decode(cls, buffer: memoryview, position: int, version: int) -> tuple[Self, int]:
        """The message at `position`, and where it ends.

        Bytes behind a request are ignored, since clients in use send some; behind a response they are an error.
        """
        ...

    def encode(self, version: int) -> list[Buffer]:
        """The message as buffers to be sent one after the other."""
        ...

    def encode_after(self, out: bytearray, version: int) -> list[Buffer]:
        """As `encode`, with the bytes already in `out` (a header) in front."""
        ...


def fault(message: str, version: int, cause: Exception) -> DecodeError:
    return DecodeError(f"{message} v{version}: {cause}")


def unknown_version(message: str, version: int) -> DecodeError:
    return DecodeError(f"{message} has no version {version}")


def trailing(message: str, version: int, count: int) -> DecodeError:
    return DecodeError(f"{message} v{version}: {count} bytes after the end of the message")


def unexpected_null(field: str) -> DecodeError:
    return DecodeError(f"{field} may not be null in this version")


# Integers


def read_uvarint(buffer: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    byte = buffer[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buffer[at]
        at += 1
        if shift == 28 and byte > 0x0F:
            raise DecodeError("varint longer than 32 bits")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    """A UUID from its 16 bytes; cached, since constructing one costs more than the rest of a small request."""
    return UUID(bytes=data)


# Strings


def read_string(buffer: memoryview, at: int) -> tuple[str, int]:
    (size,) = INT16.unpack_from(buffer, at)
    at += 2
    end: int = at + size
    if size < 0 or end > len(buffer):
        raise DecodeError("string length out of bounds")
    return str(buffer[at:end], "utf-8"), end


def read_nullable_string(buffer: memoryview, at: int) -> tuple[str | None, int]:
    (size,) = INT16.unpack_from(buffer, at)
    at += 2
    if size == -1:
        return None, at
    end: int = at + size
    if size < 0 or end > len(buffer):
        raise DecodeError("string length out of bounds")
    return str(buffer[at:end], "utf-8"), end


def read_compact_string(buffer: memoryview, at: int) -> tuple[str, int]:
    size = buffer[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_uvarint(buffer, at)
    end = at + size - 1
    if size == 0 or end > len(buffer) or size - 1 > MAX_STRING_BYTES:
        raise DecodeError("string length out of bounds")
    return str(buffer[at:end], "utf-8"), end


def read_compact_nullable_string(buffer: memoryview, at: int) -> tuple[str | None, int]:
    if buffer[at] == 0:
        return None, at + 1
    return read_compact_string(buffer, at)


def _utf8(value: str) -> bytes:
    data = value.encode("utf-8")
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"string of {len(data)} bytes exceeds {MAX_STRING_BYTES}")
    return data


def write_string(out: bytearray, value: str) -> None:
    data = _utf8(value)
    out += INT16.pack(len(data))
    out += data


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_string(out, value)


def write_compact_string(out: bytearray, value: str) -> None:
    data = _utf8(value)
    size = len(data) + 1
    if size < 0x80:
        out.append(size)
    else:
        write_uvarint(out, size)
    out += data


def write_compact_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


# Bytes and records


def read_nullable_records(buffer: memoryview, at: int) -> tuple[memoryview | None, int]:
    """A view of the frame; the frame lives for as long as the view does."""
    (size,) = INT32.unpack_from(buffer, at)
    at += 4
    if size == -1:
        return None, at
    end: int = at + size
    if size < 0 or end > len(buffer):
        raise DecodeError("bytes length out of bounds")
    return buffer[at:end], end


def read_compact_nullable_records(buffer: memoryview, at: int) -> tuple[memoryview | None, int]:
    size, at = read_uvarint(buffer, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(buffer):
        raise DecodeError("bytes length out of bounds")
    return buffer[at:end], end


def read_nullable_bytes(buffer: memoryview, at: int) -> tuple[bytes | None, int]:
    view, at = read_nullable_records(buffer, at)
    return (None if view is None else bytes(view)), at


def read_compact_nullable_bytes(buffer: memoryview, at: int) -> tuple[bytes | None, int]:
    view, at = read_compact_nullable_records(buffer, at)
    return (None if view is None else bytes(view)), at


def read_bytes(buffer: memoryview, at: int) -> tuple[bytes, int]:
    view, at = read_nullable_records(buffer, at)
    if view is None:
        raise DecodeError("bytes length out of bounds")
    return bytes(view), at


def read_compact_bytes(buffer: memoryview, at: int) -> tuple[bytes, int]:
    view, at = read_compact_nullable_records(buffer, at)
    if view is None:
        raise DecodeError("bytes length out of bounds")
    return bytes(view), at


def write_bytes(out: bytearray, value: Buffer) -> None:
    out += INT32.pack(len(value))
    out += value


def write_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_bytes(out, value)


def write_compact_bytes(out: bytearray, value: Buffer) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_compact_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(out, value)


def write_nullable_records(out: bytearray, value: Buffer | None, cuts: Cuts) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    size = len(value)
    out += INT32.pack(size)
    if size <= INLINE_RECORDS_BYTES:
        out += value
    else:
        cuts.append((len(out), value))


def write_compact_nullable_records(out: bytearray, value: Buffer | None, cuts: Cuts) -> None:
    if value is None:
        out.append(0)
        return
    size = len(value)
    write_uvarint(out, size + 1)
    if size <= INLINE_RECORDS_BYTES:
        out += value
    else:
        cuts.append((len(out), value))


def splice(out: bytearray, cuts: Cuts) -> list[Buffer]:
    """The output with the caller's records between its pieces.  `out` may not grow afterwards."""
    if not cuts:
        return [out]
    view = memoryview(out)
    parts: list[Buffer] = []
    start = 0
    for at, records in cuts:
        parts.append(view[start:at])
        parts.append(records)
        start = at
    if start < len(out):
        parts.append(view[start:])
    return parts


# Arrays


def _admit(count: int, remaining: int, budget: list[int]) -> None:
    if count > remaining:
        raise DecodeError(f"array of {count} elements in {remaining} bytes")
    budget[0] -= count
    if budget[0] < 0:
        raise DecodeError(f"more than {MAX_ELEMENTS} array elements in one message")


def read_nullable_count(buffer: memoryview, at: int, budget: list[int]) -> tuple[int, int]:
    """The number of elements that follow; -1 is a null array."""
    (count,) = INT32.unpack_from(buffer, at)
    at += 4
    if count < -1:
        raise DecodeError("array length out of bounds")
    if count > 0:
        _admit(count, len(buffer) - at, budget)
    return count, at


def read_compact_nullable_count(buffer: memoryview, at: int, budget: list[int]) -> tuple[int, int]:
    count, at = read_uvarint(buffer, at)
    count -= 1
    if count > 0:
        _admit(count, len(buffer) - at, budget)
    return count, at


def read_count(buffer: memoryview, at: int, budget: list[int]) -> tuple[int, int]:
    (count,) = INT32.unpack_from(buffer, at)
    at += 4
    if count < 0:
        raise DecodeError("array length out of bounds")
    if count:
        _admit(count, len(buffer) - at, budget)
    return count, at


def read_compact_count(buffer: memoryview, at: int, budget: list[int]) -> tuple[int, int]:
    count, at = read_uvarint(buffer, at)
    count -= 1
    if count < 0:
        raise DecodeError("array length out of bounds")
    if count:
        _admit(count, len(buffer) - at, budget)
    return count, at


def read_fixed(buffer: memoryview, at: int, count: int, code: str) -> tuple[list[int], int]:
    """`count` integers of one `struct` code; too few bytes raise before the list exists."""
    layout = f">{count}{code}"
    return list(struct.unpack_from(layout, buffer, at)), at + struct.calcsize(layout)


def write_fixed(out: bytearray, values: list[int], code: str) -> None:
    out += struct.pack(f">{len(values)}{code}", *values)


# Tagged fields


def read_tag(buffer: memoryview, at: int) -> tuple[int, int, int]:
    """`tag, at, end` of the next tagged field."""
    tag, at = read_uvarint(buffer, at)
    size, at = read_uvarint(buffer, at)
    end = at + size
    if end > len(buffer):
        raise DecodeError("tagged field out of bounds")
    return tag, at, end


def read_tag_count(buffer: memoryview, at: int) -> tuple[int, int]:
    count, at = read_uvarint(buffer, at)
    if count > (len(buffer) - at) // 2:
        raise DecodeError(f"{count} tagged fields in {len(buffer) - at} bytes")
    return count, at


def skip_tags(buffer: memoryview, at: int) -> int:
    """Past tagged fields that nobody here knows: a newer peer may send them."""
    count, at = read_tag_count(buffer, at)
    for _ in range(count):
        _, _, at = read_tag(buffer, at)
    return at


def check_tag_end(at: int, end: int) -> None:
    if at != end:
        raise DecodeError("tagged field does not fill its size")


def write_tags(out: bytearray, tags: list[tuple[int, bytearray]]) -> None:
    """Tagged fields in ascending order of tag, as the format demands."""
    write_uvarint(out, len(tags))
    for tag, data in tags:
        write_uvarint(out, tag)
        write_uvarint(out, len(data))
        out += data
