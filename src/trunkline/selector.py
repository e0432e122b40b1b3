"""The selector of a broker's event loop: it looks once more before it sleeps, where that pays.

Whoever waits for an answer to a lone message also waits for this process to be woken, and waking one whose core has gone
to sleep takes longer than the message itself takes. So a selector that was last woken within `_WORTH_NS` of going to sleep
looks again and again for `_LOOK_NS`, letting others have the core in between, before it sleeps. When traffic is sparser
than that it never does, and when there is much of it there is always something to see: the cost is bounded by
`_LOOK_NS` for each time that it was worth it.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from time import perf_counter_ns

_LOOK_NS = 100_000
_WORTH_NS = 250_000

Ready = list[tuple[selectors.SelectorKey, int]]


class EagerSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self._eager = False

    def select(self, timeout: float | None = None) -> Ready:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        begun_ns = perf_counter_ns()
        if self._eager:
            until_ns = begun_ns + _LOOK_NS
            while begun_ns < until_ns:
                ready = super().select(0)
                if ready:
                    return ready
                os.sched_yield()
                begun_ns = perf_counter_ns()
        ready = super().select(timeout)
        self._eager = perf_counter_ns() - begun_ns < _WORTH_NS
        return ready


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(EagerSelector())
