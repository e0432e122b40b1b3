"""Fixtures for Kafka clients: topics that no other test uses, and librdkafka clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.kafka import settings
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until


class TopicFactory(Protocol):
    def __call__(self, partitions: int = 1, **configs: str | int) -> str: ...


class ClientFactory(Protocol):
    def __call__(self, **configs: Any) -> Any: ...


class MemberFactory(Protocol):
    def __call__(self, group: str, **configs: Any) -> Any: ...


@pytest.fixture(scope="session")
def admin(broker: RunningBroker) -> Any:
    return AdminClient(settings.confluent(broker.bootstrap))


@pytest.fixture
def topic(admin: Any, unique: Callable[[str], str]) -> TopicFactory:
    """Create a topic and wait until clients can use it: `topic(3, cleanup_policy="compact")`."""

    def create(partitions: int = 1, **configs: str | int) -> str:
        name = unique("topic")
        create_topic(admin, name, partitions, **configs)
        return name

    return create


def create_topic(admin: Any, name: str, partitions: int = 1, **configs: str | int) -> None:
    config = {key.replace("_", "."): str(value) for key, value in configs.items()}
    futures = admin.create_topics([NewTopic(name, partitions, 1, config=config)])
    futures[name].result(DEADLINE_SECONDS)
    wait_for_topic(admin, name, partitions)


def wait_for_topic(admin: Any, name: str, partitions: int) -> None:
    def visible() -> bool:
        found = admin.list_topics(name, timeout=DEADLINE_SECONDS).topics[name]
        leaders = [partition.leader for partition in found.partitions.values()]
        return found.error is None and len(leaders) == partitions and min(leaders) >= 0

    wait_until(visible, what=f"{name} with {partitions} partitions")


@pytest.fixture
def producer(broker: RunningBroker) -> ClientFactory:
    return lambda **configs: Producer(settings.confluent_producer(broker.bootstrap, **configs))


@pytest.fixture
def consumer(broker: RunningBroker) -> Iterator[MemberFactory]:
    """Make librdkafka consumers: `consumer("group", group_protocol="consumer")`; all are closed after the test."""
    made: list[Any] = []

    def make(group: str, **configs: Any) -> Any:
        made.append(Consumer(settings.confluent_consumer(broker.bootstrap, group, **configs)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def python_admin(broker: RunningBroker) -> Iterator[Any]:
    """kafka-python's admin client."""
    import kafka.admin

    client = kafka.admin.KafkaAdminClient(**settings.kafka_python(broker.bootstrap))
    yield client
    client.close()
