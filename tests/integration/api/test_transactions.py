"""Transactions, cancelled delays and the five delivery semantics where nothing fails; where it does, see test_failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import trunkline
from tests.integration.api.scenario import FACES, eventually, now, play
from trunkline import LeaseLost, Retry
from trunkline.api.delivery import DELIVERIES

Unique = Callable[[str], str]
pytestmark = pytest.mark.parametrize("face", FACES)


async def in_transaction(t: Any, work: Callable[[Any], Any]) -> None:
    """`with` or `async with`, as the face has it."""
    if hasattr(t, "core"):
        with t.transaction() as x:
            await work(x)
    else:
        async with t.transaction() as x:
            await work(x)


def test_a_committed_transaction_puts_everything_and_takes_what_it_acknowledged(
    face: str, url: str, unique: Unique
) -> None:
    async def scenario(t: Any) -> None:
        source, other, first, second = (t.queue(unique(name)) for name in ("in", "other", "a", "b"))
        await now(source.put("order"))
        await now(other.put("stock"))
        order, stock = await now(source.get()), await now(other.get())

        async def work(x: Any) -> None:
            await now(x.put(first.name, {"n": 1}))
            await now(x.put(second.name, {"n": 2}))
            await now(x.ack(order))
            await now(x.ack(stock))
            assert await now(first.poll()) is None

        await in_transaction(t, work)
        for queue, number in ((first, 1), (second, 2)):
            message = await now(queue.get())
            assert message.value == {"n": number}
            await now(message.ack())
        assert await now(source.poll()) is None
        assert await now(other.poll()) is None
        with pytest.raises(LeaseLost):
            await now(order.ack())

    play(face, url, scenario)


def test_an_exception_rolls_back_and_the_message_comes_again(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        source, target = t.queue(unique("in")), t.queue(unique("out"))
        await now(source.put("order"))
        order = await now(source.get())

        async def work(x: Any) -> None:
            await now(x.put(target.name, "never"))
            await now(x.ack(order))
            raise KeyError("no")

        with pytest.raises(KeyError):
            await in_transaction(t, work)
        again = await now(source.get())
        assert (again.value, again.attempt) == ("order", 2)
        await now(again.ack())
        assert await now(target.poll()) is None

    play(face, url, scenario)


def test_a_message_whose_lease_is_over_cannot_be_committed(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        source, target = t.queue(unique("in"), lease=0.3), t.queue(unique("out"))
        await now(source.put("order"))
        first = await now(source.get())
        second = await now(source.get())

        async def work(x: Any) -> None:
            await now(x.ack(first))
            await now(x.put(target.name, "twice"))

        with pytest.raises(LeaseLost):
            await in_transaction(t, work)
        assert await now(target.poll()) is None
        await now(second.ack())

    play(face, url, scenario)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_each_delivery_is_had_by_pull_and_by_push(face: str, url: str, unique: Unique, delivery: str) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"), delivery=delivery)
        assert len(await now(queue.put_all(["a", "b"]))) == 2
        await now(queue.put("c", headers={"h": "1"}))
        for expected in ("a", "b"):
            message = await now(queue.get())
            assert message.value == expected
            await now(message.ack())
        seen: list[str] = []
        handle = await now(queue.notify(lambda message: seen.append(message.value)))
        await eventually(lambda: seen == ["c"] and handle.handled == 1)
        await now(handle.stop())
        assert await now(queue.poll()) is None

    play(face, url, scenario)


def test_a_worker_with_transactional_delivery_puts_with_its_acknowledgement(
    face: str, url: str, unique: Unique
) -> None:
    async def scenario(t: Any) -> None:
        target = t.queue(unique("out"))
        source = t.queue(unique("in"), delivery="transaction", retry=Retry(3, backoff=0.05))
        tries: list[int] = []

        def work(number: int, x: Any) -> None:
            tries.append(number)
            x.put(target.name, number * 10)
            if tries.count(number) < 2:
                raise ValueError("not yet")

        async def work_async(number: int, x: Any) -> None:
            tries.append(number)
            await x.put(target.name, number * 10)
            if tries.count(number) < 2:
                raise ValueError("not yet")

        handle = await now(source.notify(work if isinstance(t, trunkline.Connection) else work_async))
        await now(source.put_all([1, 2, 3]))
        found = sorted([(await now(target.get())).value for _ in range(3)])
        assert found == [10, 20, 30]
        await now(handle.stop())
        assert len(tries) == 6

    play(face, url, scenario)


def test_a_delayed_message_is_cancelled_by_its_id(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        cancelled = await now(queue.put("cancelled", delay=0.6))
        await now(queue.put("kept", delay=0.6))
        started = time.monotonic()
        assert await now(queue.cancel(cancelled)) is True
        assert await now(queue.cancel(cancelled)) is False
        message = await now(queue.get())
        assert message.value == "kept"
        assert time.monotonic() - started > 0.3
        await now(message.ack())
        assert await now(queue.poll()) is None

    play(face, url, scenario)
