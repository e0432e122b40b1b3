"""Random harm to the files of a stopped broker: it starts, and clients of what was not touched notice nothing.

`TRUNKLINE_DAMAGE_EXAMPLES` says how many harms are tried; the default is for every day.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pika
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from click.testing import CliRunner
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import Phase, given, settings
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

import trunkline
from tests.harm import Harm, do_harm, harms
from tests.integration.kafka.deliveries import deliver
from tests.integration.kafka.settings import aiokafka_consumer
from tests.integration.mqtt.wire import Wire
from tests.integration.waiting import DEADLINE_SECONDS, wait_until
from trunkline.cli.main import cli

pytestmark = [pytest.mark.ours_only("damages our own files"), pytest.mark.xdist_group("hostile damage")]

EXAMPLES = int(os.environ.get("TRUNKLINE_DAMAGE_EXAMPLES", "8"))
TOPICS = ("orders", "other")
COUNT = 60
COMMITTED = 25
TASKS, TASKS_DONE = 20, 5
SMALL = {"segment.bytes": "2048", "index.interval.bytes": "256"}


def value_of(topic: str, number: int) -> bytes:
    return f"{topic} {number}".encode()


def amqp_port(broker: trunkline.Broker) -> int:
    return int(broker.address("amqp").rpartition(":")[2])


def mqtt_port(broker: trunkline.Broker) -> int:
    return int(broker.address("mqtt").rpartition(":")[2])


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker leaves that Kafka, AMQP and MQTT clients have used."""
    data = tmp_path_factory.mktemp("healthy") / "data"
    with trunkline.run(data, topic=SMALL) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0})
        for topic in TOPICS:
            for number in range(COUNT):
                deliver(producer, topic, [value_of(topic, number)])
        transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        transactional.init_transactions(DEADLINE_SECONDS)
        for number in range(4):
            transactional.begin_transaction()
            transactional.produce("ledger", b"%d" % number)
            (transactional.commit_transaction if number % 2 else transactional.abort_transaction)(DEADLINE_SECONDS)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        for number in range(COMMITTED + 1):
            consumer.commit(offsets=[TopicPartition("orders", 0, number)], asynchronous=False)
        consumer.close()
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=amqp_port(broker)))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("tasks", durable=True)
        for number in range(TASKS):
            channel.basic_publish("", "tasks", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        for _ in range(TASKS_DONE):
            method, _properties, _body = channel.basic_get("tasks")
            channel.basic_ack(method.delivery_tag)
        connection.close()
        wire = Wire(mqtt_port(broker))
        wire.connect("device", clean_start=False)
        wire.subscribe("s/+", 1)
        wire.disconnect()
        sender = Wire(mqtt_port(broker))
        sender.connect("sender")
        for number in range(5):
            sender.publish("s/a", b"%d" % number, 1)
        sender.disconnect()
    return data


def read_topic(broker: trunkline.Broker, topic: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def done() -> bool:
        for message in consumer.consume(COUNT, 0.1):
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return True
            found.append(message.value())
        return False

    try:
        wait_until(done, what=f"the end of {topic}")
    finally:
        consumer.close()
    return found


def read_queue(broker: trunkline.Broker) -> list[bytes]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=amqp_port(broker)))
    channel = connection.channel()
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get("tasks")
        if method is None:
            break
        bodies.append(body)
    connection.close()
    return bodies


def committed(broker: trunkline.Broker) -> int:
    wanted = ConsumerGroupTopicPartitions("g", [TopicPartition("orders", 0)])
    admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.list_consumer_group_offsets([wanted])["g"].result(DEADLINE_SECONDS)
    return int(found.topic_partitions[0].offset)


def waiting_for_the_device(broker: trunkline.Broker) -> list[bytes]:
    wire = Wire(mqtt_port(broker))
    wire.connect("device", clean_start=False)
    found = [wire.take().payload for _ in range(5)]
    wire.disconnect()
    return [bytes(payload) for payload in found]


