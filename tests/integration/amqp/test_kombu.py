"""kombu: connection, its queues and exchanges, serializers, simple queues, and consumers with requeue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from kombu.pools import producers

from tests.integration.amqp.brokers import AmqpBroker, url
from tests.integration.waiting import DEADLINE_SECONDS


@pytest.fixture
def kombu_connection(amqp: AmqpBroker) -> Iterator[Any]:
    with kombu.Connection(url(amqp)) as connection:
        yield connection


def drain(connection: Any, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "no more messages came"
        try:
            connection.drain_events(timeout=0.2)
        except TimeoutError:
            continue


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_objects_go_through_a_topic_exchange(
    kombu_connection: Any, unique: Callable[[str], str], serializer: str
) -> None:
    exchange = kombu.Exchange(unique("exchange"), "topic", durable=False, auto_delete=True)
    queue = kombu.Queue(unique("queue"), exchange, routing_key="order.#", durable=False, auto_delete=True)
    sent = [{"n": number, "text": "grüße", "list": [1, None, True]} for number in range(20)]
    got: list[Any] = []

    def take(body: Any, message: Any) -> None:
        got.append(body)
        message.ack()

    with kombu_connection.Consumer(queue, callbacks=[take], accept=[serializer]):
        with producers[kombu_connection].acquire(block=True) as producer:
            for each in sent:
                producer.publish(
                    each, exchange=exchange, routing_key="order.new", serializer=serializer, declare=[queue]
                )
        drain(kombu_connection, lambda: len(got) == len(sent))
    assert got == sent


def test_compressed_messages_with_headers_and_priority(kombu_connection: Any, unique: Callable[[str], str]) -> None:
    queue = kombu_connection.SimpleQueue(unique("simple"), queue_opts={"auto_delete": True})
    queue.put({"big": "x" * 10_000}, compression="zlib", headers={"ratio": 1.5, "flag": True}, priority=3)
    message = queue.get(timeout=DEADLINE_SECONDS)
    assert message.payload == {"big": "x" * 10_000}
    assert message.headers["ratio"] == 1.5
    assert message.headers["flag"] is True
    assert message.properties["priority"] == 3
    message.ack()
    queue.close()


def test_a_rejected_message_comes_again(kombu_connection: Any, unique: Callable[[str], str]) -> None:
    queue = kombu.Queue(unique("queue"), durable=False, auto_delete=True)
    seen: list[bool] = []

    def take(_body: Any, message: Any) -> None:
        seen.append(message.delivery_info["redelivered"])
        message.requeue() if len(seen) < 3 else message.ack()

    with kombu_connection.Consumer(queue, callbacks=[take]):
        kombu_connection.Producer().publish("x", routing_key=queue.name)
        drain(kombu_connection, lambda: len(seen) == 3)
    assert seen == [False, True, True]


def test_confirmed_publishing(amqp: AmqpBroker, unique: Callable[[str], str]) -> None:
    with kombu.Connection(url(amqp), transport_options={"confirm_publish": True}) as connection:
        name = unique("queue")
        queue = kombu.Queue(name, durable=True, channel=connection.default_channel)
        queue.declare()
        producer = connection.Producer()
        for number in range(50):
            producer.publish(number, routing_key=name)
        assert queue.queue_declare(passive=True).message_count == 50
        assert queue.purge() == 50
        queue.delete()


def test_a_mismatched_declaration_raises(kombu_connection: Any, unique: Callable[[str], str]) -> None:
    name = unique("queue")
    channel = kombu_connection.channel()
    kombu.Queue(name, durable=False, auto_delete=False, expires=60, channel=channel).declare()
    with pytest.raises(kombu_connection.channel_errors) as caught:
        kombu.Queue(name, durable=True, auto_delete=False, channel=kombu_connection.channel()).declare()
    assert caught.value.reply_code == 406
    kombu.Queue(name, channel=kombu_connection.channel()).delete()
