"""The QoS 1 and 2 handshakes from publisher to broker, and flow control in both directions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.mqtt.brokers import MqttBroker
from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import Closed, Wire, properties
from trunkline.protocols.mqtt.packets import (
    V5,
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
)

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5


@mqtt311("MQTT-4.3.2-2")
@mqtt5("MQTT-4.3.2-4", "MQTT-4.3.2-5")
def test_after_a_puback_the_same_identifier_is_a_new_message(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic, 1)
    publisher.send(Publish(topic, b"first", 1, False, False, 7))
    assert publisher.receive(PubAck).packet_id == 7
    publisher.send(Publish(topic, b"second", 1, False, True, 7))
    assert publisher.receive(PubAck).packet_id == 7
    assert [subscriber.take().payload for _ in range(2)] == [b"first", b"second"]


@mqtt311("MQTT-4.3.3-2")
@mqtt5("MQTT-4.3.3-8", "MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12")
@pytest.mark.ours_only("Mosquitto closes the connection of a client that repeats itself")
def test_until_its_pubrel_a_repeated_message_is_received_once(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic, 2)
    message = Publish(topic, b"once", 2, False, False, 7)
    publisher.send(message)
    assert publisher.receive(PubRec).packet_id == 7
    for _ in range(3):
        publisher.send(Publish(topic, b"once", 2, False, True, 7))
        again = publisher.receive(PubRec)
        assert again.packet_id == 7
        assert again.reason_code < 0x80
    publisher.send(PubRel(7))
    assert publisher.receive(PubComp).packet_id == 7
    publisher.publish(topic, b"new", 2, packet_id=7)
    assert [subscriber.take().payload for _ in range(2)] == [b"once", b"new"]
    subscriber.quiet()


@mqtt311("MQTT-4.3.3-2", "MQTT-4.4.0-1")
@mqtt5("MQTT-4.3.3-10", "MQTT-4.3.3-11")
@pytest.mark.parametrize("step", ["publish", "pubrec", "pubrel"])
def test_a_publisher_cut_at_any_step_of_qos_2_publishes_once(
    client: ClientFactory, version: int, topic: str, unique: Callable[[str], str], step: str
) -> None:
    subscriber, name = client(version), unique("cut")
    subscriber.subscribe(topic, 2)
    stays = properties(session_expiry_interval=600) if version == V5 else None
    first = client(version, name, clean_start=False, properties=stays)
    first.send(Publish(topic, b"once", 2, False, False, 9))
    if step in {"pubrec", "pubrel"}:
        assert first.receive(PubRec).packet_id == 9
    if step == "pubrel":
        first.send(PubRel(9))
    first.cut()
    second = client(version, name, clean_start=False, properties=stays)
    if step != "pubrel":
        second.send(Publish(topic, b"once", 2, False, True, 9))
        assert second.receive(PubRec).packet_id == 9
    second.send(PubRel(9))
    assert second.receive(PubComp).packet_id == 9
    second.publish(topic, b"end", 2, packet_id=9)
    assert [subscriber.take().payload for _ in range(2)] == [b"once", b"end"]


@mqtt5("MQTT-4.3.3-9", "MQTT-4.3.3-13")
def test_an_expired_message_still_completes_its_handshake(client: ClientFactory, topic: str) -> None:
    publisher = client(V5)
    publisher.send(Publish(topic, b"x", 2, False, False, 3, properties(message_expiry_interval=1)))
    assert publisher.receive(PubRec).reason_code < 0x80
    publisher.send(PubRel(3))
    assert publisher.receive(PubComp).packet_id == 3


@mqtt5("MQTT-3.3.4-7")
@pytest.mark.ours_only("Mosquitto holds clients to its limit for QoS 2 only")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_exceeds_the_receive_maximum_is_closed(client: ClientFactory, topic: str, qos: int) -> None:
    """QoS 2 publications stay unfinished without PUBREL; those of QoS 1 are acknowledged as they are stored, so one more
    than the maximum in a single burst may be taken all the same: the broker may be quicker than the client."""
    wire = client(V5)
    assert wire.connack is not None
    told = wire.connack.properties
    maximum = told.receive_maximum if told is not None and told.receive_maximum is not None else 65_535
    count = maximum + 1
    wire.try_send_raw(b"".join(_encoded(Publish(topic, b"", qos, False, False, number + 1)) for number in range(count)))
    if qos == 2:
        _drain_until_closed(wire, 0x93)


def _encoded(message: Publish) -> bytes:
    from trunkline.protocols.mqtt.codec import encode

    return encode(message, V5)


def _drain_until_closed(wire: Wire, reason_code: int) -> None:
    from trunkline.protocols.mqtt.packets import Disconnect

    try:
        while True:
            packet = wire.receive_any()
            if isinstance(packet, Disconnect):
                assert packet.reason_code == reason_code
            else:
                assert isinstance(packet, PubRec), packet
    except Closed:
        return


@mqtt5("MQTT-3.3.4-9", "MQTT-3.3.4-10", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("maximum", [1, 3])
def test_the_broker_keeps_to_the_clients_receive_maximum(
    client: ClientFactory, topic: str, qos: int, maximum: int
) -> None:
    subscriber, publisher = client(V5, properties=properties(receive_maximum=maximum)), client(V5)
    subscriber.subscribe(f"{topic}/{qos}", qos)
    count = 10
    for number in range(count):
        publisher.publish(f"{topic}/{qos}", b"%d" % number, qos)
    got = [subscriber.receive(Publish) for _ in range(maximum)]
    # No more come, but everything else is answered.
    subscriber.send(PingReq())
    subscriber.receive(PingResp)
    subscriber.send(Subscribe(9, [Subscription(f"{topic}/zero", 0)]))
    subscriber.receive(SubAck)
    waiting = count - maximum
    while got:
        message = got.pop(0)
        assert message.payload == b"%d" % (count - waiting - len(got) - 1)
        subscriber.acknowledge(message)
        if waiting:
            got.append(subscriber.receive(Publish))
            waiting -= 1
    subscriber.quiet()


@mqtt5("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_over_the_clients_maximum_packet_size_is_skipped(client: ClientFactory, topic: str, qos: int) -> None:
    subscriber, publisher = client(V5, properties=properties(maximum_packet_size=200)), client(V5)
    subscriber.subscribe(topic, qos)
    publisher.publish(topic, b"x" * 300, qos)
    publisher.publish(topic, b"small", qos)
    assert subscriber.take().payload == b"small"
    subscriber.quiet()


@mqtt5(
    "MQTT-3.4.2-2", "MQTT-3.4.2-3", "MQTT-3.5.2-2", "MQTT-3.5.2-3", "MQTT-3.6.2-2", "MQTT-3.6.2-3", "MQTT-3.7.2-2",
    "MQTT-3.7.2-3", "MQTT-3.9.2-1", "MQTT-3.9.2-2", "MQTT-3.11.2-1", "MQTT-3.11.2-2", "MQTT-3.14.2-3", "MQTT-3.14.2-4",
    "MQTT-3.2.2-19", "MQTT-3.2.2-20", "MQTT-3.1.2-24",
)  # fmt: skip
@pytest.mark.ours_only("Mosquitto's CONNACK is larger")
def test_every_answer_fits_the_clients_maximum_packet_size(
    mqtt: MqttBroker, client: ClientFactory, unique: Callable[[str], str]
) -> None:
    """No reason string and no user property makes a packet larger than this client takes; its parser would refuse."""
    limit, topic = 30, unique("t")[:10]
    with Wire(mqtt.port, V5, max_packet_bytes=limit) as wire:
        wire.connect(unique("small"), properties=properties(maximum_packet_size=limit))
        wire.subscribe(topic, 2)
        wire.subscribe("a/#/b", 2)
        client(V5).publish(topic, b"x", 2)
        assert wire.take().payload == b"x"
        for qos in (1, 2):
            wire.publish("nobody", b"x", qos)
        wire.unsubscribe(topic)
        wire.unsubscribe("never/subscribed")
        wire.quiet()
        wire.send_raw(b"\x00\x00")
        wire.closed(0x81, 0x82)


@mqtt311("MQTT-4.6.0-2", "MQTT-4.6.0-3", "MQTT-4.6.0-4", "MQTT-4.6.0-6")
@mqtt5("MQTT-4.6.0-2", "MQTT-4.6.0-3", "MQTT-4.6.0-4")
def test_the_broker_too_answers_in_order(client: ClientFactory, version: int, topic: str) -> None:
    """The standard asks it of clients; a broker that did otherwise would break the order of what it forwards."""
    count = 20
    publisher, subscriber = client(version), client(version)
    publisher.send(*[Publish(topic, b"", 1, False, False, number) for number in range(count, 0, -1)])
    assert [publisher.receive(PubAck).packet_id for _ in range(count)] == list(range(count, 0, -1))
    publisher.send(*[Publish(topic, b"", 2, False, False, number) for number in range(count, 0, -1)])
    assert [publisher.receive(PubRec).packet_id for _ in range(count)] == list(range(count, 0, -1))
    publisher.send(*[PubRel(number) for number in range(count, 0, -1)])
    assert [publisher.receive(PubComp).packet_id for _ in range(count)] == list(range(count, 0, -1))
    subscriber.subscribe(topic, 2)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, 2)
    got = [subscriber.receive(Publish) for _ in range(10)]
    subscriber.send(*[PubRec(message.packet_id) for message in got])
    assert [subscriber.receive(PubRel).packet_id for _ in range(10)] == [message.packet_id for message in got]


@mqtt311("MQTT-3.3.5-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publication_that_is_not_allowed_is_acknowledged_or_the_connection_closed(
    client: ClientFactory, qos: int
) -> None:
    publisher, watcher = client(), client()
    watcher.subscribe("$SYS/broker/forged", 2)
    publisher.send(Publish("$SYS/broker/forged", b"x", qos, False, False, 5))
    try:
        assert isinstance(publisher.receive_any(), PubAck if qos == 1 else PubRec)
    except Closed:
        pass
    watcher.quiet()


@mqtt5("MQTT-3.2.2-15")
@pytest.mark.ours_only("Mosquitto has no limit by default")
def test_a_packet_over_the_brokers_maximum_is_refused_with_0x95(client: ClientFactory) -> None:
    bystander, wire = client(V5), client(V5)
    wire.try_send_raw(b"\x30\xff\xff\xff\x7f" + bytes(1 << 16))
    wire.closed(0x95)
    bystander.quiet()
