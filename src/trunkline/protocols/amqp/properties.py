"""The 14 properties of a message.

    content header payload   u16 class, u16 weight (0), u64 body size, then the property section:
    property section         u16 flags, then the value of each property whose flag is set, in the order below
    flags                    bit 15 is content-type … bit 2 is cluster-id; bit 0 would announce more flags, which no
                             property of 0-9-1 needs, so it is an error

The parser hands the property section on as it came, flags included: a broker passes most messages through and decodes
few. Text that is not UTF-8 is kept by `surrogateescape`. A malformed section raises `FrameError` with SYNTAX_ERROR.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import mypyc_attr

from trunkline.broker.messaging.typed_values import (
    FieldValue,
    MalformedValue,
    ValueReader,
    put_short_bytes,
    put_table,
    put_unsigned,
)
from trunkline.protocols.amqp.errors import SYNTAX_ERROR, FrameError

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004
_UNKNOWN_FLAGS: Final = 0x0003

NO_PROPERTIES: Final = b"\x00\x00"
TRANSIENT: Final = 1
PERSISTENT: Final = 2


@mypyc_attr(native_class=False)
@dataclass(slots=True)
class Properties:
    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, FieldValue] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @property
    def persistent(self) -> bool:
        return self.delivery_mode == PERSISTENT


def decode_properties(section: bytes) -> Properties:
    try:
        return _read_properties(ValueReader(section))
    except MalformedValue as error:
        raise FrameError(SYNTAX_ERROR, error.text) from None


def _read_properties(reader: ValueReader) -> Properties:
    properties = Properties()
    flags = reader.short()
    if flags & _UNKNOWN_FLAGS:
        raise FrameError(SYNTAX_ERROR, f"property flags 0x{flags:04x} name a property that does not exist")
    if flags & CONTENT_TYPE:
        properties.content_type = _text(reader)
    if flags & CONTENT_ENCODING:
        properties.content_encoding = _text(reader)
    if flags & HEADERS:
        properties.headers = reader.table()
    if flags & DELIVERY_MODE:
        properties.delivery_mode = reader.octet()
    if flags & PRIORITY:
        properties.priority = reader.octet()
    if flags & CORRELATION_ID:
        properties.correlation_id = _text(reader)
    if flags & REPLY_TO:
        properties.reply_to = _text(reader)
    if flags & EXPIRATION:
        properties.expiration = _text(reader)
    if flags & MESSAGE_ID:
        properties.message_id = _text(reader)
    if flags & TIMESTAMP:
        properties.timestamp = reader.longlong()
    if flags & TYPE:
        properties.type = _text(reader)
    if flags & USER_ID:
        properties.user_id = _text(reader)
    if flags & APP_ID:
        properties.app_id = _text(reader)
    if flags & CLUSTER_ID:
        properties.cluster_id = _text(reader)
    if reader.position != reader.end:
        raise FrameError(SYNTAX_ERROR, "bytes are left over after the properties")
    return properties


def encode_properties(properties: Properties) -> bytes:
    """The property section, flags included. ValueError for a value that does not fit."""
    flags = 0
    out = BytesWriter()
    flags |= _put_text(out, CONTENT_TYPE, properties.content_type)
    flags |= _put_text(out, CONTENT_ENCODING, properties.content_encoding)
    headers = properties.headers
    if headers is not None:
        flags |= HEADERS
        put_table(out, headers)
    flags |= _put_number(out, DELIVERY_MODE, properties.delivery_mode, 1)
    flags |= _put_number(out, PRIORITY, properties.priority, 1)
    flags |= _put_text(out, CORRELATION_ID, properties.correlation_id)
    flags |= _put_text(out, REPLY_TO, properties.reply_to)
    flags |= _put_text(out, EXPIRATION, properties.expiration)
    flags |= _put_text(out, MESSAGE_ID, properties.message_id)
    flags |= _put_number(out, TIMESTAMP, properties.timestamp, 8)
    flags |= _put_text(out, TYPE, properties.type)
    flags |= _put_text(out, USER_ID, properties.user_id)
    flags |= _put_text(out, APP_ID, properties.app_id)
    flags |= _put_text(out, CLUSTER_ID, properties.cluster_id)
    return flags.to_bytes(2, "big") + out.getvalue()


def _text(reader: ValueReader) -> str:
    # Clients put raw bytes into correlation and message ids; they must come back as they were.
    return reader.short_bytes().decode("utf-8", "surrogateescape")


def _put_text(out: BytesWriter, flag: int, value: str | None) -> int:
    if value is None:
        return 0
    put_short_bytes(out, value.encode("utf-8", "surrogateescape"))
    return flag


def _put_number(out: BytesWriter, flag: int, value: int | None, size_bytes: int) -> int:
    if value is None:
        return 0
    put_unsigned(out, value, size_bytes)
    return flag
