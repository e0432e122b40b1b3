"""What docs/protocols/amqp.md lists as different from RabbitMQ, and no other test shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import RestartableAmqpBroker
from tests.integration.amqp.conftest import ConnectionFactory, ExchangeFactory, QueueFactory, open_connection
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, depth, get, is_empty, settle, wait_for_depth

pytestmark = pytest.mark.ours_only("RabbitMQ does it otherwise")


def test_transient_messages_in_a_durable_queue_survive_a_kill_and_an_empty_headers_table_is_none_then(
    fresh_amqp: RestartableAmqpBroker,
) -> None:
    channel = open_connection(fresh_amqp).channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"transient", pika.BasicProperties(delivery_mode=1, headers={}))
    fresh_amqp.kill()
    fresh_amqp.start()
    message = get(open_connection(fresh_amqp).channel(), "q")
    assert (message.body, message.properties.delivery_mode) == (b"transient", 1)
    assert message.properties.headers is None


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"durable": False}, {"x-queue-type": "quorum"}),
        ({"exclusive": True}, {"x-queue-type": "quorum"}),
        ({"durable": True, "auto_delete": True}, {"x-queue-type": "quorum", "x-max-priority": 3}),
        ({"durable": True, "auto_delete": True}, {"x-queue-type": "classic", "x-delivery-limit": 3}),
    ],
    ids=["transient quorum", "exclusive quorum", "priorities in quorum", "delivery limit in classic"],
)
def test_every_kind_of_queue_has_every_property(
    channel: Any, unique: Callable[[str], str], options: dict[str, bool], arguments: dict[str, object]
) -> None:
    name = unique("queue")
    channel.queue_declare(name, arguments=arguments, **options)
    channel.basic_publish("", name, b"x")
    channel.basic_qos(prefetch_count=1, global_qos=True)
    Inbox(channel, name).wait(1)
    channel.queue_delete(name)


def test_flow_stops_deliveries_and_lets_them_go_on(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel, publisher = queue(), connect().channel(), connect().channel()
    inbox = Inbox(channel, name, auto_ack=True)
    assert channel.flow(False) is False
    publisher.basic_publish("", name, b"x")
    wait_for_depth(publisher, name, 1)
    settle(channel, name)
    assert inbox.messages == []
    assert channel.flow(True) is True
    inbox.wait(1)


def test_a_delayed_message_is_routed_when_it_is_published(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source = exchange("x-delayed-message", arguments={"x-delayed-type": "direct"})
    early, late = queue(), queue()
    channel.queue_bind(early, source, "k")
    channel.confirm_delivery()
    delayed = pika.BasicProperties(headers={"x-delay": 300})
    channel.basic_publish(source, "k", b"x", delayed, mandatory=True)
    channel.queue_bind(late, source, "k")
    message = get(channel, early)
    assert message.properties.headers == {"x-delay": 300}
    assert is_empty(channel, late)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(source, "nobody", b"x", delayed, mandatory=True)


def test_a_transaction_that_does_not_fit_one_of_its_queues_is_refused_as_a_whole(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    roomy, full = queue(), queue(x_max_length=1, x_overflow="reject-publish")
    channel = connect().channel()
    channel.tx_select()
    for name in (roomy, full, full):
        channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
    code, text = channel_error(channel.tx_commit)
    assert code == 406, text
    other = connect().channel()
    assert (depth(other, roomy), depth(other, full)) == (0, 0)
