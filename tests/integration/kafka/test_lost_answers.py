"""Transactions whose produces were stored although the producer never learned of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.kafka import settings
from tests.integration.kafka.conftest import create_topic
from tests.integration.kafka.deliveries import deliver, nothing_more, take_values
from tests.integration.kafka.wire import Wire
from tests.integration.server import ServerProcess
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

TOPIC = "invoices"
STORED = 3  # records of the transaction whose answers are lost
ABORT_SECONDS = 0.5


@pytest.fixture
def server(tmp_path: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, {"advertised_host": Wire.HOST}).start()
    yield server
    server.close()


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    wire = Wire(server.host, server.port)
    yield wire
    wire.close()


@pytest.fixture
def producer(server: ServerProcess, wire: Wire) -> Callable[..., Any]:
    def make(on_error: Callable[[Any], None] = lambda error: None) -> Any:
        config = settings.confluent_producer(f"{wire.HOST}:{server.port}", transactional_id="biller", linger_ms=50)
        made = Producer({**config, "error_cb": on_error})
        made.init_transactions(DEADLINE_SECONDS)
        return made

    return make


@contextmanager
def reading(server: ServerProcess, isolation: str) -> Iterator[Any]:
    config = settings.confluent_consumer(server.bootstrap, "reader", isolation_level=isolation)
    reader = Consumer(config)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize("count", [STORED - 1, STORED, STORED + 1])
def test_a_transaction_after_an_aborted_one_that_was_stored_unnoticed_is_not_taken_for_its_repetition(
    count: int, server: ServerProcess, wire: Wire, producer: Callable[..., Any]
) -> None:
    """librdkafka gives the sequence numbers of aborted records to the next ones, though the broker may have stored them.

    What comes under such a number has not been stored, and must not be acknowledged as if it had.
    """
    create_topic(AdminClient(settings.confluent(server.bootstrap)), TOPIC)
    down = threading.Event()
    client = producer(lambda error: down.set())
    client.begin_transaction()
    deliver(client, TOPIC, [b"first"])
    client.commit_transaction(DEADLINE_SECONDS)

    client.begin_transaction()
    deliver(client, TOPIC, [b"noticed"])
    wire.lose_answers()
    unnoticed = [b"unnoticed-%d" % number for number in range(STORED)]
    for value in unnoticed:
        client.produce(TOPIC, value)
    with reading(server, "read_uncommitted") as probe:
        assert take_values(probe, 2 + STORED)[2:] == unnoticed
    wire.cut()
    wait_until(lambda: client.poll(0.05) is not None and down.is_set(), what="the producer to miss its broker")
    with pytest.raises(KafkaException):
        client.abort_transaction(ABORT_SECONDS)
    wire.mend()
    client.abort_transaction(DEADLINE_SECONDS)

    values = [b"after-%d" % number for number in range(count)]
    try:
        write(client, values)
    except KafkaException:
        write(producer(), values)
    with reading(server, "read_committed") as reader:
        assert take_values(reader, 1 + count) == [b"first", *values]
        assert nothing_more(reader)


def write(client: Any, values: list[bytes]) -> None:
    client.begin_transaction()
    for value in values:
        client.produce(TOPIC, value)
    client.commit_transaction(DEADLINE_SECONDS)
