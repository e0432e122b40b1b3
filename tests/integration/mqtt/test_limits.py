"""Limits: each has a setting, an answer in MQTT's own terms, and leaves everybody else alone."""

from __future__ import annotations

import pytest

from tests.integration.mqtt.brokers import MqttBroker, Trunkline
from tests.integration.mqtt.conftest import MqttBrokerFactory
from tests.integration.mqtt.wire import Closed, Wire, properties
from trunkline.client import Client
from trunkline.client.topics import Topics
from trunkline.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    ConnAck,
    Connect,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
)

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5
pytestmark = pytest.mark.ours_only("settings are Trunkline's")


def test_connections_over_the_limit_are_closed(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with(mqtt_max_connections="2")
    with Wire(broker.port) as first, Wire(broker.port) as second:
        first.connect("first")
        second.connect("second")
        with Wire(broker.port) as third:
            third.try_send_raw(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
            with pytest.raises(Closed):
                third.receive_any()
        first.quiet()
        second.quiet()


@mqtt5("MQTT-3.2.2-15", "MQTT-3.1.4-1")
def test_the_maximum_packet_size_is_told_and_kept(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with(mqtt_max_packet_bytes="1000")
    with Wire(broker.port, V5) as bystander, Wire(broker.port, V5) as wire:
        bystander.connect("bystander")
        connack = wire.connect("wire")
        assert connack.properties is not None
        assert connack.properties.maximum_packet_size == 1_000
        wire.publish("a", bytes(980))
        wire.send(Publish("a", bytes(1_000)))
        wire.closed(0x95)
        bystander.quiet()


@mqtt5("MQTT-3.3.4-7")
def test_the_receive_maximum_is_told_and_kept(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with(mqtt_receive_maximum="3")
    with Wire(broker.port, V5) as wire:
        connack = wire.connect("wire")
        assert connack.properties is not None
        assert connack.properties.receive_maximum == 3
        for packet_id in range(1, 4):
            wire.send(Publish("a", b"x", 2, False, False, packet_id))
        for _ in range(3):
            wire.receive_any()
        wire.send(Publish("a", b"x", 2, False, False, 4))
        wire.closed(0x93)


def test_subscriptions_sessions_and_levels_over_the_limit_are_refused(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with(mqtt_max_subscriptions="2", mqtt_max_sessions="2", mqtt_max_topic_levels="4")
    with Wire(broker.port, V5) as wire, Wire(broker.port, V5) as other:
        wire.connect("wire")
        wire.send(Subscribe(1, [Subscription(name, 1) for name in ("a", "a/b/c/d/e", "b", "c", "a")]))
        assert wire.receive(SubAck).reason_codes == [1, 0x8F, 1, 0x97, 1]
        assert wire.publish("a/b/c/d", b"x") < 0x80
        assert wire.publish("a/b/c/d/e", b"x") == 0x90
        assert other.connect("other").reason_code == 0
        with Wire(broker.port, V5) as third:
            assert third.connect("third").reason_code == 0x97
            third.closed()
        wire.quiet()


TOO_LARGE = {"deep": "a/" * 128 + "a", "long": "a" * 4_097}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5.0"])
def test_a_publication_to_a_topic_over_the_limits_is_refused_and_never_acknowledged(
    mqtt: MqttBroker, version: int, name: str, qos: int
) -> None:
    with Wire(mqtt.port, version) as wire, Wire(mqtt.port, version) as bystander:
        wire.connect("over-the-limits")
        bystander.connect("bystander")
        wire.send(Publish(name, b"x", qos, False, False, 7 if qos else 0))
        if version == V5 and qos:
            answer = wire.receive(PubAck if qos == 1 else PubRec)
            assert (answer.packet_id, answer.reason_code) == (7, 0x90)
            assert answer.properties is not None
            assert answer.properties.reason_string
            wire.quiet()
        else:
            wire.closed(0x90)
        bystander.quiet()


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
def test_what_its_log_topic_does_not_take_is_not_acknowledged_however_often_it_comes(
    mqtt_with: MqttBrokerFactory, version: int
) -> None:
    """QoS 2 of a kept session: the identifier of what was refused is not taken for one that is known."""
    broker = mqtt_with()
    assert isinstance(broker, Trunkline)
    with Client(broker.bootstrap) as kafka:
        Topics(kafka).create("mqtt", 1, {"max.message.bytes": "1000"})
    kept = properties(session_expiry_interval=600) if version == V5 else None
    for dup in (False, True, True):
        with Wire(broker.port, version) as wire:
            wire.connect("stubborn", clean_start=False, properties=kept)
            wire.send(Publish("t", bytes(2_000), 2, False, dup, 7))
            wire.closed(0x95)
    broker.stop()
    broker.start()
    with Wire(broker.port, version) as wire:
        wire.connect("stubborn", clean_start=False, properties=kept)
        wire.send(Publish("t", bytes(2_000), 2, False, True, 7))
        wire.closed(0x95)
        with Wire(broker.port, version) as other:
            other.connect("other")
            other.subscribe("t", 2)
            with Wire(broker.port, version) as again:
                again.connect("stubborn", clean_start=False, properties=kept)
                again.publish("t", b"small", 2, packet_id=7)
            assert other.take().payload == b"small"


def test_retained_messages_over_the_limit_are_refused(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with(mqtt_max_retained="2")
    with Wire(broker.port) as old:
        old.connect("old")
        for name in ("r/a", "r/b"):
            old.publish(name, b"x", 1, retain=True)
        old.send(Publish("r/c", b"x", 1, True, False, 1))
        old.closed()
    with Wire(broker.port, V5) as wire:
        wire.connect("wire")
        assert [wire.publish("r/c", b"x", qos, retain=True) for qos in (1, 2)] == [0x97, 0x97]
        wire.publish("r/d", b"x", 0, retain=True)
        assert wire.publish("r/a", b"y", 1, retain=True) < 0x80
        assert wire.publish("r/c", b"x", 1) < 0x80
        wire.send(*[Publish(f"r/{name}", b"x", 1, True, False, 10 + number) for number, name in enumerate("efg")])
        assert [wire.receive(PubAck).reason_code for _ in range(3)] == [0x97] * 3
        wire.subscribe("r/#", 1)
        assert {(message.topic, message.payload) for message in (wire.take(), wire.take())} == {
            ("r/a", b"y"),
            ("r/b", b"x"),
        }
        wire.quiet()


@mqtt5("MQTT-3.1.2-21", "MQTT-3.2.2-21")
def test_server_keep_alive_is_told_and_kept(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with(mqtt_max_keep_alive_s="1")
    with Wire(broker.port, V5) as wire:
        connack = wire.connect("wire", keep_alive_s=600)
        assert connack.properties is not None
        assert connack.properties.server_keep_alive == 1
        wire.closed(0x8D)


@pytest.mark.parametrize("version", [V311, V5])
def test_refused_filters_are_answered_with_0x80(mqtt_with: MqttBrokerFactory, version: int) -> None:
    broker = mqtt_with(mqtt_refused_filters="secret/#, private")
    with Wire(broker.port, version) as wire:
        wire.connect("wire")
        wire.send(Subscribe(1, [Subscription(name, 1) for name in ("secret/a", "secret/+/b", "private", "open")]))
        assert wire.receive(SubAck).reason_codes == [0x80, 0x80, 0x80, 1]


@mqtt5("MQTT-3.1.2-29", "MQTT-3.2.2-19", "MQTT-3.14.2-3")
def test_reason_strings_keep_out_of_packets_they_would_make_too_large(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with()
    with Wire(broker.port, V5) as small:
        small.connect("small", properties=properties(maximum_packet_size=20, request_problem_information=0))
        small.send(Connect(V5, "again"))
        small.closed(0x82)
    with Wire(broker.port, V5) as quiet:
        quiet.connect("quiet", properties=properties(request_problem_information=0))
        for kind in (0, 1, 2):
            quiet.publish("nobody/listens", b"x", kind)
        quiet.send(Subscribe(5, [Subscription("a/#/b", 1)]))
        suback = quiet.receive(SubAck)
        assert suback.properties is None or suback.properties.reason_string is None


def test_a_client_that_never_sends_connect_is_closed_in_time(mqtt_with: MqttBrokerFactory) -> None:
    """Ten seconds are allowed, and looked at once a second."""
    with Wire(mqtt_with().port) as silent, pytest.raises(Closed):
        silent.receive(ConnAck, 25)
