"""Order by key among competing consumers: what has one key is with one consumer at a time, in order."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pika
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.reading import Got, Inbox, get, is_empty, serve, settle
from tests.integration.amqp.test_consuming import abandon

pytestmark = pytest.mark.ours_only("RabbitMQ has no order by key")


def publish(channel: Any, queue: str, keys: str) -> None:
    """One message per letter, which is its key, numbered within the key."""
    channel.confirm_delivery()
    counts: dict[str, int] = defaultdict(int)
    for key in keys:
        properties = pika.BasicProperties(headers={"x-order-key": key}, delivery_mode=2)
        channel.basic_publish("", queue, f"{key}{counts[key]}".encode(), properties)
        counts[key] += 1


def by_key(inbox: Inbox) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for body in inbox.bodies:
        found[body[:1].decode()].append(int(body[1:]))
    return dict(found)


def consumer(connect: ConnectionFactory, queue: str, prefetch: int) -> Inbox:
    channel = connect().channel()
    channel.basic_qos(prefetch_count=prefetch)
    return Inbox(channel, queue)


def test_a_key_stays_with_one_consumer_until_it_has_settled_all_of_it(
    connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name = queue(x_order_by_key=True)
    first, second = consumer(connect, name, 4), consumer(connect, name, 100)
    publish(connect().channel(), name, "aaaaabbbbbccccc")
    serve(second.channel.connection, lambda: len(first.messages) + len(second.messages) >= 10 or not _serve(first))
    for inbox in (first, second):
        settle(inbox.channel, name)
    assert first.messages, "both have work"
    assert second.messages, "both have work"
    assert by_key(first).keys().isdisjoint(by_key(second)), (first.bodies, second.bodies)
    for numbers in (*by_key(first).values(), *by_key(second).values()):
        assert numbers == list(range(len(numbers)))
    # A consumer that goes leaves its keys to the other, from where it was, marked redelivered.
    held = by_key(first)
    abandon(first.channel.connection)
    second.wait(15)
    for key in held:
        assert by_key(second)[key] == list(range(5))
    assert {got.body[:1].decode() for got in second.messages if got.method.redelivered} == set(held)


def _serve(inbox: Inbox) -> bool:
    inbox.channel.connection.process_data_events(0)
    return True


def test_competing_consumers_never_hold_one_key_together(connect: ConnectionFactory, queue: QueueFactory) -> None:
    """Three consumers settle in an order of chance, or give back; every key is seen in order by whoever holds it."""
    name, moves = queue(x_order_by_key=True), random.Random(7)
    inboxes = [consumer(connect, name, 5) for _ in range(3)]
    publish(connect().channel(), name, "".join(moves.choice("abcdefgh") for _ in range(200)))
    held: list[list[Got]] = [[] for _ in inboxes]
    seen = [0] * len(inboxes)
    done: dict[str, list[int]] = defaultdict(list)

    def step() -> bool:
        for index, inbox in enumerate(inboxes):
            _serve(inbox)
            held[index] += inbox.messages[seen[index] :]
            seen[index] = len(inbox.messages)
        keys = [{got.body[:1] for got in mine} for mine in held]
        assert len(set().union(*keys)) == sum(map(len, keys)), held
        for index, inbox in enumerate(inboxes):
            if held[index] and moves.random() < 0.7:
                # The oldest in hand of some key: a worker that keeps the order settles a key from its start.
                key = moves.choice([got.body[:1] for got in held[index]])
                got = next(got for got in held[index] if got.body[:1] == key)
                held[index].remove(got)
                done[key.decode()].append(int(got.body[1:]))
                inbox.channel.basic_ack(got.method.delivery_tag)
        return sum(map(len, done.values())) == 200

    serve(inboxes[0].channel.connection, step, "all messages")
    for numbers in done.values():
        assert numbers == list(range(len(numbers)))
    assert is_empty(connect().channel(), name)


def test_without_a_header_the_routing_key_is_the_key(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(x_order_by_key=True), connect().channel()
    channel.queue_bind(name, "amq.topic", f"{name}.#")
    channel.confirm_delivery()
    for key in ("x", "y", "x"):
        channel.basic_publish("amq.topic", f"{name}.{key}", key.encode())
    one, other = connect().channel(), connect().channel()
    assert get(one, name, auto_ack=False).body == b"x"
    assert get(other, name, auto_ack=False).body == b"y"
    assert is_empty(other, name)
    one.basic_ack(1)
    assert get(other, name).body == b"x"
