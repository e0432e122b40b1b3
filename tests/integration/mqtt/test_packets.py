"""The shape of packets: flags, identifiers, lengths and text. What is malformed closes that connection and no other."""

from __future__ import annotations

import pytest

from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import properties
from trunkline.protocols.mqtt.codec import encode
from trunkline.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5
LENIENT = pytest.mark.ours_only("Mosquitto lets it pass")


def with_flags(data: bytes, flags: int) -> bytes:
    return bytes([(data[0] & 0xF0) | flags]) + data[1:]


@mqtt311(
    "MQTT-2.2.2-1", "MQTT-2.2.2-2", "MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-3.14.1-1", "MQTT-4.8.0-1"
)
@mqtt5("MQTT-2.1.3-1", "MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-3.14.1-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    ("packet", "flags"),
    [
        (Subscribe(1, [Subscription("a")]), 0),
        (Subscribe(1, [Subscription("a")]), 3),
        (Unsubscribe(1, ["a"]), 0),
        (PubRel(1), 0),
        pytest.param(PubAck(1), 1, marks=LENIENT),
        pytest.param(PubRec(1), 2, marks=LENIENT),
        pytest.param(PubComp(1), 8, marks=LENIENT),
        pytest.param(PingReq(), 1, marks=LENIENT),
        (Disconnect(), 1),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_reserved_flags_of_the_fixed_header_close_the_connection(
    client: ClientFactory, version: int, packet: PubRel, flags: int
) -> None:
    bystander, wire = client(version), client(version)
    wire.send_raw(with_flags(encode(packet, version), flags))
    wire.closed(0x81, 0x82)
    bystander.quiet()


@pytest.mark.parametrize("flags", [0x0A, 0x02, 0x00], ids=["dup", "as in 3.1.1", "none"])
def test_in_3_1_a_repeated_packet_has_dup_and_flags_without_a_meaning_are_passed_over(
    client: ClientFactory, topic: str, flags: int
) -> None:
    wire = client(V31)
    wire.send_raw(with_flags(encode(Subscribe(1, [Subscription(topic + "/other", 2)]), V31), flags))
    assert wire.receive(SubAck).reason_codes == [2]
    wire.send(Publish(topic, b"x", 2, False, False, 7))
    wire.receive(PubRec)
    wire.send_raw(with_flags(encode(PubRel(7), V31), flags))
    assert wire.receive(PubComp).packet_id == 7
    wire.send_raw(with_flags(encode(Unsubscribe(2, [topic + "/other"]), V31), flags))
    assert wire.receive(UnsubAck).packet_id == 2
    wire.send_raw(with_flags(encode(PingReq(), V31), flags))
    wire.receive(PingResp)
    wire.quiet()


@mqtt5("MQTT-3.15.1-1")
def test_reserved_flags_of_auth_close_the_connection(client: ClientFactory) -> None:
    wire = client(V5)
    wire.send_raw(b"\xf1\x00")
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-2.3.1-1")
@mqtt5("MQTT-2.2.1-3")
@pytest.mark.parametrize(
    "data",
    {
        "publish": (b"\x32\x06\x00\x01a\x00\x00x", b"\x32\x07\x00\x01a\x00\x00\x00x"),
        "subscribe": (b"\x82\x06\x00\x00\x00\x01a\x00", b"\x82\x07\x00\x00\x00\x00\x01a\x00"),
        "unsubscribe": (b"\xa2\x05\x00\x00\x00\x01a", b"\xa2\x06\x00\x00\x00\x00\x01a"),
    }.items(),
    ids=lambda item: item[0],
)
def test_packet_identifier_0_closes_the_connection(
    client: ClientFactory, version: int, data: tuple[str, tuple[bytes, bytes]]
) -> None:
    wire = client(version)
    wire.send_raw(data[1][0 if version == V311 else 1])
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-2.3.1-5", "MQTT-4.3.1-1", "MQTT-3.3.1-2")
@mqtt5("MQTT-2.2.1-2", "MQTT-4.3.1-1", "MQTT-3.3.1-2")
def test_a_qos_0_publish_has_no_packet_identifier_and_no_dup(client: ClientFactory, version: int, topic: str) -> None:
    wire = client(version)
    wire.subscribe(topic, 2)
    wire.publish(topic, b"\x00\x07seven", 0)
    message = wire.take()
    assert (message.payload, message.qos, message.dup, message.packet_id) == (b"\x00\x07seven", 0, False, 0)


@mqtt311("MQTT-3.3.1-2")
@mqtt5("MQTT-3.3.1-2")
@LENIENT
def test_dup_on_a_qos_0_publish_closes_the_connection(client: ClientFactory, version: int) -> None:
    wire = client(version)
    wire.send(Publish("a", b"x", 0, False, True))
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-3.3.1-4")
@mqtt5("MQTT-3.3.1-4")
def test_a_publish_of_qos_3_closes_the_connection(client: ClientFactory, version: int) -> None:
    wire = client(version)
    wire.send_raw(with_flags(encode(Publish("a", b"x", 1, False, False, 1), version), 0x06))
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.3.2-1", "MQTT-3.8.3-1", "MQTT-3.10.3-1", "MQTT-4.7.3-2")
@mqtt5("MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-3.3.2-1", "MQTT-3.8.3-1", "MQTT-3.10.3-1", "MQTT-4.7.3-2")
@pytest.mark.parametrize("bad", [b"\xc3\x28", b"\xed\xa0\x80", b"a\x00"], ids=["not utf-8", "surrogate", "null"])
@pytest.mark.parametrize("first", [0x30, 0x82, 0xA2], ids=["publish", "subscribe", "unsubscribe"])
def test_topics_must_be_utf_8_without_null(client: ClientFactory, version: int, first: int, bad: bytes) -> None:
    wire = client(version)
    section = b"\x00" if version == V5 else b""
    topic = len(bad).to_bytes(2, "big") + bad
    body = {0x30: topic + section, 0x82: b"\x00\x01" + section + topic + b"\x00", 0xA2: b"\x00\x01" + section + topic}[
        first
    ]
    wire.send_raw(bytes([first, len(body)]) + body)
    wire.closed(0x81, 0x82, 0x8F, 0x90)


@mqtt311("MQTT-1.5.3-3")
@mqtt5("MQTT-1.5.4-3")
def test_a_zero_width_no_break_space_is_a_character_like_any_other(
    client: ClientFactory, version: int, topic: str
) -> None:
    wire, publisher = client(version), client(version)
    wire.subscribe(f"\ufeff{topic}", 1)
    wire.subscribe(topic, 1)
    publisher.publish(f"\ufeff{topic}", b"with")
    assert wire.take().topic == f"\ufeff{topic}"
    publisher.publish(topic, b"without")
    assert wire.take().topic == topic
    wire.quiet()


@mqtt5("MQTT-1.5.5-1")
@pytest.mark.ours_only("Mosquitto takes lengths with more bytes than they need")
def test_a_length_with_more_bytes_than_it_needs_closes_the_connection(client: ClientFactory) -> None:
    wire = client(V5)
    wire.send_raw(b"\xc0\x80\x00")
    wire.closed(0x81)


@mqtt5("MQTT-1.5.5-1")
def test_a_length_of_five_bytes_closes_the_connection(client: ClientFactory, version: int) -> None:
    wire = client(version)
    wire.send_raw(b"\x30\xff\xff\xff\xff\x01")
    wire.closed(0x81, 0x82, 0x95)


@mqtt5("MQTT-1.5.7-1", "MQTT-3.3.2-13", "MQTT-3.3.2-19")
@pytest.mark.parametrize(
    "section",
    [
        b"\x26\x00\x01\xff\x00\x01v",
        b"\x26\x00\x01n\x00\x01\xff",
        b"\x26\x00\x01\x00\x00\x01v",
        b"\x08\x00\x01\xff",
        b"\x03\x00\x01\xff",
    ],
    ids=["user property name", "user property value", "null in a name", "response topic", "content type"],
)
def test_text_in_properties_must_be_utf_8(client: ClientFactory, section: bytes) -> None:
    wire = client(V5)
    body = b"\x00\x01a" + bytes([len(section)]) + section
    wire.send_raw(bytes([0x30, len(body)]) + body)
    wire.closed(0x81, 0x82)


@mqtt5("MQTT-2.2.2-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "section",
    [
        pytest.param(b"\x01\x02", marks=LENIENT),
        b"\x02\x00",
        b"\x11\x00\x00\x00\x01",
        b"\x02\x00\x00\x00\x01\x02\x00\x00\x00\x01",
        b"\x7f\x00",
    ],
    ids=["flag of 2", "cut short", "of another packet", "twice", "unknown"],
)
def test_wrong_properties_close_the_connection(client: ClientFactory, section: bytes) -> None:
    bystander, wire = client(V5), client(V5)
    body = b"\x00\x01a" + bytes([len(section)]) + section
    wire.send_raw(bytes([0x30, len(body)]) + body)
    wire.closed(0x81, 0x82)
    bystander.quiet()


@mqtt311("MQTT-3.8.3-3", "MQTT-3.10.3-2")
@mqtt5("MQTT-3.8.3-2", "MQTT-3.10.3-2")
@pytest.mark.parametrize("first", [0x82, 0xA2], ids=["subscribe", "unsubscribe"])
def test_a_request_without_a_topic_filter_closes_the_connection(
    client: ClientFactory, version: int, first: int
) -> None:
    wire = client(version)
    body = b"\x00\x01" + (b"\x00" if version == V5 else b"")
    wire.send_raw(bytes([first, len(body)]) + body)
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-3.8.3-4")
@mqtt5("MQTT-3.8.3-5")
@pytest.mark.parametrize("options", [0x03, 0x40, 0x80], ids=["qos 3", "reserved 6", "reserved 7"])
def test_reserved_subscription_options_close_the_connection(client: ClientFactory, version: int, options: int) -> None:
    wire = client(version)
    body = b"\x00\x01" + (b"\x00" if version == V5 else b"") + b"\x00\x01a" + bytes([options])
    wire.send_raw(bytes([0x82, len(body)]) + body)
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-3.8.3-4")
def test_options_of_5_0_are_reserved_bits_in_3_1_1(client: ClientFactory) -> None:
    wire = client(V311)
    wire.send_raw(b"\x82\x06\x00\x01\x00\x01a\x04")
    wire.closed()


@mqtt5("MQTT-3.3.1-11")
def test_retain_handling_3_is_a_protocol_error(client: ClientFactory) -> None:
    wire = client(V5)
    wire.send_raw(b"\x82\x07\x00\x01\x00\x00\x01a\x30")
    wire.closed(0x81, 0x82)


@mqtt311("MQTT-4.8.0-1")
@mqtt5("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        b"\x20\x02\x00\x00",
        pytest.param(b"\x90\x03\x00\x01\x00", marks=LENIENT),
        pytest.param(b"\xb0\x02\x00\x01", marks=LENIENT),
        pytest.param(b"\xd0\x00", marks=LENIENT),
        b"\x40\x01\x00",
    ],
    ids=["reserved type", "connack", "suback", "unsuback", "pingresp", "short puback"],
)
def test_packets_that_no_client_sends_close_the_connection(client: ClientFactory, version: int, data: bytes) -> None:
    bystander, wire = client(version), client(version)
    wire.send_raw(data)
    wire.closed(0x81, 0x82)
    bystander.quiet()


@mqtt311(
    "MQTT-2.3.1-6", "MQTT-2.3.1-7", "MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.10.4-4", "MQTT-3.12.4-1", "MQTT-3.3.4-1"
)
@mqtt5(
    "MQTT-2.2.1-5", "MQTT-2.2.1-6", "MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-3.12.4-1",
    "MQTT-3.3.4-1", "MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.7.2-1", "MQTT-3.9.3-2", "MQTT-3.11.3-2",
)  # fmt: skip
@pytest.mark.parametrize("packet_id", [1, 255, 256, 32_768, 65_535])
def test_answers_carry_the_packet_identifier_of_what_they_answer(
    client: ClientFactory, version: int, topic: str, packet_id: int
) -> None:
    wire = client(version)
    wire.send(Subscribe(packet_id, [Subscription(topic + "/other")]))
    suback = wire.receive(SubAck)
    assert (suback.packet_id, suback.reason_codes) == (packet_id, [0])
    wire.send(Publish(topic, b"x", 1, False, False, packet_id))
    puback = wire.receive(PubAck)
    assert puback.packet_id == packet_id
    assert puback.reason_code in {0x00, 0x10}
    wire.send(Publish(topic, b"x", 2, False, False, packet_id))
    pubrec = wire.receive(PubRec)
    assert pubrec.packet_id == packet_id
    assert pubrec.reason_code in {0x00, 0x10}
    wire.send(PubRel(packet_id))
    pubcomp = wire.receive(PubComp)
    assert (pubcomp.packet_id, pubcomp.reason_code) == (packet_id, 0)
    wire.send(Unsubscribe(packet_id, [topic + "/other"]))
    unsuback = wire.receive(UnsubAck)
    assert unsuback.packet_id == packet_id
    assert unsuback.reason_codes == ([] if version == V311 else [0])
    wire.send(PingReq())
    wire.receive(PingResp)


VIOLATIONS = {
    "topic not utf-8": (b"\x30\x06\x00\x02\xc3\x28\x00x", 0x81),
    "filter not utf-8": (b"\x82\x08\x00\x01\x00\x00\x02\xc3\x28\x00", 0x81),
    "user property not utf-8": (b"\x30\x0c\x00\x01a\x07\x26\x00\x01\xff\x00\x01yx", 0x81),
    "cut short": (b"\x82\x02\x00\x01", 0x81),
    "no such packet": (b"\x00\x00", 0x81),
    "a length of five bytes": (b"\x30\xff\xff\xff\xff\x7f", 0x81),
    "a property of another packet": (b"\x30\x07\x00\x01a\x02\x11\x00x", 0x81),
    "unknown topic alias": (b"\x30\x07\x00\x00\x03\x23\x00\x05x", 0x82),
    "topic alias 0": (b"\x30\x08\x00\x01a\x03\x23\x00\x00x", 0x94),
    "topic alias above the maximum": (b"\x30\x08\x00\x01a\x03\x23\xff\xffx", 0x94),
    "neither topic nor alias": (b"\x30\x04\x00\x00\x00x", 0x82),
    "a second CONNECT": (b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c", 0x82),
}


@mqtt5("MQTT-4.13.1-1")
@pytest.mark.ours_only("Mosquitto gives no reason string, and another code here and there")
@pytest.mark.parametrize("asked", [None, 1, 0], ids=["by default", "wanted", "not wanted"])
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violation_is_answered_with_its_reason_code_and_a_reason_string_if_it_is_wanted(
    client: ClientFactory, violation: str, asked: int | None
) -> None:
    data, reason_code = VIOLATIONS[violation]
    wire = client(V5, properties=None if asked is None else properties(request_problem_information=asked))
    wire.send_raw(data)
    farewell = wire.closed(reason_code)
    assert farewell is not None
    told = farewell.properties.reason_string if farewell.properties is not None else None
    assert bool(told) == (asked != 0)


@mqtt5("MQTT-3.7.2-1", "MQTT-4.3.3-11")
def test_a_pubrel_for_an_unknown_identifier_is_answered_with_0x92(client: ClientFactory) -> None:
    wire = client(V5)
    wire.send(PubRel(77))
    pubcomp = wire.receive(PubComp)
    assert pubcomp.packet_id == 77
    assert pubcomp.reason_code in {0x00, 0x92}


def test_packets_may_arrive_a_byte_at_a_time(client: ClientFactory, version: int, topic: str) -> None:
    wire = client(version)
    wire.subscribe(topic, 1)
    for byte in encode(Publish(topic, b"drip", 1, False, False, 9), version):
        wire.send_raw(bytes([byte]))
    kinds = {type(packet): packet for packet in (wire.receive_any(), wire.receive_any())}
    assert kinds.keys() == {PubAck, Publish}


def test_many_packets_may_arrive_at_once(client: ClientFactory, version: int, topic: str) -> None:
    wire, watcher = client(version), client(version)
    watcher.subscribe(topic, 1)
    count = 500
    wire.send(*[Publish(topic, b"%d" % number, 1, False, False, number + 1) for number in range(count)])
    assert [wire.receive(PubAck).packet_id for _ in range(count)] == list(range(1, count + 1))
    assert [watcher.take().payload for _ in range(count)] == [b"%d" % number for number in range(count)]
