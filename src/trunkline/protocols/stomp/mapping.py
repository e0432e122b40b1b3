"""STOMP messages as the broker's envelopes, and back.

The body is the record's value. These headers of a SEND are properties, under their AMQP names; all others are headers of the
message, as text:

    content-type content-encoding priority correlation-id reply-to expiration timestamp type user-id app-id
    amqp-message-id      the property message-id: in STOMP that name belongs to the server
    persistent           true or false: the delivery mode

In `reply-to` a queue's name stands by itself, as AMQP clients have it, and to STOMP clients it is `/reply-queue/NAME`.

Anybody can write record headers, so nothing in them may raise on the way to a subscriber: what a version of STOMP cannot
say, and names that the server uses in MESSAGE, are left out.

Both directions are remembered by the bytes that decide the result, `MAX_REMEMBERED` of each: see AMQP's `mapping`.
"""

from __future__ import annotations

from typing import Final

from trunkline.broker.messaging.argument_checks import MAX_EXPIRY_MS
from trunkline.broker.messaging.envelope import (
    APP_ID_HEADER,
    CONTENT_ENCODING_HEADER,
    CONTENT_TYPE_HEADER,
    CORRELATION_ID_HEADER,
    EXCHANGE_HEADER,
    MAX_NAME_BYTES,
    MESSAGE_ID_HEADER,
    REPLY_TO_HEADER,
    RESERVED,
    ROUTING_KEY_HEADER,
    TIMESTAMP_HEADER,
    TYPE_HEADER,
    USER_ID_HEADER,
    Headers,
)
from trunkline.broker.messaging.envelope import Envelope as BrokerEnvelope
from trunkline.broker.messaging.typed_values import encode_field, join_table
from trunkline.cursors.queue.traits import DELIVERY_MODE_HEADER, EXPIRATION_HEADER, PRIORITY_HEADER
from trunkline.log.records import decode_headers
from trunkline.protocols.stomp.codec import header_line, headers_of
from trunkline.protocols.stomp.destination import (
    REPLY_PREFIX,
    TEMPORARY_PREFIX,
    Kind,
    destination_of,
    parse_destination,
)
from trunkline.protocols.stomp.errors import StompError, invalid_header, missing

MAX_REMEMBERED: Final = 8_192
MAX_REMEMBERED_BYTES: Final = 1_024
_PERSISTENT: Final = b"2"
_TRANSIENT: Final = b"1"
_MAX_DIGITS: Final = 20
_MAX_PRIORITY: Final = 255
_DELAY: Final = "x-delay"

_TEXTS: Final = {
    "content-type": CONTENT_TYPE_HEADER,
    "content-encoding": CONTENT_ENCODING_HEADER,
    "correlation-id": CORRELATION_ID_HEADER,
    "reply-to": REPLY_TO_HEADER,
    "expiration": EXPIRATION_HEADER,
    "amqp-message-id": MESSAGE_ID_HEADER,
    "type": TYPE_HEADER,
    "user-id": USER_ID_HEADER,
    "app-id": APP_ID_HEADER,
}
_NUMBERS: Final = {"priority": PRIORITY_HEADER, "timestamp": TIMESTAMP_HEADER}
_NAMES: Final = {header: name for name, header in (*_TEXTS.items(), *_NUMBERS.items())}
_SENDS_OWN: Final = frozenset({"destination", "persistent", *_TEXTS, *_NUMBERS})
_MESSAGES_OWN: Final = frozenset(
    {"destination", "subscription", "message-id", "redelivered", "ack", "content-length", "persistent", *_TEXTS, *_NUMBERS}
)  # fmt: skip


class Envelope(BrokerEnvelope):
    """The broker's envelope with STOMP's form of it beside: the destination, and the header lines of a MESSAGE."""

    __slots__ = ("declares", "destination", "lines", "plain", "temporary", "user_id")

    def __init__(self, exchange: str, routing_key: str) -> None:
        super().__init__(exchange, routing_key)
        self.destination = b""
        self.lines = b""
        self.declares = ""  # the queue that is made if it is not there
        self.temporary = ""  # the queue of the connection's own that replies go to
        self.user_id: str | None = None
        self.plain = True  # nothing that a session must look at before it routes by key


