"""Deadlines: what is due when, in one heap that is asked.

Each key has at most one deadline. To put one off, which every heartbeat does, costs a write into a dictionary: its entry stays
in the heap where it is and is put back when it comes up too early. Only an earlier deadline costs a push. Entries that mean
nothing any more are passed over when they come up, and swept out when they are many, so the heap stays within a few times the
number of keys. Asking for the next deadline is O(1) in the mean, a change O(log n).

Times are milliseconds of whichever clock the owner uses, monotonic or wall. `AwaitedDeadlines` are on the monotonic one, and
somebody sleeps until the next of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from trunkline.clock import Clock

_SWEEP_AT_LEAST = 64
_SWEEP_FACTOR = 4

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    __slots__ = ("_at_ms", "_heap", "_queued_ms", "_serial")

    def __init__(self) -> None:
        self._at_ms: dict[K, float] = {}
        self._queued_ms: dict[K, float] = {}  # of each key's one valid entry in the heap; never later than its deadline
        self._heap: list[tuple[float, int, K]] = []  # with a number that breaks ties in the order of the calls
        self._serial = 0

    def __len__(self) -> int:
        return len(self._at_ms)

    def __contains__(self, key: K) -> bool:
        return key in self._at_ms

    def set(self, key: K, at_ms: float) -> None:
        """Give the key this deadline instead of the one it had."""
        self._at_ms[key] = at_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or queued_ms > at_ms:
            self._push(key, at_ms)
            if len(self._heap) > _SWEEP_AT_LEAST + _SWEEP_FACTOR * len(self._at_ms):
                self._sweep()

    def cancel(self, key: K) -> None:
        self._at_ms.pop(key, None)

    def get(self, key: K) -> float | None:
        return self._at_ms.get(key)

    def next_ms(self) -> float | None:
        """The earliest deadline; None when there is none."""
        heap = self._heap
        while heap:
            at_ms, _, key = heap[0]
            deadline_ms = self._at_ms.get(key)
            if deadline_ms == at_ms == self._queued_ms.get(key):
                return at_ms
            self._pop_stale()
        return None

    def due(self, now_ms: float) -> Iterator[K]:
        """Take out the keys whose deadline has come, earliest first; also what gets such a deadline meanwhile."""
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            _, _, key = heappop(self._heap)
            del self._at_ms[key], self._queued_ms[key]
            yield key

    def clear(self) -> None:
        self._at_ms.clear()
        self._queued_ms.clear()
        self._heap.clear()

    def _push(self, key: K, at_ms: float) -> None:
        self._serial += 1
        self._queued_ms[key] = at_ms
        heappush(self._heap, (at_ms, self._serial, key))

    def _pop_stale(self) -> None:
        """Take out the first entry, which does not tell its key's deadline, and put the key back where it belongs."""
        at_ms, _, key = heappop(self._heap)
        if self._queued_ms.get(key) != at_ms:
            return  # an entry with an earlier time has taken its place
        del self._queued_ms[key]
        deadline_ms = self._at_ms.get(key)
        if deadline_ms is not None:
            self._push(key, deadline_ms)

    def _sweep(self) -> None:
        """Keep one entry a key: the latest made, so that ties stay in the order of the calls."""
        serials = {key: serial for _, serial, key in sorted(self._heap, key=lambda entry: entry[1])}
        self._queued_ms = dict(self._at_ms)
        self._heap = [(at_ms, serials[key], key) for key, at_ms in self._at_ms.items()]
        heapify(self._heap)


class AwaitedDeadlines(Deadlines[K]):
    __slots__ = ("_clock", "_earlier")

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._earlier = asyncio.Event()

    def set(self, key: K, at_ms: float) -> None:
        super().set(key, at_ms)
        if at_ms <= self._heap[0][0]:
            self._earlier.set()

    def arm(self) -> None:
        """Before looking at what is due: what gets an earlier deadline from now on ends the next `sleep`."""
        self._earlier.clear()

    async def sleep(self, until_ms: float | None) -> None:
        """Sleep until this time, or until an earlier deadline appears than there was."""
        if until_ms is None:
            await self._earlier.wait()
            return
        delay_ms = until_ms - self._clock.monotonic_ms()
        if delay_ms <= 0:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(self._earlier.wait(), delay_ms / 1000)
        except TimeoutError:
            pass
