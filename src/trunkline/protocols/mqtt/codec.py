"""The MQTT codec: packets to bytes here, bytes to packets in `parser`.

`encode` writes any packet in the form of a version. `encode_publishes` writes all messages that one subscriber gets in a
turn in one go; properties come as encoded sections, so that a message that goes to many is encoded once. What cannot be
written (a topic over 65,535 bytes, a packet over 256 MB) raises `ValueError`. Whether a packet is larger than the client
takes is for the caller to ask first, with `publish_bytes`: it has to drop the message, not the connection.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from librt.strings import BytesWriter, write_i16_be
from mypy_extensions import i16, i64

from trunkline.protocols.mqtt.errors import MalformedPacket
from trunkline.protocols.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
    Acknowledgement,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from trunkline.protocols.mqtt.parser import Parser, ParserEvent
from trunkline.protocols.mqtt.properties import NO_PROPERTIES, TOPIC_ALIAS, Properties, encode_properties
from trunkline.protocols.mqtt.values import (
    MAX_STRING_BYTES,
    ValueReader,
    put_binary,
    put_text,
    put_unsigned,
    put_varint,
)

__all__ = [
    "NO_PROPERTIES",
    "PINGREQ_PACKET",
    "PINGRESP_PACKET",
    "MalformedPacket",
    "OutgoingPublish",
    "Parser",
    "ParserEvent",
    "Properties",
    "TopicAliases",
    "encode",
    "encode_acknowledgements",
    "encode_properties",
    "encode_publishes",
    "encode_run",
    "publish_bytes",
]

PINGREQ_PACKET: Final = b"\xc0\x00"
PINGRESP_PACKET: Final = b"\xd0\x00"
MAX_REMAINING_BYTES: Final = 268_435_455

# topic, payload, QoS, retain, dup, packet identifier (0 for QoS 0), encoded properties with their length (5.0 only)
OutgoingPublish: TypeAlias = tuple[str, bytes, int, bool, bool, int, bytes]


class TopicAliases:
    """Aliases that we give to topics when we send: the first `maximum` topics of a connection get one.

    An alias takes a few bytes beside a topic that the client does not know it for yet, or that is shorter than the alias;
    a packet that would grow over `max_packet_bytes` (0: no limit) by it goes out without.
    """

    def __init__(self, maximum: int, max_packet_bytes: int = 0) -> None:
        self.maximum = maximum
        self.max_packet_bytes = max_packet_bytes
        self.known: dict[str, int] = {}


def _wire_short(value: int) -> i16:
    """An unsigned 16-bit number as the signed one with the same bits, which is what `write_i16_be` takes."""
    if value < 0 or value > 0xFFFF:
        raise ValueError(f"{value} does not fit 16 bits")
    return i16(value if value < 0x8000 else value - 0x10000)


def _put_remaining(out: BytesWriter, size: i64) -> None:
    if size < 0x80:
        out.append(int(size))
    else:
        put_varint(out, size)


def encode_publishes(messages: list[OutgoingPublish], version: int, aliases: TopicAliases | None = None) -> bytes:
    """A PUBLISH for each message. With `aliases` (5.0 only), topics are replaced by their alias once the client has it."""
    out = BytesWriter()
    with_properties = version == V5
    last_topic = ""
    last_raw = b""
    for topic, payload, qos, retain, dup, packet_id, properties in messages:
        if topic != last_topic:
            last_raw = topic.encode()
            if len(last_raw) > MAX_STRING_BYTES:
                raise ValueError(f"a topic of {len(last_raw)} bytes; at most {MAX_STRING_BYTES} fit")
            last_topic = topic
        raw = last_raw
        section = properties
        if aliases is not None:
            alias = aliases.known.get(topic, 0)
            if alias or len(aliases.known) < aliases.maximum:
                number = alias or len(aliases.known) + 1
                aliased, named = _with_alias(properties, number), b"" if alias else raw
                if _fits(aliases.max_packet_bytes, _publish_body_bytes(named, payload, qos, aliased)):
                    aliases.known[topic] = number
                    raw, section = named, aliased
        size: i64 = 2 + len(raw) + len(payload)
        if qos:
            size += 2
        if with_properties:
            size += len(section)
        out.append((PUBLISH << 4) | (8 if dup else 0) | (qos << 1) | (1 if retain else 0))
        _put_remaining(out, size)
        write_i16_be(out, _wire_short(len(raw)))
        out.write(raw)
        if qos:
            write_i16_be(out, _wire_short(packet_id))
        if with_properties:
            out.write(section)
        out.write(payload)
    return out.getvalue()


def encode_run(
    topic: str, payloads: list[bytes], qos: int, retain: bool, packet_ids: list[int], properties: bytes, version: int
) -> bytes:
    """A PUBLISH for each payload. `packet_ids` are theirs, and empty for QoS 0; the rest is the same for all."""
    raw = topic.encode()
    if len(raw) > MAX_STRING_BYTES:
        raise ValueError(f"a topic of {len(raw)} bytes; at most {MAX_STRING_BYTES} fit")
    out = BytesWriter()
    first = (PUBLISH << 4) | (qos << 1) | (1 if retain else 0)
    topic_bytes = _wire_short(len(raw))
    with_properties = version == V5
    rest: i64 = 2 + len(raw)
    if qos:
        rest += 2
    if with_properties:
        rest += len(properties)
    index: i64 = 0
    for payload in payloads:
        out.append(first)
        _put_remaining(out, rest + len(payload))
        write_i16_be(out, topic_bytes)
        out.write(raw)
        if qos:
            write_i16_be(out, _wire_short(packet_ids[index]))
            index += 1
        if with_properties:
            out.write(properties)
        out.write(payload)
    return out.getvalue()


def _with_alias(section: bytes, alias: int) -> bytes:
    reader = ValueReader(section, 0, len(section))
    size = reader.varint()
    out = BytesWriter()
    put_varint(out, size + 3)
    out.append(TOPIC_ALIAS)
    put_unsigned(out, alias, 2)
    out.write(reader.rest())
    return out.getvalue()


def publish_bytes(
    topic: str, payload: bytes, qos: int, properties: bytes, version: int, aliases: TopicAliases | None = None
) -> int:
    """How large a PUBLISH is at least, to hold against the client's maximum packet size."""
    size = _publish_body_bytes(topic.encode(), payload, qos, properties if version == V5 else b"")
    alias = aliases.known.get(topic, 0) if aliases is not None else 0
    if alias:
        size = min(size, _publish_body_bytes(b"", payload, qos, _with_alias(properties, alias)))
    return _packet_bytes(size)


