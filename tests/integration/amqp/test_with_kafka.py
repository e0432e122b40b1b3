"""A queue is a topic of the same name: Kafka clients read what AMQP clients publish, and the other way round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.integration.amqp.brokers import Trunkline
from tests.integration.amqp.conftest import ConnectionFactory, ExchangeFactory, QueueFactory, open_connection
from tests.integration.amqp.reading import Inbox, get
from tests.integration.kafka import settings
from tests.integration.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.ours_only("RabbitMQ speaks no Kafka")


def read(bootstrap: str, topic: str, count: int) -> list[Any]:
    """The first records of the topic's one partition."""
    consumer = Consumer(settings.confluent_consumer(bootstrap, f"reader-of-{topic}"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    records: list[Any] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while len(records) < count:
            assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
            records += [record for record in consumer.consume(count, 0.2) if record.error() is None]
    finally:
        consumer.close()
    return records


def produce(bootstrap: str, topic: str, *records: tuple[bytes | None, bytes, list[tuple[str, bytes]]]) -> None:
    producer = Producer(settings.confluent_producer(bootstrap))
    failed: list[Any] = []
    for key, value, headers in records:
        producer.produce(topic, value, key, headers=headers, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert failed == [None] * len(records)


def test_a_kafka_consumer_reads_a_queue(
    amqp: Trunkline, channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    name, source = queue(), exchange("topic")
    channel.queue_bind(name, source, "order.*")
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, correlation_id="c-1", priority=3, headers={"colour": "red", "n": 7}
    )
    for number in range(10):
        channel.basic_publish(source, "order.new", b"%d" % number, properties)
    records = read(amqp.bootstrap, name, 10)
    assert [record.value() for record in records] == [b"%d" % number for number in range(10)]
    headers = dict(records[0].headers())
    expected = {
        "amqp.exchange": source.encode(),
        "amqp.routing-key": b"order.new",
        "amqp.content-type": b"text/plain",
        "amqp.correlation-id": b"c-1",
        "amqp.priority": b"3",
        "colour": b"red",
        "n": b"7",
    }
    assert {key: headers[key] for key in expected} == expected


def test_an_amqp_consumer_gets_what_a_kafka_client_produces(
    amqp: Trunkline, connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, channel = queue(), connect().channel()
    inbox = Inbox(channel, name)
    records = [(b"key-%d" % n, b"value-%d" % n, [("colour", b"blue"), ("n", b"%d" % n)]) for n in range(50)]
    produce(amqp.bootstrap, name, *records)
    inbox.wait(50)
    assert inbox.bodies == [value for _, value, _ in records]
    first = inbox.messages[0]
    assert (first.method.exchange, first.method.routing_key) == ("", name)
    assert first.properties.headers["colour"] == "blue"
    assert first.properties.headers["n"] == "0"


def test_what_kafka_produced_is_leased_acknowledged_and_redelivered_like_any_message(
    amqp: Trunkline, connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, connection = queue(), connect()
    produce(amqp.bootstrap, name, *((None, b"%d" % n, []) for n in range(3)))
    channel = connection.channel()
    first = get(channel, name, auto_ack=False)
    second = get(channel, name, auto_ack=False)
    channel.basic_ack(second.method.delivery_tag)
    connection.close()
    channel = connect().channel()
    again = get(channel, name)
    assert (again.body, again.method.redelivered) == (first.body, True) == (b"0", True)
    assert get(channel, name).body == b"2"


def test_both_kinds_of_messages_keep_one_order(amqp: Trunkline, channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.confirm_delivery()
    for number in range(6):
        if number % 2:
            produce(amqp.bootstrap, name, (None, b"%d" % number, []))
        else:
            channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    assert [get(channel, name).body for _ in range(6)] == [b"%d" % number for number in range(6)]
    assert [record.value() for record in read(amqp.bootstrap, name, 6)] == [b"%d" % number for number in range(6)]


def test_a_topic_made_by_kafka_is_a_queue_once_it_is_declared(
    amqp: Trunkline, connect: ConnectionFactory, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> None:
    name = unique("topic")
    produce(amqp.bootstrap, name, (b"k", b"first", []))
    channel = connect().channel()
    channel.queue_declare(name, durable=True)
    scrapped[0].append(name)
    produce(amqp.bootstrap, name, (b"k", b"second", []))
    bodies = {get(channel, name).body}
    while b"second" not in bodies:
        bodies.add(get(channel, name).body)
    assert bodies <= {b"first", b"second"}


def test_a_retained_queue_is_replayed_by_kafka_after_it_was_consumed(
    amqp: Trunkline, channel: Any, queue: QueueFactory
) -> None:
    name = queue(x_retain=True)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    assert [get(channel, name).body for _ in range(20)] == [b"%d" % number for number in range(20)]
    assert [record.value() for record in read(amqp.bootstrap, name, 20)] == [b"%d" % number for number in range(20)]


def test_a_queues_topic_keeps_its_one_partition(fresh_amqp: Trunkline, unique: Callable[[str], str]) -> None:
    name = unique("narrow")
    channel = open_connection(fresh_amqp).channel()
    channel.queue_declare(name, durable=True)
    admin = AdminClient({"bootstrap.servers": fresh_amqp.bootstrap})
    for validate_only in (True, False):
        (future,) = admin.create_partitions([NewPartitions(name, 3)], validate_only=validate_only).values()
        with pytest.raises(KafkaException) as refused:
            future.result(DEADLINE_SECONDS)
        error = refused.value.args[0]
        assert error.code() == KafkaError.INVALID_PARTITIONS
        assert "worked off as a queue" in error.str()
    fresh_amqp.stop()
    fresh_amqp.start()
    channel = open_connection(fresh_amqp).channel()
    assert channel.queue_declare(name, durable=True).method.queue == name


def test_a_topic_of_several_partitions_is_no_queue_and_says_why(
    amqp: Trunkline, connection: Any, unique: Callable[[str], str]
) -> None:
    name = unique("wide")
    admin = AdminClient({"bootstrap.servers": amqp.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(DEADLINE_SECONDS)
    attempts: list[Callable[[Any], object]] = [
        lambda channel: channel.basic_get(name),
        lambda channel: channel.queue_declare(name, passive=True),
        lambda channel: channel.queue_declare(name, durable=True),
    ]
    for attempt in attempts:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            attempt(connection.channel())
        assert refused.value.reply_code == 406
        assert "3 partitions" in refused.value.reply_text
