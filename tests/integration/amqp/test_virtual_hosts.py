"""A name means a queue of the connection's own virtual host, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import Trunkline
from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.definitions import NEIGHBOUR, OTHER_VHOST
from tests.integration.amqp.reading import depth, get, is_empty, wait_for_depth
from trunkline.log.names import RESERVED_TOPICS

ACCESS_REFUSED, NOT_FOUND = 403, 404
SECRET = b"to be read in the other virtual host only"
# What a client can do with a queue that it names. Deleting one that is not there succeeds, in RabbitMQ too.
OPERATIONS: dict[str, Callable[[Any, str], object]] = {
    "declare passively": lambda channel, name: channel.queue_declare(name, passive=True),
    "get": lambda channel, name: channel.basic_get(name, auto_ack=True),
    "consume": lambda channel, name: channel.basic_consume(name, lambda *_: None),
    "purge": lambda channel, name: channel.queue_purge(name),
    "bind": lambda channel, name: channel.queue_bind(name, "amq.fanout"),
}


@pytest.fixture
def theirs(connect: ConnectionFactory) -> Any:
    channel = connect(*NEIGHBOUR, vhost=OTHER_VHOST).channel()
    channel.confirm_delivery()
    return channel


@pytest.fixture
def their_queue(theirs: Any, unique: Callable[[str], str]) -> Iterator[str]:
    """A queue of the other virtual host with one message."""
    name = unique("pay")
    theirs.queue_declare(name, durable=True)
    theirs.basic_publish("", name, SECRET, pika.BasicProperties(delivery_mode=2))
    yield name
    theirs.queue_delete(name)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_queue_of_another_virtual_host_is_not_there(
    connection: Any, theirs: Any, their_queue: str, operation: str
) -> None:
    for name in (f"{OTHER_VHOST}.{their_queue}", their_queue):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            OPERATIONS[operation](connection.channel(), name)
        assert refused.value.reply_code == NOT_FOUND
        assert f"no queue '{name}' in vhost '/'" in refused.value.reply_text
    assert depth(theirs, their_queue) == 1


def test_nothing_is_published_to_another_virtual_host(
    channel: Any, queue: QueueFactory, theirs: Any, their_queue: str
) -> None:
    alias = f"{OTHER_VHOST}.{their_queue}"
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", alias, b"forged", mandatory=True)
    dying = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=alias)
    channel.basic_publish("", dying, b"forged", mandatory=True)
    got = get(channel, dying, auto_ack=False)
    channel.basic_reject(got.method.delivery_tag, requeue=False)
    wait_for_depth(channel, dying, 0)
    assert get(theirs, their_queue).body == SECRET
    assert is_empty(theirs, their_queue)


def test_a_queue_named_like_anothers_topic_is_a_queue_of_its_own(channel: Any, theirs: Any, their_queue: str) -> None:
    alias = f"{OTHER_VHOST}.{their_queue}"
    assert channel.queue_delete(alias).method.message_count == 0
    assert channel.queue_declare(alias, durable=True).method.message_count == 0
    channel.confirm_delivery()
    channel.basic_publish("", alias, b"ours", mandatory=True)
    assert depth(theirs, their_queue) == 1
    assert channel.queue_delete(alias).method.message_count == 1
    assert get(theirs, their_queue).body == SECRET


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_virtual_host_does_not_reach_the_queues_of_the_default_one(
    theirs: Any, channel: Any, queue: QueueFactory, operation: str
) -> None:
    name = queue()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        OPERATIONS[operation](theirs, name)
    assert refused.value.reply_code == NOT_FOUND


@pytest.mark.ours_only("RabbitMQ has no topics")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_brokers_own_topics_are_no_queues(amqp: Trunkline, connection: Any, operation: str) -> None:
    for topic in sorted(RESERVED_TOPICS):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            OPERATIONS[operation](connection.channel(), topic)
        assert refused.value.reply_code == ACCESS_REFUSED
        assert "the broker's own" in refused.value.reply_text
