"""Patience: who fails over and over has to wait, and the longer the more often.

Each key (an address, an address and a user) has so many attempts for nothing. After that they are spaced out, `first_ms` at
first, twice as much each time, up to `most_ms`. Those that come faster wait for their turn, up to `MAX_WAIT_MS`; whoever
would have to wait longer is told so at once, and costs nothing. A key is forgotten after `FORGET_MS` without a failure.

Bounded by `MAX_KEYS`: the one that failed longest ago is forgotten. No I/O, no clock: times are given.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

MAX_KEYS: Final = 10_000
MAX_WAIT_MS: Final = 5_000.0
FORGET_MS: Final = 60_000.0
_MAX_DOUBLINGS: Final = 16

K = TypeVar("K", bound=Hashable)


class _Record:
    __slots__ = ("failures", "free_ms", "seen_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.free_ms = 0.0  # when the next attempt may be made
        self.seen_ms = 0.0


class Patience(Generic[K]):
    def __init__(self, *, free: int, first_ms: float, most_ms: float) -> None:
        self._free = free
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._records: dict[K, _Record] = {}  # the one that failed last at the end

    def __len__(self) -> int:
        return len(self._records)

    def wait_ms(self, key: K, now_ms: float) -> float | None:
        """How long this attempt has to wait, which takes its turn; None: longer than anybody should."""
        record = self._records.get(key)
        if record is None:
            return 0.0
        if now_ms - record.seen_ms > FORGET_MS:
            del self._records[key]
            return 0.0
        over = record.failures - self._free
        if over < 0:
            return 0.0
        turn_ms = max(now_ms, record.free_ms)
        if turn_ms - now_ms > MAX_WAIT_MS:
            return None
        record.free_ms = turn_ms + min(self._first_ms * 2 ** min(over, _MAX_DOUBLINGS), self._most_ms)
        return turn_ms - now_ms

    def failed(self, key: K, now_ms: float) -> int:
        """One more; returns how many that makes."""
        record = self._records.pop(key, None) or _Record()
        self._records[key] = record
        record.failures += 1
        record.seen_ms = now_ms
        if len(self._records) > MAX_KEYS:
            del self._records[next(iter(self._records))]
        return record.failures

    def forgive(self, key: K) -> None:
        """An attempt went well."""
        self._records.pop(key, None)