def _publish_body_bytes(topic: bytes, payload: bytes, qos: int, section: bytes) -> int:
    return 2 + len(topic) + len(payload) + (2 if qos else 0) + len(section)


def _packet_bytes(size: int) -> int:
    """A packet's size from what it announces as its remaining length."""
    return size + 2 + (size > 0x7F) + (size > 0x3FFF) + (size > 0x1FFFFF)


def _fits(max_packet_bytes: int, size: int) -> bool:
    return max_packet_bytes == 0 or _packet_bytes(size) <= max_packet_bytes


def encode_acknowledgements(kind: int, packet_ids: list[int]) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP without reason for each id: four bytes each, the same in all versions."""
    out = BytesWriter()
    first = (kind << 4) | (2 if kind == PUBREL else 0)
    for packet_id in packet_ids:
        out.append(first)
        out.append(2)
        write_i16_be(out, _wire_short(packet_id))
    return out.getvalue()


# -- any packet ------------------------------------------------------------------------------------------------------


def encode(packet: Packet, version: int) -> bytes:
    if isinstance(packet, Publish):
        return encode_publishes(
            [
                (
                    packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id,
                    encode_properties(packet.properties),
                )
            ],
            version,
        )  # fmt: skip
    out = BytesWriter()
    if isinstance(packet, Acknowledgement):
        return _encode_acknowledgement(packet, version)
    if isinstance(packet, Connect):
        return _framed(CONNECT << 4, _connect(packet))
    if isinstance(packet, ConnAck):
        out.append(1 if packet.session_present and version != V31 else 0)
        put_unsigned(out, packet.reason_code, 1)
        _put_properties(out, packet.properties, version)
        return _framed(CONNACK << 4, out.getvalue())
    if isinstance(packet, Subscribe):
        return _framed((SUBSCRIBE << 4) | 2, _subscribe(packet, version))
    if isinstance(packet, SubAck):
        put_unsigned(out, packet.packet_id, 2)
        _put_properties(out, packet.properties, version)
        out.write(bytes(packet.reason_codes))
        return _framed(SUBACK << 4, out.getvalue())
    if isinstance(packet, Unsubscribe):
        put_unsigned(out, packet.packet_id, 2)
        _put_properties(out, packet.properties, version)
        for topic_filter in packet.topic_filters:
            put_text(out, topic_filter)
        return _framed((UNSUBSCRIBE << 4) | 2, out.getvalue())
    if isinstance(packet, UnsubAck):
        put_unsigned(out, packet.packet_id, 2)
        _put_properties(out, packet.properties, version)
        if version == V5:
            out.write(bytes(packet.reason_codes))
        return _framed(UNSUBACK << 4, out.getvalue())
    if isinstance(packet, Disconnect):
        kind, reason_code, properties = DISCONNECT, packet.reason_code, packet.properties
    elif isinstance(packet, Auth):
        kind, reason_code, properties = AUTH, packet.reason_code, packet.properties
    else:
        return _framed((PINGREQ if isinstance(packet, PingReq) else PINGRESP) << 4, b"")
    if version == V5 and (reason_code or properties is not None):
        put_unsigned(out, reason_code, 1)
        if properties is not None:
            out.write(encode_properties(properties))
    return _framed(kind << 4, out.getvalue())


def _framed(first: int, body: bytes) -> bytes:
    out = BytesWriter()
    out.append(first)
    put_varint(out, len(body))
    out.write(body)
    return out.getvalue()


def _put_properties(out: BytesWriter, properties: Properties | None, version: int) -> None:
    if version == V5:
        out.write(encode_properties(properties))


def _encode_acknowledgement(packet: Acknowledgement, version: int) -> bytes:
    kind = PUBREL
    if isinstance(packet, PubAck):
        kind = PUBACK
    elif isinstance(packet, PubRec):
        kind = PUBREC
    elif isinstance(packet, PubComp):
        kind = PUBCOMP
    properties = packet.properties
    if version != V5 or (packet.reason_code == 0 and properties is None):
        return encode_acknowledgements(kind, [packet.packet_id])
    out = BytesWriter()
    put_unsigned(out, packet.packet_id, 2)
    put_unsigned(out, packet.reason_code, 1)
    if properties is not None:
        out.write(encode_properties(properties))
    return _framed((kind << 4) | (2 if kind == PUBREL else 0), out.getvalue())


def _connect(packet: Connect) -> bytes:
    out = BytesWriter()
    put_text(out, "MQIsdp" if packet.version == V31 else "MQTT")
    put_unsigned(out, packet.version, 1)
    will = packet.will
    flags = 0x02 if packet.clean_start else 0
    if will is not None:
        flags |= 0x04 | (will.qos << 3) | (0x20 if will.retain else 0)
    if packet.user_name is not None:
        flags |= 0x80
    if packet.password is not None:
        flags |= 0x40
    out.append(flags)
    put_unsigned(out, packet.keep_alive_s, 2)
    _put_properties(out, packet.properties, packet.version)
    put_text(out, packet.client_id)
    if will is not None:
        _put_properties(out, will.properties, packet.version)
        put_text(out, will.topic)
        put_binary(out, will.payload)
    user_name = packet.user_name
    if user_name is not None:
        put_text(out, user_name)
    password = packet.password
    if password is not None:
        put_binary(out, password)
    return out.getvalue()


def _subscribe(packet: Subscribe, version: int) -> bytes:
    out = BytesWriter()
    put_unsigned(out, packet.packet_id, 2)
    _put_properties(out, packet.properties, version)
    for item in packet.subscriptions:
        put_text(out, item.topic_filter)
        options = item.qos
        if version == V5:
            options |= (4 if item.no_local else 0) | (8 if item.retain_as_published else 0)
            options |= item.retain_handling << 4
        out.append(options)
    return out.getvalue()
