"""Selective receive over AMQP: a consumer's x-filter, and x-get and x-browse for those who ask once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, depth, wait_for_depth
from tests.integration.waiting import wait_until

pytestmark = pytest.mark.ours_only("RabbitMQ has no selective consumers")


def publish(channel: Any, queue: str, count: int) -> None:
    channel.confirm_delivery()
    for number in range(count):
        body = json.dumps({"number": number, "color": "red" if number % 3 == 0 else "blue"})
        properties = pika.BasicProperties(
            delivery_mode=2, correlation_id=str(number), headers={"size": number * 2, "kind": "paint"}
        )
        channel.basic_publish("", queue, body, properties)


def ask(channel: Any, queue: str, arguments: dict[str, Any], *, auto_ack: bool = False) -> Any:
    """One message by x-get or x-browse: its method, properties and body, or None."""
    found: list[Any] = []
    ended: list[Any] = []
    channel.add_on_cancel_callback(ended.append)
    channel.basic_consume(queue, lambda *message: found.append(message[1:]), auto_ack=auto_ack, arguments=arguments)
    wait_until(lambda: channel.connection.process_data_events(0) or ended, what="the consumer is cancelled")
    assert len(found) <= 1
    return found[0] if found else None


def number_of(message: Any) -> int:
    return int(json.loads(message[2])["number"])


def test_a_consumer_with_a_filter_gets_what_matches_by_body_header_and_property(
    connection: Any, queue: QueueFactory
) -> None:
    name, channel = queue(), connection.channel()
    publish(channel, name, 12)
    filters = {
        "color = 'red' and number > 2": [3, 6, 9],
        "size between 8 and 10 and kind = 'paint'": [4, 5],
        "\"amqp.correlation-id\" in ('1', '11')": [1, 11],
    }
    for text, expected in filters.items():
        inbox = Inbox(connection.channel(), name, arguments={"x-filter": text})
        inbox.wait(len(expected))
        assert [json.loads(body)["number"] for body in inbox.bodies] == expected
        inbox.channel.basic_ack(0, multiple=True)
    wait_for_depth(channel, name, 12 - 7)


def test_prefetch_holds_and_what_a_filter_passes_over_goes_to_others(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    publish(channel, name, 9)
    narrow = connection.channel()
    narrow.basic_qos(prefetch_count=1)
    picky = Inbox(narrow, name, arguments={"x-filter": "color = 'red'"})
    picky.wait(1)
    other = Inbox(connection.channel(), name, auto_ack=True)
    other.wait(8)
    assert [json.loads(body)["number"] for body in other.bodies] == list(range(1, 9))
    assert len(picky.messages) == 1


def test_one_message_is_asked_for_by_a_filter_and_none_is_an_answer(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    publish(channel, name, 10)
    asking = connection.channel()
    found = ask(asking, name, {"x-get": True, "x-filter": "color = 'red' and number > 3"})
    assert number_of(found) == 6
    assert ask(asking, name, {"x-get": True, "x-filter": "number = 6"}) is None, "it is leased"
    asking.basic_nack(found[0].delivery_tag)
    again = ask(asking, name, {"x-get": True, "x-filter": "number = 6"})
    assert again[0].redelivered
    asking.basic_ack(again[0].delivery_tag)
    assert ask(asking, name, {"x-get": True, "x-filter": "number = 99"}) is None
    assert number_of(ask(asking, name, {"x-get": True}, auto_ack=True)) == 0
    wait_for_depth(channel, name, 8)


def test_browsing_leaves_the_message_where_it_is(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    publish(channel, name, 5)
    for _ in range(3):
        assert number_of(ask(channel, name, {"x-browse": True, "x-filter": "number >= 2"})) == 2
    assert number_of(ask(channel, name, {"x-browse": True})) == 0
    assert depth(channel, name) == 5


def test_a_filter_that_does_not_parse_is_refused_with_its_place(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, keyed, connection = queue(), queue(x_order_by_key=True), connect()

    def consume(queue: str, text: object) -> Callable[[], object]:
        return lambda: connection.channel().basic_consume(queue, print, arguments={"x-filter": text})

    code, text = channel_error(consume(name, "price <"))
    assert code == 406
    assert "invalid arg 'x-filter'" in text
    assert channel_error(consume(name, 7))[0] == 406
    code, text = channel_error(consume(keyed, "true"))
    assert (code, "ordered by key" in text) == (406, True)


def test_a_consumer_with_an_end_is_cancelled_then(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    ended: list[Any] = []
    channel.add_on_cancel_callback(ended.append)
    channel.basic_consume(name, print, arguments={"x-expires": 100})
    lasting = Inbox(connection.channel(), name, arguments={"x-expires": 600_000})
    wait_until(lambda: connection.process_data_events(0.01) or ended, what="the end of the consumer")
    publish(channel, name, 1)
    lasting.wait(1)