@pytest.mark.timeout(120 + 20 * EXAMPLES)
def test_clients_of_what_was_not_touched_notice_nothing(
    healthy: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    files = sorted(
        path.relative_to(healthy)
        for path in healthy.rglob("*")
        if path.is_file() and path.name not in (".lock", ".clean_shutdown")
    )

    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(harms)
    def check(made_up: list[Harm]) -> None:
        caplog.clear()
        data = tmp_path_factory.mktemp("victim") / "data"
        shutil.copytree(healthy, data)
        if made_up[0].mask % 2:
            (data / ".clean_shutdown").unlink()
        touched = {each.path.parent.name for harm in made_up for each in do_harm(data, files, harm)}
        with trunkline.run(data, topic=SMALL) as broker:
            serve(broker, touched)
        raised = [record for record in caplog.records if record.exc_info]
        assert not raised, raised
        shutil.rmtree(data)

    def serve(broker: trunkline.Broker, touched: set[str]) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0})
        for topic in TOPICS:
            if f"{topic}-0" not in touched:
                assert read_topic(broker, topic) == [value_of(topic, number) for number in range(COUNT)]
            deliver(producer, topic, [b"one more"])
        deliver(producer, "new", [b"x"])
        if not touched & {"tasks-0", "__queue_state-0", "__topology-0"}:
            assert read_queue(broker) == [b"%d" % number for number in range(TASKS_DONE, TASKS)]
        if not touched & {"__consumer_offsets-0", "__topology-0"}:
            assert committed(broker) == COMMITTED
        if not touched & {"mqtt-0", "__sessions-0", "__topology-0"}:
            assert waiting_for_the_device(broker) == [b"%d" % number for number in range(5)]

    assert {f"{topic}-0" for topic in TOPICS} <= {path.parent.name for path in files}
    logging.getLogger("trunkline").setLevel(logging.INFO)
    check()


@pytest.mark.parametrize("kind", ["garbage", "cut", "zero", "remove"])
@pytest.mark.parametrize(
    "topic", ["__topology", "__queue_state", "__transaction_state", "__sessions", "__consumer_offsets"]
)
def test_a_damaged_state_topic_names_itself_and_the_rest_is_served(
    healthy: Path, tmp_path: Path, topic: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    shutil.copytree(healthy, data)
    log = max((data / f"{topic}-0").glob("*.log"), key=lambda path: path.stat().st_size)
    do_harm(data, [log.relative_to(data)], Harm(kind, 0, 0.5, 40, 0x55))
    with trunkline.run(data, topic=SMALL) as broker:
        for name in TOPICS:
            assert read_topic(broker, name) == [value_of(name, number) for number in range(COUNT)]
        if topic in ("__transaction_state", "__sessions", "__consumer_offsets"):
            assert read_queue(broker) == [b"%d" % number for number in range(TASKS_DONE, TASKS)]
        transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "another"})
        transactional.init_transactions(DEADLINE_SECONDS)
        transactional.begin_transaction()
        transactional.produce("ledger", b"more")
        transactional.commit_transaction(DEADLINE_SECONDS)
        assert read_topic(broker, "ledger") == [b"1", b"3", b"more"], "readers of committed records are not held up"
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any(f"{topic}-0" in text and (str(log) in text or str(log.parent) in text) for text in told), told
    assert any("missing" in text for text in told), told
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("library", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_consumers_of_a_repaired_topic_go_on_behind_what_is_missing(
    healthy: Path, tmp_path: Path, library: str
) -> None:
    """In the middle, at the start of a segment, and where the log ends."""
    data = tmp_path / "data"
    shutil.copytree(healthy, data)
    (data / ".clean_shutdown").unlink()
    files = sorted(path.relative_to(data) for path in (data / "orders-0").glob("*.log"))
    assert len(files) > 2
    do_harm(data, files, Harm("garbage", 0, 0.5, 40, 0x55))
    do_harm(data, files, Harm("garbage", 1, 0.0, 40, 0x55))
    do_harm(data, files, Harm("cut", len(files) - 1, 0.5, 1, 1))
    repaired = CliRunner().invoke(cli, ["log", "repair", str(data)])
    assert repaired.exit_code == 0, repaired.output
    with trunkline.run(data, topic=SMALL) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        expected = {value_of("orders", number) for number in range(COUNT)} | {b"after"}
        deliver(producer, "orders", [b"after"])
        found = READERS[library](broker)
        assert found[-1] == b"after"
        assert len(found) == len(set(found))
        assert len(expected) // 2 < len(found) < len(expected)
        assert set(found) <= expected


def read_with_aiokafka(broker: trunkline.Broker) -> list[bytes]:
    async def main() -> list[bytes]:
        async with AIOKafkaConsumer(**aiokafka_consumer(broker.bootstrap, "a")) as consumer:
            consumer.assign([AioPartition("orders", 0)])
            await consumer.seek_to_beginning()
            found: list[bytes] = []
            while not found or found[-1] != b"after":
                found.append((await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)).value)
            return found

    return asyncio.run(main())


def read_with_kafka_python(broker: trunkline.Broker) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=int(DEADLINE_SECONDS * 1000))
    partition = PythonPartition("orders", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found: list[bytes] = []
    for message in consumer:
        found.append(message.value)
        if message.value == b"after":
            break
    consumer.close()
    return found


READERS: Mapping[str, Callable[[trunkline.Broker], list[bytes]]] = {
    "confluent-kafka": lambda broker: read_topic(broker, "orders"),
    "aiokafka": read_with_aiokafka,
    "kafka-python": read_with_kafka_python,
}
