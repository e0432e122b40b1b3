"""Leases: what consumers hold, and until when.

A lease without a deadline lasts as long as its consumer; one with a deadline is in a heap too, by the monotonic clock. Extending a
lease leaves the old entry in the heap, where it is passed over when it comes up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import cast

from trunkline.cursors.queue.message import Delivery

_UNLIMITED = 1 << 62
_MAX_STALE_ENTRIES = 1024


class Leases:
    __slots__ = ("_deadlines", "_heap", "held", "size_bytes")

    def __init__(self) -> None:
        self.held: dict[int, Delivery] = {}
        self.size_bytes = 0
        self._deadlines: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, offset: int) -> bool:
        return offset in self.held

    def add(self, offsets: Sequence[int], deliveries: list[Delivery], size_bytes: int) -> None:
        self.held.update(zip(offsets, deliveries, strict=True))
        self.size_bytes += size_bytes

    def set_deadline(self, offset: int, at_ms: float) -> None:
        self._deadlines[offset] = at_ms
        heappush(self._heap, (at_ms, offset))
        if len(self._heap) > _MAX_STALE_ENTRIES + 2 * len(self._deadlines):
            self._heap = [(until_ms, held) for held, until_ms in self._deadlines.items()]
            heapify(self._heap)

    def end(self, offsets: Iterable[int]) -> list[Delivery]:
        """Take these out; those that are not leased are passed over."""
        held = self.held
        before = len(held)
        popped = [held.pop(offset, None) for offset in offsets]
        if before - len(held) == len(popped):
            found = cast("list[Delivery]", popped)
        else:
            found = [delivery for delivery in popped if delivery is not None]
        self.size_bytes -= sum([len(delivery[1][0]) for delivery in found])
        if self._deadlines:
            for delivery in found:
                self._deadlines.pop(delivery.offset, None)
        return found

    def held_by(self, consumer: object, up_to: int = _UNLIMITED) -> list[int]:
        """The offsets that are leased to a consumer, ascending. Looks at every lease."""
        return sorted(o for o, delivery in self.held.items() if o <= up_to and delivery.consumer is consumer)

    def next_deadline_ms(self) -> float | None:
        heap = self._heap
        while heap and self._deadlines.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def late(self, now_ms: float) -> list[int]:
        """Offsets whose deadline has passed. They stay leased until they are ended."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, offset = heappop(self._heap)
            if self._deadlines.get(offset) == at_ms:
                found.append(offset)
        return found

    def clear(self) -> None:
        self.held.clear()
        self._deadlines.clear()
        self._heap.clear()
        self.size_bytes = 0
