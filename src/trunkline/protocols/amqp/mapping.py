"""AMQP messages as the broker's envelopes, and back.

A message's body is the record's value. Everything else about it is its envelope, in record headers
(`broker/messaging/envelope`). The properties and the headers table of a publication become those, and of a record's headers
the properties are made again.

A record without an address was written by another protocol: its headers become string fields of the headers table, and it
has the queue's name as routing key.

Anybody can write these headers, so nothing that is in them may raise on the way to a consumer: a property that is no
number where it has to be or is longer than fits is left out. Fields that do not fit `MAX_TABLE_BYTES` together are left
out, because all of a message but its body goes into one frame.

Both directions are remembered, by the bytes that decide the result: most messages of a stream have the same properties,
and then a message costs one dictionary look-up each way. `Envelopes` holds at most `MAX_REMEMBERED` of each, and none
whose header section is larger than `MAX_REMEMBERED_BYTES`.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline.broker.messaging.argument_checks import MAX_EXPIRY_MS
from trunkline.broker.messaging.envelope import (
    APP_ID_HEADER,
    CLUSTER_ID_HEADER,
    CONTENT_ENCODING_HEADER,
    CONTENT_TYPE_HEADER,
    CORRELATION_ID_HEADER,
    EXCHANGE_HEADER,
    MESSAGE_ID_HEADER,
    REPLY_TO_HEADER,
    ROUTING_KEY_HEADER,
    TIMESTAMP_HEADER,
    TYPE_HEADER,
    TYPED_HEADER,
    USER_ID_HEADER,
    Headers,
    read_section,
)
from trunkline.broker.messaging.envelope import Envelope as BrokerEnvelope
from trunkline.broker.messaging.refusals import Refused
from trunkline.broker.messaging.typed_values import (
    FieldValue,
    MalformedValue,
    ValueReader,
    encode_field,
    join_table,
    split_table,
)
from trunkline.cursors.queue.traits import DELIVERY_MODE_HEADER, EXPIRATION_HEADER, PRIORITY_HEADER
from trunkline.protocols.amqp import properties as flag
from trunkline.protocols.amqp.errors import PRECONDITION_FAILED, SYNTAX_ERROR, FrameError

MAX_REMEMBERED: Final = 8_192
MAX_REMEMBERED_BYTES: Final = 1_024
MAX_TABLE_BYTES: Final = 124 << 10  # of a frame's 128 KiB

_MAX_SHORT: Final = 255
_DELIVERY_MODES: Final = (1, 2)
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_MAX_EXPIRATION_DIGITS: Final = 20

# Flag, record header, and size in bytes on the wire: 0 for a short string.
_PROPERTIES: Final = (
    (flag.CONTENT_TYPE, CONTENT_TYPE_HEADER, 0),
    (flag.CONTENT_ENCODING, CONTENT_ENCODING_HEADER, 0),
    (flag.HEADERS, TYPED_HEADER, -1),
    (flag.DELIVERY_MODE, DELIVERY_MODE_HEADER, 1),
    (flag.PRIORITY, PRIORITY_HEADER, 1),
    (flag.CORRELATION_ID, CORRELATION_ID_HEADER, 0),
    (flag.REPLY_TO, REPLY_TO_HEADER, 0),
    (flag.EXPIRATION, EXPIRATION_HEADER, 0),
    (flag.MESSAGE_ID, MESSAGE_ID_HEADER, 0),
    (flag.TIMESTAMP, TIMESTAMP_HEADER, 8),
    (flag.TYPE, TYPE_HEADER, 0),
    (flag.USER_ID, USER_ID_HEADER, 0),
    (flag.APP_ID, APP_ID_HEADER, 0),
    (flag.CLUSTER_ID, CLUSTER_ID_HEADER, 0),
)


class Envelope(BrokerEnvelope):
    """The broker's envelope with AMQP's form of it beside: `properties` is the property section."""

    __slots__ = ("expiration", "plain", "properties", "reply_to", "user_id")

    def __init__(self, exchange: str, routing_key: str, properties: bytes) -> None:
        super().__init__(exchange, routing_key)
        self.properties = properties
        self.expiration: str | None = None  # as it came: text that is no number has no `expiration_ms`
        self.reply_to: str | None = None
        self.user_id: str | None = None
        self.plain = True  # nothing that a channel must look at before it routes by key

    def with_header(self, name: str, value: FieldValue) -> bytes:
        """The property section with one more field in its headers table."""
        fields = [field for field in split_table(self.fields) if field[0] != name]
        encoded = join_table([*fields, (name, encode_field(value))])
        return _replace_table(self.properties, encoded)

    def around_fields(self, without: str) -> tuple[bytes, bytes, bytes]:
        """The property section in three parts: before the headers table, its fields but one, and behind it."""
        fields = join_table([field for field in split_table(self.fields) if field[0] != without])
        replaced = _replace_table(self.properties, b"")
        before = len(replaced) - len(_behind_table(self.properties)) - 4
        return replaced[:before], fields, replaced[before + 4 :]

    def with_properties(self, **changed: str) -> Envelope:
        """The same with other text in some properties; for the address of a direct reply."""
        decoded = flag.decode_properties(self.properties)
        for name, value in changed.items():
            setattr(decoded, name, value)
        return envelope_of(self.exchange, self.routing_key, flag.encode_properties(decoded))


class Envelopes:
    """Envelopes by what they were made from."""

    __slots__ = ("by_publication", "by_section")

    def __init__(self) -> None:
        self.by_publication: dict[tuple[str, str, bytes], Envelope] = {}
        self.by_section: dict[bytes, Envelope] = {}

    def of_publication(self, exchange: str, routing_key: str, properties: bytes) -> Envelope:
        """FrameError if the properties are malformed."""
        envelope = self.by_publication.get((exchange, routing_key, properties))
        if envelope is None:
            envelope = envelope_of(exchange, routing_key, properties)
            if len(envelope.section) <= MAX_REMEMBERED_BYTES:
                if len(self.by_publication) >= MAX_REMEMBERED:
                    self.by_publication.clear()
                self.by_publication[exchange, routing_key, properties] = envelope
                # What is published is mostly delivered soon.
                self._remember_section(envelope)
        return envelope

    def of_record(self, section: bytes) -> Envelope:
        envelope = self.by_section.get(section)
        if envelope is None:
            envelope = envelope_of_section(section)
            if len(section) <= MAX_REMEMBERED_BYTES:
                self._remember_section(envelope)
        return envelope

    def _remember_section(self, envelope: Envelope) -> None:
        if len(self.by_section) >= MAX_REMEMBERED:
            self.by_section.clear()
        self.by_section[envelope.section] = envelope


# -- AMQP to record ---------------------------------------------------------------------------------------------------


def envelope_of(exchange: str, routing_key: str, properties: bytes) -> Envelope:
    """FrameError if the properties are malformed, or no message may have them."""
    envelope = Envelope(exchange, routing_key, properties)
    try:
        read = [] if properties == flag.NO_PROPERTIES else _read_properties(envelope)
        fields = envelope.fields
        envelope.seal(read)
    except MalformedValue as error:
        raise FrameError(SYNTAX_ERROR, error.text) from None
    except Refused as refused:
        raise FrameError(PRECONDITION_FAILED, refused.text, 60, 40) from None
    if envelope.fields is not fields:
        envelope.properties = _replace_table(properties, envelope.fields)
    envelope.plain = not (
        envelope.copies
        or envelope.user_id is not None
        or envelope.reply_to is not None
        or envelope.expiration is not None
    )
    return envelope


def _read_properties(envelope: Envelope) -> Headers:
    """The properties as record headers; the headers table is left to the envelope."""
    record: Headers = []
    reader = ValueReader(envelope.properties)
    flags = reader.short()
    if flags & 0x0003:
        raise FrameError(SYNTAX_ERROR, f"property flags 0x{flags:04x} name a property that does not exist", 60, 40)
    for bit, name, size in _PROPERTIES:
        if not flags & bit:
            continue
        if size == 0:
            raw = reader.short_bytes()
            record.append((name, raw))
            if bit == flag.REPLY_TO:
                envelope.reply_to = raw.decode("utf-8", "surrogateescape")
            elif bit == flag.USER_ID:
                envelope.user_id = raw.decode("utf-8", "surrogateescape")
            elif bit == flag.EXPIRATION:
                envelope.expiration = raw.decode("utf-8", "surrogateescape")
                digits = raw.removeprefix(b"+")
                if digits.isdigit() and len(digits) < _MAX_EXPIRATION_DIGITS and int(digits) <= MAX_EXPIRY_MS:
                    envelope.expiration_ms = int(digits)
        elif size < 0:
            envelope.fields = reader.long_bytes()
        else:
            number = reader.octet() if size == 1 else reader.longlong()
            record.append((name, str(number).encode()))
            if bit == flag.DELIVERY_MODE:
                if number not in _DELIVERY_MODES:
                    text = f"invalid message: {{delivery_mode_unknown,{number}}}"
                    raise FrameError(PRECONDITION_FAILED, text, 60, 40)
                envelope.persistent = number == flag.PERSISTENT
            elif bit == flag.PRIORITY:
                envelope.priority = number
    if reader.position != reader.end:
        raise FrameError(SYNTAX_ERROR, "bytes are left over after the properties", 60, 40)
    return record


def why_no_expiration(text: str) -> str:
    """What is wrong with an expiration, in RabbitMQ's words."""
    found = _NUMBER.match(text)
    if found is None:
        return "no_integer"
    if found.end() < len(text):
        return f'{{leftover_string,"{text[found.end() :]}"}}'
    return f"{{{'value_negative' if text.startswith('-') else 'value_too_large'},{text.removeprefix('+')}}}"


