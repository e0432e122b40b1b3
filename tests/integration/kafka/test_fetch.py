"""Reading: positions, limits, fetch sessions, and offsets looked up by time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.integration.kafka import settings
from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory
from tests.integration.kafka.deliveries import deliver, nothing_more, take, take_values
from tests.integration.kafka.settings import HOUR_AGO_MS
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until


@pytest.fixture
def ten(topic: TopicFactory, producer: ClientFactory) -> str:
    """A topic with records 0 to 9, a second apart, each in a batch of its own."""
    name = topic()
    client = producer()
    for number in range(10):
        deliver(client, name, [b"%d" % number], timestamp=HOUR_AGO_MS + number * 1000, partition=0)
    return name


def test_seek_reads_from_any_offset_again_and_again(
    ten: str, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(ten, 0, OFFSET_BEGINNING)])
    assert take_values(reader, 10) == [b"%d" % number for number in range(10)]
    for offset in (7, 0, 3):
        reader.seek(TopicPartition(ten, 0, offset))
        assert take_values(reader, 1) == [b"%d" % offset]


def test_an_offset_in_the_middle_of_a_batch_starts_there(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic()
    deliver(producer(linger_ms=100, compression_type="lz4"), name, [b"%d" % number for number in range(100)])
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, 0, 42)])
    assert take_values(reader, 58) == [b"%d" % number for number in range(42, 100)]


def test_the_end_gives_only_what_comes_later(
    ten: str, consumer: MemberFactory, producer: ClientFactory, unique: Callable[[str], str]
) -> None:
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(ten, 0, OFFSET_END)])
    assert first_new(reader, producer(), ten) >= 10


def first_new(reader: Any, writer: Any, topic: str) -> int:
    """Write until the reader, which looks the end up at a moment of its own, has got a record; return its offset."""

    def written_and_read() -> Any:
        deliver(writer, topic, [b"new"])
        return reader.poll(0.2)

    message = wait_until(written_and_read, what="a record written after the end was looked up")
    assert message.error() is None, message.error()
    assert message.value() == b"new"
    return int(message.offset())


@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"0"), ("latest", b"new"), ("error", None)])
def test_an_offset_out_of_range_is_reset_as_the_consumer_asks(
    *,
    reset: str,
    expected: bytes | None,
    ten: str,
    consumer: MemberFactory,
    producer: ClientFactory,
    unique: Callable[[str], str],
) -> None:
    reader = consumer(unique("group"), auto_offset_reset=reset)
    reader.assign([TopicPartition(ten, 0, 1_000_000)])
    if expected is None:
        found = wait_until(lambda: reader.poll(0.2), what="the error")
        assert found.error().name() == "_AUTO_OFFSET_RESET"
        return
    if reset == "latest":
        assert first_new(reader, producer(), ten) >= 10
        return
    assert take_values(reader, 1) == [expected]


def test_watermarks_tell_where_a_partition_begins_and_ends(
    ten: str, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    reader = consumer(unique("group"))
    assert reader.get_watermark_offsets(TopicPartition(ten, 0), timeout=DEADLINE_SECONDS) == (0, 10)


def test_offsets_for_times_finds_the_first_record_at_or_after(
    ten: str, consumer: MemberFactory, unique: Callable[[str], str], broker: RunningBroker
) -> None:
    expected = {HOUR_AGO_MS - 1: 0, HOUR_AGO_MS: 0, HOUR_AGO_MS + 3500: 4, HOUR_AGO_MS + 4000: 4, HOUR_AGO_MS + 9000: 9}
    reader = consumer(unique("group"))
    for timestamp_ms, offset in expected.items():
        [found] = reader.offsets_for_times([TopicPartition(ten, 0, timestamp_ms)], timeout=DEADLINE_SECONDS)
        assert (found.error, found.offset) == (None, offset), timestamp_ms
    [after] = reader.offsets_for_times([TopicPartition(ten, 0, HOUR_AGO_MS + 9001)], timeout=DEADLINE_SECONDS)
    assert after.offset == OFFSET_END

    python = kafka.KafkaConsumer(**settings.kafka_python_consumer(broker.bootstrap, None))
    where = kafka.TopicPartition(ten, 0)
    assert python.offsets_for_times({where: HOUR_AGO_MS + 3500})[where][:2] == (4, HOUR_AGO_MS + 4000)
    assert python.offsets_for_times({where: HOUR_AGO_MS + 9001})[where] is None
    assert python.beginning_offsets([where]) == {where: 0}
    assert python.end_offsets([where]) == {where: 10}
    python.close()

    async def main() -> None:
        async with AIOKafkaConsumer(**settings.aiokafka_consumer(broker.bootstrap, None)) as each:
            there = AIOTopicPartition(ten, 0)
            assert (await each.offsets_for_times({there: HOUR_AGO_MS + 3500}))[there][:2] == (4, HOUR_AGO_MS + 4000)
            assert await each.beginning_offsets([there]) == {there: 0}
            assert await each.end_offsets([there]) == {there: 10}

    asyncio.run(main())


def test_offsets_for_times_looks_inside_a_compressed_batch(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic()
    client = producer(linger_ms=500, compression_type="gzip")
    for number in range(50):
        client.produce(name, b"x" * 100, timestamp=HOUR_AGO_MS + number)
    assert client.flush(DEADLINE_SECONDS) == 0
    [found] = consumer(unique("group")).offsets_for_times(
        [TopicPartition(name, 0, HOUR_AGO_MS + 33)], timeout=DEADLINE_SECONDS
    )
    assert found.offset == 33


def test_list_offsets_finds_earliest_latest_by_time_and_the_newest_timestamp(
    topic: TopicFactory, producer: ClientFactory, admin: Any
) -> None:
    name = topic()
    client = producer()
    for timestamp_ms in (HOUR_AGO_MS, HOUR_AGO_MS + 9000, HOUR_AGO_MS + 3000):
        deliver(client, name, [b"x"], timestamp=timestamp_ms)
    where = TopicPartition(name, 0)
    expected = {
        OffsetSpec.earliest(): (0, -1),
        OffsetSpec.latest(): (3, -1),
        OffsetSpec.max_timestamp(): (1, HOUR_AGO_MS + 9000),
        OffsetSpec.for_timestamp(HOUR_AGO_MS + 1): (1, HOUR_AGO_MS + 9000),
    }
    for spec, answer in expected.items():
        found = admin.list_offsets({where: spec}, request_timeout=DEADLINE_SECONDS)[where].result(DEADLINE_SECONDS)
        assert (found.offset, found.timestamp) == answer


def test_the_newest_timestamp_of_an_empty_partition_is_none(topic: TopicFactory, admin: Any) -> None:
    where = TopicPartition(topic(), 0)
    found = admin.list_offsets({where: OffsetSpec.max_timestamp()})[where].result(DEADLINE_SECONDS)
    assert (found.offset, found.timestamp) == (-1, -1)


def test_a_paused_partition_stays_silent_until_resumed(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic(2)
    client = producer()
    reader = consumer(unique("group"))
    parts = [TopicPartition(name, partition, 0) for partition in range(2)]
    reader.assign(parts)
    reader.pause(parts[:1])
    for partition in range(2):
        deliver(client, name, [b"%d" % partition] * 5, partition=partition)
    assert take_values(reader, 5) == [b"1"] * 5
    assert nothing_more(reader)
    reader.resume(parts[:1])
    assert take_values(reader, 5) == [b"0"] * 5


@pytest.mark.parametrize(
    "limits",
    [
        {"fetch_message_max_bytes": 1},
        {"fetch_message_max_bytes": 3000, "fetch_max_bytes": 4000, "message_max_bytes": 2000},
        {"fetch_min_bytes": 100_000, "fetch_wait_max_ms": 50},
        {"queued_max_messages_kbytes": 1},
    ],
    ids=",".join,
)
def test_all_records_come_whatever_the_fetch_limits(
    limits: dict[str, int],
    topic: TopicFactory,
    producer: ClientFactory,
    consumer: MemberFactory,
    unique: Callable[[str], str],
) -> None:
    name = topic(3)
    client = producer(batch_num_messages=5)
    for partition in range(3):
        deliver(client, name, [b"x" * 500] * 60, partition=partition)
    reader = consumer(unique("group"), **limits)
    reader.assign([TopicPartition(name, partition, 0) for partition in range(3)])
    assert len(take(reader, 180)) == 180


def test_min_bytes_holds_a_fetch_back_until_there_is_enough(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic()
    reader = consumer(unique("group"), fetch_min_bytes=5000, fetch_wait_max_ms=30_000, socket_timeout_ms=60_000)
    reader.assign([TopicPartition(name, 0, 0)])
    client = producer()
    started = time.monotonic()
    deliver(client, name, [b"x" * 100])
    assert reader.poll(1.0) is None
    deliver(client, name, [b"x" * 3000] * 2)
    assert len(take(reader, 3)) == 3
    assert time.monotonic() - started < 25, "the fetch waited for its time instead of its bytes"


def test_a_waiting_fetch_is_woken_by_the_append(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic()
    client = producer()
    reader = consumer(unique("group"), fetch_wait_max_ms=30_000, socket_timeout_ms=60_000)
    reader.assign([TopicPartition(name, 0, 0)])
    for number in range(20):
        deliver(client, name, [b"%d" % number])
        started = time.monotonic()
        assert take_values(reader, 1) == [b"%d" % number]
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python"])
def test_a_session_over_many_partitions_finds_the_few_that_are_busy(
    *,
    client: str,
    broker: RunningBroker,
    topic: TopicFactory,
    producer: ClientFactory,
    consumer: MemberFactory,
    unique: Callable[[str], str],
) -> None:
    """Most partitions are idle: an incremental fetch names none of them, and still every record must come."""
    partitions, rounds = 60, 5
    name = topic(partitions)
    busy = [3, 17, 59]
    writer = producer()
    expected = {(partition, offset) for partition in busy for offset in range(rounds)}
    seen: set[tuple[int, int]] = set()

    def send_round(number: int) -> None:
        for partition in busy:
            deliver(writer, name, [b"%d" % number], partition=partition)

    if client == "confluent":
        reader = consumer(unique("group"))
        reader.assign([TopicPartition(name, partition, 0) for partition in range(partitions)])
        for number in range(rounds):
            send_round(number)
            seen |= {(each.partition(), each.offset()) for each in take(reader, len(busy))}
    elif client == "kafka-python":
        python = kafka.KafkaConsumer(**settings.kafka_python_consumer(broker.bootstrap, None))
        python.assign([kafka.TopicPartition(name, partition) for partition in range(partitions)])

        def poll() -> bool:
            batches = python.poll(timeout_ms=100).values()
            seen.update((each.partition, each.offset) for messages in batches for each in messages)
            return bool(batches)

        for number in range(rounds):
            send_round(number)
            wanted = (number + 1) * len(busy)
            while len(seen) < wanted:
                wait_until(poll, what=f"round {number}")
        python.close()
    else:

        async def main() -> None:
            async with AIOKafkaConsumer(**settings.aiokafka_consumer(broker.bootstrap, None)) as each:
                each.assign([AIOTopicPartition(name, partition) for partition in range(partitions)])
                for number in range(rounds):
                    send_round(number)
                    while len(seen) < (number + 1) * len(busy):
                        message = await asyncio.wait_for(each.getone(), DEADLINE_SECONDS)
                        seen.add((message.partition, message.offset))

        asyncio.run(main())
    assert seen == expected


def test_partitions_join_and_leave_a_running_session(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    first, second = topic(2), topic(2)
    writer = producer()
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(first, 0, 0)])
    deliver(writer, first, [b"a"], partition=0)
    assert take_values(reader, 1) == [b"a"]
    reader.incremental_assign([TopicPartition(second, 1, 0)])
    deliver(writer, second, [b"b"], partition=1)
    assert take_values(reader, 1) == [b"b"]
    reader.incremental_unassign([TopicPartition(first, 0)])
    deliver(writer, first, [b"unread"], partition=0)
    deliver(writer, second, [b"c"], partition=1)
    assert take_values(reader, 1) == [b"c"]
    assert nothing_more(reader)


def test_kafka_python_seeks_to_both_ends(ten: str, broker: RunningBroker) -> None:
    reader = kafka.KafkaConsumer(**settings.kafka_python_consumer(broker.bootstrap, None))
    where = kafka.TopicPartition(ten, 0)
    reader.assign([where])
    reader.seek_to_end(where)
    assert reader.position(where) == 10
    reader.seek_to_beginning(where)
    assert reader.position(where) == 0
    assert reader.partitions_for_topic(ten) == {0}
    reader.close()


def test_aiokafka_seeks_and_follows(ten: str, broker: RunningBroker) -> None:
    async def main() -> list[bytes]:
        async with AIOKafkaConsumer(**settings.aiokafka_consumer(broker.bootstrap, None)) as reader:
            where = AIOTopicPartition(ten, 0)
            reader.assign([where])
            reader.seek(where, 8)
            found = [(await asyncio.wait_for(reader.getone(), DEADLINE_SECONDS)).value for _ in range(2)]
            await reader.seek_to_beginning(where)
            found.append((await asyncio.wait_for(reader.getone(), DEADLINE_SECONDS)).value)
            assert reader.highwater(where) == 10
            return found

    assert asyncio.run(main()) == [b"8", b"9", b"0"]
