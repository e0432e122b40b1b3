"""The paho-mqtt client, 3.1.1 and 5.0, over TCP and WebSocket: what an application does with it."""

from __future__ import annotations

import queue
import ssl
from collections.abc import Callable, Iterator
from typing import Protocol

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.integration.mqtt.brokers import HOST, MqttBroker
from tests.integration.waiting import wait_until

TIMEOUT_SECONDS = 20.0


class PahoClient:
    """A client with its network thread running; messages go to a queue."""

    def __init__(self, broker: MqttBroker, protocol: int, transport: str, client_id: str, **connect: object) -> None:
        self.messages: queue.SimpleQueue[paho.MQTTMessage] = queue.SimpleQueue()
        clean = connect.pop("clean", True)
        options = {} if protocol == paho.MQTTv5 else {"clean_session": bool(clean)}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=paho.MQTTProtocolVersion(protocol),
            transport="websockets" if transport == "websockets" else "tcp",
            **options,
        )
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.subscribed: set[int | None] = set()
        self.client.on_subscribe = lambda _c, _d, mid, _codes, _p: self.subscribed.add(mid)
        self.session_present: bool | None = None
        self.client.on_connect = self._connected
        port = broker.ws_port if transport == "websockets" else broker.port
        if protocol == paho.MQTTv5:
            session = Properties(PacketTypes.CONNECT)
            session.SessionExpiryInterval = 0 if clean else 600
            self.client.connect(HOST, port, 60, clean_start=bool(clean), properties=session)
        else:
            self.client.connect(HOST, port, 60)
        self.client.loop_start()
        wait_until(self.client.is_connected, TIMEOUT_SECONDS, "paho's connection")

    def _connected(self, _client: object, _data: object, flags: paho.ConnectFlags, _code: object, _p: object) -> None:
        self.session_present = flags.session_present

    def subscribe(self, topic_filter: str, qos: int = 0, options: SubscribeOptions | None = None) -> None:
        code, mid = (
            self.client.subscribe(topic_filter, options=options)
            if options
            else self.client.subscribe(topic_filter, qos)
        )
        assert code == paho.MQTT_ERR_SUCCESS
        wait_until(lambda: mid in self.subscribed, TIMEOUT_SECONDS, "SUBACK")

    def publish(
        self,
        topic: str,
        payload: bytes | str,
        qos: int = 1,
        *,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        published = self.client.publish(topic, payload, qos, retain, properties)
        published.wait_for_publish(TIMEOUT_SECONDS)
        assert published.is_published()

    def take(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class PahoFactory(Protocol):
    def __call__(self, client_id: str | None = None, *, clean: bool = True) -> PahoClient: ...


@pytest.fixture(params=[paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5.0"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["tcp", "websockets"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(mqtt: MqttBroker, protocol: int, transport: str, unique: Callable[[str], str]) -> Iterator[PahoFactory]:
    made: list[PahoClient] = []

    def make(client_id: str | None = None, *, clean: bool = True) -> PahoClient:
        made.append(PahoClient(mqtt, protocol, transport, client_id or unique("paho"), clean=clean))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_order(connect: PahoFactory, topic: str, qos: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/+", qos)
    for number in range(100):
        publisher.publish(f"{topic}/a", b"%d" % number, qos)
    got = [subscriber.take() for _ in range(100)]
    assert [message.payload for message in got] == [b"%d" % number for number in range(100)]
    assert {message.qos for message in got} == {qos}


def test_a_burst_of_qos_1_and_2_is_acknowledged_in_full(connect: PahoFactory, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 2)
    pending = [publisher.client.publish(topic, b"%d" % number, 1 + number % 2) for number in range(1_000)]
    for message in pending:
        message.wait_for_publish(TIMEOUT_SECONDS)
    got = [int(subscriber.take().payload) for _ in range(1_000)]
    assert sorted(got) == list(range(1_000))


def test_retained_messages(connect: PahoFactory, topic: str) -> None:
    publisher = connect()
    publisher.publish(topic, "kept", 1, retain=True)
    first = connect()
    first.subscribe(topic, 1)
    message = first.take()
    assert (message.payload, message.retain) == (b"kept", True)
    publisher.publish(topic, "", 1, retain=True)
    assert first.take().payload == b""
    second = connect()
    second.subscribe(topic, 1)
    publisher.publish(topic, "live")
    assert second.take().payload == b"live"


def test_a_session_is_kept_while_its_client_is_away(
    connect: PahoFactory, topic: str, unique: Callable[[str], str]
) -> None:
    name = unique("away")
    away = connect(name, clean=False)
    assert away.session_present is False
    away.subscribe(topic, 2)
    away.close()
    publisher = connect()
    for number in range(20):
        publisher.publish(topic, b"%d" % number, 1 + number % 2)
    back = connect(name, clean=False)
    got = [back.take() for _ in range(20)]
    for qos in (1, 2):  # paho hands out those of QoS 2 when they are released
        missed = [b"%d" % number for number in range(20) if 1 + number % 2 == qos]
        assert [message.payload for message in got if message.qos == qos] == missed
    assert back.session_present is True


def test_a_large_message(connect: PahoFactory, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 1)
    payload = bytes(range(256)) * 500
    publisher.publish(topic, payload)
    assert subscriber.take().payload == payload


def test_properties_of_5_0_and_request_response(connect: PahoFactory, protocol: int, topic: str) -> None:
    if protocol != paho.MQTTv5:
        pytest.skip("properties are 5.0's")
    server, asking = connect(), connect()
    server.subscribe(f"{topic}/request", 1)
    asking.subscribe(f"{topic}/answer", 1)
    asked = Properties(PacketTypes.PUBLISH)
    asked.ResponseTopic = f"{topic}/answer"
    asked.CorrelationData = b"\x01\x02"
    asked.ContentType = "text/plain"
    asked.UserProperty = [("a", "1"), ("a", "2")]
    asking.publish(f"{topic}/request", "2+2", properties=asked)
    request = server.take()
    assert request.properties is not None
    assert request.properties.UserProperty == [("a", "1"), ("a", "2")]
    answered = Properties(PacketTypes.PUBLISH)
    answered.CorrelationData = request.properties.CorrelationData
    server.publish(request.properties.ResponseTopic, "4", properties=answered)
    answer = asking.take()
    assert answer.properties is not None
    assert (answer.payload, answer.properties.CorrelationData) == (b"4", b"\x01\x02")


def test_subscription_options_of_5_0(connect: PahoFactory, protocol: int, topic: str) -> None:
    if protocol != paho.MQTTv5:
        pytest.skip("subscription options are 5.0's")
    both = connect()
    both.publish(topic, "kept", retain=True)
    both.subscribe(
        topic, options=SubscribeOptions(qos=1, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
    )
    both.publish(topic, "mine")
    connect().publish(topic, "theirs")
    assert both.take().payload == b"theirs"


def test_a_will_is_published_when_the_socket_breaks(
    connect: PahoFactory, mqtt: MqttBroker, protocol: int, topic: str, unique: Callable[[str], str]
) -> None:
    watcher = connect()
    watcher.subscribe(topic, 1)
    dying = paho.Client(CallbackAPIVersion.VERSION2, unique("dying"), protocol=paho.MQTTProtocolVersion(protocol))
    dying.will_set(topic, "gone", 1)
    dying.connect(HOST, mqtt.port)
    dying.loop_start()
    wait_until(dying.is_connected, TIMEOUT_SECONDS, "paho's connection")
    dying.on_disconnect = lambda *_: None
    dying.loop_stop()
    connection = dying.socket()
    assert connection is not None
    assert not isinstance(connection, ssl.SSLSocket)
    connection.close()
    assert watcher.take().payload == b"gone"
