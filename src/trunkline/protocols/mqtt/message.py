"""A publication, and how it is kept as a record.

    record key        what the mapping rule says; by default the topic name
    record value      the payload
    record timestamp  when the broker took it; a message expires `mqtt.expiry-s` after it
    record headers    mqtt.qos              0, 1 or 2, as published
                      mqtt.retain           1, if set
                      mqtt.topic            the topic name, when it is not the key
                      mqtt.client           the publisher's client identifier
                      mqtt.packet-id        of a QoS 2 publication of a session that is kept (see `sessions.registry`)
                      mqtt.expiry-s, mqtt.payload-format, mqtt.content-type, mqtt.response-topic, mqtt.correlation-data
                      any other             user properties, by their name; one that begins with `mqtt.` is kept
                                            behind `mqtt.user.`

A record that no MQTT client wrote has none of the `mqtt.` headers: its topic name is its key, or the log topic's name
without one (or with one that is no topic name), it goes out at whatever QoS a subscription asked for, and its headers
are user properties where they are text.

Anybody can write these headers: what no MQTT client could have sent is left out, property by property, and so are user
properties that do not fit `MAX_PROPERTIES_BYTES` together, or are more than `MAX_USER_PROPERTIES`.

Properties are kept as the encoded section that goes on the wire, without the expiry, which changes on the way. Sections
of both kinds repeat from message to message, so translations are remembered (`MAX_REMEMBERED` of each, none larger than
`MAX_REMEMBERED_BYTES`).
"""

from __future__ import annotations

from typing import NamedTuple

from trunkline.clock import Clock
from trunkline.log.records import NO_HEADERS, LightRecord, decode_headers, encode_headers
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.codec import NO_PROPERTIES, Properties, encode_properties
from trunkline.protocols.mqtt.properties import MAX_USER_PROPERTIES, MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER
from trunkline.protocols.mqtt.values import MAX_STRING_BYTES, ValueReader

MAX_REMEMBERED = 4_096
MAX_REMEMBERED_BYTES = 1_024
MAX_PROPERTIES_BYTES = 1 << 20
FOREIGN_QOS = 2  # of records that no MQTT client wrote: a subscription gets what it asked for
NOT_STORED = -1

_OWN = "mqtt."
_USER = "mqtt.user."
_QOS_VALUES = (b"0", b"1", b"2")


