"""CONNECT and CONNACK: who is let in, what both sides agree on, and what ends a connection before it begins."""

from __future__ import annotations

import string
from collections.abc import Callable

import pytest

from tests.integration.mqtt.brokers import MqttBroker, Trunkline
from tests.integration.mqtt.conftest import ClientFactory, Dial
from tests.integration.mqtt.wire import Closed, Wire, properties
from trunkline.protocols.mqtt.codec import encode
from trunkline.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    Subscribe,
    Subscription,
    Will,
)

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5

CLEAN = 0x02
WILL = 0x04
WILL_QOS_1 = 0x08
WILL_QOS_3 = 0x18
WILL_RETAIN = 0x20
PASSWORD = 0x40
USER_NAME = 0x80
RESERVED = 0x01


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def raw_connect(
    version: int, flags: int, payload: bytes, *, name: str | bytes = "MQTT", level: int | None = None, first: int = 0x10
) -> bytes:
    """A CONNECT put together by hand, so that it can be wrong."""
    body = text(name) + bytes([version if level is None else level, flags, 0, 0])
    body += (b"\x00" if version == V5 else b"") + payload
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def refused(wire: Wire, *reason_codes: int) -> None:
    """Closed, either at once or, in 5.0, after a CONNACK with such a reason code."""
    try:
        packet = wire.receive_any()
    except Closed:
        return
    assert wire.version == V5, f"3.1.1 closes without a CONNACK, got {packet!r}"
    assert isinstance(packet, ConnAck), packet
    assert packet.reason_code >= 0x80
    assert not reason_codes or packet.reason_code in reason_codes, f"0x{packet.reason_code:02x}"
    assert not packet.session_present
    wire.closed()


def raw_refusal(wire: Wire) -> bytes:
    """Everything that the broker sends until it closes."""
    said = b""
    while piece := wire.receive_raw():
        said += piece
    return said


@mqtt311("MQTT-3.1.0-1", "MQTT-3.2.0-1", "MQTT-4.8.0-1")
@mqtt5("MQTT-3.1.0-1", "MQTT-3.14.0-1")
@pytest.mark.parametrize(
    "packet",
    [Publish("a", b"x"), PingReq(), Subscribe(1, [Subscription("a")]), Disconnect()],
    ids=lambda packet: type(packet).__name__,
)
def test_a_first_packet_that_is_no_connect_closes_without_an_answer(dial: Dial, version: int, packet: Publish) -> None:
    wire = dial(version)
    wire.send(packet)
    assert wire.closed() is None


@mqtt311("MQTT-3.1.0-2")
@mqtt5("MQTT-3.1.0-2", "MQTT-3.2.0-2", "MQTT-4.13.1-1", "MQTT-4.13.2-1")
def test_a_second_connect_closes_the_connection(client: ClientFactory, version: int) -> None:
    wire = client(version)
    wire.send(Connect(version, "again"))
    wire.closed(0x82)


