"""Consuming: pushes and pulls, acknowledgements, what comes back and in which order, prefetch, and who is served."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.failing import channel_error, connection_error
from tests.integration.amqp.reading import (
    Inbox,
    bodies,
    consumers,
    depth,
    get,
    get_many,
    is_empty,
    serve,
    settle,
    wait_for_depth,
)
from tests.integration.waiting import wait_until


def fill(channel: Any, queue: str, count: int, first: int = 0) -> list[bytes]:
    """Publish numbers as bodies, confirmed."""
    numbers = [b"%d" % number for number in range(first, first + count)]
    channel.confirm_delivery()
    for number in numbers:
        channel.basic_publish("", queue, number, pika.BasicProperties(delivery_mode=2))
    return numbers


def abandon(connection: Any) -> None:
    """Cut the TCP connection, as when the consumer dies."""
    with contextlib.suppress(OSError):
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


def test_get_tells_what_is_left(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(channel, name, 3)
    counts = []
    for expected in (b"0", b"1", b"2"):
        message = get(channel, name, auto_ack=False)
        assert message.body == expected
        counts.append(message.method.message_count)
    assert counts == [2, 1, 0]
    assert channel.basic_get(name) == (None, None, None)


def test_delivery_tags_count_from_one_on_each_channel(connection: Any, queue: QueueFactory) -> None:
    name = queue()
    fill(connection.channel(), name, 4)
    first, second = connection.channel(), connection.channel()
    tags = [get(channel, name, auto_ack=False).method.delivery_tag for channel in (first, second, first, second)]
    assert tags == [1, 1, 2, 2]


def test_acknowledged_messages_do_not_come_back_and_others_do_in_order(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, first = queue(), connect()
    fill(first.channel(), name, 10)
    channel = first.channel()
    messages = get_many(channel, name, 10, auto_ack=False)
    for index in (0, 3, 7):
        channel.basic_ack(messages[index].method.delivery_tag)
    channel.basic_ack(messages[1].method.delivery_tag, multiple=True)
    first.close()
    second = connect().channel()
    wait_for_depth(second, name, 6)
    again = get_many(second, name, 6)
    assert bodies(again) == [b"2", b"4", b"5", b"6", b"8", b"9"]
    assert all(message.method.redelivered for message in again)


def test_a_dead_consumers_messages_go_to_another_in_order(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, dying = queue(), connect()
    channel = dying.channel()
    channel.basic_qos(prefetch_count=5)
    inbox = Inbox(channel, name)
    numbers = fill(connect().channel(), name, 8)
    inbox.wait(5)
    channel.basic_ack(inbox.messages[1].method.delivery_tag)
    settle(channel, name)
    abandon(dying)
    other = Inbox(connect().channel(), name)
    other.wait(7)
    assert other.bodies == [number for number in numbers if number != b"1"]
    assert [message.method.redelivered for message in other.messages] == [True] * 4 + [index == 0 for index in range(3)]


def test_a_closed_channel_gives_its_messages_back(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 2)
    get_many(channel, name, 2, auto_ack=False)
    channel.close()
    channel = connection.channel()
    wait_for_depth(channel, name, 2)
    again = get_many(channel, name, 2)
    assert [(m.body, m.method.redelivered) for m in again] == [(b"0", True), (b"1", True)]


def test_requeued_messages_keep_their_place(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 5)
    messages = get_many(channel, name, 3, auto_ack=False)
    channel.basic_reject(messages[1].method.delivery_tag, requeue=True)
    wait_for_depth(channel, name, 3)
    channel.basic_nack(messages[0].method.delivery_tag, requeue=True)
    wait_for_depth(channel, name, 4)
    channel.basic_ack(messages[2].method.delivery_tag)
    again = get_many(channel, name, 4)
    assert [(m.body, m.method.redelivered) for m in again] == [
        (b"0", True),
        (b"1", True),
        (b"3", False),
        (b"4", False),
    ]


def test_nack_multiple_without_requeue_drops(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 4)
    messages = get_many(channel, name, 3, auto_ack=False)
    channel.basic_nack(messages[1].method.delivery_tag, multiple=True, requeue=False)
    channel.basic_nack(messages[2].method.delivery_tag, requeue=True)
    wait_for_depth(channel, name, 2)
    assert bodies(get_many(channel, name, 2)) == [b"2", b"3"]


def test_recover_brings_unacknowledged_messages_again(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 3)
    inbox = Inbox(channel, name)
    inbox.wait(3)
    channel.basic_ack(inbox.messages[1].method.delivery_tag)
    channel.basic_recover(requeue=True)
    inbox.wait(5)
    assert inbox.bodies[3:] == [b"0", b"2"]
    assert all(message.method.redelivered for message in inbox.messages[3:])
    assert inbox.messages[3].method.delivery_tag == 4


def test_recover_without_requeue_is_not_implemented(connect: ConnectionFactory) -> None:
    channel = connect().channel()
    code, text = connection_error(lambda: channel.basic_recover(requeue=False))
    assert (code, text.startswith("NOT_IMPLEMENTED - ")) == (540, True)


def test_auto_ack_leases_nothing(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, first = queue(), connect()
    fill(connect().channel(), name, 3)
    Inbox(first.channel(), name, auto_ack=True).wait(3)
    abandon(first)
    channel = connect().channel()
    wait_until(lambda: consumers(channel, name) == 0, what="the consumer's end")
    assert is_empty(channel, name)


@pytest.mark.parametrize("how", ["unknown", "twice"])
def test_an_unknown_delivery_tag_closes_the_channel(connection: Any, queue: QueueFactory, how: str) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 1)
    tag = 99
    if how == "twice":
        tag = get(channel, name, auto_ack=False).method.delivery_tag
        channel.basic_ack(tag)

    def acknowledge() -> None:
        channel.basic_ack(tag)
        depth(channel, name)

    assert channel_error(acknowledge) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


def test_prefetch_bounds_what_is_unacknowledged(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    fill(connect().channel(), name, 10)
    channel.basic_qos(prefetch_count=3)
    inbox = Inbox(channel, name)
    inbox.wait(3)
    settle(channel, name)
    assert len(inbox.messages) == 3
    channel.basic_ack(inbox.messages[0].method.delivery_tag)
    inbox.wait(4)
    settle(channel, name)
    assert len(inbox.messages) == 4
    channel.basic_ack(inbox.messages[3].method.delivery_tag, multiple=True)
    inbox.wait(7)
    settle(channel, name)
    assert inbox.bodies == [b"%d" % number for number in range(7)]


def test_prefetch_is_per_consumer_unless_global(connect: ConnectionFactory, queue: QueueFactory) -> None:
    names = [queue(), queue()]
    for name in names:
        fill(connect().channel(), name, 5)
    channel = connect().channel()
    channel.basic_qos(prefetch_count=2)
    inboxes = [Inbox(channel, name) for name in names]
    for inbox, name in zip(inboxes, names, strict=True):
        inbox.wait(2)
        settle(channel, name)
    assert [len(inbox.messages) for inbox in inboxes] == [2, 2]
    shared = connect().channel()
    shared.basic_qos(prefetch_count=3, global_qos=True)
    inboxes = [Inbox(shared, name) for name in names]
    serve(shared.connection, lambda: sum(len(inbox.messages) for inbox in inboxes) >= 3)
    for name in names:
        settle(shared, name)
    assert sum(len(inbox.messages) for inbox in inboxes) == 3


def test_a_channels_limit_can_be_raised_while_it_consumes(connect: ConnectionFactory, queue: QueueFactory) -> None:
    """Celery does that for each task with an ETA."""
    name, channel = queue(), connect().channel()
    fill(connect().channel(), name, 10)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    inbox = Inbox(channel, name)
    inbox.wait(2)
    for limit in (3, 4, 7):
        channel.basic_qos(prefetch_count=limit, global_qos=True)
        inbox.wait(limit)
        settle(channel, name)
        assert len(inbox.messages) == limit


def test_a_new_prefetch_holds_for_later_consumers_only(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    channel.basic_qos(prefetch_count=1)
    first = Inbox(channel, name)
    channel.basic_qos(prefetch_count=4)
    second = Inbox(channel, name)
    fill(connect().channel(), name, 10)
    serve(channel.connection, lambda: len(first.messages) + len(second.messages) >= 5)
    settle(channel, name)
    assert (len(first.messages), len(second.messages)) == (1, 4)


def test_prefetch_does_not_bound_gets(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 3)
    channel.basic_qos(prefetch_count=1)
    assert bodies(get_many(channel, name, 3, auto_ack=False)) == [b"0", b"1", b"2"]


def test_consumers_of_a_queue_share_their_channels_prefetch_evenly(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, channel = queue(), connect().channel()
    channel.basic_qos(prefetch_count=20, global_qos=True)
    inboxes = [Inbox(channel, name), Inbox(channel, name)]
    fill(connect().channel(), name, 60)
    serve(channel.connection, lambda: sum(len(inbox.messages) for inbox in inboxes) >= 20)
    settle(channel, name)
    assert [len(inbox.messages) for inbox in inboxes] == [10, 10]
    channel.basic_ack(0, multiple=True)
    serve(channel.connection, lambda: sum(len(inbox.messages) for inbox in inboxes) >= 40)
    settle(channel, name)
    assert [len(inbox.messages) for inbox in inboxes] == [20, 20]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_queues_share_a_channels_prefetch_in_turn(
    connect: ConnectionFactory, queue: QueueFactory, prefetch: int
) -> None:
    """RabbitMQ tosses a coin for each that becomes free, so the two halves are not quite even there."""
    names, channel = [queue(), queue()], connect().channel()
    for name in names:
        fill(connect().channel(), name, 100)
    channel.basic_qos(prefetch_count=prefetch, global_qos=True)
    came: list[str] = []

    def work(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        came.append(method.consumer_tag)
        channel.basic_ack(method.delivery_tag)

    for name in names:
        channel.basic_consume(name, work, consumer_tag=name)
    serve(channel.connection, lambda: len(came) >= 100)
    assert min(came[:100].count(name) for name in names) >= 20, came


def test_an_empty_queue_leaves_a_channels_prefetch_to_the_others(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    names, channel = [queue(), queue(), queue()], connect().channel()
    for name, count in zip(names, (2, 20, 0), strict=True):
        fill(connect().channel(), name, count)
    channel.basic_qos(prefetch_count=4, global_qos=True)
    inboxes = [Inbox(channel, name) for name in names]
    for number in (4, 8, 12, 16, 20, 22):
        serve(channel.connection, lambda number=number: sum(len(inbox.messages) for inbox in inboxes) >= number)
        for name in names:
            settle(channel, name)
        assert sum(len(inbox.messages) for inbox in inboxes) == number
        channel.basic_ack(0, multiple=True)
    assert [len(inbox.messages) for inbox in inboxes] == [2, 20, 0]


def test_a_channels_prefetch_goes_to_its_consumer_of_higher_priority(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, channel = queue(), connect().channel()
    channel.basic_qos(prefetch_count=2, global_qos=True)
    low = Inbox(channel, name)
    high = Inbox(channel, name, arguments={"x-priority": 5})
    fill(connect().channel(), name, 10)
    for number in (2, 4, 6, 8, 10):
        high.wait(number)
        settle(channel, name)
        assert (len(low.messages), len(high.messages)) == (0, number)
        high.ack_all()


def test_gets_do_not_count_against_a_channels_prefetch(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    fill(connect().channel(), name, 10)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    got = get_many(channel, name, 3, auto_ack=False)
    inbox = Inbox(channel, name)
    inbox.wait(2)
    for message in got:
        channel.basic_ack(message.method.delivery_tag)
    settle(channel, name)
    assert inbox.bodies == [b"3", b"4"]


def test_an_acknowledgement_in_a_transaction_frees_prefetch_at_its_commit(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, channel = queue(), connect().channel()
    fill(connect().channel(), name, 5)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    channel.tx_select()
    inbox = Inbox(channel, name)
    inbox.wait(1)
    channel.basic_ack(inbox.messages[0].method.delivery_tag)
    settle(channel, name)
    assert len(inbox.messages) == 1
    channel.tx_commit()
    inbox.wait(2)
    settle(channel, name)
    assert len(inbox.messages) == 2


def test_a_busy_consumer_leaves_the_work_to_an_idle_one(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, busy, idle = queue(), connect().channel(), connect().channel()
    for channel in (busy, idle):
        channel.basic_qos(prefetch_count=1)
    stuck = Inbox(busy, name)
    worker = Inbox(idle, name)
    fill(connect().channel(), name, 20)
    stuck.wait(1)
    for number in range(1, 20):
        worker.wait(number)
        idle.basic_ack(worker.messages[-1].method.delivery_tag)
    assert len(worker.messages) == 19
    assert len(stuck.messages) == 1


def test_consumers_are_served_in_turn(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name = queue()
    channels = [connect().channel() for _ in range(3)]
    inboxes = [Inbox(channel, name, auto_ack=True) for channel in channels]
    publisher = connect().channel()
    publisher.confirm_delivery()
    for number in range(30):
        publisher.basic_publish("", name, b"%d" % number)
    for inbox in inboxes:
        inbox.wait(10)
    assert sorted(int(body) for inbox in inboxes for body in inbox.bodies) == list(range(30))
    assert [len(inbox.messages) for inbox in inboxes] == [10, 10, 10]
    for inbox in inboxes:
        assert inbox.bodies == sorted(inbox.bodies, key=int)


def test_a_consumer_of_higher_priority_is_served_first(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, low, high = queue(), connect().channel(), connect().channel()
    for channel in (low, high):
        channel.basic_qos(prefetch_count=5)
    behind = Inbox(low, name)
    ahead = Inbox(high, name, arguments={"x-priority": 10})
    fill(connect().channel(), name, 7)
    ahead.wait(5)
    behind.wait(2)
    settle(high, name)
    settle(low, name)
    assert (ahead.bodies, behind.bodies) == ([b"0", b"1", b"2", b"3", b"4"], [b"5", b"6"])


def test_an_exclusive_consumer_is_alone(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, first, second = queue(), connect(), connect()
    channel = first.channel()
    inbox = Inbox(channel, name, exclusive=True)
    text = f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use"
    assert channel_error(lambda: Inbox(second.channel(), name)) == (403, text)
    channel.basic_cancel(inbox.tag)
    Inbox(second.channel(), name)
    assert channel_error(lambda: Inbox(first.channel(), name, exclusive=True)) == (403, text)


def test_only_one_consumer_of_a_single_active_queue_is_served_until_it_goes(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, first, second = queue(x_single_active_consumer=True), connect(), connect()
    active, waiting = Inbox(first.channel(), name), Inbox(second.channel(), name)
    publisher = connect().channel()
    fill(publisher, name, 4)
    active.wait(4)
    settle(waiting.channel, name)
    assert waiting.messages == []
    active.channel.basic_ack(active.messages[0].method.delivery_tag)
    settle(active.channel, name)
    abandon(first)
    waiting.wait(3)
    assert waiting.bodies == [b"1", b"2", b"3"]
    fill(publisher, name, 1, first=4)
    waiting.wait(4)


def test_consumer_tags_are_chosen_by_either_side_and_unique_on_a_channel(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, connection = queue(), connect()
    channel = connection.channel()
    assert Inbox(channel, name, consumer_tag="mine").tag == "mine"
    other = connection.channel()
    assert Inbox(other, name, consumer_tag="mine").tag == "mine"
    code, text = connection_error(lambda: _consume_again(channel, name))
    assert (code, text) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'")


def _consume_again(channel: Any, queue: str) -> None:
    """Past pika's own check of consumer tags."""
    channel._impl._send_method(pika.spec.Basic.Consume(queue=queue, consumer_tag="mine"))
    serve(channel.connection, lambda: False)


