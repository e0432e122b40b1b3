"""Acknowledgements of a connection: collected during a turn, carried out once per queue at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trunkline.cursors.queue import Delivery, QueueCursor
from trunkline.protocols.amqp.consumer import Consumer

if TYPE_CHECKING:
    from trunkline.protocols.amqp.channel import Channel


class Acknowledgements:
    __slots__ = ("_at_turns_end", "_collected")

    def __init__(self, at_turns_end: Callable[[Callable[[], None]], None]) -> None:
        self._at_turns_end = at_turns_end
        self._collected: dict[QueueCursor, list[int]] = {}

    def add(self, channel: Channel, taken: list[tuple[int, Delivery]]) -> None:
        collected = self._collected
        if not collected:
            self._at_turns_end(self.carry_out)
        got = 0
        for _, delivery in taken:
            offsets = collected.get(delivery[4])
            if offsets is None:
                collected[delivery[4]] = [delivery[0]]
            else:
                offsets.append(delivery[0])
            consumer = delivery[5]
            if isinstance(consumer, Consumer):
                consumer.unsettled -= 1
            else:
                got += 1
        channel.prefetch.freed(len(taken) - got)

    def carry_out(self) -> None:
        collected, self._collected = self._collected, {}
        for cursor, offsets in collected.items():
            cursor.acknowledge(offsets)
