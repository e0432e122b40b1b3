"""The properties of MQTT 5.0.

    property section   varint length in bytes, then properties
    property           varint identifier, value

`_PLACES` says which packet may carry which. A property that a packet does not take is malformed; one that comes twice, or
has a value outside its range, is a protocol error. User properties may repeat anywhere and keep their order; the
subscription identifier may repeat in a PUBLISH, which a server that forwards for several subscriptions sends.
A packet has at most `MAX_USER_PROPERTIES`: each becomes a header of a record, and those are bounded.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from trunkline.protocols.mqtt.errors import (
    MALFORMED_PACKET,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    TOPIC_ALIAS_INVALID,
    MalformedPacket,
)
from trunkline.protocols.mqtt.values import ValueReader, put_binary, put_text, put_unsigned, put_varint

NO_PROPERTIES: Final = b"\x00"
MAX_USER_PROPERTIES: Final = 4_000

# The packets that carry properties, as bits; WILL is the part of CONNECT that describes the will.
IN_CONNECT: Final = 1
IN_CONNACK: Final = 2
IN_PUBLISH: Final = 4
IN_PUBACK: Final = 8  # and PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK: they take the same ones
IN_SUBSCRIBE: Final = 16
IN_UNSUBSCRIBE: Final = 32
IN_DISCONNECT: Final = 64
IN_AUTH: Final = 128
IN_WILL: Final = 256
_ANYWHERE: Final = 511

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

_PLACES: Final[dict[int, int]] = {
    PAYLOAD_FORMAT_INDICATOR: IN_PUBLISH | IN_WILL,
    MESSAGE_EXPIRY_INTERVAL: IN_PUBLISH | IN_WILL,
    CONTENT_TYPE: IN_PUBLISH | IN_WILL,
    RESPONSE_TOPIC: IN_PUBLISH | IN_WILL,
    CORRELATION_DATA: IN_PUBLISH | IN_WILL,
    SUBSCRIPTION_IDENTIFIER: IN_PUBLISH | IN_SUBSCRIBE,
    SESSION_EXPIRY_INTERVAL: IN_CONNECT | IN_CONNACK | IN_DISCONNECT,
    ASSIGNED_CLIENT_IDENTIFIER: IN_CONNACK,
    SERVER_KEEP_ALIVE: IN_CONNACK,
    AUTHENTICATION_METHOD: IN_CONNECT | IN_CONNACK | IN_AUTH,
    AUTHENTICATION_DATA: IN_CONNECT | IN_CONNACK | IN_AUTH,
    REQUEST_PROBLEM_INFORMATION: IN_CONNECT,
    WILL_DELAY_INTERVAL: IN_WILL,
    REQUEST_RESPONSE_INFORMATION: IN_CONNECT,
    RESPONSE_INFORMATION: IN_CONNACK,
    SERVER_REFERENCE: IN_CONNACK | IN_DISCONNECT,
    REASON_STRING: IN_CONNACK | IN_PUBACK | IN_DISCONNECT | IN_AUTH,
    RECEIVE_MAXIMUM: IN_CONNECT | IN_CONNACK,
    TOPIC_ALIAS_MAXIMUM: IN_CONNECT | IN_CONNACK,
    TOPIC_ALIAS: IN_PUBLISH,
    MAXIMUM_QOS: IN_CONNACK,
    RETAIN_AVAILABLE: IN_CONNACK,
    USER_PROPERTY: _ANYWHERE,
    MAXIMUM_PACKET_SIZE: IN_CONNECT | IN_CONNACK,
    WILDCARD_SUBSCRIPTION_AVAILABLE: IN_CONNACK,
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: IN_CONNACK,
    SHARED_SUBSCRIPTION_AVAILABLE: IN_CONNACK,
}


class Properties:
    """All properties that there are; None, or empty, is absent."""

    def __init__(self) -> None:
        self.payload_format_indicator: int | None = None
        self.message_expiry_interval: int | None = None
        self.content_type: str | None = None
        self.response_topic: str | None = None
        self.correlation_data: bytes | None = None
        self.subscription_identifiers: list[int] = []
        self.session_expiry_interval: int | None = None
        self.assigned_client_identifier: str | None = None
        self.server_keep_alive: int | None = None
        self.authentication_method: str | None = None
        self.authentication_data: bytes | None = None
        self.request_problem_information: int | None = None
        self.will_delay_interval: int | None = None
        self.request_response_information: int | None = None
        self.response_information: str | None = None
        self.server_reference: str | None = None
        self.reason_string: str | None = None
        self.receive_maximum: int | None = None
        self.topic_alias_maximum: int | None = None
        self.topic_alias: int | None = None
        self.maximum_qos: int | None = None
        self.retain_available: int | None = None
        self.user_properties: list[tuple[str, str]] = []
        self.maximum_packet_size: int | None = None
        self.wildcard_subscription_available: int | None = None
        self.subscription_identifier_available: int | None = None
        self.shared_subscription_available: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and encode_properties(other) == encode_properties(self)

    def __hash__(self) -> int:
        return hash(encode_properties(self))

    def __repr__(self) -> str:
        return f"Properties({encode_properties(self)!r})"


def decode_properties(reader: ValueReader, place: int) -> Properties | None:
    """The property section that starts here, or None when it is empty."""
    length: i64 = reader.varint()
    if length == 0:
        return None
    if length > reader.end - reader.position:
        raise MalformedPacket(MALFORMED_PACKET, "the properties are longer than their packet")
    outer = reader.end
    reader.end = reader.position + length
    properties = Properties()
    seen: i64 = 0
    while reader.position < reader.end:
        identifier: i64 = reader.varint()
        places = _PLACES.get(identifier)
        if places is None or not places & place:
            raise MalformedPacket(MALFORMED_PACKET, f"property 0x{identifier:02x} does not belong in this packet")
        bit: i64 = 1
        bit <<= identifier  # in two steps: compiled, a shifted literal has 32 bits only
        repeats = identifier == USER_PROPERTY or (identifier == SUBSCRIPTION_IDENTIFIER and place == IN_PUBLISH)
        if seen & bit and not repeats:
            raise MalformedPacket(PROTOCOL_ERROR, f"property 0x{identifier:02x} comes twice")
        seen |= bit
        _read_property(reader, identifier, properties)
    reader.end = outer
    return properties


def _read_property(reader: ValueReader, identifier: int, properties: Properties) -> None:
    if identifier == USER_PROPERTY:
        name = reader.text()
        if len(properties.user_properties) == MAX_USER_PROPERTIES:
            raise MalformedPacket(QUOTA_EXCEEDED, f"more than {MAX_USER_PROPERTIES} user properties")
        properties.user_properties.append((name, reader.text()))
    elif identifier == TOPIC_ALIAS:
        properties.topic_alias = reader.u16()
        if properties.topic_alias == 0:
            raise MalformedPacket(TOPIC_ALIAS_INVALID, "topic alias 0")
    elif identifier == MESSAGE_EXPIRY_INTERVAL:
        properties.message_expiry_interval = reader.u32()
    elif identifier == CONTENT_TYPE:
        properties.content_type = reader.text()
    elif identifier == PAYLOAD_FORMAT_INDICATOR:
        properties.payload_format_indicator = _flag(reader, identifier)
    elif identifier == RESPONSE_TOPIC:
        properties.response_topic = reader.text()
    elif identifier == CORRELATION_DATA:
        properties.correlation_data = reader.binary()
    elif identifier == SUBSCRIPTION_IDENTIFIER:
        properties.subscription_identifiers.append(_not_zero(reader.varint(), identifier))
    elif identifier == SESSION_EXPIRY_INTERVAL:
        properties.session_expiry_interval = reader.u32()
    elif identifier == AUTHENTICATION_METHOD:
        properties.authentication_method = reader.text()
    elif identifier == AUTHENTICATION_DATA:
        properties.authentication_data = reader.binary()
    elif identifier == WILL_DELAY_INTERVAL:
        properties.will_delay_interval = reader.u32()
    elif identifier == REASON_STRING:
        properties.reason_string = reader.text()
    elif identifier == RECEIVE_MAXIMUM:
        properties.receive_maximum = _not_zero(reader.u16(), identifier)
    elif identifier == TOPIC_ALIAS_MAXIMUM:
        properties.topic_alias_maximum = reader.u16()
    elif identifier == MAXIMUM_PACKET_SIZE:
        properties.maximum_packet_size = _not_zero(reader.u32(), identifier)
    elif identifier == REQUEST_PROBLEM_INFORMATION:
        properties.request_problem_information = _flag(reader, identifier)
    elif identifier == REQUEST_RESPONSE_INFORMATION:
        properties.request_response_information = _flag(reader, identifier)
    else:
        _read_connack_property(reader, identifier, properties)


def _read_connack_property(reader: ValueReader, identifier: int, properties: Properties) -> None:
    if identifier == ASSIGNED_CLIENT_IDENTIFIER:
        properties.assigned_client_identifier = reader.text()
    elif identifier == SERVER_KEEP_ALIVE:
        properties.server_keep_alive = reader.u16()
    elif identifier == RESPONSE_INFORMATION:
        properties.response_information = reader.text()
    elif identifier == SERVER_REFERENCE:
        properties.server_reference = reader.text()
    elif identifier == MAXIMUM_QOS:
        properties.maximum_qos = _flag(reader, identifier)
    elif identifier == RETAIN_AVAILABLE:
        properties.retain_available = _flag(reader, identifier)
    elif identifier == WILDCARD_SUBSCRIPTION_AVAILABLE:
        properties.wildcard_subscription_available = _flag(reader, identifier)
    elif identifier == SUBSCRIPTION_IDENTIFIER_AVAILABLE:
        properties.subscription_identifier_available = _flag(reader, identifier)
    else:
        properties.shared_subscription_available = _flag(reader, identifier)


def _flag(reader: ValueReader, identifier: int) -> int:
    value = reader.u8()
    if value > 1:
        raise MalformedPacket(PROTOCOL_ERROR, f"property 0x{identifier:02x} is 0 or 1, not {value}")
    return value


def _not_zero(value: int, identifier: int) -> int:
    if value == 0:
        raise MalformedPacket(PROTOCOL_ERROR, f"property 0x{identifier:02x} is 0")
    return value


def encode_properties(properties: Properties | None) -> bytes:
    """The property section, its length included."""
    if properties is None:
        return NO_PROPERTIES
    out = BytesWriter()
    _put_number(out, PAYLOAD_FORMAT_INDICATOR, properties.payload_format_indicator, 1)
    _put_number(out, MESSAGE_EXPIRY_INTERVAL, properties.message_expiry_interval, 4)
    _put_string(out, CONTENT_TYPE, properties.content_type)
    _put_string(out, RESPONSE_TOPIC, properties.response_topic)
    _put_data(out, CORRELATION_DATA, properties.correlation_data)
    for number in properties.subscription_identifiers:
        out.append(SUBSCRIPTION_IDENTIFIER)
        put_varint(out, number)
    _put_number(out, SESSION_EXPIRY_INTERVAL, properties.session_expiry_interval, 4)
    _put_string(out, ASSIGNED_CLIENT_IDENTIFIER, properties.assigned_client_identifier)
    _put_number(out, SERVER_KEEP_ALIVE, properties.server_keep_alive, 2)
    _put_string(out, AUTHENTICATION_METHOD, properties.authentication_method)
    _put_data(out, AUTHENTICATION_DATA, properties.authentication_data)
    _put_number(out, REQUEST_PROBLEM_INFORMATION, properties.request_problem_information, 1)
    _put_number(out, WILL_DELAY_INTERVAL, properties.will_delay_interval, 4)
    _put_number(out, REQUEST_RESPONSE_INFORMATION, properties.request_response_information, 1)
    _put_string(out, RESPONSE_INFORMATION, properties.response_information)
    _put_string(out, SERVER_REFERENCE, properties.server_reference)
    _put_string(out, REASON_STRING, properties.reason_string)
    _put_number(out, RECEIVE_MAXIMUM, properties.receive_maximum, 2)
    _put_number(out, TOPIC_ALIAS_MAXIMUM, properties.topic_alias_maximum, 2)
    _put_number(out, TOPIC_ALIAS, properties.topic_alias, 2)
    _put_number(out, MAXIMUM_QOS, properties.maximum_qos, 1)
    _put_number(out, RETAIN_AVAILABLE, properties.retain_available, 1)
    for name, value in properties.user_properties:
        out.append(USER_PROPERTY)
        put_text(out, name)
        put_text(out, value)
    _put_number(out, MAXIMUM_PACKET_SIZE, properties.maximum_packet_size, 4)
    _put_number(out, WILDCARD_SUBSCRIPTION_AVAILABLE, properties.wildcard_subscription_available, 1)
    _put_number(out, SUBSCRIPTION_IDENTIFIER_AVAILABLE, properties.subscription_identifier_available, 1)
    _put_number(out, SHARED_SUBSCRIPTION_AVAILABLE, properties.shared_subscription_available, 1)
    body = out.getvalue()
    section = BytesWriter()
    put_varint(section, len(body))
    section.write(body)
    return section.getvalue()


def _put_number(out: BytesWriter, identifier: int, value: int | None, size_bytes: int) -> None:
    if value is not None:
        out.append(identifier)
        put_unsigned(out, value, size_bytes)


def _put_string(out: BytesWriter, identifier: int, value: str | None) -> None:
    if value is not None:
        out.append(identifier)
        put_text(out, value)


def _put_data(out: BytesWriter, identifier: int, value: bytes | None) -> None:
    if value is not None:
        out.append(identifier)
        put_binary(out, value)
