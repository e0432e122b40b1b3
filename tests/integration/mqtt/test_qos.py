"""The QoS 1 and 2 handshakes from publisher to broker, and flow control in both directions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.mqtt.brokers import MqttBroker, Trunkline
from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import Closed, Wire, properties
from trunkline.protocols.mqtt.packets import (
    V5,
    Disconnect,
    Packet,
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
    Unsubscribe,
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
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publication_that_is_not_allowed_ends_the_connection(
    mqtt: MqttBroker, client: ClientFactory, qos: int
) -> None:
    publisher, watcher = client(), client()
    watcher.subscribe("$SYS/broker/forged", 2)
    publisher.send(Publish("$SYS/broker/forged", b"x", qos, False, False, 5 if qos else 0))
    packets = until_closed(publisher)
    assert not packets or not isinstance(mqtt, Trunkline), "only Mosquitto acknowledges it first"
    watcher.quiet()


ACKNOWLEDGEMENTS: dict[str, tuple[int, Callable[[int], list[Packet]]]] = {
    "PUBREC for QoS 1": (1, lambda packet_id: [PubRec(packet_id)]),
    "PUBCOMP for QoS 1": (1, lambda packet_id: [PubComp(packet_id)]),
    "PUBACK for QoS 2": (2, lambda packet_id: [PubAck(packet_id)]),
    "PUBCOMP instead of PUBREC": (2, lambda packet_id: [PubComp(packet_id)]),
    "PUBACK instead of PUBCOMP": (2, lambda packet_id: [PubRec(packet_id), PubAck(packet_id)]),
}
REFUSALS: dict[str, tuple[int, Callable[[int], list[Packet]]]] = {
    "PUBREC with an error for QoS 1": (1, lambda packet_id: [PubRec(packet_id, 0x83)]),
    "PUBREC with an error instead of PUBCOMP": (2, lambda packet_id: [PubRec(packet_id), PubRec(packet_id, 0x83)]),
}


def until_closed(wire: Wire) -> list[Packet]:
    """Everything that the broker says before it closes the connection."""
    packets: list[Packet] = []
    while True:
        try:
            packets.append(wire.receive_any())
        except Closed:
            return packets


def delivered(client: ClientFactory, version: int, topic: str, qos: int) -> tuple[Wire, int]:
    """A client that has a publication and has not acknowledged it, and the packet identifier."""
    subscriber = client(version)
    subscriber.subscribe(topic, qos)
    client(version).publish(topic, b"x", qos)
    return subscriber, subscriber.receive(Publish).packet_id


def ends_as_a_protocol_error(wire: Wire, mqtt: MqttBroker) -> None:
    packets = until_closed(wire)
    assert all(isinstance(packet, PubRel | Disconnect) for packet in packets), packets
    if wire.version == V5 and isinstance(mqtt, Trunkline):
        assert isinstance(packets[-1], Disconnect)
        assert packets[-1].reason_code == 0x82


@mqtt5("MQTT-4.13.1-1")
@pytest.mark.parametrize("wrong", ACKNOWLEDGEMENTS)
def test_an_acknowledgement_of_the_wrong_type_ends_the_connection(
    mqtt: MqttBroker, client: ClientFactory, version: int, topic: str, wrong: str
) -> None:
    qos, answers = ACKNOWLEDGEMENTS[wrong]
    wire, packet_id = delivered(client, version, topic, qos)
    wire.send(*answers(packet_id), PingReq())
    ends_as_a_protocol_error(wire, mqtt)


@pytest.mark.parametrize("wrong", REFUSALS)
def test_a_refusal_where_none_is_due_ends_the_connection(
    mqtt: MqttBroker, client: ClientFactory, topic: str, wrong: str
) -> None:
    qos, answers = REFUSALS[wrong]
    wire, packet_id = delivered(client, V5, topic, qos)
    wire.send(*answers(packet_id), PingReq())
    ends_as_a_protocol_error(wire, mqtt)


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_of_unknown_identifiers_and_repeated_ones_are_lawful(
    client: ClientFactory, version: int, topic: str, qos: int
) -> None:
    wire, packet_id = delivered(client, version, topic, qos)
    unknown = packet_id + 1_000
    wire.send(PubAck(unknown), PubComp(unknown), PubRec(unknown))
    assert wire.receive(PubRel).packet_id == unknown
    if qos == 1:
        wire.send(PubAck(packet_id), PubAck(packet_id))
    else:
        wire.send(PubRec(packet_id), PubRec(packet_id))
        assert [wire.receive(PubRel).packet_id for _ in range(2)] == [packet_id] * 2
        wire.send(PubComp(packet_id), PubComp(packet_id))
    wire.quiet()


@mqtt5("MQTT-3.1.2-24")
def test_topic_aliases_give_way_where_they_would_make_a_packet_too_large(
    client: ClientFactory, unique: Callable[[str], str]
) -> None:
    """The first packet of a topic is larger by its alias; once the client knows it, more fits than without."""
    topic, limit = unique("t"), 60
    subscriber = client(
        V5, properties=properties(maximum_packet_size=limit, topic_alias_maximum=5), topic_alias_maximum=5
    )
    subscriber.subscribe(topic, 0)
    publisher = client(V5)
    room = limit - 2 - 2 - len(topic) - 1
    for size in (room, room - 1, room - 2, room - 3, room - 10, room, room + 1):
        publisher.publish(topic, b"x" * size, 0)
        assert len(subscriber.take().payload) == size
    publisher.publish(topic, b"x" * limit, 0)
    publisher.publish(topic, b"end", 0)
    assert subscriber.take().payload == b"end"


@mqtt5("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.ours_only("Mosquitto's CONNACK is larger")
def test_what_is_sent_again_fits_a_client_that_takes_less_than_before(
    client: ClientFactory, unique: Callable[[str], str], topic: str
) -> None:
    name = unique("shrunk")
    first = client(V5, name, properties=properties(session_expiry_interval=60))
    first.subscribe(topic, 1)
    publisher = client(V5)
    publisher.publish(topic, b"x" * 500)
    publisher.publish(topic, b"small")
    assert [len(first.receive(Publish).payload) for _ in range(2)] == [500, 5]
    first.cut()
    again = client(
        V5, name, clean_start=False, properties=properties(session_expiry_interval=60, maximum_packet_size=100)
    )
    assert again.take().payload == b"small"
    again.quiet()


@mqtt5("MQTT-3.1.2-24")
@pytest.mark.ours_only("Mosquitto's CONNACK is larger")
@pytest.mark.parametrize("unsubscribe", [False, True])
def test_a_request_whose_answer_the_client_does_not_take_ends_the_connection_with_0x95(
    client: ClientFactory, topic: str, unsubscribe: bool
) -> None:
    wire = client(V5, properties=properties(maximum_packet_size=30))
    filters = [f"{topic}/{number}" for number in range(40)]
    wire.send(Unsubscribe(1, filters) if unsubscribe else Subscribe(1, [Subscription(each) for each in filters]))
    wire.closed(0x95)


@mqtt5("MQTT-3.2.2-15")
@pytest.mark.ours_only("Mosquitto has no limit by default")
def test_a_packet_over_the_brokers_maximum_is_refused_with_0x95(client: ClientFactory) -> None:
    bystander, wire = client(V5), client(V5)
    wire.try_send_raw(b"\x30\xff\xff\xff\x7f" + bytes(1 << 16))
    wire.closed(0x95)
    bystander.quiet()
