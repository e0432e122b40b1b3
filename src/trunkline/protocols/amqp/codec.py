"""The AMQP 0-9-1 codec: events to bytes here, bytes to events in `parser`.

`encode_deliveries` writes all messages that one consumer gets in a turn in one go. Encoders take values that the broker
has checked, and raise `ValueError` when one does not fit all the same. A body is cut into frames of at most the
negotiated size; the buffer that results is as large as what it holds, so a caller bounds what it asks for in one call.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import TypeAlias

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

from trunkline.broker.messaging.typed_values import put_short_bytes, put_unsigned
from trunkline.protocols.amqp.arguments import encode_arguments
from trunkline.protocols.amqp.errors import FrameError
from trunkline.protocols.amqp.frames import (
    ACK,
    BODY_FRAME,
    CLASS_BASIC,
    DEFAULT_FRAME_MAX_BYTES,
    FRAME_END,
    FRAME_OVERHEAD_BYTES,
    HEADER_FRAME,
    HEARTBEAT_FRAME,
    METHOD_FRAME,
    MIN_FRAME_MAX_BYTES,
    NACK,
    PROTOCOL_HEADER,
    PUBLISH,
)
from trunkline.protocols.amqp.methods import Method
from trunkline.protocols.amqp.parser import Parser, ParserEvent
from trunkline.protocols.amqp.properties import NO_PROPERTIES, Properties, decode_properties, encode_properties

__all__ = [
    "HEARTBEAT_FRAME",
    "NO_PROPERTIES",
    "PROTOCOL_HEADER",
    "FrameError",
    "Message",
    "Parser",
    "ParserEvent",
    "Properties",
    "decode_properties",
    "encode_confirm",
    "encode_deliveries",
    "encode_get_ok",
    "encode_method",
    "encode_properties",
    "encode_publish",
    "encode_return",
]

Message: TypeAlias = tuple[str, str, bool, bytes, bytes]  # exchange, routing key, redelivered, properties, body


def _wire_short(value: int) -> i16:
    """An unsigned 16-bit number as the signed one with the same bits, which is what `write_i16_be` takes."""
    if value < 0 or value > 0xFFFF:
        raise ValueError(f"{value} does not fit 16 bits")
    return i16(value if value < 0x8000 else value - 0x10000)


def _put_content(out: BytesWriter, channel: i16, properties: bytes, body: bytes, max_payload: i64) -> None:
    """A header frame and as many body frames as the body needs."""
    size: i64 = len(body)
    out.append(HEADER_FRAME)
    write_i16_be(out, channel)
    write_i32_be(out, i32(12 + len(properties)))
    write_i32_be(out, CLASS_BASIC << 16)
    write_i64_be(out, size)
    out.write(properties)
    out.append(FRAME_END)
    if size == 0:
        return
    if size <= max_payload:
        out.append(BODY_FRAME)
        write_i16_be(out, channel)
        write_i32_be(out, i32(size))
        out.write(body)
        out.append(FRAME_END)
        return
    start: i64 = 0
    while start < size:
        chunk: i64 = min(max_payload, size - start)
        out.append(BODY_FRAME)
        write_i16_be(out, channel)
        write_i32_be(out, i32(chunk))
        out.write(body[start : start + chunk])
        out.append(FRAME_END)
        start += chunk


def _short_strings(first: str, second: str) -> bytes:
    out = BytesWriter()
    put_short_bytes(out, first.encode())
    put_short_bytes(out, second.encode())
    return out.getvalue()


def _max_payload(frame_max_bytes: int) -> i64:
    limit: i64 = frame_max_bytes or DEFAULT_FRAME_MAX_BYTES
    if limit < MIN_FRAME_MAX_BYTES:
        raise ValueError(f"a frame maximum of {limit} bytes; the protocol's least is {MIN_FRAME_MAX_BYTES}")
    return limit - FRAME_OVERHEAD_BYTES


def encode_deliveries(
    channel: int, consumer_tag: bytes, first_tag: int, messages: list[Message], frame_max_bytes: int
) -> bytes:
    """basic.deliver for each message, with delivery tags from `first_tag` upwards."""
    out = BytesWriter()
    wire_channel = _wire_short(channel)
    max_payload = _max_payload(frame_max_bytes)
    start = BytesWriter()
    write_i32_be(start, (CLASS_BASIC << 16) | 60)
    put_short_bytes(start, consumer_tag)
    prefix = start.getvalue()
    tag: i64 = first_tag
    last_exchange = ""
    last_key = ""
    route = b"\x00\x00"
    for exchange, routing_key, redelivered, properties, body in messages:
        if routing_key != last_key or exchange != last_exchange:
            route = _short_strings(exchange, routing_key)
            last_exchange = exchange
            last_key = routing_key
        out.append(METHOD_FRAME)
        write_i16_be(out, wire_channel)
        write_i32_be(out, i32(len(prefix) + 9 + len(route)))
        out.write(prefix)
        write_i64_be(out, tag)
        out.append(1 if redelivered else 0)
        out.write(route)
        out.append(FRAME_END)
        _put_content(out, wire_channel, properties, body, max_payload)
        tag += 1
    return out.getvalue()


def encode_get_ok(channel: int, tag: int, message: Message, message_count: int, frame_max_bytes: int) -> bytes:
    exchange, routing_key, redelivered, properties, body = message
    payload = BytesWriter()
    write_i32_be(payload, (CLASS_BASIC << 16) | 71)
    put_unsigned(payload, tag, 8)
    payload.append(1 if redelivered else 0)
    payload.write(_short_strings(exchange, routing_key))
    put_unsigned(payload, message_count, 4)
    return _with_content(channel, payload.getvalue(), properties, body, frame_max_bytes)


def encode_return(
    channel: int,
    reply_code: int,
    reply_text: str,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes,
    frame_max_bytes: int,
) -> bytes:
    payload = BytesWriter()
    write_i32_be(payload, (CLASS_BASIC << 16) | 50)
    put_unsigned(payload, reply_code, 2)
    put_short_bytes(payload, reply_text.encode())
    payload.write(_short_strings(exchange, routing_key))
    return _with_content(channel, payload.getvalue(), properties, body, frame_max_bytes)


def encode_publish(
    channel: int,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes,
    frame_max_bytes: int,
    mandatory: bool = False,
    immediate: bool = False,
) -> bytes:
    """What a client sends; for our own clients and tests."""
    payload = BytesWriter()
    write_i32_be(payload, PUBLISH)
    write_i16_be(payload, 0)
    payload.write(_short_strings(exchange, routing_key))
    payload.append((1 if mandatory else 0) | (2 if immediate else 0))
    return _with_content(channel, payload.getvalue(), properties, body, frame_max_bytes)


def _with_content(channel: int, payload: bytes, properties: bytes, body: bytes, frame_max_bytes: int) -> bytes:
    out = BytesWriter()
    _put_method(out, channel, payload)
    _put_content(out, _wire_short(channel), properties, body, _max_payload(frame_max_bytes))
    return out.getvalue()


def _put_method(out: BytesWriter, channel: int, payload: bytes) -> None:
    out.append(METHOD_FRAME)
    write_i16_be(out, _wire_short(channel))
    write_i32_be(out, i32(len(payload)))
    out.write(payload)
    out.append(FRAME_END)


def encode_confirm(channel: int, tag: int, multiple: bool, nack: bool = False) -> bytes:
    """basic.ack or basic.nack from the server."""
    payload = BytesWriter()
    write_i32_be(payload, NACK if nack else ACK)
    put_unsigned(payload, tag, 8)
    payload.append(1 if multiple else 0)
    out = BytesWriter()
    _put_method(out, channel, payload.getvalue())
    return out.getvalue()


def encode_method(channel: int, method: Method) -> bytes:
    """A method frame without content."""
    out = BytesWriter()
    _put_method(out, channel, encode_arguments(method))
    return out.getvalue()
