"""Subscriptions by what messages say, and subscriptions that go by themselves: user properties of SUBSCRIBE, our own."""

from __future__ import annotations

import json

from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import properties
from tests.integration.waiting import wait_until
from trunkline.protocols.mqtt.packets import V5, Publish, SubAck, Subscribe, Subscription

CHEAP = properties(user_properties=[("filter", "price < 100 and company = 'Telco'")])


def quote(price: int, company: str = "Telco") -> bytes:
    return json.dumps({"company": company, "price": price}).encode()


def test_only_what_matches_is_delivered_at_every_quality_of_service(client: ClientFactory, topic: str) -> None:
    publisher = client(V5)
    for qos in (0, 1, 2):
        subscriber = client(V5)
        subscriber.subscribe(f"{topic}/{qos}/#", qos, CHEAP)
        for price in (120, 80, 100, 99):
            publisher.publish(f"{topic}/{qos}/a", quote(price), qos)
        publisher.publish(f"{topic}/{qos}/b", quote(1, "Other"), qos)
        publisher.publish(f"{topic}/{qos}/b", b"not JSON", qos)
        publisher.publish(f"{topic}/{qos}/b", quote(7), qos)
        taken = [subscriber.take() for _ in range(3)]
        assert [json.loads(message.payload)["price"] for message in taken] == [80, 99, 7]
        assert [message.qos for message in taken] == [qos] * 3
        subscriber.quiet()


def test_user_properties_of_messages_can_be_asked_for(client: ClientFactory, topic: str) -> None:
    subscriber, publisher = client(V5), client(V5)
    subscriber.subscribe(topic, 1, properties(user_properties=[("filter", "region = 'EU'")]))
    for region in ("US", "EU"):
        publisher.publish(topic, region.encode(), 1, properties=properties(user_properties=[("region", region)]))
    assert subscriber.take().payload == b"EU"
    subscriber.quiet()


def test_a_second_filter_without_a_condition_gets_everything_once(client: ClientFactory, topic: str) -> None:
    subscriber, publisher = client(V5), client(V5)
    subscriber.subscribe(f"{topic}/+", 1, CHEAP)
    subscriber.subscribe(f"{topic}/#", 0)
    publisher.publish(f"{topic}/a", quote(200), 1)
    publisher.publish(f"{topic}/a", quote(20), 1)
    assert [(message.payload, message.qos) for message in (subscriber.take(), subscriber.take())] == [
        (quote(200), 0),
        (quote(20), 1),
    ]


def test_a_session_that_was_away_gets_what_matches(client: ClientFactory, topic: str, unique: object) -> None:
    assert callable(unique)
    name, publisher = unique("kept"), client(V5)
    kept = properties(session_expiry_interval=600)
    subscriber = client(V5, name, clean_start=False, properties=kept)
    subscriber.subscribe(topic, 1, CHEAP)
    subscriber.disconnect()
    for price in (5, 500, 6):
        publisher.publish(topic, quote(price), 1)
    again = client(V5, name, clean_start=False, properties=kept)
    assert [json.loads(again.take().payload)["price"] for _ in range(2)] == [5, 6]
    again.quiet()


def test_retained_messages_are_chosen_too(client: ClientFactory, topic: str) -> None:
    publisher = client(V5)
    publisher.publish(f"{topic}/a", quote(500), 1, retain=True)
    publisher.publish(f"{topic}/b", quote(50), 1, retain=True)
    subscriber = client(V5)
    subscriber.subscribe(f"{topic}/+", 1, CHEAP)
    assert subscriber.take().topic == f"{topic}/b"
    subscriber.quiet()


def test_a_condition_that_does_not_parse_or_is_for_a_group_is_refused(client: ClientFactory, topic: str) -> None:
    subscriber = client(V5)
    subscriber.send(Subscribe(1, [Subscription(topic, 1)], properties(user_properties=[("filter", "price <")])))
    assert subscriber.receive(SubAck).reason_codes == [0x8F]
    subscriber.send(Subscribe(2, [Subscription(f"$share/g/{topic}", 1)], CHEAP))
    assert subscriber.receive(SubAck).reason_codes == [0x83]


def test_a_subscription_expires(client: ClientFactory, topic: str) -> None:
    subscriber, publisher = client(V5), client(V5)
    subscriber.subscribe(f"{topic}/brief", 1, properties(user_properties=[("expiry", "0.2")]))
    subscriber.subscribe(f"{topic}/lasting", 1, properties(user_properties=[("expiry", "600")]))

    def is_gone() -> bool:
        publisher.publish(f"{topic}/brief", b"x", 1)
        publisher.publish(f"{topic}/lasting", b"y", 1)
        first = subscriber.take()
        if first.payload == b"y":
            return True
        assert isinstance(first, Publish)
        assert subscriber.take().payload == b"y"
        return False

    wait_until(is_gone, what="the end of the subscription")
