"""SUBSCRIBE, UNSUBSCRIBE and topic filters; shared subscriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import Closed, properties
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
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


@mqtt311("MQTT-3.8.4-4", "MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2", "MQTT-3.8.3-2")
@mqtt5("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
def test_a_subscribe_of_several_filters_gets_one_code_each_in_order(
    client: ClientFactory, version: int, topic: str
) -> None:
    subscriber, publisher = client(version), client(version)
    wanted = [Subscription(f"{topic}/{number}/#", qos) for number, qos in enumerate([2, 0, 1, 1, 2])]
    subscriber.send(Subscribe(11, wanted))
    suback = subscriber.receive(SubAck)
    assert (suback.packet_id, suback.reason_codes) == (11, [2, 0, 1, 1, 2])
    for number in range(5):
        publisher.publish(f"{topic}/{number}", b"%d" % number, 2)
    assert [subscriber.take().qos for _ in range(5)] == [2, 0, 1, 1, 2]


@mqtt311("MQTT-3.8.4-3")
@mqtt5("MQTT-3.8.4-3", "MQTT-3.8.4-4")
def test_the_same_filter_again_replaces_the_subscription(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    publisher.publish(topic, b"kept", 2, retain=True)
    subscriber.subscribe(topic, 2)
    assert subscriber.take().payload == b"kept"
    subscriber.subscribe(topic, 0)
    again = subscriber.take()
    assert (again.payload, again.qos, again.retain) == (b"kept", 0, True)
    publisher.publish(topic, b"once", 2)
    publisher.publish(topic, b"twice", 2)
    assert [(message.payload, message.qos) for message in (subscriber.take(), subscriber.take())] == [
        (b"once", 0),
        (b"twice", 0),
    ]


@mqtt311("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-5", "MQTT-3.10.4-6")
@mqtt5("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-5", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2")
def test_unsubscribe_takes_away_exactly_the_filters_it_names(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    for level in ("a", "b", "+", "end"):
        subscriber.subscribe(f"{topic}/x/{level}" if level == "+" else f"{topic}/{level}", 1)
    subscriber.send(Unsubscribe(12, [f"{topic}/a", f"{topic}/c", f"{topic}/x/a", f"{topic}/x/+"]))
    unsuback = subscriber.receive(UnsubAck)
    assert unsuback.packet_id == 12
    assert unsuback.reason_codes == ([] if version == V311 else [0x00, 0x11, 0x11, 0x00])
    for level in ("a", "x/a", "b", "end"):
        publisher.publish(f"{topic}/{level}")
    assert [subscriber.take().topic for _ in range(2)] == [f"{topic}/b", f"{topic}/end"]


@mqtt311("MQTT-3.10.4-3")
@mqtt5("MQTT-3.10.4-3")
def test_deliveries_under_way_are_completed_after_unsubscribe(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic, 2)
    publisher.publish(topic, b"under way", 2)
    message = subscriber.receive(Publish)
    subscriber.unsubscribe(topic)
    subscriber.send(PubRec(message.packet_id))
    assert subscriber.receive(PubRel).packet_id == message.packet_id
    subscriber.send(PubComp(message.packet_id))
    subscriber.quiet()


@mqtt311("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.7.3-1")
@mqtt5("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1")
@pytest.mark.parametrize("bad", ["a/#/b", "a#", "a/b#", "#/a", "a+", "+a/b", "a/+b/c", ""])
def test_a_filter_with_a_misplaced_wildcard_is_refused(client: ClientFactory, version: int, bad: str) -> None:
    """Either by a reason code or by closing; both are right."""
    bystander, wire = client(version), client(version)
    wire.send(Subscribe(1, [Subscription(bad, 1)]))
    try:
        answer = wire.receive_any()
    except Closed:
        pass
    else:
        if isinstance(answer, SubAck):
            assert answer.reason_codes == [0x80 if version == V311 else 0x8F]
        else:
            assert version == V5
    bystander.quiet()


@mqtt311("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-3.3.2-3")
@mqtt5("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-3.3.2-3")
@pytest.mark.parametrize(
    ("topic_filter", "names", "others"),
    [
        ("{}/#", ["{}", "{}/a", "{}/a/b", "{}/"], ["{}a", "x{}"]),
        ("{}/+", ["{}/a", "{}/"], ["{}", "{}/a/b"]),
        ("{}/+/b", ["{}/a/b", "{}//b"], ["{}/b", "{}/a/b/c", "{}/a/B"]),
        ("+/{}/#", ["x/{}", "/{}/y"], ["{}", "x/y/{}"]),
        ("{}/+/+/#", ["{}/a/b", "{}/a/b/c/d"], ["{}/a"]),
    ],
)
def test_wildcards(
    client: ClientFactory,
    version: int,
    unique: Callable[[str], str],
    topic_filter: str,
    names: list[str],
    others: list[str],
) -> None:
    base, end = unique("wild"), unique("end")
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic_filter.format(base), 1)
    subscriber.subscribe(end, 1)
    for name in (*others, *names):
        publisher.publish(name.format(base), name.encode())
    publisher.publish(end)
    assert [subscriber.take().payload.decode() for _ in names] == names
    assert subscriber.take().topic == end


@mqtt311("MQTT-4.7.2-1")
@mqtt5("MQTT-4.7.2-1")
def test_leading_wildcards_do_not_match_dollar_topics(
    client: ClientFactory, version: int, unique: Callable[[str], str]
) -> None:
    name = unique("d")
    wild, named, publisher = client(version), client(version), client(version)
    wild.subscribe(f"+/{name}", 1)
    wild.subscribe(f"+/{name}/#", 1)
    assert named.subscribe(f"$test/{name}", 1) in {0, 1, 2}
    publisher.publish(f"$test/{name}", b"dollar")
    publisher.publish(f"test/{name}", b"plain")
    assert wild.take().payload == b"plain"
    assert named.take().payload == b"dollar"


def test_sys_topics_tell_about_the_broker(client: ClientFactory, version: int) -> None:
    wire = client(version)
    wire.subscribe("$SYS/#", 0)
    message = wire.receive(Publish, 30)
    assert message.topic.startswith("$SYS/")
    assert message.payload


@mqtt5("MQTT-3.8.3-3")
def test_no_local_keeps_a_clients_own_messages_from_it(client: ClientFactory, topic: str) -> None:
    both, other = client(V5), client(V5)
    both.subscribe(topic, 1, no_local=1)
    other.subscribe(topic, 1)
    both.publish(topic, b"mine")
    assert other.take().payload == b"mine"
    other.publish(f"{topic}/x", b"nobody hears")
    client(V5).publish(topic, b"theirs")
    assert both.take().payload == b"theirs"


# -- shared subscriptions


@mqtt5("MQTT-3.8.3-4")
@pytest.mark.ours_only("Mosquitto grants it")
def test_no_local_on_a_shared_subscription_is_a_protocol_error(client: ClientFactory, topic: str) -> None:
    wire = client(V5)
    wire.send(Subscribe(1, [Subscription(f"$share/g/{topic}", 1, True)]))
    wire.closed(0x81, 0x82)


@mqtt5("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.ours_only("Mosquitto grants some of them")
@pytest.mark.parametrize("bad", ["$share//a", "$share/g", "$share/g/", "$share/g+/a", "$share/#/a"])
def test_a_malformed_shared_filter_is_refused(client: ClientFactory, bad: str) -> None:
    wire = client(V5)
    wire.send(Subscribe(1, [Subscription(bad, 1)]))
    try:
        answer = wire.receive_any()
    except Closed:
        return
    if isinstance(answer, SubAck):
        assert answer.reason_codes[0] >= 0x80


@mqtt5("MQTT-4.8.2-1", "MQTT-4.8.2-3")
def test_each_message_goes_to_one_member_of_a_share_at_its_own_qos(client: ClientFactory, topic: str) -> None:
    members = [client(V5), client(V5)]
    plain, publisher = client(V5), client(V5)
    for qos, member in enumerate(members):
        assert member.subscribe(f"$share/group/{topic}", qos) == qos
        member.subscribe(f"{topic}/end", 1)
    plain.subscribe(topic, 2)
    count = 40
    for number in range(count):
        publisher.publish(topic, b"%d" % number, 2)
    assert [plain.take().payload for _ in range(count)] == [b"%d" % number for number in range(count)]
    publisher.publish(f"{topic}/end", b"end")
    seen: Counter[bytes] = Counter()
    for qos, member in enumerate(members):
        got = 0
        while (message := member.take()).payload != b"end":
            assert message.qos == qos
            seen[message.payload] += 1
            got += 1
        assert got > 0, "one member got nothing"
    assert seen == Counter(b"%d" % number for number in range(count))


@mqtt5("MQTT-4.8.2-6", "MQTT-4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_shared_message_that_a_member_refuses_goes_to_no_other(client: ClientFactory, topic: str, qos: int) -> None:
    first, publisher = client(V5), client(V5)
    first.subscribe(f"$share/group/{topic}", qos)
    publisher.publish(topic, b"refused", qos)
    message = first.receive(Publish)
    second = client(V5)
    second.subscribe(f"$share/group/{topic}", qos)
    second.subscribe(f"{topic}/end", 1)
    first.send(PubAck(message.packet_id, 0x80) if qos == 1 else PubRec(message.packet_id, 0x80))
    first.quiet()
    publisher.publish(f"{topic}/end", b"end")
    assert second.take().payload == b"end"


@mqtt5("MQTT-4.8.2-4", "MQTT-4.8.2-5")
def test_a_qos_2_shared_delivery_that_is_cut_is_completed_by_the_same_client(
    client: ClientFactory, topic: str, unique: Callable[[str], str]
) -> None:
    name, kept = unique("member"), properties(session_expiry_interval=120)
    first, publisher = client(V5, name, properties=kept), client(V5)
    first.subscribe(f"$share/group/{topic}", 2)
    publisher.publish(topic, b"cut", 2)
    message = first.receive(Publish)
    second = client(V5)
    second.subscribe(f"$share/group/{topic}", 2)
    second.subscribe(f"{topic}/end", 1)
    first.send(PubRec(message.packet_id))
    assert first.receive(PubRel).packet_id == message.packet_id
    first.cut()
    back = client(V5, name, clean_start=False, properties=kept)
    assert back.receive(PubRel).packet_id == message.packet_id
    back.send(PubComp(message.packet_id))
    publisher.publish(f"{topic}/end", b"end")
    assert second.take().payload == b"end"


def test_a_member_that_leaves_hands_the_share_to_the_others(client: ClientFactory, topic: str) -> None:
    leaving, staying, publisher = client(V5), client(V5), client(V5)
    for member in (leaving, staying):
        member.subscribe(f"$share/group/{topic}", 1)
    leaving.unsubscribe(f"$share/group/{topic}")
    for number in range(10):
        publisher.publish(topic, b"%d" % number)
    assert [staying.take().payload for _ in range(10)] == [b"%d" % number for number in range(10)]
