"""Fixtures for AMQP: a broker shared by all tests of a worker, connections closed at the end, queues and exchanges of
one's own that are deleted at the end.

`--against rabbitmq` runs the same tests on a RabbitMQ that the run starts; what it does differently is marked
`ours_only` with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import (
    HOST,
    AmqpBroker,
    ExistingAmqpBroker,
    RestartableAmqpBroker,
    Trunkline,
    new_broker,
)

BLOCKED_SECONDS = 60.0


class ConnectionFactory(Protocol):
    def __call__(self, user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any) -> Any: ...


class QueueFactory(Protocol):
    def __call__(self, **arguments: Any) -> str: ...


class ExchangeFactory(Protocol):
    def __call__(self, kind: str, **options: Any) -> str: ...


@pytest.fixture(scope="session")
def amqp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    """One broker for all tests of this worker: use names of your own (`unique`, `queue`, `exchange`)."""
    against = request.config.getoption("--against")
    if ":" in against:
        yield ExistingAmqpBroker(against)
        return
    broker = new_broker(against, tmp_path_factory.mktemp("amqp"))
    try:
        broker.start()
        yield broker
        broker.stop()
        if isinstance(broker, Trunkline):
            assert "Traceback" not in broker.server.log.read_text(errors="replace"), broker.log_tail()
    finally:
        broker.close()


@pytest.fixture
def fresh_amqp(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RestartableAmqpBroker]:
    """A broker of the test's own, started, that it may stop, kill and start again."""
    against = request.config.getoption("--against")
    if ":" in against:
        pytest.skip("an existing broker is not ours to restart")
    broker = new_broker(against, tmp_path / "amqp")
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def open_connection(
    broker: AmqpBroker, user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any
) -> Any:
    options.setdefault("blocked_connection_timeout", BLOCKED_SECONDS)
    parameters = pika.ConnectionParameters(HOST, broker.port, vhost, pika.PlainCredentials(user, password), **options)
    return pika.BlockingConnection(parameters)


@pytest.fixture
def connect(amqp: AmqpBroker) -> Iterator[ConnectionFactory]:
    """Open pika connections: `connect(user="limited", password="…")`; all are closed after the test."""
    made: list[Any] = []

    def make(user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any) -> Any:
        made.append(open_connection(amqp, user, password, vhost, **options))
        return made[-1]

    yield make
    for connection in made:
        with contextlib.suppress(pika.exceptions.AMQPError):
            if connection.is_open:
                connection.close()


@pytest.fixture
def connection(connect: ConnectionFactory) -> Any:
    return connect()


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.fixture
def scrapped(amqp: AmqpBroker) -> Iterator[tuple[list[str], list[str]]]:
    """Names of queues and exchanges to be deleted after the test."""
    queues: list[str] = []
    exchanges: list[str] = []
    yield queues, exchanges
    if not queues and not exchanges:
        return
    connection = open_connection(amqp)
    channel = connection.channel()
    for name in queues:
        channel.queue_delete(name)
    for name in exchanges:
        channel.exchange_delete(name)
    connection.close()


@pytest.fixture
def queue(
    connect: ConnectionFactory, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> QueueFactory:
    """Declare a durable queue of the test's own: `queue(x_max_length=3)`; `_` stands for `-`."""
    admin: list[Any] = []

    def declare(**arguments: Any) -> str:
        if not admin:
            admin.append(connect().channel())
        name = unique("queue")
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        admin[0].queue_declare(name, durable=True, arguments=table)
        scrapped[0].append(name)
        return name

    return declare


@pytest.fixture
def exchange(
    connect: ConnectionFactory, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> ExchangeFactory:
    """Declare an exchange of the test's own: `exchange("topic")`."""
    admin: list[Any] = []

    def declare(kind: str, **options: Any) -> str:
        if not admin:
            admin.append(connect().channel())
        name = unique(kind)
        admin[0].exchange_declare(name, kind, **options)
        scrapped[1].append(name)
        return name

    return declare
