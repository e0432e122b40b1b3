"""Producing: acknowledgements, order, partitioners, limits, and topics that do not exist yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.conftest import BrokerFactory
from tests.integration.kafka import settings
from tests.integration.kafka.clients import CLIENTS, Client, Confluent, Sent, client_name
from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory, wait_for_topic
from tests.integration.kafka.deliveries import deliver, delivery_error, take, take_values
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), ("all", False), ("all", True)])
def test_confluent_records_arrive_with_every_acks(
    *,
    acks: int | str,
    idempotent: bool,
    topic: TopicFactory,
    producer: ClientFactory,
    consumer: MemberFactory,
    unique: Callable[[str], str],
) -> None:
    name = topic()
    values = [b"%d" % number for number in range(500)]
    deliver(producer(acks=acks, enable_idempotence=idempotent), name, values)
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, 0, 0)])
    assert take_values(reader, len(values)) == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_aiokafka_records_arrive_with_every_acks(acks: int | str, broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic()

    async def main() -> None:
        async with AIOKafkaProducer(**settings.aiokafka(broker.bootstrap, acks=acks)) as producer:
            for number in range(100):
                await producer.send(name, b"%d" % number, partition=0)
            await producer.flush()

    asyncio.run(main())
    assert [each.value for each in Confluent().read(broker.bootstrap, name, 100)] == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_kafka_python_records_arrive_with_every_acks(
    acks: int | str, broker: RunningBroker, topic: TopicFactory
) -> None:
    name = topic()
    producer = kafka.KafkaProducer(
        **settings.kafka_python(broker.bootstrap, acks=acks, enable_idempotence=acks == "all")
    )
    for number in range(100):
        producer.send(name, b"%d" % number, partition=0)
    producer.flush(DEADLINE_SECONDS)
    producer.close()
    assert [each.value for each in Confluent().read(broker.bootstrap, name, 100)] == [b"%d" % n for n in range(100)]


def test_order_is_kept_within_each_partition(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic(4)
    client = producer(linger_ms=1, batch_num_messages=50, enable_idempotence=True)
    for number in range(4000):
        client.produce(name, b"%d" % number, partition=number % 4)
        client.poll(0)
    assert client.flush(DEADLINE_SECONDS) == 0
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, partition, 0) for partition in range(4)])
    seen: dict[int, list[int]] = {partition: [] for partition in range(4)}
    for message in take(reader, 4000):
        assert message.offset() == len(seen[message.partition()])
        seen[message.partition()].append(int(message.value()))
    assert seen == {partition: list(range(partition, 4000, 4)) for partition in range(4)}


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python"])
def test_the_same_key_goes_to_the_same_partition_in_every_client(
    client: str, broker: RunningBroker, topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    """murmur2 modulo the number of partitions, as the Java client; every client must learn the same number from us."""
    expected = {b"alpha": 4, b"beta": 2, b"gamma": 4, b"21": 0, b"foobar": 0}
    name = topic(6)
    if client == "confluent":
        confluent = Producer(settings.confluent_producer(broker.bootstrap, partitioner="murmur2_random"))
        for key in expected:
            confluent.produce(name, b"", key)
        assert confluent.flush(DEADLINE_SECONDS) == 0
    elif client == "aiokafka":

        async def main() -> None:
            async with AIOKafkaProducer(**settings.aiokafka(broker.bootstrap)) as producer:
                for key in expected:
                    await producer.send_and_wait(name, b"", key)

        asyncio.run(main())
    else:
        python = kafka.KafkaProducer(**settings.kafka_python(broker.bootstrap))
        for key in expected:
            python.send(name, b"", key)
        python.flush(DEADLINE_SECONDS)
        python.close()
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, partition, 0) for partition in range(6)])
    assert {message.key(): message.partition() for message in take(reader, len(expected))} == expected


def test_keyless_records_use_more_than_one_partition(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic(3)
    deliver(producer(sticky_partitioning_linger_ms=0), name, [b"%d" % number for number in range(300)])
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, partition, 0) for partition in range(3)])
    used = Counter(message.partition() for message in take(reader, 300))
    assert sorted(used) == [0, 1, 2]


def test_a_message_above_the_topics_limit_is_refused_and_the_next_is_taken(
    topic: TopicFactory, producer: ClientFactory
) -> None:
    name = topic(max_message_bytes=2000)
    client = producer()
    assert delivery_error(client, name, bytes(5000)).name() == "MSG_SIZE_TOO_LARGE"
    assert [message.offset() for message in deliver(client, name, [b"small"])] == [0]


def test_aiokafka_and_kafka_python_see_a_message_too_large(broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic(max_message_bytes=2000)

    async def main() -> None:
        async with AIOKafkaProducer(**settings.aiokafka(broker.bootstrap)) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(name, bytes(5000))

    asyncio.run(main())
    python = kafka.KafkaProducer(**settings.kafka_python(broker.bootstrap))
    with pytest.raises(kafka.errors.MessageSizeTooLargeError):
        python.send(name, bytes(5000)).get(DEADLINE_SECONDS)
    python.close()


@pytest.mark.parametrize("writer", CLIENTS, ids=client_name)
def test_producing_to_an_unknown_topic_creates_it(
    writer: Client, broker: RunningBroker, admin: Any, unique: Callable[[str], str]
) -> None:
    name = unique("auto")
    writer.write(broker.bootstrap, name, [Sent(b"first")])
    wait_for_topic(admin, name, 1)
    assert [each.value for each in Confluent().read(broker.bootstrap, name, 1)] == [b"first"]


def test_a_consumer_that_may_not_create_topics_is_told_the_topic_is_unknown(
    consumer: MemberFactory, admin: Any, unique: Callable[[str], str]
) -> None:
    name = unique("absent")
    reader = consumer(unique("group"), allow_auto_create_topics=False)
    reader.subscribe([name])
    found = wait_until(lambda: reader.poll(0.2), what="an error for the unknown topic")
    assert found.error().name() == "UNKNOWN_TOPIC_OR_PART"
    assert name not in admin.list_topics(timeout=DEADLINE_SECONDS).topics


def test_a_broker_without_auto_creation_refuses_unknown_topics(
    broker_with: BrokerFactory, unique: Callable[[str], str]
) -> None:
    broker = broker_with(auto_create_topics="false")
    name = unique("absent")
    client = Producer(settings.confluent_producer(broker.bootstrap, message_timeout_ms=4000))
    assert delivery_error(client, name, b"nowhere").name() in (
        "_UNKNOWN_TOPIC",
        "UNKNOWN_TOPIC_OR_PART",
        "_MSG_TIMED_OUT",
    )
    reader = Consumer(settings.confluent_consumer(broker.bootstrap, "group", allow_auto_create_topics=True))
    reader.subscribe([name])
    found = wait_until(lambda: reader.poll(0.2), what="an error for the unknown topic")
    assert found.error().name() == "UNKNOWN_TOPIC_OR_PART"
    reader.close()
    assert name not in AdminClient(settings.confluent(broker.bootstrap)).list_topics(timeout=DEADLINE_SECONDS).topics


def test_an_invalid_topic_name_is_refused(producer: ClientFactory) -> None:
    error = delivery_error(producer(message_timeout_ms=5000), "no/slashes", b"nowhere")
    assert error.name() in ("TOPIC_EXCEPTION", "_UNKNOWN_TOPIC")


def test_many_producers_at_once_lose_nothing(
    broker: RunningBroker, topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic(2)
    producers = [Producer(settings.confluent_producer(broker.bootstrap)) for _ in range(8)]
    for number in range(200):
        for index, client in enumerate(producers):
            client.produce(name, b"%d-%d" % (index, number), partition=number % 2)
            client.poll(0)
    assert [client.flush(DEADLINE_SECONDS) for client in producers] == [0] * 8
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, partition, 0) for partition in range(2)])
    assert len(set(take_values(reader, 1600))) == 1600