@mqtt311("MQTT-3.1.2-1")
@mqtt5("MQTT-3.1.2-1")
def test_another_protocol_name_is_refused(dial: Dial, version: int) -> None:
    wire = dial(version)
    wire.send_raw(raw_connect(version, CLEAN, text("c"), name="MQTX"))
    assert raw_refusal(wire) in {b"", b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"}


@mqtt311("MQTT-3.1.2-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
@mqtt5("MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [0, 2, 6, 127])
def test_an_unknown_protocol_level_is_refused_and_closed(dial: Dial, level: int) -> None:
    """A level above 5 may be told so in the form of 5.0; nobody can know what such a client reads."""
    wire = dial(V311)
    wire.send_raw(raw_connect(V311, CLEAN, text("c"), level=level))
    answers = {b"\x20\x02\x00\x01"} | ({b"\x20\x03\x00\x84\x00"} if level > V5 else set())
    assert raw_refusal(wire) in answers


def test_a_client_of_mqtt_3_1_is_served(dial: Dial, topic: str) -> None:
    wire, publisher = dial(V31), dial(V31)
    assert wire.connect("three-one").reason_code == 0
    assert publisher.connect("three-one-too").reason_code == 0
    assert wire.subscribe(topic, 1) == 1
    publisher.publish(topic, b"old", 1)
    assert wire.take().payload == b"old"


@mqtt311("MQTT-3.1.2-3", "MQTT-3.1.4-1")
@mqtt5("MQTT-3.1.2-3", "MQTT-3.1.4-1")
def test_the_reserved_connect_flag_must_be_0(dial: Dial, version: int) -> None:
    wire = dial(version)
    wire.send_raw(raw_connect(version, CLEAN | RESERVED, text("c")))
    refused(wire, 0x81, 0x82)


@mqtt311("MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-13", "MQTT-3.1.2-14", "MQTT-3.1.2-15")
@mqtt5("MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-12", "MQTT-3.1.2-13")
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (WILL, text("c")),
        (WILL_QOS_1, text("c")),
        (WILL_RETAIN, text("c")),
        (0, text("c") + text("t") + text("m")),
        (WILL | WILL_QOS_3, text("c") + b"\x00" + text("t") + text("m")),
    ],
    ids=["will missing", "qos without will", "retain without will", "will without flag", "will qos 3"],
)
def test_will_flags_and_will_fields_must_agree(dial: Dial, version: int, flags: int, payload: bytes) -> None:
    wire = dial(version)
    if version == V311 and flags & WILL_QOS_3 == WILL_QOS_3:
        payload = text("c") + text("t") + text("m")
    wire.send_raw(raw_connect(version, CLEAN | flags, payload))
    refused(wire, 0x81, 0x82, 0x9B)


@mqtt311("MQTT-3.1.2-18", "MQTT-3.1.2-19", "MQTT-3.1.2-20", "MQTT-3.1.2-21")
@mqtt5("MQTT-3.1.2-16", "MQTT-3.1.2-17", "MQTT-3.1.2-18", "MQTT-3.1.2-19")
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (USER_NAME, text("c")),
        (0, text("c") + text("name")),
        (USER_NAME | PASSWORD, text("c") + text("name")),
        (USER_NAME, text("c") + text("name") + text("secret")),
    ],
    ids=["user name missing", "user name without flag", "password missing", "password without flag"],
)
def test_user_name_and_password_must_agree_with_their_flags(
    dial: Dial, version: int, flags: int, payload: bytes
) -> None:
    wire = dial(version)
    wire.send_raw(raw_connect(version, CLEAN | flags, payload))
    refused(wire, 0x81, 0x82, 0x86)


@mqtt311("MQTT-3.1.2-22")
def test_a_password_needs_a_user_name_in_3_1_1(dial: Dial) -> None:
    wire = dial(V311)
    wire.send_raw(raw_connect(V311, CLEAN | PASSWORD, text("c") + text("secret")))
    refused(wire)


@mqtt311("MQTT-3.1.3-1", "MQTT-3.1.4-4")
@mqtt5("MQTT-3.1.3-1", "MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.2-1", "MQTT-3.2.2-8")
def test_a_connect_with_every_field_is_accepted(
    dial: Dial, version: int, topic: str, unique: Callable[[str], str]
) -> None:
    wire = dial(version)
    will = Will(topic, b"gone", 1, False)
    connack = wire.connect(unique("full"), will=will, user_name="someone", password=b"secret", keep_alive_s=60)
    assert (connack.reason_code, connack.session_present) == (0, False)
    wire.quiet()


@mqtt311("MQTT-3.1.3-3", "MQTT-3.1.4-1")
@mqtt5("MQTT-3.1.3-3")
def test_a_connect_without_a_client_id_field_is_refused(dial: Dial, version: int) -> None:
    wire = dial(version)
    wire.send_raw(raw_connect(version, CLEAN, b""))
    refused(wire, 0x81, 0x82)


@mqtt311("MQTT-3.1.3-4", "MQTT-3.1.3-10", "MQTT-3.1.3-11", "MQTT-1.5.3-1", "MQTT-1.5.3-2")
@mqtt5("MQTT-3.1.3-4", "MQTT-3.1.3-11", "MQTT-3.1.3-12", "MQTT-1.5.4-1", "MQTT-1.5.4-2")
@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xed\xa0\x80", b"a\x00b"], ids=["not utf-8", "surrogate", "null"])
@pytest.mark.parametrize("field", ["client id", "will topic", "user name"])
def test_text_in_a_connect_must_be_utf_8(dial: Dial, version: int, field: str, bad: bytes) -> None:
    will_properties = b"\x00" if version == V5 else b""
    flags, payload = {
        "client id": (0, text(bad)),
        "will topic": (WILL, text("c") + will_properties + text(bad) + text("m")),
        "user name": (USER_NAME, text("c") + text(bad)),
    }[field]
    wire = dial(version)
    wire.send_raw(raw_connect(version, CLEAN | flags, payload))
    refused(wire, 0x81, 0x82, 0x85, 0x90)


