"""Streams: queues that nothing is taken off, read by each consumer at a place of its own."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Iterator
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import AmqpBroker, RestartableAmqpBroker, Trunkline, url
from tests.integration.amqp.conftest import ConnectionFactory, open_connection
from tests.integration.amqp.failing import channel_error

STREAM = {"x-queue-type": "stream"}
PATIENCE_S = 20.0
COUNT = 10


class Reader:
    """A consumer of a stream, and what it has got: (offset, body)."""

    def __init__(self, connection: Any, stream: str, begin: object = None, prefetch: int = 100) -> None:
        self._connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[int, bytes]] = []
        self.tags: list[int] = []
        self.redelivered = False
        arguments = {} if begin is None else {"x-stream-offset": begin}
        self.tag = self.channel.basic_consume(stream, self._take, arguments=arguments)

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append((properties.headers["x-stream-offset"], body))
        self.tags.append(method.delivery_tag)
        self.redelivered = self.redelivered or method.redelivered

    def wait(self, count: int) -> list[tuple[int, bytes]]:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.got) < count:
            assert time.monotonic() < deadline, self.got
            self._connection.process_data_events(0.05)
        return self.got

    def settle(self, seconds: float = 0.2) -> int:
        self._connection.process_data_events(seconds)
        return len(self.got)


def publish(connection: Any, stream: str, *bodies: bytes) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", stream, body, pika.BasicProperties(headers={"kind": "test"}))
    channel.close()


@pytest.fixture
def stream(connect: ConnectionFactory, unique: Callable[[str], str]) -> Iterator[str]:
    """With ten messages in it, `0` to `9`, at these offsets."""
    name, connection = unique("stream"), connect()
    connection.channel().queue_declare(name, durable=True, arguments=STREAM)
    publish(connection, name, *(b"%d" % number for number in range(COUNT)))
    yield name
    connect().channel().queue_delete(name)


def numbered(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        ("first", range(COUNT)),
        ("last", range(COUNT - 1, COUNT)),
        (0, range(COUNT)),
        (7, range(7, COUNT)),
        (-5, range(COUNT)),
        ("1h", range(COUNT)),
        (datetime.datetime(2020, 1, 1), range(COUNT)),
    ],
    ids=str,
)
def test_a_consumer_begins_where_it_asks_for(connection: Any, stream: str, begin: object, expected: range) -> None:
    reader = Reader(connection, stream, begin)
    assert reader.wait(len(expected)) == numbered(*expected)
    assert not reader.redelivered


BEYOND = pytest.param(99, marks=pytest.mark.ours_only("RabbitMQ delivers nothing until that offset is reached"))


@pytest.mark.parametrize("begin", [None, "next", BEYOND, datetime.datetime(2100, 1, 1)], ids=str)
def test_a_consumer_of_what_comes_gets_nothing_of_the_past(connection: Any, stream: str, begin: object) -> None:
    reader = Reader(connection, stream, begin)
    assert reader.settle() == 0
    publish(connection, stream, b"10", b"11")
    assert reader.wait(2) == numbered(10, 11)


def test_every_consumer_reads_the_whole_again_and_again(connect: ConnectionFactory, stream: str) -> None:
    readers = [Reader(connect(), stream, "first") for _ in range(3)]
    for reader in readers:
        assert reader.wait(COUNT) == numbered(*range(COUNT))
        reader.channel.basic_ack(0, multiple=True)
        reader.channel.close()
    assert Reader(connect(), stream, "first").wait(COUNT) == numbered(*range(COUNT))


def test_acknowledgements_are_credit(connection: Any, stream: str) -> None:
    reader = Reader(connection, stream, "first", prefetch=3)
    reader.wait(3)
    assert reader.settle() == 3
    reader.channel.basic_ack(reader.tags[0])
    reader.wait(4)
    reader.channel.basic_ack(reader.tags[3], multiple=True)
    assert reader.wait(7) == numbered(*range(7))
    assert reader.settle() == 7


def test_messages_keep_their_properties_beside_the_offset(connection: Any, stream: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    sent = pika.BasicProperties(content_type="text/plain", message_id="m", headers={"a": "b"}, delivery_mode=2)
    channel.basic_publish("", stream, b"last", sent)
    for _, properties, body in channel.consume(stream, arguments={"x-stream-offset": COUNT}, inactivity_timeout=20):
        assert (body, properties.content_type, properties.message_id) == (b"last", "text/plain", "m")
        assert properties.headers == {"a": "b", "x-stream-offset": COUNT}
        break


def test_a_cancelled_consumer_gets_no_more(connection: Any, stream: str) -> None:
    reader = Reader(connection, stream, "next")
    reader.channel.basic_cancel(reader.tag)
    publish(connection, stream, b"more")
    assert reader.settle() == 0


def test_a_deleted_stream_cancels_its_consumers(connect: ConnectionFactory, unique: Callable[[str], str]) -> None:
    connection, name = connect(), unique("stream")
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments=STREAM)
    reader = Reader(connection, name)
    cancelled: list[Any] = []
    reader.channel.add_on_cancel_callback(cancelled.append)
    channel.queue_delete(name)
    deadline = time.monotonic() + PATIENCE_S
    while not cancelled:
        assert time.monotonic() < deadline
        connection.process_data_events(0.05)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments", "why"),
    [
        ({"durable": False}, {}, "invalid property 'non-durable' for queue '{}' in vhost '/'"),
        ({"exclusive": True}, {}, "invalid property 'exclusive-owner' for queue '{}' in vhost '/'"),
        ({"auto_delete": True}, {}, "invalid property 'auto-delete' for queue '{}' in vhost '/'"),
        ({}, {"x-message-ttl": 1}, "invalid arg 'x-message-ttl' for queue '{}' in vhost '/' of queue type rabbit_stream_queue"),
        ({}, {"x-max-length": 1}, "invalid arg 'x-max-length' for queue '{}' in vhost '/' of queue type rabbit_stream_queue"),
        ({}, {"x-dead-letter-exchange": "e"}, "invalid arg 'x-dead-letter-exchange' for queue '{}' in vhost '/' of queue type rabbit_stream_queue"),
        ({}, {"x-max-age": 5}, "invalid arg 'x-max-age' for queue '{}' in vhost '/': {{unacceptable_type,signedint}}"),
        ({}, {"x-stream-max-segment-size-bytes": -1}, "invalid arg 'x-stream-max-segment-size-bytes' for queue '{}' in vhost '/': {{value_negative,-1}}"),
    ],
)  # fmt: skip
def test_what_a_stream_cannot_be_is_refused(
    connection: Any, unique: Callable[[str], str], options: dict[str, bool], arguments: dict[str, object], why: str
) -> None:
    name = unique("stream")
    code, text = channel_error(
        lambda: connection.channel().queue_declare(
            name, **{"durable": True, **options}, arguments={**STREAM, **arguments}
        )
    )
    assert code == 406
    assert text == "PRECONDITION_FAILED - " + why.format(name)


@pytest.mark.ours_only("RabbitMQ ends the connection with 541")
def test_an_age_or_a_place_that_is_none_is_refused(connection: Any, stream: str, unique: Callable[[str], str]) -> None:
    code, _ = channel_error(
        lambda: connection.channel().queue_declare(
            unique("stream"), durable=True, arguments={**STREAM, "x-max-age": "long"}
        )
    )
    assert code == 406
    code, _ = channel_error(lambda: Reader(connection, stream, "somewhere"))
    assert code == 406


def test_a_stream_cannot_be_declared_otherwise(connection: Any, stream: str) -> None:
    code, text = channel_error(
        lambda: connection.channel().queue_declare(stream, durable=True, arguments={**STREAM, "x-max-age": "2h"})
    )
    assert code == 406
    assert "inequivalent arg 'x-max-age'" in text
    code, _ = channel_error(lambda: connection.channel().queue_declare(stream, durable=True))
    assert code == 406


def test_a_consumer_without_prefetch_is_refused(connection: Any, stream: str) -> None:
    code, text = channel_error(lambda: connection.channel().basic_consume(stream, print))
    assert (code, text) == (
        406,
        f"PRECONDITION_FAILED - consumer prefetch count is not set for 'queue '{stream}' in vhost '/''",
    )


def take_off(connection: Any, stream: str, what: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    if what == "get":
        channel.basic_get(stream)
    elif what == "purge":
        channel.queue_purge(stream)
    elif what == "no_ack":
        channel.basic_consume(stream, print, auto_ack=True)
    else:
        reader = Reader(connection, stream, "first")
        reader.wait(1)
        getattr(reader.channel, f"basic_{what}")(reader.tags[0])
        reader.settle(PATIENCE_S)


@pytest.mark.parametrize("what", ["get", "purge", "no_ack", "nack", "reject"])
def test_what_takes_off_a_queue_is_not_for_streams(connect: ConnectionFactory, stream: str, what: str) -> None:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        take_off(connect(), stream, what)
    assert closed.value.reply_code == 540
    assert f"not supported by stream queues queue '{stream}' in vhost '/'" in closed.value.reply_text


# -- beside others -----------------------------------------------------------------------------------------------------


def test_aio_pika_follows_a_stream(amqp: AmqpBroker, stream: str) -> None:
    async def follow() -> list[tuple[int, bytes]]:
        connection = await aio_pika.connect(url(amqp))
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=4)
            queue = await channel.declare_queue(stream, durable=True, arguments=STREAM)
            got: list[tuple[int, bytes]] = []
            async with queue.iterator(arguments={"x-stream-offset": "first"}) as messages:
                async for message in messages:
                    async with message.process():
                        got.append((int(str(message.headers["x-stream-offset"])), message.body))
                    if len(got) == COUNT:
                        break
            return got

    assert asyncio.run(asyncio.wait_for(follow(), PATIENCE_S)) == numbered(*range(COUNT))


@pytest.mark.ours_only("Kafka clients read the same topic here")
def test_kafka_sees_the_same_topic_and_offsets(amqp: Trunkline, connection: Any, stream: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    consumer = Consumer({"bootstrap.servers": amqp.bootstrap, "group.id": stream})
    consumer.assign([TopicPartition(stream, 0, 0)])
    seen: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < COUNT:
        assert time.monotonic() < deadline
        seen += [(record.offset(), record.value()) for record in consumer.consume(COUNT, 0.2)]
    consumer.close()
    assert seen == numbered(*range(COUNT))
    reader = Reader(connection, stream, "next")
    producer = Producer({"bootstrap.servers": amqp.bootstrap})
    producer.produce(stream, b"10")
    producer.flush(PATIENCE_S)
    assert reader.wait(1) == numbered(10)


@pytest.mark.ours_only("retention is that of the topic here, and can be waited for")
def test_a_consumer_passes_over_what_retention_removed(amqp: Trunkline, connection: Any, stream: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    reader = Reader(connection, stream, "first", prefetch=2)
    reader.wait(2)
    admin = AdminClient({"bootstrap.servers": amqp.bootstrap})
    (trimmed,) = admin.delete_records([TopicPartition(stream, 0, 8)]).values()
    trimmed.result(PATIENCE_S)
    late = Reader(connection, stream, 3)
    assert late.wait(2) == numbered(8, 9)


@pytest.mark.ours_only("RabbitMQ serves clients a while before it serves its streams")
def test_confirmed_messages_of_a_stream_survive_kill_9(fresh_amqp: RestartableAmqpBroker) -> None:
    connection = open_connection(fresh_amqp)
    connection.channel().queue_declare("survivor", durable=True, arguments={**STREAM, "x-max-length-bytes": 1 << 30})
    reader = Reader(connection, "survivor", "first", prefetch=50)
    publish(connection, "survivor", *(b"%d" % number for number in range(200)))
    for last in reader.wait(50)[-1:]:
        reader.channel.basic_ack(reader.tags[-1], multiple=True)
        place = last[0] + 1
    fresh_amqp.kill()
    fresh_amqp.start()
    again = open_connection(fresh_amqp)
    assert Reader(again, "survivor", "first", prefetch=1000).wait(200) == numbered(*range(200))
    assert Reader(again, "survivor", place, prefetch=1000).wait(200 - place) == numbered(*range(place, 200))
    again.channel().queue_declare("survivor", durable=True, arguments={**STREAM, "x-max-length-bytes": 1 << 30})
    again.close()
