"""A receive that waits: one consumer of the queue until it has got something, its time is over, or its client has gone.

Nothing is polled: the queue deals to it in the turn in which a message comes, or is visible again, or its group is free. What
was dealt to a client that has gone meanwhile goes back as if it had never been received.
"""

from __future__ import annotations

import asyncio

from trunkline.cursors.queue import Delivery, QueueCursor
from trunkline.cursors.queue.consumers import CreditPool


class Receiver:
    """Is a `QueueConsumer`. In a queue that orders by key, each receive is a consumer of its own: so a group that one of
    them has messages of is closed to all others."""

    __slots__ = ("_got", "_most")

    priority = 0
    pool: CreditPool | None = None

    def __init__(self, most: int) -> None:
        self._most = most
        self._got: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    def credit(self) -> int:
        return 0 if self._got.done() else self._most

    def deliver(self, deliveries: list[Delivery]) -> None:
        if self._got.done():
            _give_back(deliveries)
        else:
            self._got.set_result(deliveries)

    def cancelled(self, reason: str) -> None:
        self._end()

    def _end(self) -> None:
        if not self._got.done():
            self._got.set_result([])

    async def receive(self, cursor: QueueCursor, lease_ms: int, wait_s: float) -> list[Delivery]:
        cursor.add_consumer(self, lease_ms=lease_ms)
        timer = asyncio.get_running_loop().call_later(wait_s, self._end)
        try:
            return await self._got
        except asyncio.CancelledError:
            if self._got.done() and not self._got.cancelled():
                _give_back(self._got.result())
            raise
        finally:
            timer.cancel()
            cursor.remove_consumer(self)


def _give_back(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        delivery.queue.release([delivery.offset], redelivered=False)
