"""Selective receive: consumers that want only what their selector matches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cursors.queue.harness import TIGHT, Bench, Consumer, bodies, message, offsets, opened, run
from trunkline.broker.messaging.selection import MessageSelector
from trunkline.cursors.queue import (
    ConsumerRefused,
    Delivery,
    Message,
    QueueLimits,
    QueueSettings,
    SelectorRefused,
)
from trunkline.cursors.queue.selective_line import SelectiveLine

RED = MessageSelector("color = 'red'")
BLUE = MessageSelector("color = 'blue'")
SMALL = MessageSelector("n < 3")


def paint(color: str, n: int, **options: int) -> Message:
    return message(json.dumps({"color": color, "n": n}), **options)  # type: ignore[arg-type]


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [json.loads(body)["n"] for body in bodies(deliveries)]


def mixed(count: int) -> list[Message]:
    return [paint("red" if n % 3 == 0 else "blue", n) for n in range(count)]


def is_plain(bench: Bench) -> bool:
    return not isinstance(bench.queue._line, SelectiveLine)


async def take(bench: Bench, selector: MessageSelector, count: int = 1, consumer: object = None) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        got = bench.queue.acquire(count - len(found), consumer=consumer, selector=selector)
        found += got
        if not got and not await bench.queue.load(selector):
            break
    return found


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["in memory", "in the log"])
def test_a_selective_consumer_gets_what_matches_in_order_and_others_the_rest(limits: QueueLimits | None) -> None:
    async def scenario() -> None:
        async with opened(limits=limits) as bench:
            await bench.queue.put(mixed(30))
            red = Consumer()
            bench.queue.add_consumer(red, selector=RED)
            await bench.settle()
            assert numbers(red.got) == list(range(0, 30, 3))
            rest = Consumer()
            bench.queue.add_consumer(rest)
            await bench.settle()
            assert numbers(rest.got) == [n for n in range(30) if n % 3]

    run(scenario())


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["in memory", "in the log"])
def test_a_pull_finds_the_first_match_however_deep_it_lies(limits: QueueLimits | None) -> None:
    async def scenario() -> None:
        async with opened(limits=limits) as bench:
            await bench.queue.put([paint("blue", n) for n in range(200)])
            await bench.queue.put([paint("red", 200), paint("blue", 201), paint("red", 202)])
            found = await take(bench, RED, 5)
            assert numbers(found) == [200, 202]
            assert not any(delivery.redelivered for delivery in found)
            assert await take(bench, RED) == []
            bench.queue.release(offsets(found))
            again = await take(bench, RED, 2)
            assert numbers(again) == [200, 202]
            assert all(delivery.redelivered for delivery in again)
            bench.queue.acknowledge(offsets(again))
            assert bench.queue.ready == 201

    run(scenario())


def test_what_a_selective_consumer_passed_over_does_not_count_as_delivered() -> None:
    async def scenario() -> None:
        async with opened(QueueSettings(delivery_limit=1)) as bench:
            await bench.queue.put([paint("blue", 0), paint("red", 1), paint("blue", 2)])
            (red,) = await take(bench, RED)
            await bench.crash()
            got = await bench.take(3)
            assert [(d.offset, d.redelivered, d.delivery_count) for d in got] == [
                (0, False, 1),
                (red.offset, True, 2),
                (2, False, 1),
            ]

    run(scenario())


def test_a_settled_selection_stays_settled_after_a_crash() -> None:
    async def scenario() -> None:
        async with opened(limits=TIGHT) as bench:
            await bench.queue.put(mixed(12))
            bench.queue.acknowledge(offsets(await take(bench, RED, 9)))
            await bench.settle()
            await bench.crash()
            assert numbers(await bench.take(12)) == [n for n in range(12) if n % 3]

    run(scenario())


def test_consumers_without_a_selector_compete_for_everything() -> None:
    async def scenario() -> None:
        async with opened() as bench:
            red, all_of_it = Consumer(), Consumer()
            bench.queue.add_consumer(red, selector=RED)
            bench.queue.add_consumer(all_of_it)
            await bench.queue.put([paint("red", n) for n in range(10)])
            await bench.settle()
            assert len(red.got) == len(all_of_it.got) == 5

    run(scenario())


def test_who_has_nothing_to_take_holds_nobody_up() -> None:
    async def scenario() -> None:
        async with opened() as bench:
            first, second, third = Consumer(priority=9), Consumer(prefetch=1, priority=5), Consumer()
            bench.queue.add_consumer(first, selector=MessageSelector("color = 'green'"))
            bench.queue.add_consumer(second, selector=RED)
            bench.queue.add_consumer(third)
            await bench.queue.put(mixed(9))
            await bench.settle()
            assert first.got == []
            assert numbers(second.got) == [0]
            assert numbers(third.got) == list(range(1, 9))
            second.acknowledge()
            await bench.queue.put(mixed(1))
            await bench.settle()
            assert numbers(second.got) == [0, 0]

    run(scenario())


def test_priorities_hold_among_what_matches() -> None:
    async def scenario() -> None:
        async with opened(QueueSettings(max_priority=9)) as bench:
            await bench.queue.put(
                [paint("red", 1, priority=1), paint("blue", 2, priority=9), paint("red", 3, priority=5)]
            )
            assert numbers(await take(bench, RED, 3)) == [3, 1]

    run(scenario())


def test_expired_messages_are_not_selected() -> None:
    async def scenario() -> None:
        async with opened(QueueSettings(message_ttl_ms=1_000, dead_letter=("", None))) as bench:
            await bench.queue.put([paint("blue", 0), paint("red", 1)])
            bench.clock.advance(2_000)
            assert bench.queue.look(RED) is None
            assert await take(bench, RED) == []
            await bench.queue.put([paint("red", 2)])
            assert numbers(await take(bench, RED)) == [2]
            # The other has expired as well; whether that is noticed yet depends on how long the store took.
            assert [json.loads(delivery.message.value)["n"] for delivery, _ in bench.dead] in ([1], [1, 0])

    run(scenario())


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["in memory", "in the log"])
def test_looking_takes_nothing(limits: QueueLimits | None) -> None:
    async def scenario() -> None:
        async with opened(limits=limits) as bench:
            await bench.queue.put(mixed(20))
            selector = MessageSelector("n = 17")
            while (found := bench.queue.look(selector)) is None:
                assert await bench.queue.load(selector)
            assert json.loads(found.message.value)["n"] == 17
            assert bench.queue.ready == 20
            assert numbers(await bench.take(20)) == list(range(20))

    run(scenario())


def test_a_queue_is_plain_again_when_nobody_selects() -> None:
    async def scenario() -> None:
        async with opened(limits=TIGHT) as bench:
            red = Consumer()
            bench.queue.add_consumer(red, selector=RED)
            await bench.queue.put(mixed(40))
            await bench.settle()
            assert not is_plain(bench)
            bench.queue.remove_consumer(red, release=True)
            assert numbers(await bench.take(40)) == list(range(40))
            bench.queue.wake()
            await bench.settle()
            assert is_plain(bench)

    run(scenario())


def test_a_purge_and_a_trim_take_what_lanes_had() -> None:
    async def scenario() -> None:
        async with opened(limits=TIGHT) as bench:
            blue = Consumer(prefetch=1)
            bench.queue.add_consumer(blue, selector=BLUE)
            await bench.queue.put(mixed(30))
            await bench.settle()
            assert await bench.queue.purge() == 29
            blue.acknowledge()
            await bench.settle()
            assert numbers(blue.got) == [1]
            await bench.queue.put([paint("blue", 99)])
            await bench.settle()
            assert numbers(blue.got) == [1, 99]

    run(scenario())


def test_a_lane_that_is_made_late_looks_through_the_line_in_pieces() -> None:
    async def scenario() -> None:
        async with opened() as bench:
            await bench.queue.put(mixed(5_000))
            selector = MessageSelector("n >= 4500 and color = 'red'")
            assert bench.queue.acquire(1, selector=selector) == [], "not everything is looked at in one go"
            found = await take(bench, selector, 3)
            assert numbers(found) == [4500, 4503, 4506]
            # The color is indexed now: a new selector that names it need not look at the blue ones.
            assert numbers(bench.queue.acquire(1, selector=MessageSelector("color = 'red' and n > 1500"))) == [1503]

    run(scenario())


def test_a_queue_that_is_ordered_by_key_takes_no_selectors() -> None:
    async def scenario() -> None:
        async with opened(QueueSettings(order_by_key=True)) as bench:
            with pytest.raises(SelectorRefused):
                bench.queue.add_consumer(Consumer(), selector=RED)
            with pytest.raises(SelectorRefused):
                bench.queue.acquire(1, selector=RED)
            bench.queue.add_consumer(Consumer(), exclusive=True)
            with pytest.raises(ConsumerRefused):
                bench.queue.add_consumer(Consumer(), selector=RED)

    run(scenario())


def test_what_others_append_to_the_topic_is_selected_too() -> None:
    async def scenario() -> None:
        async with opened() as bench:
            red = Consumer()
            bench.queue.add_consumer(red, selector=RED)
            await bench.produce(b'{"color": "blue", "n": 1}', b'{"color": "red", "n": 2}', b"not JSON")
            await bench.settle()
            assert numbers(red.got) == [2]
            assert bench.queue.ready == 2

    run(scenario())


STEP = st.tuples(
    st.sampled_from(["put", "put", "take", "red", "blue", "small", "look", "ack", "release", "purge", "crash"]),
    st.integers(1, 5),
    st.integers(0, 1 << 16),
)
WANTED: dict[str, tuple[MessageSelector | None, Callable[[str, int], bool]]] = {
    "red": (RED, lambda color, _: color == "red"),
    "blue": (BLUE, lambda color, _: color == "blue"),
    "small": (SMALL, lambda _, n: n < 3),
    "take": (None, lambda _, __: True),
}


@pytest.mark.parametrize(
    ("queue", "limits"),
    [(QueueSettings(), None), (QueueSettings(), TIGHT), (QueueSettings(max_priority=3), None)],
    ids=["fifo", "fifo in the log", "priorities"],
)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, max_size=40))
def test_random_selections_agree_with_a_list(
    queue: QueueSettings, limits: QueueLimits | None, steps: list[tuple[str, int, int]]
) -> None:
    async def scenario() -> None:
        async with opened(queue, limits) as bench:
            model: list[tuple[str, int, int]] = []
            ready: set[int] = set()
            held: dict[int, Delivery] = {}
            for step, count, number in steps:
                if step == "put":
                    news = [(("red", "blue")[number >> i & 1], (number >> i) % 7, number % 3) for i in range(count)]
                    ready |= set(range(len(model), len(model) + count))
                    model += news if queue.max_priority else [(color, n, 0) for color, n, _ in news]
                    await bench.queue.put([paint(color, n, priority=rank) for color, n, rank in model[-count:]])
                elif step in WANTED:
                    selector, wants = WANTED[step]
                    expected = [o for o in sorted(ready, key=lambda o: (-model[o][2], o)) if wants(*model[o][:2])]
                    got = await bench.take(count) if selector is None else await take(bench, selector, count)
                    assert offsets(got) == expected[:count]
                    ready.difference_update(offsets(got))
                    held.update((delivery.offset, delivery) for delivery in got)
                elif step == "look":
                    first = min(
                        (o for o in ready if model[o][0] == "red"), key=lambda o: (-model[o][2], o), default=None
                    )
                    seen = bench.queue.look(RED)
                    while seen is None and await bench.queue.load(RED):
                        seen = bench.queue.look(RED)
                    assert (None if seen is None else seen.offset) == first
                elif step in ("ack", "release"):
                    chosen = [o for o in held if (number >> o % 16) & 1]
                    for offset in chosen:
                        del held[offset]
                    if step == "ack":
                        bench.queue.acknowledge(chosen)
                    else:
                        bench.queue.release(chosen)
                        ready |= set(chosen)
                elif step == "purge":
                    await bench.queue.purge()
                    ready.clear()
                else:
                    await bench.settle()
                    await bench.crash()
                    ready |= set(held)
                    held.clear()
                assert bench.queue.ready == len(ready)
                await asyncio.sleep(0)

    run(scenario())
