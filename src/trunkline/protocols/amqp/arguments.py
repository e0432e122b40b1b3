"""The arguments of a method, read and written by its declaration in `methods`.

Malformed arguments raise `FrameError`: SYNTAX_ERROR for a value, COMMAND_INVALID for a method and NOT_IMPLEMENTED for a
class that do not exist. What cannot be written raises `ValueError`.
"""

from __future__ import annotations

from librt.strings import BytesWriter

from trunkline.broker.messaging.typed_values import (
    FieldValue,
    MalformedValue,
    ValueReader,
    put_long_bytes,
    put_short_bytes,
    put_table,
    put_unsigned,
)
from trunkline.protocols.amqp.errors import COMMAND_INVALID, NOT_IMPLEMENTED, SYNTAX_ERROR, FrameError
from trunkline.protocols.amqp.methods import BY_ID, CLASS_NAMES, Method


def decode_method(class_id: int, method_id: int, arguments: bytes) -> Method:
    declared = BY_ID.get((class_id, method_id))
    if declared is None:
        if class_id in CLASS_NAMES:
            text = f"there is no method {method_id} in class {CLASS_NAMES[class_id]}"
            raise FrameError(COMMAND_INVALID, text, class_id, method_id)
        raise FrameError(NOT_IMPLEMENTED, f"there is no class {class_id}", class_id, method_id)
    reader = ValueReader(arguments)
    try:
        values = _read_arguments(reader, declared.WIRE)
    except MalformedValue as error:
        raise FrameError(SYNTAX_ERROR, f"{declared.NAME}: {error.text}", class_id, method_id) from None
    if reader.position != reader.end:
        text = f"{declared.NAME}: {reader.end - reader.position} bytes are left over after the arguments"
        raise FrameError(SYNTAX_ERROR, text, class_id, method_id)
    return declared(*values)


def _read_arguments(reader: ValueReader, wire: tuple[tuple[str, str], ...]) -> list[FieldValue]:
    values: list[FieldValue] = []
    bits = 0
    bit_mask = 0x100
    for _, kind in wire:
        if kind == "bit":
            if bit_mask > 0x80:
                bits = reader.octet()
                bit_mask = 1
            values.append(bits & bit_mask != 0)
            bit_mask <<= 1
            continue
        bit_mask = 0x100
        if kind == "short string":
            values.append(reader.short_string())
        elif kind == "short":
            values.append(reader.short())
        elif kind == "long":
            values.append(reader.long())
        elif kind == "longlong":
            values.append(reader.longlong())
        elif kind == "octet":
            values.append(reader.octet())
        elif kind == "long string":
            values.append(reader.long_bytes())
        else:
            values.append(reader.table())
    return values


_WIDTHS = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


def encode_arguments(message: Method) -> bytes:
    """A method frame's payload: class, method and arguments. ValueError for a value that does not fit."""
    out = BytesWriter()
    out.write(message.CLASS_ID.to_bytes(2, "big"))
    out.write(message.METHOD_ID.to_bytes(2, "big"))
    bits = 0
    bit_mask = 1
    for name, kind in message.WIRE:
        value = getattr(message, name)
        if kind == "bit":
            if bit_mask > 0x80:
                out.append(bits)
                bits, bit_mask = 0, 1
            if value:
                bits |= bit_mask
            bit_mask <<= 1
            continue
        if bit_mask > 1:
            out.append(bits)
            bits, bit_mask = 0, 1
        if kind == "short string":
            put_short_bytes(out, value.encode())
        elif kind == "long string":
            put_long_bytes(out, value)
        elif kind == "table":
            put_table(out, value)
        else:
            put_unsigned(out, value, _WIDTHS[kind])
    if bit_mask > 1:
        out.append(bits)
    return out.getvalue()