def test_cancelling_keeps_what_is_leased(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    fill(connection.channel(), name, 2)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, name)
    inbox.wait(1)
    channel.basic_cancel(inbox.tag)
    assert depth(channel, name) == 1
    channel.basic_ack(inbox.messages[0].method.delivery_tag)
    assert get(channel, name).body == b"1"
    assert is_empty(channel, name)


def test_a_consumer_is_told_when_its_queue_goes(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    told: list[str] = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    inbox = Inbox(channel, name)
    connect().channel().queue_delete(name)
    serve(channel.connection, lambda: told, "basic.cancel")
    assert told == [inbox.tag]
    channel.queue_declare("", exclusive=True)  # the channel is still good


def test_consuming_from_what_is_not_there_is_not_found(connection: Any) -> None:
    for attempt in (
        lambda channel: channel.basic_consume("no such queue", print),
        lambda channel: channel.basic_get("no such queue"),
        lambda channel: channel.queue_purge("no such queue"),
    ):
        code, text = channel_error(lambda attempt=attempt: attempt(connection.channel()))  # type: ignore[misc]
        assert (code, text) == (404, "NOT_FOUND - no queue 'no such queue' in vhost '/'")


def test_publishing_goes_on_while_a_consumer_never_acknowledges(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, channel, publisher = queue(), connect().channel(), connect().channel()
    inbox = Inbox(channel, name)
    body = os.urandom(1000)
    for _ in range(3000):
        publisher.basic_publish("", name, body)
    inbox.wait(3000)
    channel.basic_ack(inbox.messages[-1].method.delivery_tag, multiple=True)
    settle(channel, name)
    channel.close()
    assert is_empty(publisher, name)
