"""Settlements of a connection: acknowledgements are collected during a turn, and carried out once per queue at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trunkline.cursors.queue import Delivery, Lessor


class Holder:
    """A consumer that what is delivered to it counts against, until it is settled."""

    __slots__ = ("unsettled",)

    def __init__(self) -> None:
        self.unsettled = 0


class Acknowledgements:
    __slots__ = ("_at_turns_end", "_collected")

    def __init__(self, at_turns_end: Callable[[Callable[[], None]], None]) -> None:
        self._at_turns_end = at_turns_end
        self._collected: dict[Lessor, list[int]] = {}

    def add(self, taken: Iterable[tuple[int, Delivery]]) -> int:
        """These deliveries, each with its number; returns how many of them a consumer held."""
        collected = self._collected
        if not collected:
            self._at_turns_end(self.carry_out)
        pushed = 0
        for _, delivery in taken:
            offsets = collected.get(delivery[4])
            if offsets is None:
                collected[delivery[4]] = [delivery[0]]
            else:
                offsets.append(delivery[0])
            consumer = delivery[5]
            if isinstance(consumer, Holder):
                consumer.unsettled -= 1
                pushed += 1
        return pushed

    def carry_out(self) -> None:
        collected, self._collected = self._collected, {}
        for cursor, offsets in collected.items():
            cursor.acknowledge(offsets)


def refuse(deliveries: Iterable[Delivery], *, requeue: bool) -> None:
    """Back to their queues, or given up."""
    for cursor, offsets in by_cursor(deliveries).items():
        if requeue:
            cursor.retry(offsets)
        else:
            cursor.reject(offsets)


def release(deliveries: Iterable[Delivery]) -> None:
    """Back to their queues at once."""
    for cursor, offsets in by_cursor(deliveries).items():
        cursor.release(offsets)


def free(deliveries: Iterable[Delivery]) -> int:
    """These no longer count against who held them; returns how many consumers held."""
    pushed = 0
    for delivery in deliveries:
        consumer = delivery.consumer
        if isinstance(consumer, Holder):
            consumer.unsettled -= 1
            pushed += 1
    return pushed


def by_cursor(deliveries: Iterable[Delivery]) -> dict[Lessor, list[int]]:
    found: dict[Lessor, list[int]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.queue, []).append(delivery.offset)
    return found
