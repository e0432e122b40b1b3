"""Messages that wait for their time: the exchange kind x-delayed-message, and the commands that list and cancel them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.integration.amqp.brokers import AmqpBroker, RestartableAmqpBroker
from tests.integration.amqp.conftest import ExchangeFactory, QueueFactory, open_connection
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, bodies, depth, get, get_many, is_empty
from tests.integration.amqp.test_cli_amqp import Shell

pytestmark = pytest.mark.ours_only("RabbitMQ needs a plugin for it")

KIND = "x-delayed-message"
FAR_MS = 3_600_000


def delayed_exchange(exchange: ExchangeFactory, kind: str) -> str:
    return exchange(KIND, durable=True, arguments={"x-delayed-type": kind})


def publish(channel: Any, exchange: str, key: str, body: bytes, delay_ms: int | None) -> None:
    headers = None if delay_ms is None else {"x-delay": delay_ms}
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers, delivery_mode=2))


def test_messages_come_when_their_time_has_come(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    source, name = delayed_exchange(exchange, "direct"), queue()
    channel.queue_bind(name, source, "k")
    channel.confirm_delivery()
    began = time.monotonic()
    publish(channel, source, "k", b"last", 600)
    publish(channel, source, "k", b"second", 300)
    publish(channel, source, "k", b"first", None)
    publish(channel, source, "other", b"nowhere", 10)
    inbox = Inbox(channel, name, auto_ack=True)
    inbox.wait(1)
    inbox.wait(2)
    assert time.monotonic() - began >= 0.3
    inbox.wait(3)
    assert time.monotonic() - began >= 0.6
    assert inbox.bodies == [b"first", b"second", b"last"]
    assert inbox.messages[2].method.exchange == source
    assert inbox.messages[2].method.routing_key == "k"


def test_the_delayed_type_decides_where_messages_go(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source, orders, all_of_it = delayed_exchange(exchange, "topic"), queue(), queue()
    channel.queue_bind(orders, source, "order.*")
    channel.queue_bind(all_of_it, source, "#")
    channel.confirm_delivery()
    publish(channel, source, "order.created", b"order", 50)
    publish(channel, source, "invoice.sent", b"invoice", 100)
    assert get(channel, orders).body == b"order"
    assert bodies(get_many(channel, all_of_it, 2)) == [b"order", b"invoice"]
    assert is_empty(channel, orders)


def test_an_exchange_needs_a_type_for_what_it_delays(connection: Any, unique: Callable[[str], str]) -> None:
    text = "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"
    for arguments in ({}, {"x-delayed-type": "no such type"}, {"x-delayed-type": KIND}):

        def declare(arguments: dict[str, str] = arguments) -> None:
            connection.channel().exchange_declare(unique("delayed"), KIND, arguments=arguments)

        assert channel_error(declare) == (406, text)


def test_delayed_messages_outlive_a_killed_broker(fresh_amqp: RestartableAmqpBroker) -> None:
    channel = open_connection(fresh_amqp).channel()
    channel.exchange_declare("later", KIND, durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "later", "k")
    channel.confirm_delivery()
    publish(channel, "later", "k", b"due while it was down", 50)
    publish(channel, "later", "k", b"far", FAR_MS)
    fresh_amqp.kill()
    fresh_amqp.start()
    channel = open_connection(fresh_amqp).channel()
    assert get(channel, "q").body == b"due while it was down"
    assert is_empty(channel, "q")
    assert Shell(fresh_amqp).queue("q")["delayed"] == 1


def test_delayed_messages_are_listed_and_cancelled(
    amqp: AmqpBroker, channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    shell, source, name = Shell(amqp), delayed_exchange(exchange, "fanout"), queue()
    channel.queue_bind(name, source)
    channel.confirm_delivery()
    before_ms = time.time() * 1000
    publish(channel, source, "", b"the day after", 2 * FAR_MS)
    publish(channel, source, "", b"tomorrow", FAR_MS)
    listed = shell.json("queue", "delayed", name)
    assert [(entry["size_bytes"], entry["due_ms"] >= before_ms + FAR_MS) for entry in listed] == [(8, True), (13, True)]
    assert "tomorrow" in shell("queue", "delayed", name).stdout
    assert depth(channel, name) == 0
    shell("queue", "cancel", name, str(listed[0]["id"]))
    assert [entry["id"] for entry in shell.json("queue", "delayed", name)] == [listed[1]["id"]]
    assert "no delayed message" in shell("queue", "cancel", name, str(listed[0]["id"]), code=1).stderr
    assert shell.queue(name)["delayed"] == 1
