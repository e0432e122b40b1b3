"""The envelope of a message: everything about it but its body, kept in its record's headers for every protocol to read.

    amqp.exchange, amqp.routing-key     its address: where it was published, UTF-8
    amqp.content-type, amqp.priority…   each property that is present, as text; numbers in decimal
    <name>                              each header of its table: a string as its bytes, another scalar as text, an array
                                        or table as JSON
    amqp.headers                        the headers that are not strings once more, encoded with their types
                                        (`typed_values`), so that type and width come back exactly; absent if there are none
    amqp.bcc                            the header BCC as JSON, which receivers do not see
    x-death                             as JSON, which the broker keeps up to date (`deaths`)

A record without `amqp.exchange` has no address: a protocol wrote it that knows no exchanges, and all its headers are
strings.

Anybody can write these headers, so nothing that is in them may raise on the way to a consumer: `amqp.headers` that does not
decode is left out, and so is a header with a name over 255 bytes; an `x-death` that is no history is a string; of two
headers with a reserved name the first counts.

A protocol translates its own form of a message to this one and back. It makes an `Envelope` of a publication and `seal`s
it; of a record, it reads the headers with `read_section`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple, cast

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.deaths import DEATHS_HEADER, is_history, read_deaths
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.typed_values import (
    LATEST_S,
    FieldValue,
    MalformedValue,
    Timestamp,
    decode_field,
    encode_field,
    join_table,
    plain_value,
    split_table,
)
from trunkline.cursors.queue import Message
from trunkline.cursors.queue.traits import DELIVERY_MODE_HEADER, EXPIRATION_HEADER, PRIORITY_HEADER
from trunkline.log.records import decode_headers, encode_headers
from trunkline.routing.fields import Fields

MAX_HEADERS: Final = 4_000  # properties and headers of a publication; records of more than 4,096 headers are not read
MAX_NAME_BYTES: Final = 255

EXCHANGE_HEADER: Final = "amqp.exchange"
ROUTING_KEY_HEADER: Final = "amqp.routing-key"
CONTENT_TYPE_HEADER: Final = "amqp.content-type"
CONTENT_ENCODING_HEADER: Final = "amqp.content-encoding"
TYPED_HEADER: Final = "amqp.headers"
CORRELATION_ID_HEADER: Final = "amqp.correlation-id"
REPLY_TO_HEADER: Final = "amqp.reply-to"
MESSAGE_ID_HEADER: Final = "amqp.message-id"
TIMESTAMP_HEADER: Final = "amqp.timestamp"
TYPE_HEADER: Final = "amqp.type"
USER_ID_HEADER: Final = "amqp.user-id"
APP_ID_HEADER: Final = "amqp.app-id"
CLUSTER_ID_HEADER: Final = "amqp.cluster-id"
COPIES_HEADER: Final = "CC"
BLIND_COPIES_HEADER: Final = "amqp.bcc"
ORDER_KEY_HEADER: Final = "x-order-key"
# Names that the broker has given a meaning; a client's header of such a name is kept in `amqp.headers` only.
RESERVED: Final = frozenset(
    {
        EXCHANGE_HEADER,
        ROUTING_KEY_HEADER,
        CONTENT_TYPE_HEADER,
        CONTENT_ENCODING_HEADER,
        TYPED_HEADER,
        DELIVERY_MODE_HEADER,
        PRIORITY_HEADER,
        CORRELATION_ID_HEADER,
        REPLY_TO_HEADER,
        EXPIRATION_HEADER,
        MESSAGE_ID_HEADER,
        TIMESTAMP_HEADER,
        TYPE_HEADER,
        USER_ID_HEADER,
        APP_ID_HEADER,
        CLUSTER_ID_HEADER,
        BLIND_COPIES_HEADER,
    }
)

_DELAY: Final = "x-delay"
_BLIND_COPIES: Final = "BCC"
_COPIES: Final = frozenset((COPIES_HEADER, _BLIND_COPIES))
_STRING: Final = 0x53
_ARRAY: Final = 0x41

Headers = list[tuple[str, bytes | None]]


class Envelope:
    """A publication's, once it is sealed, or a record's. `section` is the header section of its record."""

    __slots__ = (
        "addressed",
        "copies",
        "delay_ms",
        "exchange",
        "expiration_ms",
        "fields",
        "order_key",
        "persistent",
        "priority",
        "queues",
        "route_version",
        "routing_key",
        "section",
    )  # fmt: skip

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.addressed = True  # False for a record of a protocol that knows no exchanges
        self.section = b""
        self.fields = b""  # the table of headers, encoded, without its length
        self.persistent = False
        self.priority = 0
        self.expiration_ms: int | None = None
        self.delay_ms: int | None = None  # the header x-delay, of the delayed-message exchange
        self.order_key = (
            routing_key.encode()
        )  # for queues that order by key: the header x-order-key, or the routing key
        self.copies: tuple[str, ...] = ()  # further routing keys: the headers CC and BCC
        # The route of the last publication with this envelope, and the version of the topology that it belongs to.
        self.queues: tuple[Queue, ...] = ()
        self.route_version = -1

    def seal(self, properties: Headers) -> None:
        """Make the section, of the address, these properties and the table of headers, which also says copies and delay.

        Takes BCC out of the table: receivers of a blind copy must not learn of the others. Refused for what no message
        may have, MalformedValue if the table cannot be read.
        """
        record = _address(self.exchange, self.routing_key)
        record += properties
        if self.fields:
            self._add_table(record)
            if len(record) > MAX_HEADERS:
                raise refusals.precondition(f"a message has at most {MAX_HEADERS} headers")
        self.section = encode_headers(record)

    def _add_table(self, record: Headers) -> None:
        typed: list[tuple[str, bytes]] = []
        split = split_table(self.fields)
        for name, encoded in split:
            if name in _COPIES and encoded[0] != _ARRAY:
                kind = refusals.type_name(decode_field(encoded))
                raise refusals.precondition(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
            if encoded[0] == _STRING and name not in RESERVED and name != DEATHS_HEADER:
                record.append((name, encoded[5:]))
                if name == ORDER_KEY_HEADER:
                    self.order_key = encoded[5:]
                continue
            value = decode_field(encoded)
            if name == _DELAY and isinstance(value, int | float) and not isinstance(value, bool):
                self.delay_ms = int(value)
            elif name in _COPIES and isinstance(value, list):
                self.copies += tuple(item for item in value if isinstance(item, str))
                if name == _BLIND_COPIES:
                    record.append((BLIND_COPIES_HEADER, _readable(value)))
                    continue
            deaths = _deaths_to_json(value) if name == DEATHS_HEADER else None
            if deaths is not None:
                record.append((DEATHS_HEADER, deaths))
                continue
            typed.append((name, encoded))
            if name not in RESERVED and name != DEATHS_HEADER:
                record.append((name, _readable(value)))
        if typed:
            record.append((TYPED_HEADER, join_table(typed)))
        kept = [field for field in split if field[0] != _BLIND_COPIES]
        if len(kept) < len(split):
            self.fields = join_table(kept)

    def table(self) -> dict[str, FieldValue]:
        """The table of headers, decoded."""
        return {name: decode_field(encoded) for name, encoded in split_table(self.fields)}

    def routing_fields(self, body: bytes) -> Fields:
        """What exchanges that route by headers or content look at."""
        table = self.table() if self.fields else {}
        return Fields({name: plain_value(value) for name, value in table.items()}, body)

    def message(self, body: bytes, now_ms: int) -> Message:
        expires_ms = None if self.expiration_ms is None else now_ms + self.expiration_ms
        return Message(body, self.section, None, now_ms, expires_ms, self.priority, self.persistent)


def addressed(section: bytes, exchange: str, routing_key: str) -> bytes:
    """A header section with an address in front, for a protocol that knows no exchanges and has none."""
    return encode_headers([*_address(exchange, routing_key), *decode_headers(section)])


def _address(exchange: str, routing_key: str) -> Headers:
    return [(EXCHANGE_HEADER, exchange.encode()), (ROUTING_KEY_HEADER, routing_key.encode())]


# -- what a record says ------------------------------------------------------------------------------------------------


class SectionRead(NamedTuple):
    reserved: dict[str, bytes | None]  # address and properties
    table: list[tuple[str, bytes]]  # the headers by name, each encoded with its type


def read_section(section: bytes) -> SectionRead:
    reserved: dict[str, bytes | None] = {}
    headers: Headers = []
    for name, value in decode_headers(section):
        if name in RESERVED:
            reserved.setdefault(name, value)
        elif len(name.encode()) <= MAX_NAME_BYTES:
            headers.append((name, value))
    typed = _typed_fields(reserved.get(TYPED_HEADER))
    table = [(name, _field_of(name, value, typed.pop(name, None))) for name, value in headers]
    # A field whose header the broker removed is gone; these never had one.
    table += [(name, encoded) for name, encoded in typed.items() if name in RESERVED or name == DEATHS_HEADER]
    return SectionRead(reserved, table)


def routing_fields_of(section: bytes, body: bytes) -> Fields:
    """What exchanges that route by headers or content look at, of a message that is known by its record."""
    table = read_section(section).table
    return Fields({name: plain_value(decode_field(encoded)) for name, encoded in table}, body)


def read_copies(headers: Headers) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The further routing keys that these headers of an addressed message name, and those that receivers do not see."""
    return _read_keys(headers, COPIES_HEADER), _read_keys(headers, BLIND_COPIES_HEADER)


