"""Reading queues in tests: until so many messages are there, or until a queue is known to be empty."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tests.integration.waiting import DEADLINE_SECONDS, wait_until

TICK_SECONDS = 0.01


class Got(NamedTuple):
    """One message: its method (delivery tag, redelivered, exchange, routing key), properties and body."""

    method: Any
    properties: Any
    body: bytes


def get(channel: Any, queue: str, auto_ack: bool = True) -> Got:
    """The next message of the queue, waiting for it."""

    def attempt() -> Got | None:
        method, properties, body = channel.basic_get(queue, auto_ack)
        return None if method is None else Got(method, properties, body)

    found = wait_until(attempt, what=f"a message in {queue}")
    assert found is not None
    return found


def get_many(channel: Any, queue: str, count: int, auto_ack: bool = True) -> list[Got]:
    return [get(channel, queue, auto_ack) for _ in range(count)]


def bodies(messages: list[Got]) -> list[bytes]:
    return [message.body for message in messages]


def is_empty(channel: Any, queue: str) -> bool:
    return channel.basic_get(queue, auto_ack=True)[0] is None


def depth(channel: Any, queue: str) -> int:
    """Messages ready for delivery, as a passive declare tells."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def consumers(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.consumer_count
    return count


def wait_for_depth(channel: Any, queue: str, count: int) -> None:
    wait_until(lambda: depth(channel, queue) == count, what=f"{count} messages in {queue}")


class Inbox:
    """A consumer that keeps what it gets. `wait(n)` serves the connection until `n` messages are there."""

    def __init__(self, channel: Any, queue: str, auto_ack: bool = False, **options: Any) -> None:
        self.channel = channel
        self.messages: list[Got] = []
        self.tag: str = channel.basic_consume(
            queue, lambda _channel, *message: self.messages.append(Got(*message)), auto_ack=auto_ack, **options
        )

    @property
    def bodies(self) -> list[bytes]:
        return bodies(self.messages)

    def wait(self, count: int) -> list[Got]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(self.messages) < count:
            assert time.monotonic() < deadline, f"{len(self.messages)} of {count} messages came: {self.bodies[-5:]}"
            self.channel.connection.process_data_events(TICK_SECONDS)
        return self.messages

    def ack_all(self) -> None:
        self.channel.basic_ack(0, multiple=True)


def serve(connection: Any, condition: Any, what: str = "the condition") -> None:
    """Serve the connection's I/O until the condition holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        connection.process_data_events(TICK_SECONDS)


def settle(channel: Any, queue: str) -> None:
    """Make sure that what the queue could deliver to this channel has come.

    The queue answers the first declare after what it sent before; the second brings that over the channel.
    """
    depth(channel, queue)
    depth(channel, queue)
    channel.connection.process_data_events(0)
