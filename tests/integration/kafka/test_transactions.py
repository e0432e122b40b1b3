"""Transactions: all or nothing, exactly once, fenced, and invisible to read_committed until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from confluent_kafka.aio import AIOConsumer, AIOProducer

from tests.integration.kafka import settings
from tests.integration.kafka.clients import CLIENTS, Sent
from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory
from tests.integration.kafka.deliveries import deliver, nothing_more, take, take_values
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

COMMITTED = {"isolation_level": "read_committed"}
UNCOMMITTED = {"isolation_level": "read_uncommitted"}


@pytest.fixture
def transactional(broker: RunningBroker) -> Callable[..., Any]:
    """A librdkafka producer with this transactional id, initialised."""

    def make(identity: str, **more: Any) -> Any:
        client = Producer(settings.confluent_producer(broker.bootstrap, transactional_id=identity, **more))
        client.init_transactions(DEADLINE_SECONDS)
        return client

    return make


@pytest.fixture
def reader(consumer: MemberFactory, unique: Callable[[str], str]) -> Callable[..., Any]:
    """A consumer at the start of partition 0, with these settings."""

    def make(topic: str, **more: Any) -> Any:
        made = consumer(unique("group"), **more)
        made.assign([TopicPartition(topic, 0, 0)])
        return made

    return make


def test_a_committed_transaction_is_read_whole_and_an_aborted_one_never(
    topic: TopicFactory, transactional: Callable[..., Any], reader: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name = topic()
    client = transactional(unique("tx"))
    for number, commit in enumerate((True, False, True, False)):
        client.begin_transaction()
        deliver(client, name, [b"%d-%d" % (number, each) for each in range(3)])
        if commit:
            client.commit_transaction(DEADLINE_SECONDS)
        else:
            client.abort_transaction(DEADLINE_SECONDS)
    committed = reader(name, **COMMITTED)
    assert take_values(committed, 6) == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]
    assert nothing_more(committed)
    assert len(take(reader(name, **UNCOMMITTED), 12)) == 12


@pytest.mark.parametrize("name_of_reader", ["aiokafka", "kafka-python", "confluent-asyncio"])
def test_every_client_skips_aborted_records_and_control_batches(
    name_of_reader: str,
    broker: RunningBroker,
    topic: TopicFactory,
    transactional: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    name = topic()
    client = transactional(unique("tx"))
    for number in range(6):
        client.begin_transaction()
        deliver(client, name, [b"%d" % number])
        if number % 2 == 0:
            client.commit_transaction(DEADLINE_SECONDS)
        else:
            client.abort_transaction(DEADLINE_SECONDS)
    CLIENTS[0].write(broker.bootstrap, name, [Sent(b"last")])
    expected = [b"0", b"2", b"4", b"last"]

    async def aio() -> list[bytes]:
        async with AIOKafkaConsumer(**settings.aiokafka_consumer(broker.bootstrap, None, **COMMITTED)) as each:
            each.assign([AIOTopicPartition(name, 0)])
            return [(await asyncio.wait_for(each.getone(), DEADLINE_SECONDS)).value for _ in expected]

    async def confluent_aio() -> list[bytes]:
        each = AIOConsumer(settings.confluent_consumer(broker.bootstrap, unique("group"), **COMMITTED))
        await each.assign([TopicPartition(name, 0, 0)])
        found: list[bytes] = []
        while len(found) < len(expected):
            found += [message.value() for message in await each.consume(len(expected) - len(found), 0.5)]
        await each.close()
        return found

    if name_of_reader == "aiokafka":
        assert asyncio.run(aio()) == expected
    elif name_of_reader == "confluent-asyncio":
        assert asyncio.run(asyncio.wait_for(confluent_aio(), DEADLINE_SECONDS)) == expected
    else:
        each = kafka.KafkaConsumer(**settings.kafka_python_consumer(broker.bootstrap, None, **COMMITTED))
        each.assign([kafka.TopicPartition(name, 0)])
        found: list[bytes] = []

        def enough() -> bool:
            found.extend(message.value for batch in each.poll(timeout_ms=100).values() for message in batch)
            return len(found) >= len(expected)

        wait_until(enough, what="the committed records")
        each.close()
        assert found == expected


def test_an_open_transaction_holds_read_committed_back_until_it_ends(
    topic: TopicFactory,
    producer: ClientFactory,
    transactional: Callable[..., Any],
    reader: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    name = topic()
    client = transactional(unique("tx"))
    client.begin_transaction()
    deliver(client, name, [b"inside"])
    deliver(producer(), name, [b"outside"])
    assert take_values(reader(name, **UNCOMMITTED), 2) == [b"inside", b"outside"]
    committed = reader(name, **COMMITTED)
    assert nothing_more(committed, 1.0)
    client.commit_transaction(DEADLINE_SECONDS)
    assert take_values(committed, 2) == [b"inside", b"outside"]


def test_the_last_stable_offset_is_the_end_for_read_committed(
    topic: TopicFactory,
    admin: Any,
    producer: ClientFactory,
    transactional: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    from confluent_kafka import IsolationLevel

    name = topic()
    where = TopicPartition(name, 0)
    deliver(producer(), name, [b"before"])
    client = transactional(unique("tx"))
    client.begin_transaction()
    deliver(client, name, [b"inside"])

    def latest(isolation: Any) -> int:
        answer = admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=isolation)[where]
        return int(answer.result(DEADLINE_SECONDS).offset)

    assert latest(IsolationLevel.READ_UNCOMMITTED) == 2
    assert latest(IsolationLevel.READ_COMMITTED) == 1
    client.commit_transaction(DEADLINE_SECONDS)
    wait_until(lambda: latest(IsolationLevel.READ_COMMITTED) == 3, what="the control record to count")


def test_a_transaction_spans_topics_and_partitions(
    topic: TopicFactory, transactional: Callable[..., Any], consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    topics = [topic(3), topic(3)]
    client = transactional(unique("tx"))
    client.begin_transaction()
    for name in topics:
        for partition in range(3):
            deliver(client, name, [b"x"], partition=partition)
    reader = consumer(unique("group"), **COMMITTED)
    reader.assign([TopicPartition(name, partition, 0) for name in topics for partition in range(3)])
    assert nothing_more(reader)
    client.commit_transaction(DEADLINE_SECONDS)
    assert len(take(reader, 6)) == 6


def test_a_second_producer_of_the_same_id_fences_the_first_and_aborts_its_transaction(
    topic: TopicFactory, transactional: Callable[..., Any], reader: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name, identity = topic(), unique("tx")
    zombie = transactional(identity)
    zombie.begin_transaction()
    deliver(zombie, name, [b"zombie"])
    successor = transactional(identity)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(DEADLINE_SECONDS)
    assert raised.value.args[0].name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
    assert raised.value.args[0].fatal()
    successor.begin_transaction()
    deliver(successor, name, [b"successor"])
    successor.commit_transaction(DEADLINE_SECONDS)
    assert take_values(reader(name, **COMMITTED), 1) == [b"successor"]


def test_a_zombies_produce_is_refused(
    topic: TopicFactory, transactional: Callable[..., Any], reader: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name, identity = topic(), unique("tx")
    zombie = transactional(identity)
    zombie.begin_transaction()
    deliver(zombie, name, [b"zombie"])
    transactional(identity)
    zombie.produce(name, b"from the grave")
    with pytest.raises(KafkaException) as raised:
        zombie.flush(DEADLINE_SECONDS)
    assert raised.value.args[0].name() == "_FENCED"
    assert take_values(reader(name, **UNCOMMITTED), 1) == [b"zombie"]


def test_a_transaction_past_its_timeout_is_aborted_by_the_broker(
    topic: TopicFactory,
    producer: ClientFactory,
    transactional: Callable[..., Any],
    reader: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    name = topic()
    client = transactional(unique("tx"), transaction_timeout_ms=1500)
    client.begin_transaction()
    deliver(client, name, [b"too slow"])
    deliver(producer(), name, [b"after"])
    assert take_values(reader(name, **COMMITTED), 1) == [b"after"]
    with pytest.raises(KafkaException):
        client.commit_transaction(DEADLINE_SECONDS)


def test_read_process_write_happens_exactly_once(
    *,
    topic: TopicFactory,
    producer: ClientFactory,
    consumer: MemberFactory,
    transactional: Callable[..., Any],
    reader: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    """A worker that aborts now and then, and is replaced halfway: every input has exactly one output."""
    source, target, group, identity = topic(2), topic(1), unique("group"), unique("tx")
    inputs = [b"%d" % number for number in range(60)]
    writer = producer()
    for number, value in enumerate(inputs):
        writer.produce(source, value, partition=number % 2)
    assert writer.flush(DEADLINE_SECONDS) == 0

    def work(rounds: int, abort_every: int) -> None:
        client = transactional(identity)
        worker = consumer(group, **COMMITTED)
        worker.subscribe([source])
        for number in range(1, rounds + 1):
            messages = take(worker, 5)
            client.begin_transaction()
            for message in messages:
                client.produce(target, b"done-" + message.value())
            positions = worker.position(worker.assignment())
            client.send_offsets_to_transaction(positions, worker.consumer_group_metadata(), DEADLINE_SECONDS)
            if number % abort_every == 0:
                client.abort_transaction(DEADLINE_SECONDS)
                for each in worker.committed(worker.assignment(), timeout=DEADLINE_SECONDS):
                    worker.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))
            else:
                client.commit_transaction(DEADLINE_SECONDS)
        worker.close()

    work(rounds=9, abort_every=3)
    work(rounds=6, abort_every=1000)
    outputs = take_values(reader(target, **COMMITTED), 60)
    assert len(outputs) == len(set(outputs)) == 60
    assert set(outputs) == {b"done-" + value for value in inputs}


def test_offsets_of_an_aborted_transaction_are_not_committed_and_pending_ones_are_not_stable(
    topic: TopicFactory, consumer: MemberFactory, transactional: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    where = TopicPartition(name, 0)
    member = consumer(group)
    client = transactional(unique("tx"))
    for offset, commit in ((5, True), (9, False)):
        client.begin_transaction()
        client.send_offsets_to_transaction(
            [TopicPartition(name, 0, offset)], member.consumer_group_metadata(), DEADLINE_SECONDS
        )
        if commit:
            client.commit_transaction(DEADLINE_SECONDS)
        else:
            client.abort_transaction(DEADLINE_SECONDS)
        assert member.committed([where], timeout=DEADLINE_SECONDS)[0].offset == 5


def test_a_transactional_id_keeps_its_producer_id_and_raises_its_epoch(
    topic: TopicFactory, transactional: Callable[..., Any], python_admin: Any, unique: Callable[[str], str]
) -> None:
    name, identity = topic(), unique("tx")
    states = []
    for _ in range(2):
        client = transactional(identity)
        client.begin_transaction()
        deliver(client, name, [b"x"])
        client.commit_transaction(DEADLINE_SECONDS)
        states.append(python_admin.describe_transactions([identity])[identity])
    assert states[0].producer_id == states[1].producer_id
    assert states[0].producer_epoch < states[1].producer_epoch


def test_transactions_and_producers_can_be_described(
    topic: TopicFactory, transactional: Callable[..., Any], python_admin: Any, unique: Callable[[str], str]
) -> None:
    name, identity = topic(), unique("tx")
    client = transactional(identity)
    client.begin_transaction()
    deliver(client, name, [b"x"])
    where = kafka.TopicPartition(name, 0)
    described = python_admin.describe_transactions([identity])[identity]
    assert str(described.state.value) == "Ongoing"
    assert {(each.topic, each.partition) for each in described.topic_partitions} == {(name, 0)}
    [producing] = python_admin.describe_producers([where])[where].active_producers
    assert producing.producer_id == described.producer_id
    assert producing.current_transaction_start_offset == 0
    listed = [each for listing in python_admin.list_transactions().values() for each in listing]
    assert (identity, "Ongoing") in {(each.transactional_id, str(each.state.value)) for each in listed}
    client.commit_transaction(DEADLINE_SECONDS)
    wait_until(
        lambda: python_admin.describe_transactions([identity])[identity].state.value == "CompleteCommit",
        what="the completed transaction",
    )
    [producing] = python_admin.describe_producers([where])[where].active_producers
    assert producing.current_transaction_start_offset == -1
    with pytest.raises(kafka.errors.TransactionalIdNotFoundError):
        python_admin.describe_transactions([unique("absent")])


def test_aiokafka_transactions_commit_abort_and_send_offsets(
    broker: RunningBroker, topic: TopicFactory, reader: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")

    async def main() -> None:
        configuration = settings.aiokafka(broker.bootstrap, transactional_id=unique("tx"))
        async with AIOKafkaProducer(**configuration) as client:
            async with client.transaction():
                await client.send_and_wait(name, b"kept", partition=0)
                await client.send_offsets_to_transaction({AIOTopicPartition(name, 0): 3}, group)
            await client.begin_transaction()
            await client.send_and_wait(name, b"dropped", partition=0)
            await client.abort_transaction()
            async with client.transaction():
                await client.send_and_wait(name, b"kept too", partition=0)

    asyncio.run(main())
    assert take_values(reader(name, **COMMITTED), 2) == [b"kept", b"kept too"]
    other = Consumer(settings.confluent_consumer(broker.bootstrap, group))
    assert other.committed([TopicPartition(name, 0)], timeout=DEADLINE_SECONDS)[0].offset == 3
    other.close()


def test_an_aiokafka_producer_is_fenced_by_its_successor(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, identity = topic(), unique("tx")

    async def main() -> None:
        zombie = AIOKafkaProducer(**settings.aiokafka(broker.bootstrap, transactional_id=identity))
        await zombie.start()
        await zombie.begin_transaction()
        await zombie.send_and_wait(name, b"zombie", partition=0)
        async with AIOKafkaProducer(**settings.aiokafka(broker.bootstrap, transactional_id=identity)) as successor:
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
            async with successor.transaction():
                await successor.send_and_wait(name, b"successor", partition=0)
        await zombie.stop()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_SECONDS * 2))


def test_kafka_python_transactions_commit_abort_and_send_offsets(
    broker: RunningBroker, topic: TopicFactory, reader: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    client = kafka.KafkaProducer(**settings.kafka_python(broker.bootstrap, transactional_id=unique("tx")))
    client.init_transactions()
    client.begin_transaction()
    client.send(name, b"kept", partition=0)
    offsets = {kafka.TopicPartition(name, 0): kafka.OffsetAndMetadata(3, "", -1)}
    client.send_offsets_to_transaction(offsets, group)
    client.commit_transaction()
    client.begin_transaction()
    client.send(name, b"dropped", partition=0).get(DEADLINE_SECONDS)
    client.abort_transaction()
    client.begin_transaction()
    client.send(name, b"kept too", partition=0)
    client.commit_transaction()
    client.close()
    assert take_values(reader(name, **COMMITTED), 2) == [b"kept", b"kept too"]
    other = Consumer(settings.confluent_consumer(broker.bootstrap, group))
    assert other.committed([TopicPartition(name, 0)], timeout=DEADLINE_SECONDS)[0].offset == 3
    other.close()


def test_confluent_asyncio_transactions_commit_and_abort(
    broker: RunningBroker, topic: TopicFactory, reader: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    name = topic()

    async def main() -> None:
        client = AIOProducer(settings.confluent_producer(broker.bootstrap, transactional_id=unique("tx")))
        await client.init_transactions(DEADLINE_SECONDS)
        for value, commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
            await client.begin_transaction()
            await client.produce(name, value, partition=0)
            await client.flush()
            if commit:
                await client.commit_transaction(DEADLINE_SECONDS)
            else:
                await client.abort_transaction(DEADLINE_SECONDS)
        await client.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_SECONDS * 2))
    assert take_values(reader(name, **COMMITTED), 2) == [b"kept", b"kept too"]


def test_a_transaction_timeout_beyond_the_brokers_limit_is_refused(
    broker: RunningBroker, unique: Callable[[str], str]
) -> None:
    client = Producer(
        settings.confluent_producer(broker.bootstrap, transactional_id=unique("tx"), transaction_timeout_ms=3_600_000)
    )
    with pytest.raises(KafkaException) as raised:
        client.init_transactions(DEADLINE_SECONDS)
    assert raised.value.args[0].name() == "INVALID_TRANSACTION_TIMEOUT"
