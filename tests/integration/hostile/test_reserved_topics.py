"""The broker's own topics and files: clients cannot change them, nor read what is not everybody's."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.integration.kafka import settings
from tests.integration.server import ServerProcess
from tests.integration.waiting import DEADLINE_SECONDS
from trunkline.log.names import READABLE_TOPICS, RESERVED_TOPICS

pytestmark = [pytest.mark.ours_only("looks into our own data directory"), pytest.mark.xdist_group("hostile")]

# librdkafka asks for the leader before it deletes records, and is told of none where it may not look.
REFUSALS = {KafkaError.TOPIC_EXCEPTION, KafkaError._NOENT}
PRIVATE = sorted(RESERVED_TOPICS - READABLE_TOPICS)


def altered(topic: str) -> ConfigResource:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (("cleanup.policy", "delete"), ("retention.ms", "1"), ("segment.ms", "1"))
    ]
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


ATTACKS: dict[str, Callable[[AdminClient, str], dict[Any, Any]]] = {
    "alter incrementally": lambda admin, topic: admin.incremental_alter_configs([altered(topic)]),
    "delete records": lambda admin, topic: admin.delete_records([TopicPartition(topic, 0, -1)]),
    "delete": lambda admin, topic: admin.delete_topics([topic]),
    "create": lambda admin, topic: admin.create_topics([NewTopic(topic, 1, 1)]),
    "grow": lambda admin, topic: admin.create_partitions([NewPartitions(topic, 4)]),
}


def error_of(future: Any) -> KafkaError:
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_SECONDS)
    error: KafkaError = refused.value.args[0]
    return error


def amqp(server: ServerProcess) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port_of("amqp"))).channel()


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """A broker with a durable queue and its message."""
    found = ServerProcess(tmp_path / "broker")
    found.start()
    channel = amqp(found)
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    channel.basic_publish("", "kept", b"kept", pika.BasicProperties(delivery_mode=2))
    channel.connection.close()
    yield found
    found.close()


def test_no_administration_reaches_the_brokers_own_topics(server: ServerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for topic in sorted(RESERVED_TOPICS):
        for attack in ATTACKS.values():
            (future,) = attack(admin, topic).values()
            assert error_of(future).code() in REFUSALS, topic
    assert server.stop() == 0
    server.start()
    channel = amqp(server)
    assert channel.basic_get("kept", auto_ack=True)[2] == b"kept"
    assert not list(server.data.glob("*-stray"))


def test_what_is_not_everybodys_is_not_read(server: ServerProcess) -> None:
    for topic in PRIVATE:
        command = [sys.executable, "-m", "trunkline", "consume", topic, "--from-beginning", "--exit-at-end"]
        done = subprocess.run(
            [*command, "--bootstrap", server.bootstrap],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode != 0
        assert done.stdout == ""
        assert "not allowed to use this topic" in done.stderr


def test_offsets_stay_readable_and_a_pattern_meets_only_what_can_be_read(server: ServerProcess) -> None:
    committer = Consumer(settings.confluent_consumer(server.bootstrap, "committer"))
    committer.commit(offsets=[TopicPartition("kept", 0, 1)], asynchronous=False)
    committer.close()
    consumer = Consumer(settings.confluent_consumer(server.bootstrap, "everything"))
    consumer.subscribe(["^.*"])
    seen: set[str] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not {"kept", "__consumer_offsets"} <= seen:
        assert time.monotonic() < deadline, seen
        record = consumer.poll(0.2)
        if record is not None:
            assert record.error() is None, record.error()
            seen.add(record.topic())
    consumer.close()
    assert seen <= {"kept", *READABLE_TOPICS}


def modes(directory: Path) -> dict[str, str]:
    """What is in the directory, itself included, that others than its owner have any rights to."""
    return {
        str(path): stat.filemode(path.lstat().st_mode)
        for path in (directory, *directory.rglob("*"))
        if path.lstat().st_mode & 0o077
    }


def test_the_data_directory_is_its_owners_alone(server: ServerProcess) -> None:
    assert modes(server.data) == {}
    assert server.stop() == 0
    assert modes(server.data) == {}
    for path in (server.data, *server.data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    server.start()
    assert modes(server.data) == {}
    assert amqp(server).basic_get("kept", auto_ack=True)[2] == b"kept"
