"""Connections of every protocol, listed and closed through the administration, with real clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal, cast

import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka.admin import AdminClient

import trunkline
from tests.integration.stomp.wire import Wire
from tests.integration.waiting import DEADLINE_SECONDS, wait_until
from trunkline.client.amqp import AmqpClient, parse_url

pytestmark = pytest.mark.ours_only("our administration")


@pytest.fixture
def broker() -> Iterator[trunkline.Broker]:
    with trunkline.run() as running:
        yield running


@pytest.fixture
def operator(broker: trunkline.Broker) -> Iterator[AmqpClient]:
    with AmqpClient(parse_url(f"amqp://{broker.address('amqp')}")) as client:
        yield client


def listed(operator: AmqpClient, protocol: str) -> list[dict[str, object]]:
    found = cast("list[dict[str, object]]", operator.manage("connections"))
    return [each for each in found if str(each["protocol"]).startswith(protocol)]


def port_of(broker: trunkline.Broker, listener: str) -> int:
    return int(broker.address(listener).rpartition(":")[2])


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_an_mqtt_connection_is_listed_and_closed(
    broker: trunkline.Broker, operator: AmqpClient, transport: Literal["tcp", "websockets"]
) -> None:
    listener = "mqtt" if transport == "tcp" else "mqtt-ws"
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "watched", protocol=paho.MQTTv5, transport=transport)
    subscribed, closed = threading.Event(), threading.Event()
    reasons: list[str] = []

    def disconnected(_client: object, _data: object, _flags: object, reason: object, _properties: object) -> None:
        reasons.append(str(reason))
        closed.set()

    client.on_subscribe = lambda *_: subscribed.set()
    client.on_disconnect = disconnected
    client.connect("127.0.0.1", port_of(broker, listener))
    client.loop_start()
    try:
        wait_until(client.is_connected, DEADLINE_SECONDS, "the connection")
        client.subscribe("t")
        assert subscribed.wait(DEADLINE_SECONDS)
        [found] = listed(operator, "MQTT 5.0")
        assert found["listener"] == listener
        assert found["peer_host"] == "127.0.0.1"
        assert cast("dict[str, object]", found["details"])["client_id"] == "watched"
        assert cast("dict[str, object]", found["details"])["subscriptions"] == 1
        sessions = cast("dict[str, object]", operator.manage("sessions", filter="watch"))
        assert sessions["total"] == 1
        operator.manage("close_connection", id=found["id"])
        assert closed.wait(DEADLINE_SECONDS)
        assert reasons[0] == "Administrative action"
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_stomp_connection_is_listed_and_closed_with_the_reason(
    broker: trunkline.Broker, operator: AmqpClient
) -> None:
    with Wire(port_of(broker, "stomp")) as wire:
        wire.connect("1.1")
        wire.ask("SUBSCRIBE", id=1, destination="/queue/watched", ack="client")
        wire.send("SEND", b"x", destination="/queue/watched")
        wire.expect("MESSAGE")
        [found] = listed(operator, "STOMP 1.1")
        details = cast("dict[str, object]", found["details"])
        assert (found["listener"], found["user"], details["virtual_host"]) == ("stomp", "guest", "/")
        assert (details["subscriptions"], details["unacknowledged"]) == (1, 1)
        operator.manage("close_connection", id=found["id"], reason="moving house")
        assert wire.error().body == b"CONNECTION_FORCED - moving house"
    assert listed(operator, "STOMP") == []


def test_an_amqp_connection_is_listed_and_closed_with_the_reason(
    broker: trunkline.Broker, operator: AmqpClient
) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", port_of(broker, "amqp"))
    connection = pika.BlockingConnection(parameters)
    connection.channel()
    connection.channel().basic_consume(connection.channel().queue_declare("").method.queue, print)
    numbers = [(each["id"], cast("dict[str, object]", each["details"])) for each in listed(operator, "AMQP")]
    [(number, details)] = [found for found in numbers if found[1]["channels"] == 3]
    assert (details["virtual_host"], details["consumers"], details["state"]) == ("/", 1, "running")
    assert listed(operator, "AMQP")[0]["user"] == "guest"
    operator.manage("close_connection", id=number, reason="moving house")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED - moving house"):
        connection.process_data_events(DEADLINE_SECONDS)
    assert [each["id"] for each in listed(operator, "AMQP")] != [number]


def test_a_kafka_connection_is_listed_and_closed_and_comes_back(broker: trunkline.Broker, operator: AmqpClient) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found: list[dict[str, object]] = []

    def is_listed() -> bool:  # it may be between the connection to its bootstrap server and the next
        assert admin.list_topics(timeout=DEADLINE_SECONDS).brokers
        found[:] = listed(operator, "Kafka")
        return bool(found)

    wait_until(is_listed, DEADLINE_SECONDS, "a Kafka connection")
    assert all(each["listener"] == "kafka" and each["user"] == "ANONYMOUS" for each in found)
    for each in found:
        operator.manage("close_connection", id=each["id"])
    gone = {each["id"] for each in found}
    wait_until(
        lambda: not gone & {each["id"] for each in listed(operator, "Kafka")}, DEADLINE_SECONDS, "the connections' end"
    )
    assert admin.list_topics(timeout=DEADLINE_SECONDS).brokers
