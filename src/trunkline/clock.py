"""The one clock. Everything that measures time takes a `Clock`, so tests move time by hand instead of sleeping."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch: for record timestamps and retention."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back: for timeouts and leases."""
        ...


class SystemClock:
    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6


class ManualClock:
    """A clock that stands still until `advance` is called. Wall and monotonic time move together."""

    __slots__ = ("_monotonic_ms", "_wall_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        if ms < 0:
            raise ValueError("time does not go back")
        self._wall_ms += int(ms)
        self._monotonic_ms += ms