def _read_keys(headers: Sequence[tuple[str, bytes | None]], name: str) -> tuple[str, ...]:
    """The strings of a JSON array; other things in it are no routing keys."""
    for found, value in headers:
        if found == name:
            try:
                keys = json.loads(value or b"[]")
            except (ValueError, RecursionError):
                return ()
            return tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else ()
    return ()


def _typed_fields(encoded: bytes | None) -> dict[str, bytes]:
    try:
        return dict(split_table(encoded or b""))
    except MalformedValue:
        return {}


def _field_of(name: str, value: bytes | None, typed: bytes | None) -> bytes:
    """A field of the table: `typed` is how the client encoded it, unless the broker has changed it since."""
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


# -- headers as text ---------------------------------------------------------------------------------------------------


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


def _deaths_from_json(value: bytes) -> bytes | None:
    deaths = read_deaths(value)
    if deaths is None:
        return None
    table: list[FieldValue] = []
    for death in deaths:
        entry = cast("dict[str, FieldValue]", death)
        seconds = entry.get("time")
        if isinstance(seconds, int) and 0 <= seconds <= LATEST_S:
            entry["time"] = Timestamp(int(seconds))
        table.append(entry)
    try:
        return encode_field(table)
    except ValueError:  # a number, or a name, that does not fit
        return None
