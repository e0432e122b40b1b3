"""AMQP messages as records, and back.

A message's body is the record's value. Everything else about it is in record headers, so that a Kafka client reads it:

    amqp.exchange, amqp.routing-key     as published, UTF-8
    amqp.content-type, amqp.priority…   each property that is present, as text; numbers in decimal
    <name>                              each field of the headers table: a string as its bytes, another scalar as text, an
                                        array or table as JSON
    amqp.headers                        the fields that are not strings once more, in AMQP's encoding, so that type and
                                        width come back exactly; absent if there are none
    amqp.bcc                            the header BCC as JSON, which receivers do not see
    x-death                             as JSON, which the broker keeps up to date for every protocol (broker/messaging/dead_letters)

A record without `amqp.exchange` was written by another protocol: its headers become string fields of the headers table,
and it has the queue's name as routing key.

Anybody can write these headers, so nothing that is in them may raise on the way to a consumer: `amqp.headers` that does not
decode is left out, and so are a property that is no number where it has to be or is longer than fits, and a field with a name
over 255 bytes; an `x-death` that is no history is a string; of two headers with a reserved name the first counts. Fields
that do not fit `MAX_TABLE_BYTES` together are left out, because all of a message but its body goes into one frame.

Both directions are remembered, by the bytes that decide the result: most messages of a stream have the same properties,
and then a message costs one dictionary look-up each way. `Envelopes` holds at most `MAX_REMEMBERED` of each, and none
whose header section is larger than `MAX_REMEMBERED_BYTES`.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, cast

from trunkline.broker.messaging.argument_checks import MAX_EXPIRY_MS
from trunkline.broker.messaging.dead_letters import (
    BLIND_COPIES_HEADER,
    COPIES_HEADER,
    DEATHS_HEADER,
    EXCHANGE_HEADER,
    EXPIRATION_HEADER,
    ROUTING_KEY_HEADER,
    is_history,
    read_deaths,
)
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import type_name
from trunkline.broker.messaging.typed_values import (
    FieldValue,
    MalformedValue,
    Timestamp,
    ValueReader,
    decode_field,
    encode_field,
    join_table,
    split_table,
)
from trunkline.log.records import decode_headers, encode_headers
from trunkline.protocols.amqp import properties as flag
from trunkline.protocols.amqp.errors import PRECONDITION_FAILED, SYNTAX_ERROR, FrameError

MAX_REMEMBERED: Final = 8_192
MAX_REMEMBERED_BYTES: Final = 1_024
MAX_HEADERS: Final = 4_000  # properties and fields of a publication; records of more than 4,096 headers are not read
MAX_TABLE_BYTES: Final = 124 << 10  # of a frame's 128 KiB

PREFIX: Final = "amqp."
HEADERS_HEADER: Final = "amqp.headers"
ORDER_KEY_HEADER: Final = "x-order-key"
_MAX_SHORT: Final = 255
_STRING: Final = 0x53
_ARRAY: Final = 0x41
_BLIND_COPIES: Final = "BCC"
_COPIES: Final = frozenset((COPIES_HEADER, _BLIND_COPIES))
_DELIVERY_MODES: Final = (1, 2)
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_MAX_EXPIRATION_DIGITS: Final = 20
_LATEST_S: Final = 253_402_300_799  # the end of the year 9999: clients make dates of it

# Flag, record header, and size in bytes on the wire: 0 for a short string.
_PROPERTIES: Final = (
    (flag.CONTENT_TYPE, "amqp.content-type", 0),
    (flag.CONTENT_ENCODING, "amqp.content-encoding", 0),
    (flag.HEADERS, HEADERS_HEADER, -1),
    (flag.DELIVERY_MODE, "amqp.delivery-mode", 1),
    (flag.PRIORITY, "amqp.priority", 1),
    (flag.CORRELATION_ID, "amqp.correlation-id", 0),
    (flag.REPLY_TO, "amqp.reply-to", 0),
    (flag.EXPIRATION, EXPIRATION_HEADER, 0),
    (flag.MESSAGE_ID, "amqp.message-id", 0),
    (flag.TIMESTAMP, "amqp.timestamp", 8),
    (flag.TYPE, "amqp.type", 0),
    (flag.USER_ID, "amqp.user-id", 0),
    (flag.APP_ID, "amqp.app-id", 0),
    (flag.CLUSTER_ID, "amqp.cluster-id", 0),
)
_TABLE_RESERVED: Final = frozenset(name for _, name, _ in _PROPERTIES) | {
    EXCHANGE_HEADER,
    ROUTING_KEY_HEADER,
    BLIND_COPIES_HEADER,
}


class Envelope:
    """Everything about a message but its body, in both forms: `properties` for AMQP, `section` for the record."""

    __slots__ = (
        "copies",
        "delay_ms",
        "exchange",
        "expiration",
        "expiration_ms",
        "fields",
        "from_amqp",
        "order_key",
        "persistent",
        "plain",
        "priority",
        "properties",
        "queues",
        "reply_to",
        "route_version",
        "routing_key",
        "section",
        "user_id",
    )  # fmt: skip

    def __init__(self, exchange: str, routing_key: str, properties: bytes) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.section = b""
        self.fields = b""  # the headers table as encoded, without its length
        self.persistent = False
        self.priority = 0
        self.expiration: str | None = None
        self.expiration_ms: int | None = None  # None also for text that is no number: see `expiration`
        self.reply_to: str | None = None
        self.user_id: str | None = None
        self.delay_ms: int | None = None  # the header x-delay, of the delayed-message exchange
        self.order_key = (
            routing_key.encode()
        )  # for queues that order by key: the header x-order-key, or the routing key
        self.copies: tuple[str, ...] = ()  # further routing keys: the headers CC and BCC
        self.from_amqp = True
        self.plain = True  # nothing that a channel must look at before it routes by key
        # The route of the last publication with this envelope, and the version of the topology that it belongs to.
        self.queues: tuple[Queue, ...] = ()
        self.route_version = -1

    def table(self) -> dict[str, FieldValue]:
        """The headers table, decoded."""
        return {name: decode_field(encoded) for name, encoded in split_table(self.fields)}

    def with_header(self, name: str, value: FieldValue) -> bytes:
        """The property section with one more field in its headers table."""
        fields = [field for field in split_table(self.fields) if field[0] != name]
        encoded = join_table([*fields, (name, encode_field(value))])
        return _replace_table(self.properties, encoded)

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
    envelope = Envelope(exchange, routing_key, properties)
    try:
        _read(envelope)
    except MalformedValue as error:
        raise FrameError(SYNTAX_ERROR, error.text) from None
    return envelope


def _read(envelope: Envelope) -> None:
    record: list[tuple[str, bytes | None]] = [
        (EXCHANGE_HEADER, envelope.exchange.encode()),
        (ROUTING_KEY_HEADER, envelope.routing_key.encode()),
    ]
    if envelope.properties != flag.NO_PROPERTIES:
        _read_properties(envelope, record)
        if envelope.fields:
            _read_table(envelope, record)
            if len(record) > MAX_HEADERS:
                raise FrameError(PRECONDITION_FAILED, f"a message has at most {MAX_HEADERS} headers", 60, 40)
    envelope.section = encode_headers(record)
    envelope.plain = not (
        envelope.copies
        or envelope.user_id is not None
        or envelope.reply_to is not None
        or envelope.expiration is not None
    )


def _read_properties(envelope: Envelope, record: list[tuple[str, bytes | None]]) -> None:
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
                    raise _invalid_message(f"delivery_mode_unknown,{number}")
                envelope.persistent = number == flag.PERSISTENT
            elif bit == flag.PRIORITY:
                envelope.priority = number
    if reader.position != reader.end:
        raise FrameError(SYNTAX_ERROR, "bytes are left over after the properties", 60, 40)


def _read_table(envelope: Envelope, record: list[tuple[str, bytes | None]]) -> None:
    typed: list[tuple[str, bytes]] = []
    blind: list[str] = []
    for name, encoded in split_table(envelope.fields):
        if name in _COPIES and encoded[0] != _ARRAY:
            raise _invalid_message(f'unacceptable_type_in_header,"{name}",{type_name(decode_field(encoded))}')
        if encoded[0] == _STRING and name not in _TABLE_RESERVED and name != DEATHS_HEADER:
            record.append((name, encoded[5:]))
            if name == ORDER_KEY_HEADER:
                envelope.order_key = encoded[5:]
            continue
        value = decode_field(encoded)
        if name == "x-delay" and isinstance(value, int | float) and not isinstance(value, bool):
            envelope.delay_ms = int(value)
        elif name in _COPIES and isinstance(value, list):
            envelope.copies += tuple(item for item in value if isinstance(item, str))
            if name == _BLIND_COPIES:
                blind.append(name)
                record.append((BLIND_COPIES_HEADER, _readable(value)))
                continue
        deaths = _deaths_to_json(value) if name == DEATHS_HEADER else None
        if deaths is not None:
            record.append((DEATHS_HEADER, deaths))
            continue
        typed.append((name, encoded))
        if name not in _TABLE_RESERVED and name != DEATHS_HEADER:
            record.append((name, _readable(value)))
    if typed:
        record.append((HEADERS_HEADER, join_table(typed)))
    if blind:  # receivers of a blind copy must not learn of the others
        kept = [(name, encoded) for name, encoded in split_table(envelope.fields) if name not in blind]
        envelope.fields = join_table(kept)
        envelope.properties = _replace_table(envelope.properties, envelope.fields)


def why_no_expiration(text: str) -> str:
    """What is wrong with an expiration, in RabbitMQ's words."""
    found = _NUMBER.match(text)
    if found is None:
        return "no_integer"
    if found.end() < len(text):
        return f'{{leftover_string,"{text[found.end() :]}"}}'
    return f"{{{'value_negative' if text.startswith('-') else 'value_too_large'},{text.removeprefix('+')}}}"


