"""MQTT meets the log: Kafka clients read and write what MQTT clients publish and receive; mapping rules."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.mqtt.brokers import MqttBroker, Trunkline
from tests.integration.mqtt.conftest import ClientFactory, MqttBrokerFactory
from tests.integration.mqtt.wire import Wire, properties
from trunkline.protocols.mqtt.packets import V5, Publish

pytestmark = pytest.mark.ours_only("only here is an MQTT topic also a Kafka topic")

TIMEOUT_SECONDS = 30.0
AWAY_SESSIONS = 10_000 if os.environ.get("TRUNKLINE_SCALE") == "full" else 300


def bootstrap_of(broker: MqttBroker) -> str:
    assert isinstance(broker, Trunkline)
    return broker.bootstrap


def records(
    bootstrap: str, topic: str, wanted: Callable[[bytes], bool], count: int
) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
    """Key, value and headers of the first `count` records whose key is wanted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[bytes, bytes, dict[str, bytes]]] = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} records of {topic}"
            record = consumer.poll(0.2)
            if record is None or record.error() is not None:
                continue
            key = record.key() or b""
            if wanted(key):
                found.append((key, record.value() or b"", dict(record.headers() or [])))
    finally:
        consumer.close()
    return found


def test_publications_are_records_of_the_log(mqtt: MqttBroker, client: ClientFactory, topic: str) -> None:
    publisher = client(V5)
    sent = properties(content_type="a/b", user_properties=[("k", "v")], response_topic="r", correlation_data=b"c")
    for qos in range(3):
        publisher.publish(topic, b"payload %d" % qos, qos, properties=sent)
    publisher.quiet()
    got = records(bootstrap_of(mqtt), "mqtt", lambda key: key == topic.encode(), 3)
    assert [(key, value) for key, value, _ in got] == [(topic.encode(), b"payload %d" % qos) for qos in range(3)]
    assert [headers["mqtt.qos"] for _, _, headers in got] == [b"0", b"1", b"2"]
    assert all(headers["k"] == b"v" and headers["mqtt.content-type"] == b"a/b" for _, _, headers in got)


def test_a_kafka_producer_reaches_mqtt_subscribers(mqtt: MqttBroker, client: ClientFactory, topic: str) -> None:
    live = client(V5)
    live.subscribe(f"{topic}/#", 1)
    away = client(V5, f"away-{topic[-8:]}", properties=properties(session_expiry_interval=600))
    away.subscribe(f"{topic}/#", 2)
    away.disconnect()
    client().publish(f"{topic}/first", b"so that the log topic exists")
    assert live.take().topic == f"{topic}/first"
    producer = Producer({"bootstrap.servers": bootstrap_of(mqtt)})
    for number in range(20):
        producer.produce("mqtt", b"%d" % number, key=f"{topic}/{number % 2}", headers=[("colour", b"red")])
    assert producer.flush(TIMEOUT_SECONDS) == 0
    got = [live.take() for _ in range(20)]
    assert [(message.topic, message.payload) for message in got] == [
        (f"{topic}/{number % 2}", b"%d" % number) for number in range(20)
    ]
    assert got[0].properties is not None
    assert ("colour", "red") in got[0].properties.user_properties
    back = client(V5, f"away-{topic[-8:]}", clean_start=False, properties=properties(session_expiry_interval=600))
    assert [back.take().payload for _ in range(21)][1:] == [b"%d" % number for number in range(20)]


def test_mapping_rules_choose_the_log_topic(mqtt_with: MqttBrokerFactory, tmp_path: Path, topic: str) -> None:
    rules = tmp_path / "trunkline.toml"
    rules.write_text('[mqtt]\n"sensors/#" = "readings"\n"chatter/#" = "off"\n')
    broker = mqtt_with(config=str(rules))
    assert isinstance(broker, Trunkline)
    with Wire(broker.port) as subscriber, Wire(broker.port) as publisher:
        subscriber.connect("subscriber", clean_start=False)
        publisher.connect("publisher")
        for topic_filter in ("sensors/#", "chatter/#", topic):
            subscriber.subscribe(topic_filter, 1)
        publisher.publish("sensors/1", b"mapped")
        publisher.publish("chatter/1", b"not stored")
        publisher.publish(topic, b"default")
        assert [subscriber.take().payload for _ in range(3)] == [b"mapped", b"not stored", b"default"]
        subscriber.disconnect()
        publisher.publish("chatter/1", b"nobody is there")
        publisher.publish("sensors/1", b"kept")
        with Wire(broker.port) as back:
            assert back.connect("subscriber", clean_start=False).session_present
            assert back.take().payload == b"kept"
    every = lambda _key: True  # noqa: E731
    assert [value for _, value, _ in records(broker.bootstrap, "readings", every, 2)] == [b"mapped", b"kept"]
    assert [value for _, value, _ in records(broker.bootstrap, "mqtt", every, 1)] == [b"default"]


def test_an_amqp_queue_bound_to_amq_topic_takes_publications(
    mqtt: MqttBroker, client: ClientFactory, unique: Callable[[str], str]
) -> None:
    import pika

    assert isinstance(mqtt, Trunkline)
    name = unique("plant")
    parameters = pika.ConnectionParameters("127.0.0.1", mqtt.server.port_of("amqp"))
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", f"{name}.*.temperature")
    client().publish(f"{name}/1/temperature", b"21.5", 1)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    body = None
    while body is None:
        assert time.monotonic() < deadline, "nothing came to the queue"
        method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, body) == (f"{name}.1.temperature", b"21.5")
    connection.close()


@pytest.mark.timeout(600)
def test_sessions_that_are_away_take_no_room_for_what_they_miss(mqtt_with: MqttBrokerFactory, topic: str) -> None:
    """They are places in the log, not copies of it."""

    def grown_by(sessions: int) -> int:
        broker = mqtt_with()
        assert isinstance(broker, Trunkline)
        for number in range(sessions):
            with Wire(broker.port) as away:
                away.connect(f"away-{number}", clean_start=False)
                away.subscribe(f"{topic}/#", 1)
                away.subscribe("#" if number % 2 else "+/#", 1)
                away.disconnect()
        with Wire(broker.port) as publisher:
            publisher.connect("publisher")
            before = _bytes_in(broker.server.data)
            publisher.send(
                *[Publish(f"{topic}/{number}", bytes(1_000), 1, False, False, number + 1) for number in range(500)]
            )
            for _ in range(500):
                publisher.receive_any()
            after = _bytes_in(broker.server.data)
            with Wire(broker.port) as back:
                back.connect("away-0", clean_start=False)
                assert [back.take().topic for _ in range(500)] == [f"{topic}/{number}" for number in range(500)]
        broker.stop()
        return after - before

    few, many = grown_by(10), grown_by(AWAY_SESSIONS)
    assert few > 500_000
    assert many < 1.2 * few + 65_536


def _bytes_in(directory: Path) -> int:
    """What is written; segments and indexes may be preallocated, which says nothing."""
    total = 0
    for path in directory.rglob("*.log"):
        total += path.stat().st_size
    return total
