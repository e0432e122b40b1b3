"""The records of a share partition that are in flight: given out before and not done with.

They are kept as runs of offsets, not one by one: what was acquired together and acknowledged together is one object. A run is
held by a member until a time of the monotonic clock, or free to be given out again. Runs are sorted and do not overlap; a
part of one is taken by cutting it in two. There are at most a few thousand offsets in flight, so a list with bisection does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Run:
    """Offsets `first` to `last`, delivered `count` times. `member` is None when nobody holds them."""

    __slots__ = ("count", "first", "last", "member", "until_ms")

    def __init__(self, first: int, last: int, count: int, member: str | None = None, until_ms: float = 0.0) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.member = member
        self.until_ms = until_ms

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"Run({self.first}-{self.last} x{self.count} {self.member})"


def _first(run: Run) -> int:
    return run.first


class InFlight:
    def __init__(self) -> None:
        self._runs: list[Run] = []
        self.free = 0  # offsets that nobody holds

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """Behind all others."""
        assert not self._runs or self._runs[-1].last < run.first
        self._runs.append(run)
        if run.member is None:
            self.free += len(run)

    def first_free(self) -> Run | None:
        if not self.free:
            return None
        return next(run for run in self._runs if run.member is None)

    def within(self, first: int, last: int) -> list[Run]:
        """The runs, or parts of them, from one offset to another; cut out, so that each can change by itself."""
        self._cut(first)
        self._cut(last + 1)
        runs = self._runs
        begin = bisect_right(runs, first - 1, key=_first)
        end = bisect_right(runs, last, key=_first)
        return runs[begin:end]

    def overlapping(self, first: int, last: int) -> list[Run]:
        """The same, uncut: to look at."""
        runs = self._runs
        begin = bisect_right(runs, first, key=_first)
        if begin and runs[begin - 1].last >= first:
            begin -= 1
        return runs[begin : bisect_right(runs, last, key=_first)]

    def _cut(self, offset: int) -> None:
        """Have no run go over from before this offset to behind it."""
        runs = self._runs
        index = bisect_right(runs, offset, key=_first) - 1
        if index < 0:
            return
        run = runs[index]
        if run.first < offset <= run.last:
            runs.insert(index + 1, Run(offset, run.last, run.count, run.member, run.until_ms))
            run.last = offset - 1

    def hold(self, run: Run, member: str, until_ms: float) -> None:
        if run.member is None:
            self.free -= len(run)
        run.member, run.until_ms = member, until_ms

    def let_go(self, run: Run) -> None:
        if run.member is not None:
            self.free += len(run)
            run.member = None

    def remove(self, run: Run) -> None:
        index = bisect_right(self._runs, run.first, key=_first) - 1
        assert self._runs[index] is run
        del self._runs[index]
        if run.member is None:
            self.free -= len(run)

    def clear(self) -> None:
        self._runs.clear()
        self.free = 0
