"""What outlives the broker: durable queues, exchanges and bindings, persistent messages, and what was acknowledged."""

from __future__ import annotations

import contextlib
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import RestartableAmqpBroker
from tests.integration.amqp.conftest import open_connection
from tests.integration.amqp.definitions import LIMITED, OTHER_VHOST
from tests.integration.amqp.failing import exists
from tests.integration.amqp.reading import Inbox, bodies, depth, get, get_many, is_empty, settle

FORGETS = pytest.mark.ours_only("RabbitMQ writes acknowledgements a moment later: a kill may lose them")
UNDER_WAY = pytest.mark.at_once("acknowledgements are under way to the store for a moment: a kill may lose them")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def end(broker: RestartableAmqpBroker, how: str) -> None:
    if how == "kill":
        broker.kill()
    else:
        broker.stop()


def hang_up(*connections: Any) -> None:
    """Forget connections to a broker that is gone."""
    for connection in connections:
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            connection.close()


@pytest.mark.parametrize("how", ["stop", pytest.param("kill", marks=[FORGETS, UNDER_WAY])])
def test_durable_things_and_persistent_messages_outlive_the_broker(fresh_amqp: RestartableAmqpBroker, how: str) -> None:
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.exchange_declare("copies", "fanout", durable=True)
    channel.exchange_declare("fleeting", "fanout")
    channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("lost")
    channel.queue_declare("locked", exclusive=True)
    channel.queue_bind("kept", "copies")
    channel.exchange_bind("copies", "orders", "order.*")
    for number in range(100):
        channel.basic_publish(
            "orders", "order.new", b"%d" % number, pika.BasicProperties(delivery_mode=2, headers={"n": number})
        )
    channel.basic_publish("", "lost", b"x", PERSISTENT)
    for number in range(0, 20, 2):
        first, second = get(channel, "kept", auto_ack=False), get(channel, "kept", auto_ack=False)
        channel.basic_ack(first.method.delivery_tag)
        assert int(second.body) == number + 1
    assert depth(channel, "kept") == 80  # also: the acknowledgements have arrived
    end(fresh_amqp, how)
    hang_up(connection)
    fresh_amqp.start()

    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    assert not exists(connection, "lost")
    assert not exists(connection, "locked")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().exchange_declare("fleeting", passive=True)
    channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 3})
    assert depth(channel, "kept") == 90
    messages = get_many(channel, "kept", 90, auto_ack=False)
    expected = [number for number in range(100) if number >= 20 or number % 2]
    assert [int(message.body) for message in messages] == expected
    assert [message.properties.headers["n"] for message in messages] == expected
    assert all(message.method.redelivered for message in messages[:10])
    channel.confirm_delivery()
    channel.basic_publish("orders", "order.late", b"still bound", PERSISTENT, mandatory=True)
    assert get(channel, "kept").body == b"still bound"
    connection.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_transient_messages_in_a_durable_queue_need_not_outlive_the_broker_but_persistent_ones_keep_their_order(
    fresh_amqp: RestartableAmqpBroker, how: str
) -> None:
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("mixed", durable=True)
    for number in range(30):
        channel.basic_publish("", "mixed", b"%d" % number, pika.BasicProperties(delivery_mode=1 + number % 2))
    end(fresh_amqp, how)
    hang_up(connection)
    fresh_amqp.start()
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    left = [int(body) for body in bodies(get_many(channel, "mixed", depth(channel, "mixed")))]
    assert [number for number in left if number % 2] == list(range(1, 30, 2))
    assert left == sorted(left)
    connection.close()


@FORGETS
def test_a_committed_transaction_outlives_a_kill_and_an_open_one_does_not(fresh_amqp: RestartableAmqpBroker) -> None:
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    for name in ("in", "out"):
        channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for number in range(4):
        channel.basic_publish("", "in", b"%d" % number, PERSISTENT)
    worker = connection.channel()
    worker.tx_select()
    for index, message in enumerate(get_many(worker, "in", 4, auto_ack=False)):
        worker.basic_ack(message.method.delivery_tag)
        worker.basic_publish("", "out", b"done " + message.body, PERSISTENT)
        if index == 1:
            worker.tx_commit()
    fresh_amqp.kill()
    hang_up(connection)
    fresh_amqp.start()
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    assert bodies(get_many(channel, "out", 2)) == [b"done 0", b"done 1"]
    assert bodies(get_many(channel, "in", 2)) == [b"2", b"3"]
    assert is_empty(channel, "out")
    assert is_empty(channel, "in")
    connection.close()


def test_users_and_vhosts_outlive_the_broker(fresh_amqp: RestartableAmqpBroker) -> None:
    fresh_amqp.stop()
    fresh_amqp.start()
    open_connection(fresh_amqp, *LIMITED).close()
    open_connection(fresh_amqp, vhost=OTHER_VHOST).close()


def test_limits_of_a_queue_hold_after_a_restart(fresh_amqp: RestartableAmqpBroker) -> None:
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("short", durable=True, arguments={"x-max-length": 2})
    channel.queue_declare(
        "brief",
        durable=True,
        arguments={"x-message-ttl": 1500, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )
    channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 9})
    for number in range(3):
        channel.basic_publish("", "short", b"%d" % number, PERSISTENT)
        channel.basic_publish("", "ranked", b"%d" % number, pika.BasicProperties(delivery_mode=2, priority=number))
    channel.basic_publish("", "brief", b"x", PERSISTENT)
    fresh_amqp.stop()
    hang_up(connection)
    fresh_amqp.start()
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "short", b"3", PERSISTENT)
    assert bodies(get_many(channel, "short", 2)) == [b"2", b"3"]
    assert bodies(get_many(channel, "ranked", 3)) == [b"2", b"1", b"0"]
    message = get(channel, "dead")
    assert message.properties.headers["x-death"][0]["reason"] == "expired"
    connection.close()


@FORGETS
@UNDER_WAY
def test_a_consumer_goes_on_after_a_restart(fresh_amqp: RestartableAmqpBroker) -> None:
    connection = open_connection(fresh_amqp)
    channel = connection.channel()
    channel.queue_declare("work", durable=True)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "work", b"%d" % number, PERSISTENT)
    channel.basic_qos(prefetch_count=4)
    inbox = Inbox(channel, "work")
    inbox.wait(4)
    channel.basic_ack(inbox.messages[1].method.delivery_tag, multiple=True)
    inbox.wait(6)
    settle(channel, "work")
    fresh_amqp.kill()
    hang_up(connection)
    fresh_amqp.start()
    connection = open_connection(fresh_amqp)
    again = Inbox(connection.channel(), "work")
    again.wait(8)
    assert again.bodies == [b"%d" % number for number in range(2, 10)]
    connection.close()