class Envelopes:
    """Envelopes of one virtual host and one version, by what they were made from."""

    __slots__ = ("by_key", "by_section", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.by_key: dict[bytes, Envelope] = {}
        self.by_section: dict[bytes, Envelope] = {}

    def of_publication(self, key: bytes) -> Envelope:
        """StompError or MalformedFrame if that is no SEND."""
        envelope = envelope_of(headers_of(key.split(b"\n") if key else [], self.version))
        self._show(envelope)
        if len(key) <= MAX_REMEMBERED_BYTES:
            if len(self.by_key) >= MAX_REMEMBERED:
                self.by_key.clear()
            self.by_key[key] = envelope
            self._remember_section(envelope)
        return envelope

    def answered_at(self, key: bytes, queue: str) -> Envelope:
        """As `of_publication`, with replies to a queue; not remembered."""
        headers = headers_of(key.split(b"\n"), self.version)
        headers["reply-to"] = REPLY_PREFIX + queue
        return envelope_of(headers)

    def of_record(self, section: bytes) -> Envelope:
        envelope = self.by_section.get(section)
        if envelope is None:
            envelope = Envelope("", "")
            envelope.section = section
            self._show(envelope)
            self._remember_section(envelope)
        return envelope

    def _remember_section(self, envelope: Envelope) -> None:
        if len(envelope.section) <= MAX_REMEMBERED_BYTES:
            if len(self.by_section) >= MAX_REMEMBERED:
                self.by_section.clear()
            self.by_section[envelope.section] = envelope

    def _show(self, envelope: Envelope) -> None:
        """What subscribers are told, from what the record says."""
        exchange = routing_key = None
        lines: list[bytes] = []
        for name, value in decode_headers(envelope.section):
            if name == EXCHANGE_HEADER:
                exchange = value
            elif name == ROUTING_KEY_HEADER:
                routing_key = value
            elif value is None:
                continue
            elif name == DELIVERY_MODE_HEADER:
                if value == _PERSISTENT:
                    lines.append(b"persistent:true\n")
            elif name in _NAMES:
                if name == REPLY_TO_HEADER and not value.startswith(b"/"):
                    value = REPLY_PREFIX.encode() + value
                lines.append(header_line(_NAMES[name].encode(), value, self.version))
            elif name not in RESERVED and name not in _MESSAGES_OWN and name:
                lines.append(header_line(name.encode(), value, self.version))
        envelope.lines = b"".join(lines)
        envelope.addressed = exchange is not None
        if exchange is not None:
            text = destination_of(_text(exchange), _text(routing_key or b""))
            envelope.destination = self.shown(text)

    def shown(self, destination: str) -> bytes:
        """A destination as the value of a header."""
        line = header_line(b"", destination.encode(), self.version)
        return line[1:-1]


def envelope_of(headers: dict[str, str]) -> Envelope:
    text = headers.get("destination")
    if text is None:
        raise missing("SEND", "destination")
    if "message-id" in headers:
        raise invalid_header("'message-id' is not allowed on 'SEND'.")
    destination = parse_destination(text)
    if destination.kind is Kind.TEMPORARY:
        raise StompError("Invalid destination", f"'{text}' is not a valid destination for 'SEND'\n")
    envelope = Envelope(*destination.address)
    if destination.kind is Kind.QUEUE:
        envelope.declares = destination.name
    properties = _properties(envelope, headers)
    fields: list[tuple[str, bytes]] = []
    for name, value in headers.items():
        if name in _SENDS_OWN:
            continue
        if not name or len(name.encode()) > MAX_NAME_BYTES:
            raise invalid_header(f"the name of a header has from 1 to {MAX_NAME_BYTES} bytes")
        is_delay = name == _DELAY and value.isascii() and value.isdigit() and len(value) < _MAX_DIGITS
        fields.append((name, encode_field(int(value) if is_delay else value)))
    envelope.fields = join_table(fields)
    envelope.seal(properties)
    envelope.plain = not (envelope.copies or envelope.temporary or envelope.user_id is not None)
    return envelope


def _properties(envelope: Envelope, headers: dict[str, str]) -> Headers:
    properties: Headers = []
    for name, header in _TEXTS.items():
        value = headers.get(name)
        if value is None:
            continue
        if len(value.encode()) > MAX_NAME_BYTES:
            raise invalid_header(f"'{name}' has at most {MAX_NAME_BYTES} bytes")
        if name == "reply-to":
            if value.startswith(TEMPORARY_PREFIX):
                envelope.temporary = value
            value = value.removeprefix(REPLY_PREFIX)
        elif name == "expiration":
            envelope.expiration_ms = _number(name, value, MAX_EXPIRY_MS)
        elif name == "user-id":
            envelope.user_id = value
        properties.append((header, value.encode()))
    for name, header in _NUMBERS.items():
        value = headers.get(name)
        if value is not None:
            number = _number(name, value, _MAX_PRIORITY if name == "priority" else (1 << 63) - 1)
            properties.append((header, str(number).encode()))
            if name == "priority":
                envelope.priority = number
    persistent = headers.get("persistent")
    if persistent not in (None, "true", "false"):
        raise invalid_header("'persistent' must be true or false")
    # Who says nothing gets a message that survives: a receipt is a promise.
    envelope.persistent = persistent != "false"
    if persistent is not None:
        properties.append((DELIVERY_MODE_HEADER, _PERSISTENT if envelope.persistent else _TRANSIENT))
    return properties


def _number(name: str, value: str, most: int) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) >= _MAX_DIGITS or int(value) > most:
        raise invalid_header(f"'{name}' must be a number from 0 to {most}")
    return int(value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
