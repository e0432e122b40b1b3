"""Typed values: how the typed headers of a message are kept in its record (`envelope`), and how AMQP sends them.

    field table   u32 length in bytes, then per field: short string name, field value
    field array   u32 length in bytes, then field values
    field value   one octet of type, then
                  t bool · b i8 · B u8 · s i16 · u u16 · I i32 · i u32 · l i64 · L u64 · f float · d double
                  D u8 scale, i32 unscaled · S long string · x byte array · A array · T u64 seconds · F table · V nothing

These are the types that RabbitMQ and its clients mean by those letters, which is not what the specification says of all
of them. Written as Python values, an integer takes the shortest of I, l and L that holds it and a float takes d; so
reading and writing keeps the value, not always its width. Who must keep the width keeps the encoded fields:
`split_table` and `join_table`.

Everything malformed raises `MalformedValue`, and nothing else does. What cannot be written (a name over
255 bytes, an integer over 64 bits) raises `ValueError`. Tables are nested at most `MAX_TABLE_DEPTH` deep.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, TypeAlias, Union

from librt.strings import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i64, mypyc_attr

MAX_TABLE_DEPTH: Final = 64
MAX_SHORT_STRING_BYTES: Final = 255
MAX_DECIMAL_SCALE: Final = 255
LATEST_S: Final = 253_402_300_799  # the end of the year 9999: clients make dates of it
_I32_MAX: Final = 2**31 - 1
_I64_MAX: Final = 2**63 - 1
_U64_MAX: Final = 2**64 - 1


@mypyc_attr(native_class=False)
class MalformedValue(Exception):
    """Bytes that are no value, or end in the middle of one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@mypyc_attr(native_class=False)
@dataclass(frozen=True, order=True)
class Timestamp:
    """A moment in a field table, in seconds since 1970."""

    seconds: int


FieldValue: TypeAlias = Union[
    bool, int, float, Decimal, str, bytes, Timestamp, "list[FieldValue]", "dict[str, FieldValue]", None
]


def _cut_off() -> MalformedValue:
    return MalformedValue("arguments end in the middle of a value")


