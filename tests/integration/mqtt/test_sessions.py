"""Sessions: what is kept between connections, for how long, and how it is resumed; wills; DISCONNECT."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.mqtt.conftest import ClientFactory
from tests.integration.mqtt.wire import Wire, properties
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.packets import V5, V311, Disconnect, PubAck, PubComp, Publish, PubRec, PubRel, Will

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5


def kept(version: int) -> Properties | None:
    """What makes a session outlive its connection; in 3.1.1 that is CleanSession 0 alone."""
    return properties(session_expiry_interval=600) if version == V5 else None


class Returning:
    """A client whose session is kept: each `connect` is a new connection to it."""

    def __init__(self, client: ClientFactory, version: int, name: str) -> None:
        self._client, self._version, self._name = client, version, name

    def connect(self, *, present: bool) -> Wire:
        wire = self._client(self._version, self._name, clean_start=False, properties=kept(self._version))
        assert wire.connack is not None
        assert wire.connack.session_present is present
        return wire


@pytest.fixture
def returning(client: ClientFactory, version: int, unique: Callable[[str], str]) -> Returning:
    return Returning(client, version, unique("returning"))


@mqtt311("MQTT-3.1.2-4", "MQTT-3.2.2-2", "MQTT-3.2.2-3", "MQTT-3.1.4-3", "MQTT-4.1.0-1", "MQTT-4.1.0-2")
@mqtt5("MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.2.2-3", "MQTT-3.1.4-4", "MQTT-3.1.2-23", "MQTT-4.1.0-1")
def test_a_kept_session_is_resumed(returning: Returning, client: ClientFactory, topic: str) -> None:
    first = returning.connect(present=False)
    first.subscribe(topic, 1)
    first.disconnect()
    second = returning.connect(present=True)
    client().publish(topic, b"still subscribed")
    assert second.take().payload == b"still subscribed"


@mqtt311("MQTT-3.1.2-6", "MQTT-3.2.2-1")
@mqtt5("MQTT-3.1.2-4", "MQTT-3.2.2-2")
def test_a_clean_start_discards_the_session(
    client: ClientFactory, version: int, unique: Callable[[str], str], topic: str
) -> None:
    name = unique("clean")
    first = client(version, name, clean_start=False, properties=kept(version))
    first.subscribe(topic, 1)
    first.disconnect()
    client().publish(topic, b"missed")
    second = client(version, name, clean_start=True, properties=kept(version))
    assert second.connack is not None
    assert not second.connack.session_present
    client().publish(topic, b"not subscribed")
    second.quiet()
    second.disconnect()
    if version == V311:
        third = client(version, name, clean_start=False)
        assert third.connack is not None
        assert not third.connack.session_present


@mqtt311("MQTT-3.1.2-5", "MQTT-4.5.0-1")
@mqtt5("MQTT-4.5.0-1", "MQTT-3.1.2-23")
@pytest.mark.parametrize("how", ["disconnect", "cut"])
def test_messages_of_qos_1_and_2_are_kept_for_a_session_that_is_away(
    returning: Returning, client: ClientFactory, topic: str, how: str
) -> None:
    away = returning.connect(present=False)
    away.subscribe(f"{topic}/#", 2)
    away.disconnect() if how == "disconnect" else away.cut()
    publisher = client()
    for number in range(30):
        publisher.publish(f"{topic}/{number % 3}", b"%d" % number, 1 + number % 2)
    back = returning.connect(present=True)
    got = [back.take() for _ in range(30)]
    assert [message.payload for message in got] == [b"%d" % number for number in range(30)]
    assert [message.qos for message in got] == [1 + number % 2 for number in range(30)]
    back.quiet()


def test_a_returning_session_goes_live_without_gap_or_duplicate(
    returning: Returning, client: ClientFactory, topic: str
) -> None:
    """Messages are published while the client is away, while it reads what it missed, and after."""
    away = returning.connect(present=False)
    away.subscribe(topic, 1)
    away.disconnect()
    publisher = client()
    total = 600
    for number in range(200):
        publisher.publish(topic, b"%d" % number, packet_id=number + 1)
    back = returning.connect(present=True)
    publisher.send(*[Publish(topic, b"%d" % number, 1, False, False, number + 1) for number in range(200, total)])
    got = [back.take().payload for _ in range(total)]
    assert got == [b"%d" % number for number in range(total)]
    back.quiet()


@mqtt5("MQTT-4.1.0-2")
def test_a_session_ends_when_its_expiry_interval_has_passed(
    client: ClientFactory, unique: Callable[[str], str], topic: str
) -> None:
    name = unique("expiring")
    first = client(V5, name, properties=properties(session_expiry_interval=1))
    first.subscribe(topic, 1)
    first.disconnect()
    time.sleep(3)  # the passage of time is what is tested
    again = client(V5, name, clean_start=False)
    assert again.connack is not None
    assert not again.connack.session_present


@mqtt5("MQTT-4.1.0-2", "MQTT-3.14.2-2")
def test_disconnect_can_change_the_session_expiry(client: ClientFactory, unique: Callable[[str], str]) -> None:
    name = unique("changed")
    first = client(V5, name, properties=properties(session_expiry_interval=600))
    first.send(Disconnect(0, properties(session_expiry_interval=0)))
    first.closed()
    second = client(V5, name, clean_start=False, properties=properties(session_expiry_interval=0))
    assert second.connack is not None
    assert not second.connack.session_present
    second.send(Disconnect(0, properties(session_expiry_interval=600)))
    farewell = second.closed(0x82)
    assert farewell is None or farewell.properties is None or farewell.properties.session_expiry_interval is None


def test_a_session_without_expiry_ends_with_its_connection(client: ClientFactory, unique: Callable[[str], str]) -> None:
    name = unique("brief")
    client(V5, name, clean_start=False).disconnect()
    again = client(V5, name, clean_start=False)
    assert again.connack is not None
    assert not again.connack.session_present


# -- redelivery


@mqtt311("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-2.3.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1", "MQTT-4.6.0-1")
@mqtt5("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.2-3", "MQTT-4.3.3-3")
@mqtt5("MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-4.6.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_are_sent_again_with_their_identifiers_dup_and_order(
    returning: Returning, client: ClientFactory, topic: str, qos: int
) -> None:
    first = returning.connect(present=False)
    first.subscribe(topic, qos)
    publisher = client()
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos)
    sent = [first.receive(Publish) for _ in range(5)]
    assert len({message.packet_id for message in sent}) == 5
    assert all(message.packet_id > 0 and not message.dup for message in sent)
    first.quiet()
    first.cut()
    again = returning.connect(present=True)
    resent = [again.receive(Publish) for _ in range(5)]
    assert [(message.payload, message.packet_id) for message in resent] == [
        (message.payload, message.packet_id) for message in sent
    ]
    assert all(message.dup for message in resent)
    for message in resent:
        again.acknowledge(message)
    again.quiet()
    again.disconnect()
    returning.connect(present=True).quiet()


@mqtt311("MQTT-4.3.3-1", "MQTT-4.4.0-1")
@mqtt5("MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-3.6.2-1")
def test_once_released_a_message_is_not_sent_again_but_its_pubrel_is(
    returning: Returning, client: ClientFactory, topic: str
) -> None:
    first = returning.connect(present=False)
    first.subscribe(topic, 2)
    client().publish(topic, b"x", 2)
    message = first.receive(Publish)
    first.send(PubRec(message.packet_id))
    assert first.receive(PubRel) == PubRel(message.packet_id)
    first.cut()
    second = returning.connect(present=True)
    assert second.receive(PubRel).packet_id == message.packet_id
    second.quiet()
    second.cut()
    third = returning.connect(present=True)
    assert third.receive(PubRel).packet_id == message.packet_id
    third.send(PubComp(message.packet_id))
    third.quiet()
    third.disconnect()
    returning.connect(present=True).quiet()


@mqtt5("MQTT-4.3.3-7")
@pytest.mark.ours_only("Mosquitto forgets it")
def test_a_message_that_was_sent_does_not_expire(
    client: ClientFactory, unique: Callable[[str], str], topic: str
) -> None:
    name = unique("slow")
    first = client(V5, name, properties=kept(V5))
    first.subscribe(topic, 2)
    client(V5).publish(topic, b"sent", 2, properties=properties(message_expiry_interval=1))
    message = first.receive(Publish)
    first.send(PubRec(message.packet_id))
    first.receive(PubRel)
    first.cut()
    time.sleep(2)
    again = client(V5, name, clean_start=False, properties=kept(V5))
    assert again.receive(PubRel).packet_id == message.packet_id


@mqtt5("MQTT-4.4.0-2", "MQTT-4.3.3-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_is_not_sent_again(
    client: ClientFactory, unique: Callable[[str], str], topic: str, qos: int
) -> None:
    name = unique("refusing")
    first = client(V5, name, properties=kept(V5))
    first.subscribe(topic, qos)
    client(V5).publish(topic, b"unwanted", qos)
    message = first.receive(Publish)
    first.send(PubAck(message.packet_id, 0x83) if qos == 1 else PubRec(message.packet_id, 0x83))
    first.quiet()
    first.cut()
    again = client(V5, name, clean_start=False, properties=kept(V5))
    again.quiet()


def test_a_taken_over_session_goes_on_where_it_was(returning: Returning, client: ClientFactory, topic: str) -> None:
    first = returning.connect(present=False)
    first.subscribe(topic, 1)
    client().publish(topic, b"unacknowledged")
    message = first.receive(Publish)
    second = returning.connect(present=True)
    first.closed(0x8E)
    again = second.take()
    assert (again.payload, again.packet_id, again.dup) == (b"unacknowledged", message.packet_id, True)
    client().publish(topic, b"next")
    assert second.take().payload == b"next"


# -- wills


@mqtt311("MQTT-3.1.2-8", "MQTT-3.1.2-16", "MQTT-3.1.2-17", "MQTT-3.1.2-10")
@mqtt5("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-14", "MQTT-3.1.2-15", "MQTT-3.1.2-10")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_breaks(
    client: ClientFactory, version: int, topic: str, qos: int, retain: bool
) -> None:
    watcher = client(version)
    watcher.subscribe(topic, 2)
    client(version, will=Will(topic, b"gone", qos, retain)).cut()
    message = watcher.take()
    assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)
    late = client(version)
    late.subscribe(topic, 2)
    if retain:
        assert late.take().retain
        late.publish(topic, b"", 0, retain=True)
        assert watcher.take().payload == b""
    else:
        late.quiet()
    watcher.quiet()


@mqtt311("MQTT-3.14.4-3", "MQTT-3.1.2-10", "MQTT-3.1.2-12")
@mqtt5("MQTT-3.14.4-3", "MQTT-3.1.2-10")
def test_a_clean_disconnect_discards_the_will(client: ClientFactory, version: int, topic: str) -> None:
    watcher = client(version)
    watcher.subscribe(f"{topic}/#", 1)
    client(version, will=Will(topic, b"not said")).disconnect()
    client(version).cut()
    client(version).publish(f"{topic}/end", b"end")
    assert watcher.take().payload == b"end"


@mqtt311("MQTT-3.1.2-8")
@mqtt5("MQTT-3.1.2-8")
def test_a_protocol_error_publishes_the_will(client: ClientFactory, version: int, topic: str) -> None:
    watcher = client(version)
    watcher.subscribe(topic, 1)
    wrong = client(version, will=Will(topic, b"threw out"))
    wrong.send_raw(b"\x00\x00")
    wrong.closed()
    assert watcher.take().payload == b"threw out"


@mqtt5("MQTT-3.1.2-8")
def test_disconnect_0x04_publishes_the_will(client: ClientFactory, topic: str) -> None:
    watcher = client(V5)
    watcher.subscribe(topic, 1)
    leaving = client(V5, will=Will(topic, b"farewell"))
    leaving.send(Disconnect(0x04))
    leaving.closed()
    assert watcher.take().payload == b"farewell"


@mqtt5("MQTT-3.1.3-10", "MQTT-3.3.2-18")
def test_a_will_is_published_with_its_properties_in_order(client: ClientFactory, topic: str) -> None:
    watcher = client(V5)
    watcher.subscribe(topic, 1)
    pairs = [("z", "1"), ("a", "2"), ("z", "0")]
    given = properties(content_type="a/b", response_topic="r", correlation_data=b"c", user_properties=pairs)
    client(V5, will=Will(topic, b"gone", 1, False, given)).cut()
    got = watcher.take().properties
    assert got is not None
    assert (got.content_type, got.response_topic, got.correlation_data) == ("a/b", "r", b"c")
    assert got.user_properties == pairs


@mqtt5("MQTT-3.1.2-8")
def test_a_will_waits_for_its_delay(client: ClientFactory, unique: Callable[[str], str], topic: str) -> None:
    watcher = client(V5)
    watcher.subscribe(f"{topic}/#", 1)
    will = Will(topic, b"later", 1, False, properties(will_delay_interval=2))
    leaving = client(V5, unique("delayed"), will=will, properties=properties(session_expiry_interval=600))
    began = time.monotonic()
    leaving.cut()
    client(V5).publish(f"{topic}/now", b"now")
    assert watcher.take().payload == b"now"
    assert watcher.take().payload == b"later"
    assert time.monotonic() - began > 1.5


@mqtt5("MQTT-3.1.3-9")
def test_a_client_that_returns_within_the_delay_takes_back_its_will(
    client: ClientFactory, unique: Callable[[str], str], topic: str
) -> None:
    name = unique("quick")
    watcher = client(V5)
    watcher.subscribe(f"{topic}/#", 1)
    will = Will(topic, b"not said", 1, False, properties(will_delay_interval=1))
    client(V5, name, will=will, properties=kept(V5)).cut()
    back = client(V5, name, clean_start=False, properties=kept(V5))
    time.sleep(2)
    back.publish(f"{topic}/end", b"end")
    assert watcher.take().payload == b"end"


@mqtt5("MQTT-3.1.2-8")
def test_a_delayed_will_is_published_when_the_session_ends_first(
    client: ClientFactory, unique: Callable[[str], str], topic: str
) -> None:
    watcher = client(V5)
    watcher.subscribe(topic, 1)
    will = Will(topic, b"ended", 1, False, properties(will_delay_interval=600))
    client(V5, unique("ended"), will=will, properties=properties(session_expiry_interval=1)).cut()
    assert watcher.take().payload == b"ended"


@mqtt311("MQTT-3.14.4-1", "MQTT-3.14.4-2")
@mqtt5("MQTT-3.14.4-1")
def test_nothing_that_follows_a_disconnect_is_processed(client: ClientFactory, version: int, topic: str) -> None:
    from trunkline.protocols.mqtt.codec import encode

    watcher = client(version)
    watcher.subscribe(topic, 1)
    leaving = client(version)
    leaving.try_send_raw(encode(Disconnect(), version) + encode(Publish(topic, b"too late"), version))
    leaving.closed()
    client(version).publish(topic, b"next")
    assert watcher.take().payload == b"next"


@mqtt5("MQTT-3.14.2-1")
def test_an_undefined_disconnect_reason_closes_with_an_error(client: ClientFactory, topic: str) -> None:
    watcher = client(V5)
    watcher.subscribe(topic, 1)
    leaving = client(V5, will=Will(topic, b"will", 1))
    leaving.send_raw(b"\xe0\x01\x03")
    leaving.closed(0x81, 0x82)
