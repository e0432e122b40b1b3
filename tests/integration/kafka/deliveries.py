"""Producing and consuming with librdkafka in one line, for tests about something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.integration.waiting import DEADLINE_SECONDS, wait_until


def deliver(producer: Any, topic: str, values: Sequence[bytes | None], **more: Any) -> list[Any]:
    """Produce each value, wait for every delivery report, fail on any error and return the delivered messages."""
    delivered: list[Any] = []
    errors: list[Any] = []

    def report(error: Any, message: Any) -> None:
        if error is None:
            delivered.append(message)
        else:
            errors.append(error)

    for value in values:
        producer.produce(topic, value=value, on_delivery=report, **more)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert errors == []
    assert len(delivered) == len(values)
    return delivered


def delivery_error(producer: Any, topic: str, value: bytes | None, **more: Any) -> Any:
    """Produce one record that must fail, and return the error of its delivery report."""
    errors: list[Any] = []
    producer.produce(topic, value=value, on_delivery=lambda error, _: errors.append(error), **more)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert len(errors) == 1
    return errors[0]


def take(consumer: Any, count: int, timeout: float = DEADLINE_SECONDS) -> list[Any]:
    """Consume `count` messages, none of them an error."""
    found: list[Any] = []

    def enough() -> bool:
        for message in consumer.consume(count - len(found), 0.1):
            assert message.error() is None, message.error()
            found.append(message)
        return len(found) >= count

    try:
        wait_until(enough, timeout, f"{count} messages")
    except AssertionError as error:
        raise AssertionError(f"{error}; {len(found)} came") from None
    return found


def take_values(consumer: Any, count: int) -> list[bytes | None]:
    return [message.value() for message in take(consumer, count)]


def nothing_more(consumer: Any, seconds: float = 0.5) -> bool:
    """Whether a consumer that has read all there is gets nothing else: one poll that lasts `seconds`."""
    return consumer.poll(seconds) is None
