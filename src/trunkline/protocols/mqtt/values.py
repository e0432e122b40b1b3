"""MQTT's data types.

    integers        u8, u16, u32, big-endian
    varint          variable byte integer: 7 bits a byte, lowest first, at most 4 bytes, the fewest that hold the value
    UTF-8 string    u16 length, UTF-8 without U+0000 and without surrogates
    binary data     u16 length, bytes

Everything malformed raises `MalformedPacket`, and nothing else does. What cannot be written raises `ValueError`.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be
from mypy_extensions import i64

from trunkline.protocols.mqtt.errors import MALFORMED_PACKET, MalformedPacket

MAX_STRING_BYTES: Final = 65_535
MAX_VARINT: Final = 268_435_455


def malformed(text: str) -> MalformedPacket:
    return MalformedPacket(MALFORMED_PACKET, text)


def decode_text(raw: bytes) -> str:
    """A UTF-8 string's characters [MQTT-1.5.4-1, MQTT-1.5.4-2]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise malformed("a string is not UTF-8") from None
    if b"\x00" in raw:
        raise malformed("a string has U+0000 in it")
    return text


class ValueReader:
    """Reads values from `data`, from `position` on, never behind `end`."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data: bytes = data
        self.position: i64 = position
        self.end: i64 = end

    def _advance(self, count: i64) -> i64:
        start = self.position
        if count > self.end - start:
            raise malformed("the packet ends in the middle of a value")
        self.position = start + count
        return start

    def left(self) -> int:
        return self.end - self.position

    def u8(self) -> int:
        return self.data[self._advance(1)]

    def u16(self) -> int:
        value: i64 = i64(read_i16_be(self.data, self._advance(2)))
        return value & 0xFFFF

    def u32(self) -> int:
        value: i64 = i64(read_i32_be(self.data, self._advance(4)))
        return value & 0xFFFFFFFF

    def varint(self) -> int:
        value: i64 = 0
        shift: i64 = 0
        while True:
            byte: i64 = self.data[self._advance(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift > 0:
                    raise malformed("a variable byte integer takes more bytes than it needs")
                return value
            shift += 7
            if shift > 21:
                raise malformed("a variable byte integer is longer than 4 bytes")

    def binary(self) -> bytes:
        size: i64 = self.u16()
        start = self._advance(size)
        return self.data[start : start + size]

    def text(self) -> str:
        return decode_text(self.binary())

    def rest(self) -> bytes:
        start = self.position
        self.position = self.end
        return self.data[start : self.end]


def put_varint(out: BytesWriter, value: int) -> None:
    if value < 0 or value > MAX_VARINT:
        raise ValueError(f"{value} does not fit a variable byte integer")
    rest: i64 = value
    while rest > 0x7F:
        out.append(int((rest & 0x7F) | 0x80))
        rest >>= 7
    out.append(int(rest))


def put_unsigned(out: BytesWriter, value: int, size_bytes: int) -> None:
    if value < 0 or value >> (8 * size_bytes):
        raise ValueError(f"{value} does not fit {size_bytes} bytes")
    out.write(value.to_bytes(size_bytes, "big"))


def put_binary(out: BytesWriter, data: bytes) -> None:
    put_unsigned(out, _checked_length(data), 2)
    out.write(data)


def put_text(out: BytesWriter, text: str) -> None:
    put_binary(out, text.encode())


def _checked_length(data: bytes) -> int:
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"a string of {len(data)} bytes; at most {MAX_STRING_BYTES} fit")
    return len(data)