class Message:
    """A publication on its way. `offset` is its place in `partition`, which it was written to."""

    __slots__ = ("expires_ms", "offset", "partition", "payload", "properties", "publisher", "qos", "retain", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes = NO_PROPERTIES,
        expires_ms: int | None = None,
        publisher: str = "",
        partition: TopicPartition | None = None,
        offset: int = NOT_STORED,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_ms = expires_ms
        self.publisher = publisher
        self.partition = partition
        self.offset = offset

    def seconds_left(self, clock: Clock) -> int | None:
        """Until it expires: 0 when it has, None when it never does."""
        if self.expires_ms is None:
            return None
        left_ms = self.expires_ms - clock.wall_ms()
        return 0 if left_ms <= 0 else -(-left_ms // 1000)


class Traits(NamedTuple):
    """What a record's headers say of its message."""

    qos: int = FOREIGN_QOS
    retain: bool = False
    topic: str | None = None
    publisher: str = ""
    packet_id: int = 0
    expiry_s: int | None = None
    properties: bytes = NO_PROPERTIES


def header_section(
    *,
    qos: int,
    retain: bool,
    publisher: str,
    properties: Properties | None = None,
    topic: str | None = None,
    packet_id: int = 0,
) -> bytes:
    headers: list[tuple[str, bytes | None]] = [("mqtt.qos", _QOS_VALUES[qos])]
    if retain:
        headers.append(("mqtt.retain", b"1"))
    if topic is not None:
        headers.append(("mqtt.topic", topic.encode()))
    headers.append(("mqtt.client", publisher.encode()))
    if packet_id:
        headers.append(("mqtt.packet-id", b"%d" % packet_id))
    if properties is not None:
        if properties.message_expiry_interval is not None:
            headers.append(("mqtt.expiry-s", b"%d" % properties.message_expiry_interval))
        if properties.payload_format_indicator is not None:
            headers.append(("mqtt.payload-format", b"%d" % properties.payload_format_indicator))
        if properties.content_type is not None:
            headers.append(("mqtt.content-type", properties.content_type.encode()))
        if properties.response_topic is not None:
            headers.append(("mqtt.response-topic", properties.response_topic.encode()))
        if properties.correlation_data is not None:
            headers.append(("mqtt.correlation-data", properties.correlation_data))
        headers.extend(
            (_USER + name if name.startswith(_OWN) else name, value.encode())
            for name, value in properties.user_properties
        )
    return encode_headers(headers)


def wire_properties(properties: Properties | None) -> bytes:
    """The section that goes out with the message: everything but the expiry, which is worked out when it is sent."""
    if properties is None:
        return NO_PROPERTIES
    expiry_s, properties.message_expiry_interval = properties.message_expiry_interval, None
    section = encode_properties(properties)
    properties.message_expiry_interval = expiry_s
    return section


def read_traits(section: bytes) -> Traits:
    """What a header section says. Values that no MQTT client could have sent are left out."""
    if section == NO_HEADERS:
        return _FOREIGN
    qos, retain, topic, publisher, packet_id = FOREIGN_QOS, False, None, "", 0
    properties = Properties()
    room = MAX_PROPERTIES_BYTES
    for name, value in decode_headers(section):
        if value is None:
            continue
        if not name.startswith(_OWN) or name.startswith(_USER):
            user_name = name.removeprefix(_USER)
            text = _text(value)
            size = len(user_name) + len(value)
            found = properties.user_properties
            if text is not None and _is_text(user_name) and size <= room and len(found) < MAX_USER_PROPERTIES:
                room -= size
                found.append((user_name, text))
            continue
        match name:
            case "mqtt.qos" if value in _QOS_VALUES:
                qos = int(value)
            case "mqtt.retain":
                retain = value == b"1"
            case "mqtt.topic":
                topic = topic_name(value)
            case "mqtt.client":
                publisher = value.decode(errors="replace")
            case "mqtt.packet-id":
                packet_id = _number(value, 0xFFFF) or 0
            case "mqtt.expiry-s":
                properties.message_expiry_interval = _number(value, 0xFFFF_FFFF)
            case "mqtt.payload-format":
                properties.payload_format_indicator = _number(value, 1)
            case "mqtt.content-type":
                properties.content_type = _text(value)
            case "mqtt.response-topic":
                properties.response_topic = topic_name(value)
            case "mqtt.correlation-data" if len(value) <= MAX_STRING_BYTES:
                properties.correlation_data = value
            case _:
                pass
    return Traits(
        qos, retain, topic, publisher, packet_id, properties.message_expiry_interval, wire_properties(properties)
    )


_FOREIGN = Traits()
_remembered: dict[bytes, Traits] = {NO_HEADERS: _FOREIGN}


def traits_of(section: bytes) -> Traits:
    traits = _remembered.get(section)
    if traits is None:
        traits = read_traits(section)
        if len(section) <= MAX_REMEMBERED_BYTES:
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[section] = traits
    return traits


def topic_of(record: LightRecord, default_topic: str) -> str:
    """The topic name of the publication that a record holds."""
    topic = traits_of(record[4]).topic
    if topic is not None:
        return topic
    key = record[2]
    if not key:
        return default_topic
    known = _names.get(key)
    if known is None:
        known = topic_name(key) or ""
        if len(key) <= MAX_REMEMBERED_BYTES:
            if len(_names) >= MAX_REMEMBERED:
                _names.clear()
            _names[key] = known
    return known or default_topic


_names: dict[bytes, str] = {}  # by record key; empty for a key that is no topic name


def message_of(record: LightRecord, partition: TopicPartition | None, topic: str) -> Message:
    """The publication that a record holds; `topic` is what `topic_of` said."""
    offset, timestamp_ms, _, value, section = record
    traits = traits_of(section)
    expires_ms = None if traits.expiry_s is None else timestamp_ms + traits.expiry_s * 1000
    return Message(
        topic,
        value or b"",
        traits.qos,
        traits.retain,
        traits.properties,
        expires_ms,
        traits.publisher,
        partition,
        offset,
    )


def topic_name(raw: bytes) -> str | None:
    """The bytes as a topic name, if they are one."""
    text = _text(raw)
    return text if text and "+" not in text and "#" not in text else None


def _text(raw: bytes) -> str | None:
    if len(raw) > MAX_STRING_BYTES or b"\x00" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _is_text(text: str) -> bool:
    return "\x00" not in text and len(text.encode()) <= MAX_STRING_BYTES


def _number(raw: bytes, largest: int) -> int | None:
    return int(raw) if raw.isdigit() and len(raw) <= 10 and int(raw) <= largest else None


# -- on the way out --------------------------------------------------------------------------------------------------


def with_extras(section: bytes, expiry_s: int | None, identifiers: tuple[int, ...]) -> bytes:
    """A property section with what concerns this delivery put in front: the time left, the subscriptions' identifiers."""
    reader = ValueReader(section, 0, len(section))
    size = reader.varint()
    extra = bytearray()
    if expiry_s is not None:
        extra.append(MESSAGE_EXPIRY_INTERVAL)
        extra += expiry_s.to_bytes(4, "big")
    for identifier in identifiers:
        extra.append(SUBSCRIPTION_IDENTIFIER)
        extra += _varint(identifier)
    return _varint(size + len(extra)) + bytes(extra) + reader.rest()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