class ValueReader:
    """Reads values from `data`, from `position` on, never behind `end`."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data: bytes = data
        self.position: i64 = position
        self.end: i64 = len(data)

    def _advance(self, count: i64) -> i64:
        start = self.position
        if count < 0 or count > self.end - start:
            raise _cut_off()
        self.position = start + count
        return start

    def octet(self) -> int:
        return self.data[self._advance(1)]

    def short(self) -> int:
        value: i64 = i64(read_i16_be(self.data, self._advance(2)))
        return value & 0xFFFF

    def long(self) -> int:
        value: i64 = i64(read_i32_be(self.data, self._advance(4)))
        return value & 0xFFFFFFFF

    def longlong(self) -> int:
        value: int = read_i64_be(self.data, self._advance(8))
        return value if value >= 0 else value + 2**64

    def short_bytes(self) -> bytes:
        size: i64 = self.octet()
        start = self._advance(size)
        return self.data[start : start + size]

    def short_string(self) -> str:
        raw = self.short_bytes()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MalformedValue("a short string is not UTF-8") from None

    def long_bytes(self) -> bytes:
        size: i64 = self.long()
        start = self._advance(size)
        return self.data[start : start + size]

    def table(self, depth: int = 0) -> dict[str, FieldValue]:
        table: dict[str, FieldValue] = {}
        outer = self._enter(depth)
        while self.position < self.end:
            name = self.short_string()
            table[name] = self.field(depth)
        self.end = outer
        return table

    def array(self, depth: int = 0) -> list[FieldValue]:
        values: list[FieldValue] = []
        outer = self._enter(depth)
        while self.position < self.end:
            values.append(self.field(depth))
        self.end = outer
        return values

    def _enter(self, depth: int) -> i64:
        """Narrow the reader to the table or array that starts here; returns the end to go back to."""
        if depth >= MAX_TABLE_DEPTH:
            raise MalformedValue(f"field tables are nested more than {MAX_TABLE_DEPTH} deep")
        size: i64 = self.long()
        outer = self.end
        if size > outer - self.position:
            raise _cut_off()
        self.end = self.position + size
        return outer

    def field(self, depth: int = 0) -> FieldValue:
        kind = self.octet()
        if kind == 0x53:  # S
            raw = self.long_bytes()
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return raw
        if kind == 0x49:  # I
            number: int = read_i32_be(self.data, self._advance(4))
            return number
        if kind == 0x6C:  # l
            wide: int = read_i64_be(self.data, self._advance(8))
            return wide
        if kind == 0x74:  # t
            return self.octet() != 0
        if kind == 0x46:  # F
            return self.table(depth + 1)
        if kind == 0x41:  # A
            return self.array(depth + 1)
        if kind == 0x56:  # V
            return None
        if kind == 0x54:  # T
            return Timestamp(self.longlong())
        if kind == 0x64:  # d
            return read_f64_be(self.data, self._advance(8))
        if kind == 0x66:  # f
            return read_f32_be(self.data, self._advance(4))
        if kind == 0x62:  # b
            small = self.octet()
            return small if small < 128 else small - 256
        if kind == 0x42:  # B
            return self.octet()
        if kind == 0x73:  # s
            narrow: int = read_i16_be(self.data, self._advance(2))
            return narrow
        if kind == 0x75:  # u
            return self.short()
        if kind == 0x69:  # i
            return self.long()
        if kind == 0x4C:  # L
            return self.longlong()
        if kind == 0x78:  # x
            return self.long_bytes()
        if kind == 0x44:  # D
            scale = self.octet()
            unscaled: int = read_i32_be(self.data, self._advance(4))
            return Decimal(unscaled).scaleb(-scale)
        raise MalformedValue(f"a field table has a value of unknown type 0x{kind:02x}")


def put_unsigned(out: BytesWriter, value: int, size_bytes: int) -> None:
    """Write an unsigned big-endian integer; ValueError when it does not fit."""
    if value < 0 or value >> (8 * size_bytes):
        raise ValueError(f"{value} does not fit {size_bytes} bytes")
    out.write(value.to_bytes(size_bytes, "big"))


def put_short_bytes(out: BytesWriter, raw: bytes) -> None:
    if len(raw) > MAX_SHORT_STRING_BYTES:
        raise ValueError(f"a short string of {len(raw)} bytes; at most {MAX_SHORT_STRING_BYTES} fit")
    out.append(len(raw))
    out.write(raw)


def put_long_bytes(out: BytesWriter, raw: bytes) -> None:
    write_i32_be(out, len(raw))
    out.write(raw)


def put_table(out: BytesWriter, table: dict[str, FieldValue]) -> None:
    put_long_bytes(out, encode_fields(table))


def encode_fields(table: dict[str, FieldValue]) -> bytes:
    """The fields of a table without the length in front."""
    fields = BytesWriter()
    for name, value in table.items():
        put_short_bytes(fields, name.encode())
        put_field(fields, value)
    return fields.getvalue()


def put_field(out: BytesWriter, value: FieldValue) -> None:
    if value is None:
        out.append(0x56)
    elif isinstance(value, bool):
        out.append(0x74)
        out.append(1 if value else 0)
    elif isinstance(value, str):
        out.append(0x53)
        put_long_bytes(out, value.encode())
    elif isinstance(value, int):
        _put_int_field(out, value)
    elif isinstance(value, float):
        out.append(0x64)
        write_f64_be(out, value)
    elif isinstance(value, bytes):
        out.append(0x78)
        put_long_bytes(out, value)
    elif isinstance(value, dict):
        out.append(0x46)
        put_table(out, value)
    elif isinstance(value, list):
        inner = BytesWriter()
        for item in value:
            put_field(inner, item)
        out.append(0x41)
        put_long_bytes(out, inner.getvalue())
    elif isinstance(value, Timestamp):
        out.append(0x54)
        put_unsigned(out, value.seconds, 8)
    else:
        _put_decimal_field(out, value)


def _put_int_field(out: BytesWriter, value: int) -> None:
    if -_I32_MAX - 1 <= value <= _I32_MAX:
        out.append(0x49)
        write_i32_be(out, value)
    elif -_I64_MAX - 1 <= value <= _I64_MAX:
        out.append(0x6C)
        write_i64_be(out, value)
    elif 0 <= value <= _U64_MAX:
        out.append(0x4C)
        put_unsigned(out, value, 8)
    else:
        raise ValueError(f"{value} does not fit 64 bits")


def _put_decimal_field(out: BytesWriter, value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} has no digits to write")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    scale = max(-exponent, 0)
    if sign:
        unscaled = -unscaled
    if scale > MAX_DECIMAL_SCALE or not -_I32_MAX - 1 <= unscaled <= _I32_MAX:
        raise ValueError(f"{value} does not fit 32 bits and a scale of {MAX_DECIMAL_SCALE}")
    out.append(0x44)
    out.append(scale)
    write_i32_be(out, unscaled)


# -- field tables, whole ---------------------------------------------------------------------------------------------


def decode_table(fields: bytes) -> dict[str, FieldValue]:
    """The table whose fields these are (no length in front)."""
    reader = ValueReader(fields)
    table: dict[str, FieldValue] = {}
    while reader.position < reader.end:
        name = reader.short_string()
        table[name] = reader.field()
    return table


def split_table(fields: bytes) -> list[tuple[str, bytes]]:
    """Each field's name and its value as encoded, type octet first, so that the width of numbers is kept."""
    reader = ValueReader(fields)
    split: list[tuple[str, bytes]] = []
    while reader.position < reader.end:
        name = reader.short_string()
        start = reader.position
        reader.field()
        split.append((name, fields[start : reader.position]))
    return split


def join_table(split: list[tuple[str, bytes]]) -> bytes:
    """The fields of a table from what `split_table` gave."""
    out = BytesWriter()
    for name, encoded in split:
        put_short_bytes(out, name.encode())
        out.write(encoded)
    return out.getvalue()


def decode_field(encoded: bytes) -> FieldValue:
    """One field value, type octet first."""
    reader = ValueReader(encoded)
    value = reader.field()
    if reader.position != reader.end:
        raise MalformedValue("bytes are left over after a field value")
    return value


def encode_field(value: FieldValue) -> bytes:
    out = BytesWriter()
    put_field(out, value)
    return out.getvalue()


def plain_value(value: FieldValue) -> object:
    """A value in types that the layers below know: a moment as a datetime."""
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(min(value.seconds, LATEST_S), UTC)
    if isinstance(value, dict):
        return {name: plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain_value(inner) for inner in value]
    return value
