"""The turn: what all queues of a broker share.

A queue that has something to do asks for a turn (`wake`). Where the current turn deals (`DealingTurn`) all of them choose
what their consumers get; then the journal is written, once for all; then the consumers are called. So a message is noted as
delivered before a consumer can see it, and a turn costs one append however many queues it touches.

Deadlines (leases, expiries, scheduled messages) are kept in one heap, on the monotonic clock; one timer of the event loop waits
for the earliest. With a clock that is moved by hand, `expire` is called by hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from trunkline.clock import Clock
from trunkline.cursors.queue.consumers import QueueConsumer
from trunkline.cursors.queue.journal import QueueJournal
from trunkline.cursors.queue.limits import QueueLimits
from trunkline.cursors.queue.message import Delivery
from trunkline.deadlines import Deadlines
from trunkline.log.store import LogStore

_logger = logging.getLogger(__name__)

Work = Callable[[], None]


class DealingQueue(Hashable, Protocol):
    """A queue, as far as it has a part in turns."""

    @property
    def name(self) -> str: ...

    def deal(self, handout: Handout) -> None:
        """Choose what consumers get, and lease it to them."""

    def expire(self) -> None:
        """A deadline has passed."""

    def remove_consumer(self, consumer: QueueConsumer) -> None: ...

    def release(self, offsets: Iterable[int]) -> int: ...


Handout = list[tuple[DealingQueue, QueueConsumer, list[Delivery]]]


class DealingTurn(Protocol):
    """The turn of the event loop, as far as queues have a part in it."""

    def ask_to_deal(self, deal: Work) -> None:
        """Call `deal` once, after what this turn collects; when asked for by a deal, in the next turn."""

    def put_off(self, work: Work) -> bool:
        """Do this once consumers have what this turn dealt to them; False: it cannot, the caller does it."""


class QueueRuntime:
    def __init__(self, store: LogStore, clock: Clock, turn: DealingTurn, limits: QueueLimits | None = None) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits or QueueLimits()
        self.journal = QueueJournal(store, clock, self._request_turn)
        self.held_bytes = 0  # in memory, of all queues
        self._ask = turn.ask_to_deal
        self.put_off = turn.put_off
        self._woken: dict[DealingQueue, None] = {}
        self._requested = False
        self._armed: Deadlines[DealingQueue] = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    # -- turns -------------------------------------------------------------------------------------------------------

    def wake(self, queue: DealingQueue) -> None:
        self._woken[queue] = None
        self._request_turn()

    def _request_turn(self) -> None:
        if not self._requested and not self.closed:
            self._requested = True
            self._ask(self.run_turn)

    def run_turn(self) -> None:
        """Deal, write the state, deliver. A protocol may call it at the end of a read instead of waiting for the loop."""
        self._requested = False
        queues, self._woken = self._woken, {}
        handout: Handout = []
        for queue in queues:
            try:
                queue.deal(handout)
            except Exception:
                _logger.exception("queue %s could not deal its messages", queue.name)
        self.journal.flush()
        for queue, consumer, deliveries in handout:
            try:
                consumer.deliver(deliveries)
            except Exception:
                self._take_back(queue, consumer, deliveries)

    def _take_back(self, queue: DealingQueue, consumer: QueueConsumer, deliveries: list[Delivery]) -> None:
        """A consumer failed. It gets nothing more, or it would fail in every turn; what it did not take goes to others."""
        _logger.exception("a consumer of queue %s failed and is cancelled", queue.name)
        try:
            queue.remove_consumer(consumer)
            queue.release([delivery.offset for delivery in deliveries])
            consumer.cancelled("it failed")
        except Exception:
            _logger.exception("a consumer of queue %s could not be cancelled", queue.name)

    def forget(self, queue: DealingQueue) -> None:
        self._woken.pop(queue, None)
        self._armed.cancel(queue)

    def start_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def arm(self, queue: DealingQueue, at_ms: float | None) -> None:
        """Call the queue's `expire` at this time of the monotonic clock, instead of the time said before."""
        if at_ms is None:
            self._armed.cancel(queue)
        elif self._armed.get(queue) != at_ms:
            self._armed.set(queue, at_ms)
            self._set_timer()

    def next_deadline_ms(self) -> float | None:
        return self._armed.next_ms()

    def expire(self) -> None:
        """Let every queue whose time has come act."""
        for queue in self._armed.due(self.clock.monotonic_ms()):
            try:
                queue.expire()
            except Exception:
                _logger.exception("queue %s could not act on its deadlines", queue.name)
        self._set_timer()

    def _set_timer(self) -> None:
        at_ms = self.next_deadline_ms()
        if self._timer is not None:
            if at_ms is not None and at_ms == self._timer_at_ms:
                return
            self._timer.cancel()
            self._timer = None
        if at_ms is not None and not self.closed:
            delay_ms = max(at_ms - self.clock.monotonic_ms(), 0.0)
            self._timer_at_ms = at_ms
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000 + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.closed:
            self.expire()

    async def close(self) -> None:
        """Write what is not written; stop every timer and read."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.journal.flush()