def _behind_table(properties: bytes) -> bytes:
    reader = ValueReader(properties)
    flags = reader.short()
    for bit in (flag.CONTENT_TYPE, flag.CONTENT_ENCODING):
        if flags & bit:
            reader.short_bytes()
    if flags & flag.HEADERS:
        reader.long_bytes()
    return properties[reader.position :]


def _replace_table(properties: bytes, fields: bytes) -> bytes:
    reader = ValueReader(properties)
    flags = reader.short()
    for bit in (flag.CONTENT_TYPE, flag.CONTENT_ENCODING):
        if flags & bit:
            reader.short_bytes()
    start = reader.position
    if flags & flag.HEADERS:
        reader.long_bytes()
    table = len(fields).to_bytes(4, "big") + fields
    return (flags | flag.HEADERS).to_bytes(2, "big") + properties[2:start] + table + properties[reader.position :]


# -- record to AMQP ---------------------------------------------------------------------------------------------------


def envelope_of_section(section: bytes) -> Envelope:
    """What a record's headers say. `exchange` and `routing_key` are empty if the record came by another protocol."""
    found, table = read_section(section)
    if len(section) > MAX_TABLE_BYTES // 2:
        table = _fitting(table)
    flags = 0
    parts: list[bytes] = []
    for bit, name, size in _PROPERTIES:
        if size < 0:
            if table:
                encoded = join_table(table)
                parts.append(len(encoded).to_bytes(4, "big") + encoded)
                flags |= bit
            continue
        value = found.get(name)
        if value is None:
            continue
        part = bytes((len(value),)) + value if size == 0 and len(value) <= _MAX_SHORT else _number(value, size)
        if part is not None:
            parts.append(part)
            flags |= bit
    envelope = Envelope(
        _text(found.get(EXCHANGE_HEADER)),
        _text(found.get(ROUTING_KEY_HEADER)),
        flags.to_bytes(2, "big") + b"".join(parts),
    )
    envelope.section = section
    envelope.fields = join_table(table) if table else b""
    envelope.persistent = found.get(DELIVERY_MODE_HEADER) == b"2"
    envelope.addressed = EXCHANGE_HEADER in found
    return envelope


def _fitting(table: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    fitting: list[tuple[str, bytes]] = []
    left = MAX_TABLE_BYTES
    for name, encoded in table:
        size = 1 + len(name.encode()) + len(encoded)
        if size <= left:
            left -= size
            fitting.append((name, encoded))
    return fitting


def _number(value: bytes, size: int) -> bytes | None:
    """None for a number that does not fit: only a foreign writer could have put it there."""
    if size == 0 or not value.isdigit() or len(value) > 20:
        return None
    number = int(value)
    return number.to_bytes(size, "big") if number < 1 << (8 * size) else None


def _text(value: bytes | None) -> str:
    """As much of it as fits a short string."""
    if value is None:
        return ""
    text = value[:_MAX_SHORT].decode("utf-8", "replace")
    return text.encode()[:_MAX_SHORT].decode("utf-8", "ignore")  # what replaces a bad byte takes three