@mqtt5("MQTT-3.1.3-4", "MQTT-4.13.1-1")
@pytest.mark.ours_only("Mosquitto closes without a CONNACK")
@pytest.mark.parametrize(
    "data",
    [
        raw_connect(V5, CLEAN, text(b"\xc3\x28")),
        raw_connect(V5, CLEAN, b""),
        raw_connect(V5, CLEAN, text("c") + b"more"),
        raw_connect(V5, CLEAN | RESERVED, text("c")),
        raw_connect(V5, CLEAN, text("c"), first=0x11),
    ],
    ids=["not utf-8", "cut short", "too long", "reserved flag", "flags of the fixed header"],
)
def test_a_malformed_connect_of_5_0_is_answered_with_0x81_and_a_reason(dial: Dial, data: bytes) -> None:
    wire = dial(V5)
    wire.send_raw(data)
    connack = wire.receive(ConnAck)
    assert connack.reason_code == 0x81
    assert connack.properties is not None
    assert connack.properties.reason_string
    wire.closed()


@pytest.mark.ours_only("Mosquitto closes without a CONNACK")
@pytest.mark.parametrize(
    ("section", "told"), [(b"\x17\x00", False), (b"\x27\x00\x00\x00\x05", False), (b"\x17\x01", True)]
)
def test_the_answer_to_a_malformed_connect_heeds_the_properties_before_the_fault(
    dial: Dial, section: bytes, told: bool
) -> None:
    wire = dial(V5)
    body = text("MQTT") + bytes([V5, CLEAN, 0, 0, len(section)]) + section + text(b"\xc3\x28")
    wire.send_raw(bytes([0x10, len(body)]) + body)
    connack = wire.receive(ConnAck)
    assert connack.reason_code == 0x81
    assert (connack.properties is not None) == told
    wire.closed()


@mqtt5("MQTT-3.1.2-24", "MQTT-3.2.2-19", "MQTT-3.2.2-20")
@pytest.mark.parametrize("limit", [1, 4, 5, 12])
def test_a_connack_that_is_larger_than_the_client_takes_is_not_sent(
    mqtt: MqttBroker, dial: Dial, client: ClientFactory, unique: Callable[[str], str], limit: int
) -> None:
    """It would have to leave out what the client must know. The session of that client is not touched."""
    name = unique("small")
    before = client(V5, name)
    wire = dial(V5)
    wire.send(Connect(V5, name, properties=properties(maximum_packet_size=limit)))
    assert raw_refusal(wire) == b""
    if isinstance(mqtt, Trunkline):
        before.quiet()


@mqtt5("MQTT-3.1.2-24", "MQTT-3.2.2-19")
@pytest.mark.ours_only("Mosquitto gives no reason string")
@pytest.mark.parametrize(("limit", "answer"), [(4, b""), (5, b"\x20\x03\x00\x8c\x00"), (0, None)])
def test_a_refusal_fits_the_client_without_its_reason_string_or_is_not_sent(
    dial: Dial, limit: int, answer: bytes | None
) -> None:
    wire = dial(V5)
    wanted = properties(authentication_method="GUESS", maximum_packet_size=limit or None)
    wire.send(Connect(V5, "c", properties=wanted))
    if answer is not None:
        assert raw_refusal(wire) == answer
        return
    connack = wire.receive(ConnAck)
    assert connack.properties is not None
    assert connack.properties.reason_string


@pytest.mark.ours_only("Mosquitto has other limits")
@pytest.mark.parametrize(
    ("will_topic", "code"),
    [("$SYS/forged", 0x87), ("a/" * 128 + "a", 0x90), ("a" * 4097, 0x90)],
    ids=["$SYS", "deep", "long"],
)
@pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5.0"])
def test_a_will_that_could_not_be_published_is_refused_with_its_client(
    dial: Dial, version: int, will_topic: str, code: int
) -> None:
    wire = dial(version)
    assert wire.connect("testator", will=Will(will_topic, b"x", 1)).reason_code == (code if version == V5 else 5)
    wire.closed()


