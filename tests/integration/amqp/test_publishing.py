"""Publishing: confirms, returns of what cannot be routed, and transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, ExchangeFactory, QueueFactory
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import bodies, depth, get, get_many, is_empty, serve, wait_for_depth

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Confirms:
    """Raw confirms of a channel: what was confirmed, in which order with returns."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.events: list[tuple[str, int, bool]] = []
        channel._impl.add_callback(self._acked, [pika.spec.Basic.Ack], one_shot=False)
        channel._impl.add_callback(self._nacked, [pika.spec.Basic.Nack], one_shot=False)
        channel._impl.add_on_return_callback(lambda *_: self.events.append(("return", 0, False)))
        channel._impl._send_method(pika.spec.Confirm.Select())

    def _acked(self, frame: Any) -> None:
        self.events.append(("ack", frame.method.delivery_tag, frame.method.multiple))

    def _nacked(self, frame: Any) -> None:
        self.events.append(("nack", frame.method.delivery_tag, frame.method.multiple))

    def confirmed(self) -> set[int]:
        """The sequence numbers settled so far."""
        settled: set[int] = set()
        for kind, tag, multiple in self.events:
            if kind != "return":
                settled |= set(range(1, tag + 1)) if multiple else {tag}
        return settled


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_every_message_is_confirmed_once(connect: ConnectionFactory, queue: QueueFactory, delivery_mode: int) -> None:
    name, channel = queue(), connect().channel()
    confirms = Confirms(channel)
    for number in range(500):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=delivery_mode))
    serve(channel.connection, lambda: len(confirms.confirmed()) == 500, "500 confirms")
    settled: list[int] = []
    below = 0
    for kind, tag, multiple in confirms.events:
        assert kind == "ack"
        new = [t for t in range(below + 1, tag + 1) if t not in settled] if multiple else [tag]
        settled += new
        while below + 1 in settled:
            below += 1
    assert len(settled) == len(set(settled)) == 500
    assert depth(channel, name) == 500


def test_a_confirmed_message_is_in_the_queue(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, publisher, reader = queue(), connect().channel(), connect().channel()
    publisher.confirm_delivery()
    for number in range(20):
        publisher.basic_publish("", name, b"%d" % number, PERSISTENT)
        method, _, body = reader.basic_get(name, auto_ack=True)
        assert method is not None
        assert body == b"%d" % number


def test_a_mandatory_message_without_a_queue_is_returned_before_its_confirm(
    connect: ConnectionFactory, exchange: ExchangeFactory
) -> None:
    source, channel = exchange("direct"), connect().channel()
    confirms = Confirms(channel)
    returned: list[Any] = []
    channel._impl.add_on_return_callback(lambda *parts: returned.append(parts))
    properties = pika.BasicProperties(message_id="m", headers={"a": 1})
    channel.basic_publish(source, "nobody", b"back", properties, mandatory=True)
    serve(channel.connection, confirms.confirmed, "the confirm")
    assert [event[:2] for event in confirms.events] == [("return", 0), ("ack", 1)]
    _, method, given, body = returned[0]
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key, body, given) == (source, "nobody", b"back", properties)


def test_a_message_without_a_queue_is_confirmed_and_gone(connect: ConnectionFactory, exchange: ExchangeFactory) -> None:
    source, channel = exchange("direct"), connect().channel()
    confirms = Confirms(channel)
    channel.basic_publish(source, "nobody", b"gone")
    serve(channel.connection, lambda: confirms.confirmed() == {1}, "the confirm")
    assert [event[:2] for event in confirms.events] == [("ack", 1)]


def test_an_unroutable_mandatory_message_raises_in_pika(connect: ConnectionFactory) -> None:
    channel = connect().channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("amq.direct", "nobody at all", b"x", mandatory=True)
    assert [message.body for message in caught.value.messages] == [b"x"]


def test_publishing_to_an_exchange_that_is_not_there_closes_the_channel(
    connection: Any, unique: Callable[[str], str]
) -> None:
    name, channel = unique("exchange"), connection.channel()
    channel.confirm_delivery()
    assert channel_error(lambda: channel.basic_publish(name, "k", b"x")) == (
        404,
        f"NOT_FOUND - no exchange '{name}' in vhost '/'",
    )


