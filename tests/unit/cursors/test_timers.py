from __future__ import annotations

import asyncio
import logging

import pytest

from trunkline.clock import ManualClock, SystemClock
from trunkline.cursors.stream.timers import Timer, Timers


def test_timers_fire_in_order_at_their_deadline_and_once() -> None:
    clock, fired = ManualClock(), list[str]()
    timers = Timers(clock)
    timers.after(20, lambda: fired.append("late"))
    timers.after(10, lambda: fired.append("early"))
    assert timers.next_deadline_ms() == 10
    clock.advance(9)
    assert timers.expire() == 0
    clock.advance(11)
    assert timers.expire() == 2
    assert fired == ["early", "late"]
    assert timers.expire() == 0
    assert timers.next_deadline_ms() is None


def test_a_timer_that_is_put_off_fires_at_the_later_time_only() -> None:
    clock, fired = ManualClock(), list[float]()
    timers = Timers(clock)

    def fire() -> None:
        fired.append(clock.monotonic_ms())

    timer: Timer | None = None
    for _ in range(100):
        timer = timers.reset(timer, 50, fire)
        clock.advance(10)
        timers.expire()
    assert len(timers) == 1
    clock.advance(40)
    timers.expire()
    assert fired == [1_040]


def test_a_timer_that_is_brought_forward_fires_at_the_earlier_time_only() -> None:
    clock, fired = ManualClock(), list[int]()
    timers = Timers(clock)
    timer = timers.after(100, lambda: fired.append(1))
    timers.reset(timer, 10, lambda: fired.append(2))
    clock.advance(1_000)
    timers.expire()
    assert fired == [2]


def test_cancelled_timers_do_not_fire_nor_pile_up() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    keep = [timers.after(5, lambda: None) for _ in range(10)]
    for _ in range(10_000):
        timers.after(1_000_000, lambda: pytest.fail("cancelled")).cancel()
    assert len(timers) == len(keep)
    clock.advance(2_000_000)
    assert timers.expire() == len(keep)


def test_one_failing_timer_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock, fired = ManualClock(), list[int]()
    timers = Timers(clock)
    timers.after(1, lambda: fired.append(1 // 0))
    timers.after(2, lambda: fired.append(2))
    clock.advance(5)
    with caplog.at_level(logging.CRITICAL):
        timers.expire()
    assert fired == [2]


def test_the_task_sleeps_to_the_next_deadline_and_is_woken_by_an_earlier_one() -> None:
    async def scenario() -> None:
        timers = Timers(SystemClock())
        task = asyncio.ensure_future(timers.run())
        early = asyncio.Event()
        timers.after(60_000, lambda: pytest.fail("far too early"))
        await asyncio.sleep(0)
        timers.after(5, early.set)
        await asyncio.wait_for(early.wait(), 5)
        task.cancel()

    asyncio.run(scenario())
