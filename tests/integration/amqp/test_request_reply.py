"""Request and reply: through a queue of one's own, and by direct reply-to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import AmqpBroker
from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory, open_connection
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, get

PSEUDO_QUEUE = "amq.rabbitmq.reply-to"


@pytest.fixture
def doubling(amqp: AmqpBroker, queue: QueueFactory) -> Iterator[str]:
    """A queue whose requests, numbers, are answered with their double."""
    name, connection = queue(), open_connection(amqp)
    channel = connection.channel()

    def answer(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        reply = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, b"%d" % (2 * int(body)), reply)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(name, answer)
    server = threading.Thread(target=channel.start_consuming)
    server.start()
    yield name
    connection.add_callback_threadsafe(channel.stop_consuming)
    server.join()
    connection.close()


def test_replies_come_to_a_queue_of_ones_own(connect: ConnectionFactory, doubling: str) -> None:
    channel = connect().channel()
    own = channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
    replies = Inbox(channel, own, auto_ack=True)
    for number in range(20):
        properties = pika.BasicProperties(reply_to=own, correlation_id=str(number))
        channel.basic_publish("", doubling, b"%d" % number, properties)
    answers = {message.properties.correlation_id: int(message.body) for message in replies.wait(20)}
    assert answers == {str(number): 2 * number for number in range(20)}


def test_replies_come_directly(connect: ConnectionFactory, doubling: str) -> None:
    channel = connect().channel()
    replies = Inbox(channel, PSEUDO_QUEUE, auto_ack=True)
    for number in range(20):
        properties = pika.BasicProperties(reply_to=PSEUDO_QUEUE, correlation_id=str(number))
        channel.basic_publish("", doubling, b"%d" % number, properties)
    messages = replies.wait(20)
    assert {m.properties.correlation_id: int(m.body) for m in messages} == {str(n): 2 * n for n in range(20)}
    assert {m.method.exchange for m in messages} == {""}
    assert len({m.method.routing_key for m in messages}) == 1


def test_a_request_names_its_reply_address(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, asking, answering = queue(), connect().channel(), connect().channel()
    replies = Inbox(asking, PSEUDO_QUEUE, auto_ack=True)
    asking.basic_publish("", name, b"?", pika.BasicProperties(reply_to=PSEUDO_QUEUE))
    address = get(answering, name).properties.reply_to
    assert address.startswith(f"{PSEUDO_QUEUE}.")
    answering.queue_declare(address, passive=True)  # how a server asks whether the client is still there
    answering.confirm_delivery()
    answering.basic_publish("", address, b"!")
    replies.wait(1)
    with pytest.raises(pika.exceptions.UnroutableError):
        answering.basic_publish("", address, b"it is no queue", mandatory=True)
    asking.close()
    code, _ = channel_error(lambda: answering.queue_declare(address, passive=True))
    assert code == 404


def test_direct_replies_are_consumed_without_acknowledgements(connection: Any) -> None:
    code, text = channel_error(lambda: Inbox(connection.channel(), PSEUDO_QUEUE))
    assert (code, text) == (406, "PRECONDITION_FAILED - reply consumer cannot acknowledge")


def test_a_request_for_direct_replies_needs_their_consumer(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    channel.confirm_delivery()
    code, text = channel_error(
        lambda: channel.basic_publish("", name, b"?", pika.BasicProperties(reply_to=PSEUDO_QUEUE))
    )
    assert (code, text) == (406, "PRECONDITION_FAILED - fast reply consumer does not exist")