def test_the_immediate_flag_is_not_implemented(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    channel._impl._send_method(
        pika.spec.Basic.Publish(exchange="", routing_key=name, immediate=True), (pika.BasicProperties(), b"x")
    )
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        depth(channel, name)
    assert (caught.value.reply_code, caught.value.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


def test_one_publication_reaches_every_queue_before_it_is_confirmed(
    connect: ConnectionFactory, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    source, names, channel = exchange("fanout"), [queue() for _ in range(5)], connect().channel()
    for name in names:
        channel.queue_bind(name, source)
    channel.confirm_delivery()
    channel.basic_publish(source, "", b"everywhere", PERSISTENT)
    reader = connect().channel()
    assert [reader.basic_get(name, auto_ack=True)[2] for name in names] == [b"everywhere"] * 5


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transactions_messages_appear_at_commit(connect: ConnectionFactory, queue: QueueFactory) -> None:
    names, channel, reader = [queue(), queue()], connect().channel(), connect().channel()
    channel.tx_select()
    for number in range(10):
        channel.basic_publish("", names[number % 2], b"%d" % number, PERSISTENT)
    assert [depth(channel, name) for name in names] == [0, 0]
    channel.tx_commit()
    for index, name in enumerate(names):
        assert bodies(get_many(reader, name, 5)) == [b"%d" % number for number in range(index, 10, 2)]


def test_a_rolled_back_transaction_leaves_nothing(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    channel.tx_select()
    channel.basic_publish("", name, b"never", PERSISTENT)
    channel.tx_rollback()
    channel.basic_publish("", name, b"kept", PERSISTENT)
    channel.tx_commit()
    assert get(channel, name).body == b"kept"
    assert is_empty(channel, name)


def test_a_transaction_dies_with_its_channel(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    channel.tx_select()
    channel.basic_publish("", name, b"never")
    channel.close()
    assert is_empty(connect().channel(), name)


def test_acknowledgements_in_a_transaction_hold_at_commit(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, publisher = queue(), connect().channel()
    publisher.confirm_delivery()
    for number in range(4):
        publisher.basic_publish("", name, b"%d" % number, PERSISTENT)
    worker = connect()
    channel = worker.channel()
    channel.tx_select()
    messages = get_many(channel, name, 4, auto_ack=False)
    channel.basic_ack(messages[0].method.delivery_tag)
    channel.tx_commit()
    channel.basic_ack(messages[1].method.delivery_tag)
    channel.basic_reject(messages[2].method.delivery_tag, requeue=False)
    worker.close()  # before the second commit: those two are not done
    wait_for_depth(publisher, name, 3)
    assert bodies(get_many(publisher, name, 3)) == [b"1", b"2", b"3"]


def test_rolled_back_acknowledgements_can_be_made_again(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    channel.basic_publish("", name, b"x", PERSISTENT)
    tag = get(channel, name, auto_ack=False).method.delivery_tag
    channel.tx_select()
    channel.basic_ack(tag)
    channel.tx_rollback()
    channel.basic_ack(tag)
    channel.tx_commit()
    channel.close()
    assert is_empty(connect().channel(), name)


def test_a_mandatory_message_in_a_transaction_is_returned_at_commit(connect: ConnectionFactory) -> None:
    channel = connect().channel()
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    channel.tx_select()
    channel.basic_publish("amq.direct", "nobody here", b"back", mandatory=True)
    channel.connection.process_data_events(0)
    assert returned == []
    channel.tx_commit()
    serve(channel.connection, lambda: returned, "the return")
    assert returned == [b"back"]


def test_a_transaction_reaches_the_queues_that_are_left_at_its_commit(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    kept, gone, channel, reader = queue(), queue(), connect().channel(), connect().channel()
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    channel.tx_select()
    channel.basic_publish("", gone, b"too late", PERSISTENT)
    channel.basic_publish("", gone, b"back", PERSISTENT, mandatory=True)
    channel.basic_publish("", kept, b"in time", PERSISTENT)
    reader.queue_delete(gone)
    channel.tx_commit()
    assert get(reader, kept).body == b"in time"
    serve(channel.connection, lambda: returned, "the return")
    assert returned == [b"back"]
    channel.basic_publish("", kept, b"next", PERSISTENT)
    channel.tx_commit()
    assert get(reader, kept).body == b"next"


@pytest.mark.parametrize("delivery_mode", [1, 2], ids=["transient", "persistent"])
def test_what_is_published_while_its_queue_is_deleted_is_confirmed(
    connect: ConnectionFactory, unique: Callable[[str], str], delivery_mode: int
) -> None:
    """The message goes with its queue; nothing failed that the publisher could do anything about."""
    name, count, channel, other = unique("queue"), 40, connect().channel(), connect().channel()
    confirms = Confirms(channel)
    for number in range(1, 11):
        other.queue_declare(name, durable=True)
        for _ in range(count):
            channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=delivery_mode))
        other.queue_delete(name)
        serve(channel.connection, lambda number=number: len(confirms.confirmed()) == number * count)
    assert {kind for kind, _, _ in confirms.events} == {"ack"}


def test_transactions_and_confirms_exclude_each_other(connection: Any) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    code, text = channel_error(channel.tx_select)
    assert (code, text) == (406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")
    channel = connection.channel()
    channel.tx_select()
    code, text = channel_error(channel.confirm_delivery)
    assert (code, text) == (406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")


def test_a_commit_without_a_transaction_is_refused(connection: Any) -> None:
    for name in ("tx_commit", "tx_rollback"):
        code, text = channel_error(getattr(connection.channel(), name))
        assert (code, text) == (406, "PRECONDITION_FAILED - channel is not transactional")
