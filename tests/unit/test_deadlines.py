from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from trunkline.clock import SystemClock
from trunkline.deadlines import AwaitedDeadlines, Deadlines

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 6), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 6), st.just(0)),
        st.tuples(st.just("due"), st.just(0), st.integers(0, 50)),
        st.tuples(st.just("next"), st.just(0), st.just(0)),
    ),
    max_size=300,
)


@given(_STEPS)
def test_deadlines_behave_as_a_dictionary_that_is_searched(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for step, key, at_ms in steps:
        if step == "set":
            deadlines.set(key, at_ms)
            model[key] = at_ms
        elif step == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        elif step == "due":
            found = [(model[key], key) for key in deadlines.due(at_ms)]
            expected = {(at, key) for key, at in model.items() if at <= at_ms}
            assert set(found) == expected
            assert [at for at, _ in found] == sorted(at for at, _ in found)
            for _, key in expected:
                del model[key]
        assert deadlines.next_ms() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
        assert all(deadlines.get(key) == at for key, at in model.items())


def test_equal_deadlines_come_in_the_order_of_the_calls() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for name in "cab":
        deadlines.set(name, 5)
    assert list(deadlines.due(5)) == ["c", "a", "b"]


def test_what_is_put_off_or_cancelled_does_not_pile_up() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.set(1, 20_000 - number)
        deadlines.set(number + 2, number)
        deadlines.cancel(number + 2)
    assert len(deadlines) == 1
    assert len(deadlines._heap) < 200
    assert len(deadlines._queued_ms) < 200


def test_what_becomes_due_while_the_due_are_taken_is_taken_too() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(0, 1)
    taken = []
    for key in deadlines.due(10):
        taken.append(key)
        if key < 3:
            deadlines.set(key + 1, 5)
    assert taken == [0, 1, 2, 3]


def test_an_earlier_deadline_ends_the_sleep() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        deadlines: AwaitedDeadlines[str] = AwaitedDeadlines(clock)
        deadlines.set("far", clock.monotonic_ms() + 3_600_000)
        deadlines.arm()
        sleeping = asyncio.ensure_future(deadlines.sleep(deadlines.next_ms()))
        await asyncio.sleep(0)
        deadlines.set("later", clock.monotonic_ms() + 7_200_000)
        await asyncio.sleep(0)
        assert not sleeping.done()
        deadlines.set("now", clock.monotonic_ms())
        await asyncio.wait_for(sleeping, 10)

    asyncio.run(scenario())


def test_a_deadline_that_appears_between_the_look_and_the_sleep_is_not_slept_through() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        deadlines: AwaitedDeadlines[str] = AwaitedDeadlines(clock)
        deadlines.arm()
        until_ms = deadlines.next_ms()
        deadlines.set("new", clock.monotonic_ms() + 5)
        await asyncio.wait_for(deadlines.sleep(until_ms), 10)

    asyncio.run(scenario())
