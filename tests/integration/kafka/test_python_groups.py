"""Groups of aiokafka, kafka-python and confluent-kafka's asyncio consumers, alone and mixed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AIORange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AIORoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AIOSticky
from confluent_kafka import TopicPartition
from confluent_kafka.aio import AIOConsumer, AIOProducer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.integration.kafka import settings
from tests.integration.kafka.conftest import ClientFactory, TopicFactory
from tests.integration.kafka.deliveries import deliver
from tests.integration.kafka.membership import (
    MemberProcess,
    MemberThread,
    Partitions,
    all_partitions,
    is_shared,
    subscribed,
)
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, RETRY_SECONDS, wait_until


async def eventually(
    condition: Callable[[], bool], what: str, each_turn: Callable[[], Awaitable[Any]] | None = None
) -> None:
    async def wait() -> None:
        while not condition():
            if each_turn is not None:
                await each_turn()
            await asyncio.sleep(RETRY_SECONDS)

    try:
        await asyncio.wait_for(wait(), DEADLINE_SECONDS)
    except TimeoutError:
        raise AssertionError(f"waited {DEADLINE_SECONDS:g} s for {what}") from None


def shares(members: list[Any]) -> list[Partitions]:
    return [frozenset((each.topic, each.partition) for each in member.assignment()) for member in members]


@pytest.mark.parametrize("assignor", [AIORange, AIORoundRobin, AIOSticky], ids=lambda each: each.name)
def test_aiokafka_members_join_and_leave(
    assignor: Any, broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(6), unique("group")
    everything = all_partitions(name, 6)

    async def main() -> None:
        members: list[Any] = []

        async def join() -> None:
            configuration = settings.aiokafka_consumer(
                broker.bootstrap, group, partition_assignment_strategy=[assignor]
            )
            members.append(AIOKafkaConsumer(name, **configuration))
            await members[-1].start()

        try:
            await join()
            await eventually(lambda: is_shared(shares(members), everything, [6]), "one member with all")
            await join()
            await eventually(lambda: is_shared(shares(members), everything, [3, 3]), "two members")
            await join()
            await eventually(lambda: is_shared(shares(members), everything, [2, 2, 2]), "three members")
            await members.pop(0).stop()
            await eventually(lambda: is_shared(shares(members), everything, [3, 3]), "two members again")
        finally:
            for member in members:
                await member.stop()

    asyncio.run(main())


def test_aiokafka_commits_with_metadata_and_resumes(
    broker: RunningBroker, topic: TopicFactory, producer: ClientFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    deliver(producer(), name, [b"%d" % number for number in range(10)])
    where = AIOTopicPartition(name, 0)

    async def main() -> None:
        async with AIOKafkaConsumer(name, **settings.aiokafka_consumer(broker.bootstrap, group)) as first:
            for _ in range(4):
                await asyncio.wait_for(first.getone(), DEADLINE_SECONDS)
            await first.commit({where: (4, "four")})
            assert await first.committed(where) == 4
        async with AIOKafkaConsumer(name, **settings.aiokafka_consumer(broker.bootstrap, group)) as second:
            found = [(await asyncio.wait_for(second.getone(), DEADLINE_SECONDS)).value for _ in range(6)]
            assert found == [b"%d" % number for number in range(4, 10)]

    asyncio.run(main())


def test_an_aiokafka_static_member_returns_to_its_partitions(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")

    def configuration(instance: str) -> dict[str, Any]:
        return settings.aiokafka_consumer(
            broker.bootstrap, group, group_instance_id=instance, session_timeout_ms=20_000
        )

    async def main() -> None:
        async with AsyncExitStack() as stack:
            first, second = [
                await stack.enter_async_context(AIOKafkaConsumer(name, **configuration(instance)))
                for instance in ("one", "two")
            ]
            await eventually(lambda: is_shared(shares([first, second]), all_partitions(name, 4), [2, 2]), "two members")
            before = shares([second])
            await second.stop()
            again = await stack.enter_async_context(AIOKafkaConsumer(name, **configuration("two")))
            await eventually(lambda: shares([again]) == before, "the same partitions again")
            assert len(first.assignment()) == 2

    asyncio.run(main())


def test_an_aiokafka_member_takes_over_from_one_that_was_killed(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    victim = MemberProcess(
        settings.confluent_consumer(broker.bootstrap, group, partition_assignment_strategy="range"), [name]
    )

    async def main() -> None:
        configuration = settings.aiokafka_consumer(broker.bootstrap, group, partition_assignment_strategy=[AIORange])
        async with AIOKafkaConsumer(name, **configuration) as member:
            await eventually(
                lambda: len(member.assignment()) == 2 == len(victim.assignment()), "two members of two clients"
            )
            victim.kill()
            await eventually(lambda: len(member.assignment()) == 4, "the survivor with all")

    try:
        asyncio.run(main())
    finally:
        victim.close()


@pytest.mark.parametrize(
    "assignor",
    [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor],
    ids=lambda each: each.name,
)
def test_kafka_python_members_join_and_leave(
    assignor: Any, broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(6), unique("group")
    everything = all_partitions(name, 6)
    configuration = settings.kafka_python_consumer(broker.bootstrap, group, partition_assignment_strategy=[assignor])
    members: list[MemberThread] = []

    def settle(sizes: list[int]) -> None:
        def shared() -> bool:
            return is_shared([member.assignment() for member in members], everything, sizes)

        wait_until(shared, what=f"shares of {sizes}")

    try:
        for sizes in ([6], [3, 3], [2, 2, 2]):
            members.append(MemberThread(name, configuration))
            settle(sizes)
        members.pop(0).close()
        settle([3, 3])
    finally:
        for member in members:
            member.close()


def test_kafka_python_commits_with_metadata_and_resumes(
    broker: RunningBroker, topic: TopicFactory, producer: ClientFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    deliver(producer(), name, [b"%d" % number for number in range(10)])
    where = kafka.TopicPartition(name, 0)
    first = subscribed(name, settings.kafka_python_consumer(broker.bootstrap, group, max_poll_records=4))
    wait_until(lambda: first.poll(timeout_ms=100), what="four records")
    first.commit({where: kafka.OffsetAndMetadata(4, "four", -1)})
    assert first.committed(where, metadata=True)[:2] == (4, "four")
    first.close()
    second = MemberThread(name, settings.kafka_python_consumer(broker.bootstrap, group))
    wait_until(lambda: len(second.values) == 6, what="six records")
    assert second.values == [b"%d" % number for number in range(4, 10)]
    second.close()


def test_a_kafka_python_static_member_returns_to_its_partitions(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")

    def member(instance: str) -> MemberThread:
        return MemberThread(
            name,
            settings.kafka_python_consumer(
                broker.bootstrap, group, group_instance_id=instance, session_timeout_ms=20_000
            ),
        )

    members = [member("one"), member("two")]
    try:
        wait_until(
            lambda: is_shared([each.assignment() for each in members], all_partitions(name, 4), [2, 2]),
            what="two members",
        )
        before = [each.assignment() for each in members]
        members.pop().close()
        members.append(member("two"))
        wait_until(lambda: [each.assignment() for each in members] == before, what="the same partitions again")
    finally:
        for each in members:
            each.close()


def test_three_clients_share_one_group(
    broker: RunningBroker, topic: TopicFactory, producer: ClientFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(6), unique("group")
    everything = all_partitions(name, 6)
    values = [b"%d" % number for number in range(60)]

    async def main() -> list[bytes | None]:
        confluent = AIOConsumer(
            settings.confluent_consumer(broker.bootstrap, group, partition_assignment_strategy="range")
        )
        configuration = settings.aiokafka_consumer(broker.bootstrap, group, partition_assignment_strategy=[AIORange])
        received: list[bytes | None] = []
        parts: list[Partitions] = []
        # aiokafka first: its start returns only once it has joined, which takes the other members' polls.
        async with AIOKafkaConsumer(name, **configuration) as native:
            await confluent.subscribe([name])
            python = MemberThread(
                name,
                settings.kafka_python_consumer(
                    broker.bootstrap, group, partition_assignment_strategy=[RangePartitionAssignor]
                ),
            )
            try:

                async def turn() -> None:
                    message, got = await asyncio.gather(confluent.poll(0.05), native.getmany(timeout_ms=50))
                    received.extend(each.value for batch in got.values() for each in batch)
                    if message is not None:
                        received.append(message.value())
                    held = frozenset((each.topic, each.partition) for each in await confluent.assignment())
                    parts[:] = [held, *shares([native]), python.assignment()]

                await eventually(
                    lambda: sorted(map(len, parts)) == [2, 2, 2] and frozenset().union(*parts) == everything,
                    "two partitions each",
                    turn,
                )
                client = producer()
                for number, value in enumerate(values):
                    client.produce(name, value, partition=number % 6)
                assert await asyncio.to_thread(client.flush, DEADLINE_SECONDS) == 0
                await eventually(lambda: len(received) + len(python.values) >= len(values), "all records", turn)
            finally:
                await asyncio.to_thread(python.close)
                await confluent.close()
        return received + python.values

    received = asyncio.run(main())
    assert len(received) == len(values)
    assert set(received) == set(values)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_asyncio_clients_produce_share_commit_and_resume(
    protocol: str, broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")

    async def main() -> None:
        members = [
            AIOConsumer(settings.confluent_consumer(broker.bootstrap, group, group_protocol=protocol)) for _ in range(2)
        ]
        received: list[bytes] = []
        held: list[int] = []

        async def turn() -> None:
            for message in await asyncio.gather(*(member.poll(0.05) for member in members)):
                if message is not None:
                    assert message.error() is None, message.error()
                    received.append(message.value())
            held[:] = [len(await member.assignment()) for member in members]

        try:
            for member in members:
                await member.subscribe([name])
            await eventually(lambda: held == [1, 1], "a partition for each member", turn)
            async with AIOProducer(settings.confluent_producer(broker.bootstrap)) as sender:
                futures = [await sender.produce(name, b"%d" % number, partition=number % 2) for number in range(20)]
                await sender.flush()
                assert {message.offset() for message in await asyncio.gather(*futures)} == set(range(10))
            await eventually(lambda: len(received) == 20, "all records", turn)
            for member in members:
                await member.commit(asynchronous=False)
            where = [TopicPartition(name, partition) for partition in range(2)]
            assert [each.offset for each in await members[0].committed(where)] == [10, 10]
            low, high = await members[0].get_watermark_offsets(where[0])
            assert (low, high) == (0, 10)
        finally:
            for member in members:
                await member.close()

    asyncio.run(main())


def test_aiokafka_batches_and_pattern_subscription(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name = topic()

    async def main() -> None:
        async with AIOKafkaProducer(**settings.aiokafka(broker.bootstrap)) as sender:
            batch = sender.create_batch()
            for number in range(5):
                batch.append(key=None, value=b"%d" % number, timestamp=None)
            batch.close()
            sent = await (await sender.send_batch(batch, name, partition=0))
            assert sent.offset == 0
        async with AIOKafkaConsumer(**settings.aiokafka_consumer(broker.bootstrap, unique("group"))) as reader:
            reader.subscribe(pattern=f"^{name}$")
            found = [(await asyncio.wait_for(reader.getone(), DEADLINE_SECONDS)).value for _ in range(5)]
            assert found == [b"%d" % number for number in range(5)]

    asyncio.run(main())