@mqtt311("MQTT-3.1.3-5")
@mqtt5("MQTT-3.1.3-5")
def test_client_ids_of_23_letters_and_digits_are_allowed(dial: Dial, version: int) -> None:
    alphabet = string.digits + string.ascii_letters
    for start in range(0, len(alphabet), 23):
        assert dial(version).connect(alphabet[start : start + 23]).reason_code == 0
    assert dial(version).connect("a").reason_code == 0


@mqtt311("MQTT-3.1.3-6")
def test_an_empty_client_id_gets_a_session_of_its_own_in_3_1_1(dial: Dial, topic: str) -> None:
    first, second = dial(V311), dial(V311)
    assert first.connect("").reason_code == 0
    assert second.connect("").reason_code == 0
    first.quiet()
    second.quiet()


@mqtt5("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
@pytest.mark.parametrize("clean_start", [True, False])
def test_an_empty_client_id_is_assigned_a_unique_one(dial: Dial, clean_start: bool) -> None:
    assigned: set[str] = set()
    for _ in range(3):
        wire = dial(V5)
        connack = wire.connect("", clean_start=clean_start)
        assert connack.reason_code == 0
        assert connack.properties is not None
        assert connack.properties.assigned_client_identifier
        assigned.add(connack.properties.assigned_client_identifier)
    assert len(assigned) == 3


@mqtt5("MQTT-3.1.3-7")
def test_the_assigned_client_id_names_the_session(dial: Dial) -> None:
    first = dial(V5)
    connack = first.connect("", clean_start=False, properties=properties(session_expiry_interval=60))
    assert connack.properties is not None
    name = connack.properties.assigned_client_identifier
    assert name is not None
    first.disconnect()
    second = dial(V5)
    assert second.connect(name, clean_start=False).session_present


@mqtt311("MQTT-3.1.3-8", "MQTT-3.1.3-9", "MQTT-3.1.3-7", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_an_empty_client_id_with_a_session_to_keep_gets_return_code_2_in_3_1_1(dial: Dial) -> None:
    wire = dial(V311)
    connack = wire.connect("", clean_start=False)
    assert (connack.reason_code, connack.session_present) == (2, False)
    wire.closed()


@pytest.mark.ours_only("Mosquitto takes identifiers of up to 65,535 bytes")
@mqtt5("MQTT-3.1.3-8", "MQTT-3.2.2-6", "MQTT-3.2.2-7")
def test_a_client_id_over_the_limit_gets_0x85(dial: Dial) -> None:
    wire = dial(V5)
    connack = wire.connect("c" * 5_000)
    assert (connack.reason_code, connack.session_present) == (0x85, False)
    wire.closed()


@pytest.mark.ours_only("Mosquitto takes identifiers of up to 65,535 bytes")
@mqtt311("MQTT-3.1.3-9")
def test_a_client_id_over_the_limit_gets_return_code_2(dial: Dial) -> None:
    wire = dial(V311)
    assert wire.connect("c" * 5_000).reason_code == 2
    wire.closed()


@mqtt311("MQTT-3.1.4-2", "MQTT-3.1.3-2")
@mqtt5("MQTT-3.1.3-2")
def test_a_second_client_with_the_same_id_takes_over(
    client: ClientFactory, version: int, unique: Callable[[str], str]
) -> None:
    name = unique("twin")
    first = client(version, name)
    second = client(version, name)
    first.closed(0x8E)
    second.quiet()


@mqtt5("MQTT-3.1.4-3", "MQTT-3.14.4-2")
@pytest.mark.ours_only("Mosquitto tells only clients whose session is kept")
def test_a_client_that_is_taken_over_is_told_0x8e(client: ClientFactory, unique: Callable[[str], str]) -> None:
    name = unique("twin")
    first = client(V5, name)
    client(V5, name)
    assert first.receive(Disconnect).reason_code == 0x8E
    first.closed()


@mqtt311("MQTT-3.1.4-5", "MQTT-3.2.2-6")
@mqtt5("MQTT-3.1.4-6", "MQTT-3.1.4-2")
def test_nothing_is_processed_after_a_refused_connect(
    dial: Dial, client: ClientFactory, version: int, topic: str
) -> None:
    watcher = client()
    watcher.subscribe(topic)
    wire = dial(version)
    wire.try_send_raw(
        raw_connect(version, CLEAN | RESERVED, text("c")) + encode(Publish(topic, b"smuggled", retain=True), version)
    )
    refused(wire)
    client().publish(topic, b"next", 0)
    assert watcher.take().payload == b"next"


@mqtt311("MQTT-3.2.0-1")
@mqtt5("MQTT-3.2.0-1", "MQTT-3.1.4-5")
def test_packets_sent_before_the_connack_are_answered_after_it(
    dial: Dial, version: int, unique: Callable[[str], str]
) -> None:
    wire = dial(version)
    wire.send(Connect(version, unique("eager")), PingReq(), PingReq())
    assert wire.receive(ConnAck).reason_code == 0
    wire.receive(PingResp)
    wire.receive(PingResp)


@mqtt311("MQTT-3.1.2-24")
@mqtt5("MQTT-3.1.2-22", "MQTT-3.2.2-22")
def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives_and_its_will_published(
    client: ClientFactory, version: int, topic: str
) -> None:
    watcher = client(keep_alive_s=0)
    watcher.subscribe(topic)
    silent = client(version, keep_alive_s=1, will=Will(topic, b"silent"))
    farewell = silent.closed(0x8D, timeout_s=20)
    assert version == V311 or farewell is None or farewell.reason_code == 0x8D
    assert watcher.take().payload == b"silent"


@mqtt311("MQTT-3.1.2-24")
@mqtt5("MQTT-3.1.2-22")
def test_a_client_that_pings_within_its_keep_alive_stays(client: ClientFactory, version: int) -> None:
    """Longer than one and a half keep-alives in all, with a packet every half keep-alive."""
    import time

    wire = client(version, keep_alive_s=1)
    for _ in range(6):
        wire.quiet()
        time.sleep(0.5)  # the passage of time is what is tested, not waited for
    wire.quiet()


@mqtt5("MQTT-3.1.2-28", "MQTT-3.2.2-9")
def test_connack_has_no_response_information_that_was_not_asked_for(client: ClientFactory) -> None:
    for asked in (None, 0):
        wire = client(V5, properties=properties(request_response_information=asked))
        assert wire.connack is not None
        told = wire.connack.properties
        assert told is None or told.response_information is None
        assert told is None or told.maximum_qos is None


@mqtt5("MQTT-4.12.0-1", "MQTT-4.12.0-4")
def test_an_unknown_authentication_method_is_refused_with_0x8c(dial: Dial) -> None:
    wire = dial(V5)
    connack = wire.connect("who", properties=properties(authentication_method="NO-SUCH-METHOD"))
    assert connack.reason_code == 0x8C
    wire.closed()


@mqtt5("MQTT-4.12.0-6", "MQTT-4.12.0-7")
def test_auth_without_an_authentication_method_is_a_protocol_error(client: ClientFactory) -> None:
    wire = client(V5)
    assert wire.connack is not None
    assert wire.connack.properties is None or wire.connack.properties.authentication_method is None
    wire.send(Auth(0x19, properties(authentication_method="PLAIN")))
    wire.closed(0x82, 0x8C)


@mqtt5("MQTT-3.1.4-1", "MQTT-2.2.2-1")
@pytest.mark.parametrize(
    "section",
    [
        b"\x03\x21\x00\x00",
        b"\x05\x27\x00\x00\x00\x00",
        b"\x06\x21\x00\x01\x21\x00\x01",
        b"\x02\x17\x02",
        b"\x03\x23\x00\x01",
    ],
    ids=["receive maximum 0", "packet size 0", "twice", "flag of 2", "not a connect property"],
)
def test_wrong_connect_properties_are_refused(dial: Dial, section: bytes) -> None:
    wire = dial(V5)
    body = text("MQTT") + bytes([V5, CLEAN, 0, 0]) + section + text("c")
    wire.send_raw(bytes([0x10, len(body)]) + body)
    refused(wire, 0x81, 0x82)
