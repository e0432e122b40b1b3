"""PUBLISH: what arrives, at which QoS, with which properties; retained messages; topic aliases; expiry."""

from __future__ import annotations

import time

import pytest

from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import properties
from trunkline.protocols.mqtt.packets import V5, PubAck, Publish, PubRec, PubRel

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5


@mqtt311("MQTT-3.8.4-6", "MQTT-3.3.5-1")
@mqtt5("MQTT-3.8.4-8", "MQTT-3.3.4-2", "MQTT-3.2.2-10")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_goes_out_at_the_lower_of_published_and_granted_qos(
    client: ClientFactory, version: int, topic: str, published: int, granted: int
) -> None:
    subscriber, publisher = client(version), client(version)
    assert subscriber.subscribe(topic, granted) == granted
    publisher.publish(topic, b"payload", published)
    message = subscriber.take()
    assert (message.topic, message.payload, message.qos) == (topic, b"payload", min(published, granted))
    assert (message.retain, message.dup) == (False, False)


@mqtt311("MQTT-3.3.5-1")
@mqtt5("MQTT-3.3.4-2")
@pytest.mark.ours_only("Mosquitto takes the QoS of one of them")
def test_overlapping_filters_deliver_at_the_highest_qos(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(f"{topic}/#", 0)
    subscriber.subscribe(f"{topic}/+", 2)
    subscriber.subscribe(f"{topic}/a", 1)
    publisher.publish(f"{topic}/a", b"once", 2)
    publisher.publish(f"{topic}/end/end", b"end", 0)
    seen = [subscriber.take()]
    while seen[-1].payload != b"end":
        seen.append(subscriber.take())
    assert max(message.qos for message in seen[:-1]) == 2
    assert all(message.payload == b"once" for message in seen[:-1])


@mqtt311("MQTT-3.3.1-3")
@mqtt5("MQTT-3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_of_an_incoming_message_is_not_passed_on(client: ClientFactory, version: int, topic: str, qos: int) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic, 2)
    publisher.send(Publish(topic, b"again", qos, False, True, 5))
    if qos == 2:
        publisher.receive(PubRec)
        publisher.send(PubRel(5))
    message = subscriber.take()
    assert (message.payload, message.dup) == (b"again", False)


@mqtt311("MQTT-3.3.2-2", "MQTT-4.7.1-1")
@mqtt5("MQTT-3.3.2-2", "MQTT-4.7.0-1")
@pytest.mark.parametrize("name", ["a/+/b", "a/#", "#", "+"])
def test_a_topic_name_with_a_wildcard_is_refused(client: ClientFactory, version: int, name: str) -> None:
    watcher, wire = client(), client(version)
    watcher.subscribe("#")
    wire.send(Publish(name, b"x"))
    wire.closed(0x81, 0x82, 0x90)


@mqtt311("MQTT-4.7.3-1")
@mqtt5("MQTT-4.7.3-1")
def test_an_empty_topic_name_is_refused(client: ClientFactory, version: int) -> None:
    wire = client(version)
    wire.send(Publish("", b"x"))
    wire.closed(0x81, 0x82, 0x90)


@mqtt311("MQTT-3.3.2-3", "MQTT-4.7.3-4")
@mqtt5("MQTT-3.3.2-3", "MQTT-4.7.3-4")
def test_topics_are_matched_character_by_character(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(f"{topic}/\u00e9", 1)
    subscriber.subscribe(f"{topic}/end", 1)
    for near in (f"{topic}/e\u0301", f"{topic}/\u00c9", f"{topic}/\u00e9/", f"/{topic}/\u00e9", f"{topic}/\u00e9 "):
        publisher.publish(near)
    publisher.publish(f"{topic}/\u00e9", b"exact")
    publisher.publish(f"{topic}/end")
    assert subscriber.take().topic == f"{topic}/\u00e9"
    assert subscriber.take().topic == f"{topic}/end"


@mqtt311("MQTT-4.7.3-3")
@mqtt5("MQTT-4.7.3-3")
def test_long_topic_names_work(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    name = f"{topic}/" + "n" * (4_000 - len(topic))
    subscriber.subscribe(name, 1)
    publisher.publish(name, b"long")
    assert subscriber.take().topic == name


@mqtt311("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@mqtt5("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_topic_and_qos_arrive_in_order(client: ClientFactory, version: int, topic: str, qos: int) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic, qos)
    for number in range(50):
        publisher.publish(topic, b"%d" % number, qos, packet_id=number + 1)
    assert [subscriber.take().payload for _ in range(50)] == [b"%d" % number for number in range(50)]


@mqtt5("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20")
def test_properties_reach_subscribers_unaltered_and_in_order(client: ClientFactory, topic: str) -> None:
    subscriber, publisher = client(V5), client(V5)
    subscriber.subscribe(topic, 2)
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", "empty name"), ("mqtt.qos", "mine"), ("empty value", "")]
    sent = properties(
        payload_format_indicator=1,
        content_type="text/plain; charset=utf-8",
        response_topic=f"{topic}/answer",
        correlation_data=b"\x00\xff\x01",
        user_properties=pairs,
    )
    for qos in (0, 1, 2):
        publisher.publish(topic, b"text", qos, properties=sent)
        got = subscriber.take().properties
        assert got is not None
        assert got.payload_format_indicator == 1
        assert got.content_type == "text/plain; charset=utf-8"
        assert got.response_topic == f"{topic}/answer"
        assert got.correlation_data == b"\x00\xff\x01"
        assert got.user_properties == pairs


@mqtt5("MQTT-3.3.2-14")
@pytest.mark.ours_only("Mosquitto passes it on")
def test_a_response_topic_with_a_wildcard_is_refused(client: ClientFactory, topic: str) -> None:
    wire = client(V5)
    wire.send(Publish(topic, b"x", properties=properties(response_topic="a/#")))
    wire.closed(0x81, 0x82, 0x90)


@mqtt5("MQTT-3.3.4-6")
@pytest.mark.ours_only("Mosquitto passes it on")
def test_a_client_may_not_send_a_subscription_identifier(client: ClientFactory, topic: str) -> None:
    wire = client(V5)
    wire.send(Publish(topic, b"x", properties=properties(subscription_identifiers=[7])))
    wire.closed(0x81, 0x82)


@mqtt5("MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5")
def test_subscription_identifiers_come_with_the_message(client: ClientFactory, topic: str) -> None:
    subscriber, publisher = client(V5), client(V5)
    subscriber.subscribe(f"{topic}/#", 1, properties(subscription_identifiers=[1]))
    subscriber.subscribe(f"{topic}/+", 1, properties(subscription_identifiers=[268_435_455]))
    subscriber.subscribe(f"{topic}/a", 1)
    publisher.publish(f"{topic}/a", b"x")
    publisher.publish(f"{topic}/end/end", b"end")
    seen = [subscriber.take()]
    while seen[-1].payload != b"end":
        seen.append(subscriber.take())
    identifiers: list[int] = []
    for message in seen[:-1]:
        identifiers += message.properties.subscription_identifiers if message.properties is not None else []
    assert sorted(identifiers) == [1, 268_435_455]


# -- topic aliases


@mqtt5("MQTT-3.3.2-12", "MQTT-3.2.2-17", "MQTT-3.3.2-9")
def test_every_topic_alias_up_to_the_maximum_is_taken(client: ClientFactory, topic: str) -> None:
    subscriber, publisher = client(V5), client(V5)
    assert publisher.connack is not None
    assert publisher.connack.properties is not None
    maximum = publisher.connack.properties.topic_alias_maximum
    assert maximum is not None
    assert maximum > 0
    subscriber.subscribe(f"{topic}/#")
    for alias in (1, maximum):
        publisher.publish(f"{topic}/{alias}", b"named", 0, properties=properties(topic_alias=alias))
        publisher.publish("", b"by alias", 0, properties=properties(topic_alias=alias))
        assert subscriber.take().topic == f"{topic}/{alias}"
        again = subscriber.take()
        assert (again.topic, again.payload) == (f"{topic}/{alias}", b"by alias")
    publisher.publish(f"{topic}/new", b"moved", 0, properties=properties(topic_alias=1))
    publisher.publish("", b"by alias", 0, properties=properties(topic_alias=1))
    assert [subscriber.take().topic for _ in range(2)] == [f"{topic}/new"] * 2


@mqtt5("MQTT-3.3.2-8", "MQTT-3.3.2-9", "MQTT-3.2.2-17")
@pytest.mark.parametrize("alias", [0, 65_535])
def test_a_topic_alias_of_0_or_above_the_maximum_is_refused(client: ClientFactory, topic: str, alias: int) -> None:
    wire = client(V5)
    wire.send(Publish(topic, b"x", properties=properties(topic_alias=alias)))
    wire.closed(0x81, 0x82, 0x94)


@mqtt5("MQTT-3.3.2-7")
def test_topic_aliases_end_with_the_connection(client: ClientFactory, topic: str) -> None:
    first = client(V5)
    first.publish(topic, b"x", 0, properties=properties(topic_alias=1))
    first.disconnect()
    second = client(V5)
    second.send(Publish("", b"x", properties=properties(topic_alias=1)))
    second.closed(0x81, 0x82, 0x94)


@mqtt5("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
@pytest.mark.parametrize("maximum", [0, 1, 2])
def test_the_broker_stays_within_the_clients_topic_alias_maximum(
    client: ClientFactory, topic: str, maximum: int
) -> None:
    allowed = properties(topic_alias_maximum=maximum) if maximum else None
    subscriber = client(V5, properties=allowed, topic_alias_maximum=maximum)
    publisher = client(V5)
    subscriber.subscribe(f"{topic}/#")
    for round_ in range(3):
        for name in "abc":
            publisher.publish(f"{topic}/{name}", b"%d" % round_, 0)
    for round_ in range(3):
        for name in "abc":
            message = subscriber.take()
            assert (message.topic, message.payload) == (f"{topic}/{name}", b"%d" % round_)
            alias = message.properties.topic_alias if message.properties is not None else None
            assert alias is None or 1 <= alias <= maximum


# -- expiry


@mqtt5("MQTT-3.3.2-5")
def test_a_message_that_expired_is_not_delivered_to_a_session_that_was_away(client: ClientFactory, topic: str) -> None:
    kept = properties(session_expiry_interval=120)
    subscriber = client(V5, "away-" + topic[-8:], properties=kept)
    subscriber.subscribe(topic, 1)
    subscriber.disconnect()
    publisher = client(V5)
    publisher.publish(topic, b"short-lived", properties=properties(message_expiry_interval=1))
    publisher.publish(topic, b"lasting", properties=properties(message_expiry_interval=600))
    time.sleep(2.5)  # the passage of time is what is tested
    subscriber = client(V5, "away-" + topic[-8:], clean_start=False, properties=kept)
    assert subscriber.take().payload == b"lasting"


@mqtt5("MQTT-3.3.2-6")
def test_the_expiry_interval_goes_out_less_the_time_waited(client: ClientFactory, topic: str) -> None:
    kept = properties(session_expiry_interval=120)
    name = "away-" + topic[-8:]
    subscriber = client(V5, name, properties=kept)
    subscriber.subscribe(topic, 1)
    subscriber.disconnect()
    client(V5).publish(topic, b"x", properties=properties(message_expiry_interval=100))
    time.sleep(2.1)
    message = client(V5, name, clean_start=False, properties=kept).take()
    assert message.properties is not None
    assert message.properties.message_expiry_interval is not None
    assert 60 <= message.properties.message_expiry_interval <= 98


@mqtt5("MQTT-3.3.2-5")
def test_a_retained_message_expires(client: ClientFactory, topic: str) -> None:
    publisher = client(V5)
    publisher.publish(topic, b"soon gone", retain=True, properties=properties(message_expiry_interval=1))
    publisher.publish(f"{topic}/stays", b"stays", retain=True)
    time.sleep(1.5)
    subscriber = client(V5)
    subscriber.subscribe(f"{topic}/#", 1)
    assert subscriber.take().topic == f"{topic}/stays"
    subscriber.quiet()
    publisher.publish(f"{topic}/stays", b"", retain=True)


# -- retained messages


@mqtt311("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-8", "MQTT-3.1.2-7")
@mqtt5("MQTT-3.3.1-5", "MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_retained_message_of_a_topic_is_sent_to_new_subscriptions(
    client: ClientFactory, version: int, topic: str, qos: int
) -> None:
    publisher = client(version)
    publisher.publish(topic, b"first", qos, retain=True)
    publisher.publish(topic, b"last", qos, retain=True, packet_id=2)
    publisher.quiet()
    publisher.disconnect()
    subscriber = client(version)
    subscriber.subscribe(topic.rpartition("/")[0] + "/+", 2)
    message, _ = subscriber.receive_after(Publish)
    while message.topic != topic:
        subscriber.acknowledge(message)
        message, _ = subscriber.receive_after(Publish)
    assert (message.payload, message.qos, message.retain) == (b"last", qos, True)
    client(version).publish(topic, b"", 1, retain=True)


@mqtt311("MQTT-3.3.1-7")
@mqtt5("MQTT-3.3.1-5")
def test_a_qos_0_retained_message_replaces_one_of_qos_1(client: ClientFactory, version: int, topic: str) -> None:
    publisher, subscriber = client(version), client(version)
    publisher.publish(topic, b"old", 1, retain=True)
    publisher.publish(topic, b"new", 0, retain=True)
    publisher.quiet()
    subscriber.subscribe(topic, 1)
    message = subscriber.take()
    assert (message.payload, message.retain) == (b"new", True)


@mqtt311("MQTT-3.3.1-9")
@mqtt5("MQTT-3.3.1-12")
def test_established_subscriptions_get_retain_0(client: ClientFactory, version: int, topic: str) -> None:
    publisher, subscriber = client(version), client(version)
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"live", 1, retain=True)
    message = subscriber.take()
    assert (message.payload, message.retain) == (b"live", False)


@mqtt5("MQTT-3.3.1-13")
@pytest.mark.parametrize("retain", [False, True])
def test_retain_as_published_keeps_the_flag(client: ClientFactory, topic: str, retain: bool) -> None:
    publisher, subscriber = client(V5), client(V5)
    subscriber.subscribe(topic, 1, retain_as_published=1)
    publisher.publish(topic, b"live", 1, retain=retain)
    assert subscriber.take().retain is retain


@mqtt311("MQTT-3.3.1-10", "MQTT-3.3.1-11")
@mqtt5("MQTT-3.3.1-6", "MQTT-3.3.1-7")
def test_an_empty_retained_message_is_delivered_and_clears(client: ClientFactory, version: int, topic: str) -> None:
    publisher, watcher = client(version), client(version)
    publisher.publish(topic, b"kept", 1, retain=True)
    watcher.subscribe(topic, 1)
    assert watcher.take().payload == b"kept"
    publisher.publish(topic, b"", 1, retain=True)
    assert watcher.take().payload == b""
    late = client(version)
    late.subscribe(topic, 1)
    late.quiet()


@mqtt311("MQTT-3.3.1-12")
@mqtt5("MQTT-3.3.1-8")
def test_a_message_without_retain_leaves_the_retained_one(client: ClientFactory, version: int, topic: str) -> None:
    publisher = client(version)
    publisher.publish(topic, b"kept", 1, retain=True)
    publisher.publish(topic, b"passing", 1)
    publisher.publish(topic, b"", 1)
    subscriber = client(version)
    subscriber.subscribe(topic, 1)
    assert subscriber.take().payload == b"kept"


@mqtt5("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-4")
def test_retain_handling(client: ClientFactory, topic: str) -> None:
    client(V5).publish(topic, b"kept", 1, retain=True)
    subscriber = client(V5)
    subscriber.subscribe(topic, 1, retain_handling=2)
    subscriber.quiet()
    subscriber.subscribe(topic, 1, retain_handling=1)
    subscriber.quiet()
    subscriber.subscribe(topic, 1, retain_handling=0)
    assert subscriber.take().payload == b"kept"
    newcomer = client(V5)
    newcomer.subscribe(topic, 1, retain_handling=1)
    assert newcomer.take().payload == b"kept"


@mqtt5("MQTT-3.3.2-4", "MQTT-3.3.2-17")
def test_a_retained_message_keeps_its_properties(client: ClientFactory, topic: str) -> None:
    sent = properties(content_type="a/b", user_properties=[("k", "v"), ("k", "w")], correlation_data=b"c")
    client(V5).publish(topic, b"kept", 1, retain=True, properties=sent)
    subscriber = client(V5)
    subscriber.subscribe(topic, 1)
    got = subscriber.take().properties
    assert got is not None
    assert (got.content_type, got.user_properties, got.correlation_data) == ("a/b", [("k", "v"), ("k", "w")], b"c")


def test_large_messages_arrive_whole(client: ClientFactory, version: int, topic: str) -> None:
    subscriber, publisher = client(version), client(version)
    subscriber.subscribe(topic, 1)
    payload = bytes(range(256)) * 4_000
    publisher.send(Publish(topic, payload, 1, False, False, 1))
    publisher.receive(PubAck)
    assert subscriber.take().payload == payload
