"""The interval index: which intervals contain a value. Ends may be open, closed or absent; values are of one type.

Intervals are kept in blocks. A block never changes: it is sorted by lower end, and over the upper ends lies a tree of
maxima. Those that contain a value are among the prefix that begins at or before it, and the maxima lead to the ones that
also end at or behind it: O(log n) to begin with and O(log n) for each found. A new interval is a block of one, which
swallows the blocks before it that are no larger (the logarithmic method): there are O(log n) blocks, and adding costs
O(log^2 n) on average. Removing marks the interval; when half are marked, one block is built of the rest. About 350 bytes
per interval.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from math import isnan
from typing import Final, Generic, NamedTuple, TypeVar

P = TypeVar("P")

# (rank, value, side): absent ends have a rank that decides before the value is looked at.
End = tuple[int, int | float | str, int]
NO_LOW: Final[End] = (-1, 0, 0)
NO_HIGH: Final[End] = (1, 0, 0)


class Interval(NamedTuple):
    """Contains x if low <= (0, x, 0) and high >= (0, x, 1)."""

    low: End
    high: End

    def intersection(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))

    @property
    def bounded(self) -> bool:
        return self.low != NO_LOW and self.high != NO_HIGH


def above(value: int | float | str, *, closed: bool) -> Interval:
    return Interval((0, value, 0 if closed else 1), NO_HIGH)


def below(value: int | float | str, *, closed: bool) -> Interval:
    return Interval(NO_LOW, (0, value, 1 if closed else 0))


class _Item(Generic[P]):
    __slots__ = ("interval", "payload", "removed")

    def __init__(self, interval: Interval, payload: P) -> None:
        self.interval = interval
        self.payload = payload
        self.removed = False


class _Block(Generic[P]):
    __slots__ = ("items", "lows", "tops", "width")

    def __init__(self, items: list[_Item[P]]) -> None:
        self.items = sorted(items, key=lambda item: item.interval)
        self.lows = [item.interval.low for item in self.items]
        self.width = 1 << (len(items) - 1).bit_length()
        # tops[1] is the root, tops[n] has the children 2n and 2n + 1, the upper ends are the last `width`.
        self.tops = [NO_LOW] * self.width + [item.interval.high for item in self.items]
        self.tops += [NO_LOW] * (2 * self.width - len(self.tops))
        for node in range(self.width - 1, 0, -1):
            self.tops[node] = max(self.tops[2 * node], self.tops[2 * node + 1])

    def containing(self, value: int | float | str, found: list[P]) -> int:
        """Add the payloads of the intervals that contain the value; the answer is the number of steps it took."""
        begun = bisect_right(self.lows, (0, value, 0))
        least: End = (0, value, 1)
        steps = 0
        stack = [(1, 0, self.width)] if begun else []
        while stack:
            node, start, width = stack.pop()
            steps += 1
            if self.tops[node] < least:
                continue
            if width == 1:
                item = self.items[start]
                if not item.removed:
                    found.append(item.payload)
                continue
            half = width // 2
            if start + half < begun:
                stack.append((2 * node + 1, start + half, half))
            stack.append((2 * node, start, half))
        return steps


class IntervalIndex(Generic[P]):
    """Payloads by interval, each under a key of its own. `steps` counts the work of `containing`."""

    __slots__ = ("_blocks", "_items", "_removed_count", "steps")

    def __init__(self) -> None:
        self._items: dict[Hashable, _Item[P]] = {}
        self._blocks: list[_Block[P]] = []
        self._removed_count = 0
        self.steps = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, key: Hashable, interval: Interval, payload: P) -> None:
        assert key not in self._items, "an interval's key is its own"
        item = _Item(interval, payload)
        self._items[key] = item
        items = [item]
        while self._blocks and len(self._blocks[-1].items) <= len(items):
            items += self._blocks.pop().items
        self._blocks.append(_Block(items))

    def remove(self, key: Hashable) -> None:
        self._items.pop(key).removed = True
        self._removed_count += 1
        if self._removed_count > len(self._items):
            self._blocks = [_Block(list(self._items.values()))] if self._items else []
            self._removed_count = 0

    def containing(self, value: int | float | str) -> list[P]:
        """The payloads of the intervals that contain the value. NaN is in none, for it is in no order."""
        found: list[P] = []
        if isinstance(value, str) or not isnan(value):
            for block in self._blocks:
                self.steps += block.containing(value, found)
        return found
