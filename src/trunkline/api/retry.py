"""How often a message is tried again, and how long it waits in between. The broker counts and waits, not the worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """`times` more tries after the first. The wait is `backoff` seconds, then doubles each time up to `longest`."""

    times: int
    backoff: float = 0.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        if self.times < 0 or self.backoff < 0 or self.longest < self.backoff:
            raise ValueError(f"{self!r}: tries and seconds are not negative, and longest is the most")
