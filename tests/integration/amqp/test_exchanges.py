"""Where a publication goes: every kind of exchange, bindings between exchanges, and alternates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, ExchangeFactory, QueueFactory
from tests.integration.amqp.reading import bodies, depth, get, get_many, is_empty
from tests.integration.waiting import wait_until


def publish_all(channel: Any, exchange: str, keys: list[str]) -> None:
    """Publish each key as a message with that routing key, confirmed."""
    channel.confirm_delivery()
    for key in keys:
        channel.basic_publish(exchange, key, key.encode())


def test_the_default_exchange_routes_to_the_queue_of_that_name(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.basic_publish("", name, b"hello")
    message = get(channel, name)
    assert (message.body, message.method.exchange, message.method.routing_key) == (b"hello", "", name)


def test_a_direct_exchange_routes_by_equal_key(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    source, errors, everything = exchange("direct"), queue(), queue()
    channel.queue_bind(errors, source, "error")
    for key in ("info", "error"):
        channel.queue_bind(everything, source, key)
    publish_all(channel, source, ["info", "error", "debug"])
    assert depth(channel, errors) == 1
    assert bodies(get_many(channel, everything, 2)) == [b"info", b"error"]
    assert get(channel, errors).method.exchange == source


def test_a_fanout_exchange_ignores_the_key(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    source, queues = exchange("fanout"), [queue() for _ in range(3)]
    for name in queues:
        channel.queue_bind(name, source, "whatever")
    publish_all(channel, source, ["a", "b"])
    for name in queues:
        assert bodies(get_many(channel, name, 2)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("#", ["", "quick", "quick.orange.rabbit", "lazy.brown.fox", "lazy.a.b.c", "quick..rabbit"]),
        ("*", ["quick"]),  # an empty key has no words
        ("*.orange.*", ["quick.orange.rabbit"]),
        ("lazy.#", ["lazy.brown.fox", "lazy.a.b.c"]),
        ("#.rabbit", ["quick.orange.rabbit", "quick..rabbit"]),
        ("quick.*.rabbit", ["quick.orange.rabbit", "quick..rabbit"]),
        ("lazy.#.c", ["lazy.a.b.c"]),
        ("quick.#.#", ["quick", "quick.orange.rabbit", "quick..rabbit"]),
        ("quick.orange.rabbit", ["quick.orange.rabbit"]),
        ("Quick", []),
    ],
)
def test_a_topic_exchange_matches_words(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory, pattern: str, matching: list[str]
) -> None:
    source, name = exchange("topic"), queue()
    channel.queue_bind(name, source, pattern)
    publish_all(channel, source, ["", "quick", "quick.orange.rabbit", "lazy.brown.fox", "lazy.a.b.c", "quick..rabbit"])
    assert bodies(get_many(channel, name, len(matching))) == [key.encode() for key in matching]
    assert is_empty(channel, name)


def test_one_queue_gets_a_message_once_however_many_bindings_match(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source, name = exchange("topic"), queue()
    for pattern in ("#", "a.*", "*.b", "a.b"):
        channel.queue_bind(name, source, pattern)
    publish_all(channel, source, ["a.b"])
    assert depth(channel, name) == 1


@pytest.mark.parametrize(
    ("how", "arguments", "matching"),
    [
        ("all", {"format": "pdf", "pages": 3}, [b"both"]),
        ("any", {"format": "pdf", "pages": 3}, [b"pdf", b"three", b"both"]),
        (None, {"format": "pdf", "pages": 3}, [b"both"]),
        ("all", {}, [b"pdf", b"three", b"both", b"neither"]),
        ("any", {}, []),
        ("all", {"pages": "3"}, []),
    ],
)
def test_a_headers_exchange_matches_all_or_any(
    channel: Any,
    queue: QueueFactory,
    exchange: ExchangeFactory,
    how: str | None,
    arguments: dict[str, object],
    matching: list[bytes],
) -> None:
    source, name = exchange("headers"), queue()
    channel.queue_bind(name, source, "", {**arguments, **({"x-match": how} if how else {})})
    channel.confirm_delivery()
    for body, headers in (
        (b"pdf", {"format": "pdf"}),
        (b"three", {"pages": 3}),
        (b"both", {"format": "pdf", "pages": 3, "other": True}),
        (b"neither", {"format": "zip"}),
    ):
        channel.basic_publish(source, "", body, pika.BasicProperties(headers=headers))
    assert bodies(get_many(channel, name, len(matching))) == matching
    assert is_empty(channel, name)


def test_headers_that_begin_with_x_count_only_in_the_with_x_modes(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source, plain, with_x = exchange("headers"), queue(), queue()
    channel.queue_bind(plain, source, "", {"x-match": "all", "x-mark": 1, "a": 1})
    channel.queue_bind(with_x, source, "", {"x-match": "all-with-x", "x-mark": 1, "a": 1})
    channel.confirm_delivery()
    channel.basic_publish(source, "", b"without", pika.BasicProperties(headers={"a": 1}))
    channel.basic_publish(source, "", b"with", pika.BasicProperties(headers={"a": 1, "x-mark": 1}))
    assert bodies(get_many(channel, plain, 2)) == [b"without", b"with"]
    assert get(channel, with_x).body == b"with"
    assert is_empty(channel, with_x)


def test_exchanges_bind_to_exchanges(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    source, middle, end, name = exchange("fanout"), exchange("topic"), exchange("direct"), queue()
    channel.exchange_bind(middle, source)
    channel.exchange_bind(end, middle, "logs.#")
    channel.queue_bind(name, end, "logs.error")
    publish_all(channel, source, ["logs.info", "logs.error", "other"])
    message = get(channel, name)
    assert (message.body, message.method.exchange) == (b"logs.error", source)
    assert is_empty(channel, name)
    channel.exchange_unbind(end, middle, "logs.#")
    publish_all(channel, source, ["logs.error"])
    assert is_empty(channel, name)


def test_a_ring_of_exchanges_delivers_once(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    first, second, name = exchange("fanout"), exchange("fanout"), queue()
    channel.exchange_bind(first, second)
    channel.exchange_bind(second, first)
    channel.queue_bind(name, first)
    channel.queue_bind(name, second)
    publish_all(channel, first, ["round"])
    assert depth(channel, name) == 1


def test_what_no_binding_takes_goes_to_the_alternate_exchange(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    spare, taken, left = exchange("fanout"), queue(), queue()
    source = exchange("direct", arguments={"alternate-exchange": spare})
    channel.queue_bind(taken, source, "known")
    channel.queue_bind(left, spare)
    publish_all(channel, source, ["known", "unknown"])
    assert get(channel, taken).body == b"known"
    message = get(channel, left)
    assert (message.body, message.method.routing_key) == (b"unknown", "unknown")
    assert is_empty(channel, left)


def test_an_alternate_exchange_saves_a_mandatory_message(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    spare, left = exchange("fanout"), queue()
    source = exchange("direct", arguments={"alternate-exchange": spare})
    channel.queue_bind(left, spare)
    channel.confirm_delivery()
    channel.basic_publish(source, "nobody", b"kept", mandatory=True)
    assert get(channel, left).body == b"kept"


def test_unbinding_ends_routing(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    source, name = exchange("direct"), queue()
    channel.queue_bind(name, source, "k", {"tag": 1})
    channel.queue_bind(name, source, "k", {"tag": 2})
    channel.queue_unbind(name, source, "k", {"tag": 1})
    publish_all(channel, source, ["k"])
    assert depth(channel, name) == 1
    channel.queue_unbind(name, source, "k", {"tag": 2})
    publish_all(channel, source, ["k"])
    assert depth(channel, name) == 1
    channel.queue_unbind(name, source, "k", {"tag": 2})  # once more is no error


def test_unbinding_what_is_not_there_is_no_error(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.queue_unbind(name, "no such exchange", "k")
    channel.queue_unbind("no such queue", "amq.direct", "k")
    channel.exchange_unbind("amq.direct", "no such exchange", "k")
    channel.exchange_unbind("no such exchange", "amq.direct", "k")


def test_deleting_a_queue_deletes_its_bindings(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    source, name = exchange("fanout"), queue()
    channel.queue_bind(name, source)
    channel.queue_delete(name)
    channel.queue_declare(name, durable=True)
    publish_all(channel, source, ["k"])
    assert is_empty(channel, name)


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    connection: Any, queue: QueueFactory, unique: Callable[[str], str]
) -> None:
    channel, name, source = connection.channel(), queue(), unique("exchange")
    channel.exchange_declare(source, "fanout", auto_delete=True)
    channel.queue_bind(name, source)
    channel.exchange_declare(source, passive=True)
    channel.queue_unbind(name, source)

    def is_gone() -> bool:
        probe = connection.channel()
        try:
            probe.exchange_declare(source, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        probe.close()
        return False

    wait_until(is_gone, what="the exchange's end")


def test_an_exchange_in_use_is_not_deleted_if_unused_was_asked(
    connection: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    channel, source, name = connection.channel(), exchange("fanout"), queue()
    channel.queue_bind(name, source)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.exchange_delete(source, if_unused=True)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text.startswith("PRECONDITION_FAILED - exchange")
    channel = connection.channel()
    channel.queue_unbind(name, source)
    channel.exchange_delete(source, if_unused=True)
    channel.exchange_delete(source)  # deleting what is not there is no error


def test_an_internal_exchange_takes_no_publications(
    connection: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    channel, inner, outer, name = connection.channel(), exchange("fanout", internal=True), exchange("fanout"), queue()
    channel.exchange_bind(inner, outer)
    channel.queue_bind(name, inner)
    publish_all(channel, outer, ["through"])
    assert get(channel, name).body == b"through"
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish(inner, "", b"refused")
    assert caught.value.reply_code == 403
    assert f"cannot publish to internal exchange '{inner}' in vhost '/'" in caught.value.reply_text


def test_the_predeclared_exchanges_are_there(channel: Any) -> None:
    for name in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        channel.exchange_declare(name, passive=True)


def test_the_default_exchange_cannot_be_bound_or_declared(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, connection = queue(), connect()
    attempts: list[Callable[[Any], object]] = [
        lambda channel: channel.queue_bind(name, "", "k"),
        lambda channel: channel.queue_unbind(name, "", "k"),
        lambda channel: channel.exchange_declare("", "direct"),
        lambda channel: channel.exchange_declare("", passive=True),
        lambda channel: channel.exchange_delete(""),
        lambda channel: channel.exchange_delete("amq.direct"),
        lambda channel: channel.exchange_declare("amq.mine", "direct"),
    ]
    for attempt in attempts:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            attempt(connection.channel())
        assert caught.value.reply_code == 403
        assert caught.value.reply_text.startswith("ACCESS_REFUSED - ")


def test_a_topic_exchange_with_many_bindings_finds_the_right_queue(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source, names = exchange("topic"), [queue() for _ in range(4)]
    for number in range(400):
        channel.queue_bind(names[number % 4], source, f"sensor.{number}.*")
    publish_all(channel, source, [f"sensor.{number}.temperature" for number in range(0, 400, 7)])
    for index, name in enumerate(names):
        expected = [f"sensor.{n}.temperature".encode() for n in range(0, 400, 7) if n % 4 == index]
        assert bodies(get_many(channel, name, len(expected))) == expected


# -- kinds of our own --------------------------------------------------------------------------------------------------

OURS = pytest.mark.ours_only("RabbitMQ has no such kind of exchange")


@OURS
@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("company = 'Telco' and price < 100", [b"cheap"]),
        ("price between 80 and 120 or urgent = true", [b"cheap", b"dear", b"header"]),
        ("company like 'Tel%' and not price > 100", [b"cheap"]),
        ("company in ('Telco', 'Other') and order.lines[0].sku is not null", [b"dear"]),
        ("company is null", [b"header", b"text"]),
    ],
)
def test_a_content_exchange_filters_headers_and_json(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory, text: str, matching: list[bytes]
) -> None:
    source, name = exchange("content"), queue()
    channel.queue_bind(name, source, "", {"x-filter": text})
    channel.confirm_delivery()
    for message_id, body, headers in (
        ("cheap", {"company": "Telco", "price": 80}, {}),
        ("dear", {"company": "Telco", "price": 120, "order": {"lines": [{"sku": "A-1"}]}}, {}),
        ("header", {}, {"urgent": True}),
    ):
        properties = pika.BasicProperties(message_id=message_id, headers=headers)
        channel.basic_publish(source, "", json.dumps(body), properties)
    channel.basic_publish(source, "", b"no JSON", pika.BasicProperties(message_id="text"))
    got = [message.properties.message_id.encode() for message in get_many(channel, name, len(matching))]
    assert got == matching
    assert is_empty(channel, name)


@OURS
def test_a_filter_that_cannot_be_read_is_refused(
    connection: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source, name = exchange("content"), queue()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connection.channel().queue_bind(name, source, "", {"x-filter": "price <"})
    assert caught.value.reply_code == 406
    assert "x-filter" in caught.value.reply_text


@OURS
@pytest.mark.parametrize(
    ("subscribed", "matching"),
    [
        ("order", [b"order", b"order.created", b"order.created.v2"]),
        ("order.created", [b"order.created", b"order.created.v2"]),
        ("", [b"order", b"order.created", b"order.created.v2", b"orders", b"invoice"]),
        ("order.creat", []),
    ],
)
def test_a_type_exchange_matches_subtypes(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory, subscribed: str, matching: list[bytes]
) -> None:
    source, name = exchange("type"), queue()
    channel.queue_bind(name, source, subscribed)
    publish_all(channel, source, ["order", "order.created", "order.created.v2", "orders", "invoice"])
    assert bodies(get_many(channel, name, len(matching))) == matching
    assert is_empty(channel, name)
