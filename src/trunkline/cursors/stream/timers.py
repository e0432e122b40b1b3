"""Deadlines of groups: a heap that is asked, not one asyncio timer per member.

`expire` fires everything that is due by the injected clock, in order; `run` sleeps until the next deadline and is woken
when an earlier one appears. A timer that is put off (every heartbeat does that) costs one attribute write: its heap entry
stays where it is and is put back when it comes up too early. Cancelled entries are swept out when they are the majority,
so the heap stays within twice the number of live timers.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

from trunkline.clock import Clock

_LOG = logging.getLogger(__name__)
_SWEEP_AT_LEAST = 64


class Timer:
    __slots__ = ("_fire", "_queued_ms", "_timers", "deadline_ms")

    def __init__(self, timers: Timers, deadline_ms: float, fire: Callable[[], None]) -> None:
        self._timers = timers
        self._fire: Callable[[], None] | None = fire
        self._queued_ms = deadline_ms
        self.deadline_ms = deadline_ms

    @property
    def pending(self) -> bool:
        return self._fire is not None

    def cancel(self) -> None:
        if self._fire is not None:
            self._fire = None
            self._timers._forget()


class Timers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._cancelled = 0
        self._earlier = asyncio.Event()

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def after(self, delay_ms: float, fire: Callable[[], None]) -> Timer:
        timer = Timer(self, self._clock.monotonic_ms() + delay_ms, fire)
        self._push(timer)
        return timer

    def reset(self, timer: Timer | None, delay_ms: float, fire: Callable[[], None]) -> Timer:
        """The same timer put off when that is possible, else a new one in its place. `fire` is the same each time."""
        deadline_ms = self._clock.monotonic_ms() + delay_ms
        if timer is not None:
            if timer._fire is not None and deadline_ms >= timer._queued_ms:
                timer.deadline_ms = deadline_ms
                return timer
            timer.cancel()
        return self.after(delay_ms, fire)

    def next_deadline_ms(self) -> float | None:
        """The earliest deadline on the monotonic clock; None when nothing waits."""
        heap = self._heap
        while heap:
            queued_ms, _, timer = heap[0]
            if timer._fire is None:
                heapq.heappop(heap)
                self._cancelled -= 1
            elif timer.deadline_ms > queued_ms:
                heapq.heappop(heap)
                self._push(timer)
            else:
                return queued_ms
        return None

    def expire(self) -> int:
        """Fire every timer that is due; returns how many. What they schedule for now fires too, up to a bound."""
        fired = 0
        now_ms = self._clock.monotonic_ms()
        bound = len(self._heap) + _SWEEP_AT_LEAST
        while fired < bound:
            deadline_ms = self.next_deadline_ms()
            if deadline_ms is None or deadline_ms > now_ms:
                break
            _, _, timer = heapq.heappop(self._heap)
            fire, timer._fire = timer._fire, None
            assert fire is not None
            try:
                fire()
            except Exception:
                # One group's failure must not stop the clock of all the others.
                _LOG.exception("a group timer failed")
            fired += 1
        return fired

    async def run(self) -> None:
        """Fire timers as they fall due, until cancelled."""
        while True:
            self.expire()
            self._earlier.clear()
            deadline_ms = self.next_deadline_ms()
            if deadline_ms is None:
                await self._earlier.wait()
                continue
            delay_ms = deadline_ms - self._clock.monotonic_ms()
            if delay_ms > 0:
                try:
                    await asyncio.wait_for(self._earlier.wait(), delay_ms / 1000)
                except TimeoutError:
                    pass
            else:
                await asyncio.sleep(0)

    def clear(self) -> None:
        for _, _, timer in self._heap:
            timer._fire = None
        self._heap.clear()
        self._cancelled = 0

    def _push(self, timer: Timer) -> None:
        self._sequence += 1
        timer._queued_ms = timer.deadline_ms
        heapq.heappush(self._heap, (timer.deadline_ms, self._sequence, timer))
        if self._heap[0][2] is timer:
            self._earlier.set()

    def _forget(self) -> None:
        self._cancelled += 1
        if self._cancelled > _SWEEP_AT_LEAST and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2]._fire is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