def _invalid_message(why: str) -> FrameError:
    return FrameError(PRECONDITION_FAILED, f"invalid message: {{{why}}}", 60, 40)


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


def _readable(value: FieldValue) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float | Decimal):
        return str(value).encode()
    if isinstance(value, Timestamp):
        return str(value.seconds).encode()
    return json.dumps(value, default=_json_text, separators=(",", ":")).encode()


def _json_text(value: object) -> object:
    if isinstance(value, Timestamp):
        return value.seconds
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def _deaths_to_json(value: FieldValue) -> bytes | None:
    """None if a client put something else under this name."""
    if not isinstance(value, list) or not all(isinstance(item, dict) and "queue" in item for item in value):
        return None
    return json.dumps(value, default=_json_text, separators=(",", ":")).encode()


def plain_value(value: FieldValue) -> object:
    """A field in types that the layers below know: a moment as a datetime."""
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(min(value.seconds, _LATEST_S), UTC)
    if isinstance(value, dict):
        return {name: plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain_value(inner) for inner in value]
    return value


# -- record to AMQP ---------------------------------------------------------------------------------------------------


def envelope_of_section(section: bytes) -> Envelope:
    """What a record's headers say. `exchange` and `routing_key` are empty if the record came by another protocol."""
    found: dict[str, bytes | None] = {}
    fields: list[tuple[str, bytes | None]] = []
    for name, value in decode_headers(section):
        if name in _TABLE_RESERVED:
            found.setdefault(name, value)
        elif len(name.encode()) <= _MAX_SHORT:
            fields.append((name, value))
    typed = _typed_fields(found.get(HEADERS_HEADER))
    table = [(name, _field_of(name, value, typed.pop(name, None))) for name, value in fields]
    # A field whose header the broker removed is gone; these never had one.
    table += [(name, encoded) for name, encoded in typed.items() if name in _TABLE_RESERVED or name == DEATHS_HEADER]
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
    envelope.persistent = found.get("amqp.delivery-mode") == b"2"
    envelope.from_amqp = EXCHANGE_HEADER in found
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


