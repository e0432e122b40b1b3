"""Timers of groups: something that happens at a deadline unless it is cancelled or put off.

`expire` fires everything that is due by the injected clock, in order; `run` sleeps until the next deadline and is woken
when an earlier one appears. A timer that is put off, which every heartbeat does, costs next to nothing (see deadlines).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from trunkline.clock import Clock
from trunkline.deadlines import AwaitedDeadlines

_LOG = logging.getLogger(__name__)
_FIRED_AT_LEAST = 64


class Timer:
    __slots__ = ("_timers", "fire")

    def __init__(self, timers: Timers, fire: Callable[[], None]) -> None:
        self._timers = timers
        self.fire = fire

    @property
    def pending(self) -> bool:
        return self in self._timers.deadlines

    def cancel(self) -> None:
        self._timers.deadlines.cancel(self)


class Timers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadlines: AwaitedDeadlines[Timer] = AwaitedDeadlines(clock)

    def __len__(self) -> int:
        return len(self.deadlines)

    def after(self, delay_ms: float, fire: Callable[[], None]) -> Timer:
        timer = Timer(self, fire)
        self.deadlines.set(timer, self._clock.monotonic_ms() + delay_ms)
        return timer

    def reset(self, timer: Timer | None, delay_ms: float, fire: Callable[[], None]) -> Timer:
        """The same timer with a new deadline while it is pending, else a new one."""
        if timer is None or not timer.pending:
            return self.after(delay_ms, fire)
        timer.fire = fire
        self.deadlines.set(timer, self._clock.monotonic_ms() + delay_ms)
        return timer

    def next_deadline_ms(self) -> float | None:
        """The earliest deadline on the monotonic clock; None when nothing waits."""
        return self.deadlines.next_ms()

    def expire(self) -> int:
        """Fire every timer that is due; returns how many. What they schedule for now fires too, up to a bound."""
        fired = 0
        bound = len(self.deadlines) + _FIRED_AT_LEAST
        for timer in self.deadlines.due(self._clock.monotonic_ms()):
            try:
                timer.fire()
            except Exception:
                # One group's failure must not stop the clock of all the others.
                _LOG.exception("a group timer failed")
            fired += 1
            if fired >= bound:
                break
        return fired

    async def run(self) -> None:
        """Fire timers as they fall due, until cancelled."""
        while True:
            self.deadlines.arm()
            self.expire()
            await self.deadlines.sleep(self.next_deadline_ms())

    def clear(self) -> None:
        self.deadlines.clear()
