"""What a client sees when the broker stops, or is killed, and comes back on the same port with the same data."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.integration.conftest import BrokerFactory
from tests.integration.kafka import settings
from tests.integration.kafka.conftest import create_topic
from tests.integration.kafka.deliveries import deliver, nothing_more, take, take_values
from tests.integration.kafka.membership import Group, all_partitions
from tests.integration.server import RestartableBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

HOW = ("stop", "kill")


def restart(broker: RestartableBroker, how: str) -> None:
    if how == "stop":
        assert broker.stop() == 0, broker.log_tail()
    else:
        broker.kill()
    broker.start()


def admin_of(broker: RestartableBroker) -> Any:
    return AdminClient(settings.confluent(broker.bootstrap))


def read_all(broker: RestartableBroker, topic: str, count: int, **more: Any) -> list[bytes | None]:
    reader = Consumer(settings.confluent_consumer(broker.bootstrap, "reader", **more))
    reader.assign([TopicPartition(topic, 0, 0)])
    found = take_values(reader, count)
    assert nothing_more(reader)
    reader.close()
    return found


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("acks", [1, "all"])
def test_acknowledged_records_topics_and_settings_are_still_there(
    how: str, acks: int | str, fresh_broker: RestartableBroker
) -> None:
    admin = admin_of(fresh_broker)
    create_topic(admin, "kept", 2, retention_ms=123_456_789)
    cluster = admin.describe_cluster().result(DEADLINE_SECONDS).cluster_id
    values = [b"%d" % number for number in range(200)]
    deliver(Producer(settings.confluent_producer(fresh_broker.bootstrap, acks=acks)), "kept", values, partition=0)
    restart(fresh_broker, how)
    assert read_all(fresh_broker, "kept", 200) == values
    again = admin_of(fresh_broker)
    assert again.describe_cluster().result(DEADLINE_SECONDS).cluster_id == cluster
    assert len(again.list_topics(timeout=DEADLINE_SECONDS).topics["kept"].partitions) == 2
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    found = again.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
    assert found["retention.ms"].value == "123456789"


@pytest.mark.parametrize("how", HOW)
def test_an_idempotent_producer_goes_on_without_loss_or_duplicate(how: str, fresh_broker: RestartableBroker) -> None:
    create_topic(admin_of(fresh_broker), "once")
    client = Producer(settings.confluent_producer(fresh_broker.bootstrap, enable_idempotence=True, linger_ms=1))
    deliver(client, "once", [b"%d" % number for number in range(100)])
    failures: list[Any] = []
    for number in range(100, 300):
        client.produce("once", b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    client.poll(0)
    restart(fresh_broker, how)
    deliver(client, "once", [b"%d" % number for number in range(300, 400)])
    assert failures == []
    assert read_all(fresh_broker, "once", 400) == [b"%d" % number for number in range(400)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_live_members_goes_on_from_its_commits(
    how: str, protocol: str, fresh_broker: RestartableBroker
) -> None:
    create_topic(admin_of(fresh_broker), "worked", 2)
    producer = Producer(settings.confluent_producer(fresh_broker.bootstrap))
    for number in range(20):
        producer.produce("worked", b"%d" % number, partition=number % 2)
    assert producer.flush(DEADLINE_SECONDS) == 0
    members = Group(
        [Consumer(settings.confluent_consumer(fresh_broker.bootstrap, "g", group_protocol=protocol)) for _ in range(2)]
    )
    for member in members.members:
        member.subscribe(["worked"])
    members.settle(all_partitions("worked", 2), [1, 1])
    members.until(lambda: len(set(members.values())) == 20, "the first records")
    for member in members.members:
        for each in member.position(member.assignment()):
            member.commit(offsets=[TopicPartition(each.topic, each.partition, 10)], asynchronous=False)
    restart(fresh_broker, how)
    for number in range(20, 40):
        producer.produce("worked", b"%d" % number, partition=number % 2)
    assert producer.flush(DEADLINE_SECONDS) == 0
    members.until(lambda: len(set(members.values())) == 40, "the records after the restart")
    members.settle(all_partitions("worked", 2), [1, 1])
    where = [TopicPartition("worked", partition) for partition in range(2)]

    def all_committed() -> bool:
        for member in members.members:
            # A member has nothing to commit until it has read again what it was given anew.
            with suppress(KafkaException):
                member.commit(asynchronous=False)
        found = members.members[0].committed(where, timeout=DEADLINE_SECONDS)
        return [each.offset for each in found] == [20, 20]

    members.until(all_committed, "everything committed")
    for member in members.members:
        member.close()


@pytest.mark.parametrize("how", HOW)
def test_committed_offsets_of_absent_members_are_kept(how: str, fresh_broker: RestartableBroker) -> None:
    create_topic(admin_of(fresh_broker), "read", 1)
    deliver(Producer(settings.confluent_producer(fresh_broker.bootstrap)), "read", [b"%d" % n for n in range(10)])
    first = Consumer(settings.confluent_consumer(fresh_broker.bootstrap, "g"))
    first.subscribe(["read"])
    first.commit(message=take(first, 4)[-1], asynchronous=False)
    first.close()
    admin = admin_of(fresh_broker)
    wait_until(
        lambda: admin.describe_consumer_groups(["g"])["g"].result(DEADLINE_SECONDS).state == ConsumerGroupState.EMPTY,
        what="the member to have left",
    )
    restart(fresh_broker, how)
    second = Consumer(settings.confluent_consumer(fresh_broker.bootstrap, "g"))
    second.subscribe(["read"])
    assert take_values(second, 6) == [b"%d" % number for number in range(4, 10)]
    second.close()


@pytest.mark.parametrize("how", HOW)
def test_committed_transactions_stay_and_an_open_one_is_resolved_by_its_owner(
    how: str, fresh_broker: RestartableBroker
) -> None:
    create_topic(admin_of(fresh_broker), "ledger")

    def owner() -> Any:
        client = Producer(settings.confluent_producer(fresh_broker.bootstrap, transactional_id="tx"))
        client.init_transactions(DEADLINE_SECONDS)
        return client

    first = owner()
    for value, commit in ((b"kept", True), (b"aborted", False)):
        first.begin_transaction()
        deliver(first, "ledger", [value])
        if commit:
            first.commit_transaction(DEADLINE_SECONDS)
        else:
            first.abort_transaction(DEADLINE_SECONDS)
    first.begin_transaction()
    deliver(first, "ledger", [b"open"])
    restart(fresh_broker, how)
    reader = Consumer(settings.confluent_consumer(fresh_broker.bootstrap, "r", isolation_level="read_committed"))
    reader.assign([TopicPartition("ledger", 0, 0)])
    assert take_values(reader, 1) == [b"kept"]
    assert nothing_more(reader)
    second = owner()
    second.begin_transaction()
    deliver(second, "ledger", [b"after"])
    second.commit_transaction(DEADLINE_SECONDS)
    assert take_values(reader, 1) == [b"after"]
    reader.close()


@pytest.mark.parametrize("how", HOW)
def test_an_open_transaction_goes_on_after_a_restart(how: str, fresh_broker: RestartableBroker) -> None:
    create_topic(admin_of(fresh_broker), "ledger")
    client = Producer(settings.confluent_producer(fresh_broker.bootstrap, transactional_id="tx"))
    client.init_transactions(DEADLINE_SECONDS)
    client.begin_transaction()
    deliver(client, "ledger", [b"before"])
    restart(fresh_broker, how)
    deliver(client, "ledger", [b"after"])
    client.commit_transaction(DEADLINE_SECONDS)
    assert read_all(fresh_broker, "ledger", 2, isolation_level="read_committed") == [b"before", b"after"]


def test_aiokafka_clients_reconnect(fresh_broker: RestartableBroker) -> None:
    create_topic(admin_of(fresh_broker), "followed")

    async def main() -> list[bytes]:
        producer = AIOKafkaProducer(**settings.aiokafka(fresh_broker.bootstrap))
        consumer = AIOKafkaConsumer("followed", **settings.aiokafka_consumer(fresh_broker.bootstrap, "g"))
        async with producer, consumer:
            await producer.send_and_wait("followed", b"before")
            found = [(await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)).value]
            await asyncio.to_thread(restart, fresh_broker, "kill")
            await asyncio.wait_for(producer.send_and_wait("followed", b"after"), DEADLINE_SECONDS)
            found.append((await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)).value)
            return found

    assert asyncio.run(main()) == [b"before", b"after"]


def test_kafka_python_clients_reconnect(fresh_broker: RestartableBroker) -> None:
    create_topic(admin_of(fresh_broker), "followed")
    producer = kafka.KafkaProducer(**settings.kafka_python(fresh_broker.bootstrap))
    consumer = kafka.KafkaConsumer(**settings.kafka_python_consumer(fresh_broker.bootstrap, None))
    consumer.assign([kafka.TopicPartition("followed", 0)])
    found: list[bytes] = []

    def read(count: int) -> None:
        def enough() -> bool:
            found.extend(each.value for batch in consumer.poll(timeout_ms=100).values() for each in batch)
            return len(found) >= count

        wait_until(enough, what=f"{count} records")

    producer.send("followed", b"before").get(DEADLINE_SECONDS)
    read(1)
    restart(fresh_broker, "kill")
    producer.send("followed", b"after").get(DEADLINE_SECONDS)
    read(2)
    assert found == [b"before", b"after"]
    producer.close()
    consumer.close()


def test_a_deleted_topic_stays_deleted(broker_with: BrokerFactory) -> None:
    broker = broker_with(auto_create_topics="false")  # or a producer that still knows the topic would bring it back
    admin = admin_of(broker)
    create_topic(admin, "gone")
    deliver(Producer(settings.confluent_producer(broker.bootstrap)), "gone", [b"old"])
    admin.delete_topics(["gone"])["gone"].result(DEADLINE_SECONDS)
    wait_until(lambda: "gone" not in admin.list_topics(timeout=DEADLINE_SECONDS).topics, what="the deletion")
    restart(broker, "kill")
    again = admin_of(broker)
    assert "gone" not in again.list_topics(timeout=DEADLINE_SECONDS).topics
    create_topic(again, "gone")
    deliver(Producer(settings.confluent_producer(broker.bootstrap)), "gone", [b"new"])
    assert read_all(broker, "gone", 1) == [b"new"]