def _typed_fields(encoded: bytes | None) -> dict[str, bytes]:
    try:
        return dict(split_table(encoded or b""))
    except MalformedValue:
        return {}


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


def _field_of(name: str, value: bytes | None, typed: bytes | None) -> bytes:
    """A field of the headers table: `typed` is how the client encoded it, unless the broker has changed it since."""
    if typed is not None and (not is_history(name) or _says(typed, value)):
        return typed
    if value is None:
        return b"V"
    if name == DEATHS_HEADER:
        deaths = _deaths_from_json(value)
        if deaths is not None:
            return deaths
    return b"S" + len(value).to_bytes(4, "big") + value


def _says(typed: bytes, value: bytes | None) -> bool:
    """Whether a field as a client encoded it is what the record's header of that name says."""
    try:
        return _readable(decode_field(typed)) == value
    except MalformedValue:
        return False


def _deaths_from_json(value: bytes) -> bytes | None:
    deaths = read_deaths(value)
    if deaths is None:
        return None
    table: list[FieldValue] = []
    for death in deaths:
        entry = cast("dict[str, FieldValue]", death)
        seconds = entry.get("time")
        if isinstance(seconds, int) and 0 <= seconds <= _LATEST_S:
            entry["time"] = Timestamp(int(seconds))
        table.append(entry)
    try:
        return encode_field(table)
    except ValueError:  # a number, or a name, that does not fit
        return None
