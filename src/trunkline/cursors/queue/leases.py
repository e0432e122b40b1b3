"""Leases: what consumers hold, and until when.

A lease without a deadline lasts as long as its consumer; a deadline is one of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from trunkline.cursors.queue.message import Delivery
from trunkline.deadlines import Deadlines

_UNLIMITED = 1 << 62


class Leases:
    __slots__ = ("_deadlines", "held", "size_bytes")

    def __init__(self) -> None:
        self.held: dict[int, Delivery] = {}
        self.size_bytes = 0
        self._deadlines: Deadlines[int] = Deadlines()

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, offset: int) -> bool:
        return offset in self.held

    def add(self, offsets: Sequence[int], deliveries: list[Delivery], size_bytes: int) -> None:
        self.held.update(zip(offsets, deliveries, strict=True))
        self.size_bytes += size_bytes

    def set_deadline(self, offset: int, at_ms: float) -> None:
        self._deadlines.set(offset, at_ms)

    def is_of(self, delivery: Delivery) -> bool:
        """Whether this very delivery is leased: its message may be another consumer's by now."""
        return self.held.get(delivery.offset) is delivery

    def keep(self, offset: int) -> None:
        """Without a deadline from now on."""
        self._deadlines.cancel(offset)

    def hand_over(self, delivery: Delivery, at_ms: float) -> None:
        """To nobody, until then."""
        self.held[delivery.offset] = delivery._replace(consumer=None)
        self._deadlines.set(delivery.offset, at_ms)

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
                self._deadlines.cancel(delivery.offset)
        return found

    def held_by(self, consumer: object, up_to: int = _UNLIMITED) -> list[int]:
        """The offsets that are leased to a consumer, ascending. Looks at every lease."""
        return sorted(o for o, delivery in self.held.items() if o <= up_to and delivery.consumer is consumer)

    def next_deadline_ms(self) -> float | None:
        return self._deadlines.next_ms()

    def late(self, now_ms: float) -> list[int]:
        """Offsets whose deadline has passed. They stay leased until they are ended."""
        return list(self._deadlines.due(now_ms))

    def clear(self) -> None:
        self.held.clear()
        self._deadlines.clear()
        self.size_bytes = 0
