"""The MQTT codec: every packet in every version, in any cutting; violations with the reason code that they deserve."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.mqtt.codec_samples import client_packets, connects, filled, publishes, server_packets
from trunkline.protocols.mqtt import codec
from trunkline.protocols.mqtt.codec import MalformedPacket, Parser, TopicAliases, encode
from trunkline.protocols.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Acknowledgements,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publications,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Will,
)
from trunkline.protocols.mqtt.properties import Properties

versions = st.sampled_from([V31, V311, V5])
CONNECT = {version: encode(Connect(version, "c"), version) for version in (V31, V311, V5)}


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(marks)]


def refusal(sent: bytes, version: int = V5, topic_alias_maximum: int = 0) -> int:
    """The reason code that `sent`, after a CONNECT, ends in; it must end the parser, too."""
    parser = Parser(topic_alias_maximum=topic_alias_maximum)
    assert parser.feed(CONNECT[version]) == [Connect(version, "c")]
    events = parser.feed(sent)
    assert events, "nothing was refused"
    error = events[-1]
    assert isinstance(error, MalformedPacket), error
    assert error.version == version
    assert parser.stopped
    assert parser.feed(codec.PINGREQ_PACKET) == []
    return error.reason_code


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([first, len(body)]) + body


@given(versions, st.data())
def test_clients_packets_survive_any_cutting(version: int, data: st.DataObject) -> None:
    connect = data.draw(connects(version))
    packets: list[Packet] = [connect, *data.draw(st.lists(client_packets(version), max_size=6))]
    sent = b"".join(encode(item, version) for item in packets)
    parser = Parser()
    pieces = cut(sent, data.draw(st.lists(st.integers(0, 9999), max_size=8)))
    assert [event for piece in pieces for event in parser.feed(memoryview(piece))] == packets
    assert parser.buffered_bytes == 0
    assert parser.version == version


@given(versions, st.data())
def test_runs_stand_for_the_same_packets_in_any_cutting(version: int, data: st.DataObject) -> None:
    kinds = client_packets(version)
    # Repeated, because runs are of packets that resemble each other.
    drawn = data.draw(st.lists(st.tuples(kinds, st.integers(1, 3)), max_size=5))
    packets: list[Packet] = [item for item, count in drawn for _ in range(count)]
    sent = CONNECT[version] + b"".join(encode(item, version) for item in packets)
    pieces = cut(sent, data.draw(st.lists(st.integers(0, 9999), max_size=5)))
    plain, in_runs = Parser(), Parser(in_runs=True)
    expected = [event for piece in pieces for event in plain.feed(piece)]
    found: list[object] = []
    for piece in pieces:
        for event in in_runs.feed(piece):
            found.extend(event.packets() if isinstance(event, Publications | Acknowledgements) else [event])
    for event in expected:
        if isinstance(event, Publish) and not event.retain and event.properties is None:
            event.dup = False  # a run does not tell
    assert found == expected


def test_a_run_ends_where_topic_qos_or_kind_change() -> None:
    parser = Parser(in_runs=True)
    parser.feed(CONNECT[V311])
    packets: list[Packet] = [
        Publish("a", b"1", 1, packet_id=1),
        Publish("a", b"2", 1, packet_id=2),
        Publish("b", b"3", 1, packet_id=3),
        Publish("b", b"4"),
        Publish("b", b"5", retain=True),
        Publish("b", b"6"),
        PubAck(7),
        PubAck(8),
        PubRec(9),
        PingReq(),
        PubRec(10),
    ]
    assert parser.feed(b"".join(encode(item, V311) for item in packets)) == [
        Publications("a", 1, [b"1", b"2"], [1, 2]),
        Publications("b", 1, [b"3"], [3]),
        Publications("b", 0, [b"4"], []),
        Publish("b", b"5", retain=True),
        Publications("b", 0, [b"6"], []),
        Acknowledgements(PUBACK, [7, 8]),
        Acknowledgements(PUBREC, [9]),
        PingReq(),
        Acknowledgements(PUBREC, [10]),
    ]


def test_what_came_before_a_violation_is_in_the_run() -> None:
    parser = Parser(in_runs=True)
    parser.feed(CONNECT[V311])
    good = encode(Publish("a", b"1", 1, packet_id=1), V311)
    run, error = parser.feed(good + good + b"\x32\x05\x00\x01a\x00\x00")
    assert run == Publications("a", 1, [b"1", b"1"], [1, 1])
    assert isinstance(error, MalformedPacket)


@given(versions, st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 2), st.booleans())
def test_a_run_is_encoded_as_its_messages_are(version: int, payloads: list[bytes], qos: int, retain: bool) -> None:
    packet_ids = list(range(65_531, 65_531 + len(payloads))) if qos else []
    properties = codec.encode_properties(filled({"content_type": "t"}))
    singly = [
        ("t/ü", payload, qos, retain, False, packet_ids[index] if qos else 0, properties)
        for index, payload in enumerate(payloads)
    ]
    encoded = codec.encode_run("t/ü", payloads, qos, retain, packet_ids, properties, version)
    assert encoded == codec.encode_publishes(singly, version)


@given(versions, st.data())
def test_servers_packets_survive_single_bytes(version: int, data: st.DataObject) -> None:
    packets = data.draw(st.lists(server_packets(version), max_size=4))
    sent = b"".join(encode(item, version) for item in packets)
    parser = Parser(server_side=False, version=version)
    assert [event for at in range(len(sent)) for event in parser.feed(sent[at : at + 1])] == packets


@given(versions, st.data())
def test_every_packet_cut_short_is_malformed(version: int, data: st.DataObject) -> None:
    body = encode(data.draw(connects(version)), version)
    header_bytes = 2 if len(body) < 130 else 3
    for size in range(len(body) - header_bytes):
        short = Parser().feed(body[:1] + _varint(size) + body[header_bytes : header_bytes + size])
        assert len(short) == 1
        assert isinstance(short[0], MalformedPacket)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


@given(versions, st.data())
def test_damage_gives_packets_or_malformed_packet_and_nothing_else(version: int, data: st.DataObject) -> None:
    packets = data.draw(st.lists(client_packets(version), min_size=1, max_size=4))
    damaged = bytearray(CONNECT[version] + b"".join(encode(item, version) for item in packets))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    whole = Parser(topic_alias_maximum=5).feed(bytes(damaged))
    again = Parser(topic_alias_maximum=5)
    pieces = cut(bytes(damaged), data.draw(st.lists(st.integers(0, 9999), max_size=5)))
    assert [repr(event) for piece in pieces for event in again.feed(piece)] == [repr(event) for event in whole]


@settings(max_examples=300)
@given(versions, st.integers(0, 255), st.binary(max_size=127))
def test_noise_in_a_packet_is_a_packet_or_malformed(version: int, first: int, body: bytes) -> None:
    for parser in (Parser(), Parser(server_side=False, version=version)):
        parser.feed(CONNECT[version])
        for event in parser.feed(packet(first, body)):
            assert isinstance(event, (Packet, MalformedPacket))


# -- the first packet ------------------------------------------------------------------------------------------------


def first(sent: bytes) -> MalformedPacket:
    (error,) = Parser().feed(sent)
    assert isinstance(error, MalformedPacket)
    return error


def connect_bytes(name: bytes, level: int, flags: int, rest: bytes = b"\x00\x01c") -> bytes:
    properties = b"\x00" if level == V5 else b""
    return packet(0x10, len(name).to_bytes(2, "big") + name + bytes([level, flags, 0, 60]) + properties + rest)


def test_the_first_packet_is_a_connect_and_there_is_no_second() -> None:
    assert first(codec.PINGREQ_PACKET).reason_code == 0x82
    assert first(encode(Publish("t", b""), V311)).reason_code == 0x82
    assert first(encode(PubAck(1), V311)).reason_code == 0x82
    assert refusal(CONNECT[V5]) == 0x82


@pytest.mark.parametrize("sent", [connect_bytes(b"MQTT", 6, 2), connect_bytes(b"MQTT", 3, 2), connect_bytes(b"MQIsdp", 4, 2),
                                  connect_bytes(b"HTTP", 4, 2), connect_bytes(b"mqtt", 4, 2)])  # fmt: skip
def test_unknown_versions_are_told_so(sent: bytes) -> None:
    error = first(sent)
    assert error.reason_code == 0x84
    assert error.version == sent[4 + sent[3]]


@pytest.mark.parametrize(
    "sent",
    [
        connect_bytes(b"MQTT", 4, 0x03),
        connect_bytes(b"MQTT", 5, 0x03),
        connect_bytes(b"MQTT", 4, 0x1E, b"\x00\x01c\x00\x01t\x00\x00"),
        connect_bytes(b"MQTT", 4, 0x0A),
        connect_bytes(b"MQTT", 4, 0x22),
        connect_bytes(b"MQTT", 4, 0x42, b"\x00\x01c\x00\x01p"),
        connect_bytes(b"MQTT", 4, 0x06, b"\x00\x01c\x00\x01#\x00\x00"),
        connect_bytes(b"MQTT", 4, 0x02, b"\x00\x01\x00"),
        connect_bytes(b"MQTT", 4, 0x02, b"\x00\x03\xed\xa0\x80"),
        connect_bytes(b"MQTT", 4, 0x02, b"\x00\x01c!"),
        b"\x11" + connect_bytes(b"MQTT", 4, 0x02)[1:],
        b"\x10\x80\x80\x80\x80\x01",
        b"\x10\x8d\x00" + connect_bytes(b"MQTT", 4, 0x02)[2:],
    ],
)
def test_malformed_connects(sent: bytes) -> None:
    assert first(sent).reason_code == 0x81


def test_password_alone_is_for_version_5_only() -> None:
    sent = connect_bytes(b"MQTT", 5, 0x42, b"\x00\x01c\x00\x01p")
    assert Parser().feed(sent) == [Connect(V5, "c", True, 60, None, None, b"p")]


def test_will_flags_reach_the_will() -> None:
    will = Will("last/words", b"bye", 2, True)
    sent = encode(Connect(V311, "c", False, 9, will, "u", b"\x00\xff"), V311)
    assert Parser().feed(sent) == [Connect(V311, "c", False, 9, will, "u", b"\x00\xff")]


# -- packets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (packet(0x36, b"\x00\x01t\x00\x01\x00"), 0x81),  # QoS 3
        (packet(0x38, b"\x00\x01t\x00"), 0x81),  # DUP with QoS 0
        (packet(0x30, b"\x00\x03a/#\x00"), 0x81),
        (packet(0x30, b"\x00\x01+\x00"), 0x81),
        (packet(0x30, b"\x00\x03a\x00b\x00"), 0x81),
        (packet(0x30, b"\x00\x01\xff\x00"), 0x81),
        (packet(0x30, b"\x00"), 0x81),
        (packet(0x30, b"\x00\x09t"), 0x81),
        (packet(0x30, b"\x00\x01t"), 0x81),  # 5.0 without a property length
        (packet(0x32, b"\x00\x01t\x00"), 0x81),
        (packet(0x32, b"\x00\x01t\x00\x00\x00"), 0x82),  # packet identifier 0
        (packet(0x30, b"\x00\x00\x00"), 0x82),  # no topic, no alias
        (packet(0x40, b"\x00\x00"), 0x82),
        (packet(0x41, b"\x00\x01"), 0x81),
        (packet(0x60, b"\x00\x01"), 0x81),  # PUBREL without its flags
        (packet(0x62, b"\x00\x01\x10"), 0x82),  # a reason that PUBREL does not have
        (packet(0x40, b"\x00\x01\x92"), 0x82),
        (packet(0x40, b"\x00\x01\x00\x00!"), 0x81),
        (packet(0x80, b"\x00\x01\x00\x00\x01t\x00"), 0x81),
        (packet(0x82, b"\x00\x01\x00"), 0x82),  # no filter
        (packet(0x82, b"\x00\x00\x00\x00\x01t\x00"), 0x82),
        (packet(0x82, b"\x00\x01\x00\x00\x00\x00"), 0x81),  # an empty filter
        (packet(0x82, b"\x00\x01\x00\x00\x01t"), 0x81),
        (packet(0x82, b"\x00\x01\x00\x00\x01t\x03"), 0x82),
        (packet(0x82, b"\x00\x01\x00\x00\x01t\x30"), 0x82),
        (packet(0x82, b"\x00\x01\x00\x00\x01t\x40"), 0x81),
        (packet(0xA2, b"\x00\x01\x00"), 0x82),
        (packet(0xA0, b"\x00\x01\x00\x00\x01t"), 0x81),
        (packet(0xC0, b"!"), 0x81),
        (packet(0xC1, b""), 0x81),
        (packet(0xE0, b"\x8b"), 0x82),  # only a server says that it shuts down
        (packet(0xF0, b"\x18\x00"), None),
        (packet(0xF0, b"\x01\x00"), 0x82),
        (packet(0xF0, b"\x18\x03\x16\x00\x00"), 0x82),  # data without a method
        (packet(0x00, b""), 0x81),
        (packet(0x20, b"\x00\x00\x00"), 0x82),  # CONNACK, from a client
        (packet(0x90, b"\x00\x01\x00\x00"), 0x82),
        (packet(0xB0, b"\x00\x01\x00\x00"), 0x82),
        (packet(0xD0, b""), 0x82),
        (b"\x30\xff\xff\xff\xff\x01", 0x81),
        (b"\x30\x84\x00\x00\x01t\x00", 0x81),  # a remaining length of more bytes than it needs
    ],
)  # fmt: skip
def test_violations_of_version_5(sent: bytes, reason: int | None) -> None:
    if reason is None:
        parser = Parser()
        parser.feed(CONNECT[V5])
        assert parser.feed(sent) == [Auth(0x18)]
    else:
        assert refusal(sent) == reason


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (packet(0x30, b"\x00\x00"), 0x81),
        (packet(0x40, b"\x00\x01\x00"), 0x81),
        (packet(0x82, b"\x00\x01\x00\x01t\x04"), 0x81),
        (packet(0x82, b"\x00\x01\x00\x01t\x03"), 0x82),
        (packet(0xE0, b"\x00"), 0x81),
        (packet(0xF0, b""), 0x81),
    ],
)
@pytest.mark.parametrize("version", [V31, V311])
def test_violations_of_older_versions(sent: bytes, reason: int, version: int) -> None:
    assert refusal(sent, version) == reason


def section(*encoded: bytes) -> bytes:
    body = b"".join(encoded)
    return bytes([len(body)]) + body


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (section(b"\x01\x02"), 0x82),  # a flag that is neither 0 nor 1
        (section(b"\x01\x00", b"\x01\x00"), 0x82),  # twice
        (section(b"\x03\x00\x01a", b"\x03\x00\x01a"), 0x82),
        (section(b"\x11\x00\x00\x00\x00"), 0x81),  # belongs in CONNECT
        (section(b"\x7f\x00"), 0x81),  # does not exist
        (section(b"\x00"), 0x81),
        (section(b"\x02\x00"), 0x81),
        (section(b"\x26\x00\x01a"), 0x81),
        (section(b"\x03\x00\x01\x00"), 0x81),
        (section(b"\x23\x00\x00"), 0x94),
        (section(b"\x23\x00\x06"), 0x94),  # over the maximum
        (section(b"\x0b\x01"), 0x82),  # only a server sends subscription identifiers
        (section(b"\x0b\x00"), 0x82),
        (section(b"\x08\x00\x01#"), 0x82),
        (b"\x20\x01", 0x81),  # longer than the packet
        (b"\x80\x80\x80\x80\x01", 0x81),
        (b"\x80\x00", 0x81),
    ],
)
def test_properties_are_checked(properties: bytes, reason: int) -> None:
    assert refusal(packet(0x30, b"\x00\x01t" + properties), topic_alias_maximum=5) == reason


def test_user_properties_repeat_and_keep_their_order() -> None:
    message = Publish("t", b"", properties=filled({"user_properties": [("b", "1"), ("a", "2"), ("b", "1")]}))
    (read,) = Parser(server_side=False, version=V5).feed(encode(message, V5))
    assert isinstance(read, Publish)
    assert read.properties is not None
    assert read.properties.user_properties == [("b", "1"), ("a", "2"), ("b", "1")]


def test_subscription_identifiers_repeat_in_a_publish_to_a_client() -> None:
    message = Publish("t", b"", properties=filled({"subscription_identifiers": [1, 268_435_455]}))
    assert Parser(server_side=False, version=V5).feed(encode(message, V5)) == [message]
    twice = Subscribe(1, [Subscription("t")], filled({"subscription_identifiers": [1, 2]}))
    assert refusal(encode(twice, V5)) == 0x82


def test_packets_over_the_limit_are_refused_from_their_first_bytes() -> None:
    parser = Parser(max_packet_bytes=100)
    parser.feed(CONNECT[V311])
    assert parser.feed(encode(Publish("t", bytes(95)), V311)) == [Publish("t", bytes(95))]
    (error,) = parser.feed(b"\x30\x64")
    assert isinstance(error, MalformedPacket)
    assert error.reason_code == 0x95


def test_packets_that_only_the_client_sends_are_refused_by_a_client() -> None:
    for item in (Connect(V5, "c"), Subscribe(1, [Subscription("t")]), PingReq()):
        (error,) = Parser(server_side=False, version=V5).feed(encode(item, V5))
        assert isinstance(error, MalformedPacket)
        assert error.reason_code == 0x82


# -- topic aliases ---------------------------------------------------------------------------------------------------


def test_topic_aliases_are_resolved_when_read() -> None:
    parser = Parser(topic_alias_maximum=2)
    parser.feed(CONNECT[V5])
    alias = b"\x03\x23\x00\x02"
    assert parser.feed(packet(0x30, b"\x00\x01a" + alias) + packet(0x30, b"\x00\x00" + alias + b"x")) == [
        Publish("a", b"", properties=Properties()),
        Publish("a", b"x", properties=Properties()),
    ]
    assert parser.feed(packet(0x30, b"\x00\x01b" + alias) + packet(0x30, b"\x00\x00" + alias)) == [
        Publish("b", b"", properties=Properties()),
        Publish("b", b"", properties=Properties()),
    ]
    (error,) = parser.feed(packet(0x30, b"\x00\x00\x03\x23\x00\x01"))
    assert isinstance(error, MalformedPacket)
    assert error.reason_code == 0x82


@given(st.lists(publishes(V5), max_size=10), st.integers(0, 3))
def test_topic_aliases_save_topics_and_change_nothing_else(messages: list[Publish], maximum: int) -> None:
    messages = [*messages, *messages]
    outgoing = [
        (m.topic, m.payload, m.qos, m.retain, m.dup, m.packet_id, codec.encode_properties(m.properties))
        for m in messages
    ]
    aliases = TopicAliases(maximum)
    sent = codec.encode_publishes(outgoing, V5, aliases)
    assert len(aliases.known) == min(maximum, len({message.topic for message in messages}))
    parser = Parser(server_side=False, version=V5, topic_alias_maximum=maximum)
    read = [event for event in parser.feed(sent) if isinstance(event, Publish)]
    assert [(m.topic, m.payload, m.qos, m.retain, m.dup, m.packet_id, m.properties or Properties()) for m in read] == [
        (m.topic, m.payload, m.qos, m.retain, m.dup, m.packet_id, m.properties or Properties()) for m in messages
    ]


# -- writing ---------------------------------------------------------------------------------------------------------


@given(versions, st.data())
def test_publish_bytes_is_the_size_of_the_packet(version: int, data: st.DataObject) -> None:
    message = data.draw(publishes(version))
    message.payload *= data.draw(st.sampled_from([1, 10, 2000]))
    properties = codec.encode_properties(message.properties)
    assert codec.publish_bytes(message.topic, message.payload, message.qos, properties, version) == len(
        encode(message, version)
    )


def test_acknowledgements_in_bulk_are_those_packets() -> None:
    ids = [1, 0x7FFF, 0x8000, 0xFFFF]
    for kind, made in ((PUBACK, PubAck), (PUBREC, PubRec), (PUBREL, PubRel), (PUBCOMP, PubComp)):
        assert Parser(server_side=False, version=V311).feed(codec.encode_acknowledgements(kind, ids)) == [
            made(number) for number in ids
        ]


def test_version_3_1_has_no_session_present_flag() -> None:
    assert encode(ConnAck(True, 0), V31) == b"\x20\x02\x00\x00"
    assert encode(ConnAck(True, 0), V311) == b"\x20\x02\x01\x00"
    assert encode(ConnAck(True, 0), V5) == b"\x20\x03\x01\x00\x00"


def test_short_forms_of_version_5() -> None:
    assert encode(Disconnect(), V5) == b"\xe0\x00"
    assert encode(Disconnect(0x8E), V5) == b"\xe0\x01\x8e"
    assert encode(PubAck(7), V5) == b"\x40\x02\x00\x07"
    assert encode(PubAck(7, 0x10), V5) == b"\x40\x03\x00\x07\x10"


def test_what_does_not_fit_is_refused_when_written() -> None:
    with pytest.raises(ValueError, match="at most 65535"):
        encode(Publish("t" * 65_536, b""), V311)
    with pytest.raises(ValueError, match="16 bits"):
        codec.encode_acknowledgements(PUBACK, [65_536])
    with pytest.raises(ValueError, match="2 bytes"):
        encode(Connect(V311, "c", keep_alive_s=70_000), V311)


# -- what is held ------------------------------------------------------------------------------------------------------


def test_the_first_packet_is_held_to_a_smaller_limit() -> None:
    parser = Parser(max_packet_bytes=10_000, max_connect_bytes=100)
    assert parser.feed(b"\x10\x62") == []
    (refusal,) = Parser(max_packet_bytes=10_000, max_connect_bytes=100).feed(b"\x10\x63")
    assert isinstance(refusal, MalformedPacket)
    assert refusal.reason_code == 0x95
    connected = Parser(max_packet_bytes=10_000, max_connect_bytes=100)
    connect = encode(Connect(V311, "client", True, 0, None, None, None, None), V311)
    publish = encode(Publish("t", bytes(5_000), 0, False, False, 0, None), V311)
    events = connected.feed(connect + publish)
    assert [type(event) for event in events] == [Connect, Publish]


def test_what_a_parser_holds_is_known() -> None:
    parser = Parser(topic_alias_maximum=10)
    parser.feed(encode(Connect(V5, "client", True, 0, None, None, None, None), V5))
    assert parser.held_bytes == 0
    packet = encode(Publish("a/topic", bytes(500), 0, False, False, 0, None), V5)
    parser.feed(packet[:400])
    assert parser.held_bytes >= 400
    parser.feed(packet[400:])
    assert parser.held_bytes == 2 * len("a/topic"), "its name is remembered"
    for number in range(200):
        parser.feed(encode(Publish(f"{number:060000d}", b"", 0, False, False, 0, None), V5))
    assert parser.held_bytes < 1_300_000, "names are remembered up to a megabyte"
