"""Single messages on their way into queues: added to the turn, and told of one by one when their append is on disk.

For protocols whose every message is answered by itself; those that number their publications have `confirms`. All that goes to
a queue in one turn is one append with one outcome, but for what a queue at its maximum rejects. What has to wait for its time
is a record of the queue's state instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial

from trunkline.broker.messaging.publishing import Publishing, append_failed
from trunkline.broker.messaging.queue import Queue
from trunkline.cursors.queue import Message
from trunkline.cursors.queue.errors import QueueGone, ScheduleFull
from trunkline.log.errors import LogError
from trunkline.log.store import Durability
from trunkline.log.ticket import Appended, Ticket


class Outcome(Enum):
    STORED = "stored"
    FULL = "the queue is at its maximum"
    GONE = "the queue was deleted"
    FAILED = "it could not be stored"


Told = Callable[[Outcome], None]
Placed = Callable[[Ticket], None]


class _Batch:
    """What goes to one queue in one turn."""

    __slots__ = ("placed", "rejected", "told")

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.placed: list[Placed] = []
        self.rejected: set[int] = set()  # by their place in `told`


class Sending:
    """Is a `Publisher`."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self._batches: dict[Queue, _Batch] = {}
        self._numbered: list[tuple[_Batch, int]] = []  # of this turn: what a rejection names by its number

    def send(self, queue: Queue, message: Message, told: Told, placed: Placed | None = None) -> None:
        """`told` is called once, with what became of it; `placed` when its append has been made, with the ticket."""
        if queue.cursor.gone:
            told(Outcome.GONE)
            return
        batch = self._batches.get(queue)
        if batch is None:
            if not self._batches:
                self._publishing.notify(self)
            batch = self._batches[queue] = _Batch()
        origin = None
        if queue.may_reject:
            origin = (self, len(self._numbered))
            self._numbered.append((batch, len(batch.told)))
        batch.told.append(told)
        if placed is not None:
            batch.placed.append(placed)
        self._publishing.add(queue, message, disk=queue.durable, origin=origin)

    def schedule(self, queue: Queue, message: Message, at_ms: int, told: Told) -> None:
        """Let a message in at a time of the wall clock."""
        try:
            scheduling = queue.cursor.schedule(message, at_ms, Durability.DISK)
        except ScheduleFull:
            told(Outcome.FULL)
        except QueueGone:
            told(Outcome.GONE)
        except LogError:
            told(Outcome.FAILED)
        else:
            if scheduling.stored is None:
                told(Outcome.STORED)
            else:
                scheduling.stored.add_done_callback(partial(_tell, [told]))

    # -- what publishing tells -------------------------------------------------------------------------------------

    def rejected(self, sequence: int) -> None:
        batch, place = self._numbered[sequence]
        batch.rejected.add(place)

    def stored(self) -> None:
        batches, self._batches = self._batches, {}
        self._numbered = []
        for queue, batch in batches.items():
            for place in batch.rejected:
                batch.told[place](Outcome.FULL)
            told = [each for place, each in enumerate(batch.told) if place not in batch.rejected]
            appended = queue.stored
            if appended is None:
                outcome = Outcome.FAILED if queue.failed else Outcome.GONE
                for each in told:
                    each(outcome)
                continue
            if isinstance(appended, Ticket):
                for placed in batch.placed:
                    placed(appended)
            appended.add_done_callback(partial(_tell, told))


def _tell(told: list[Told], stored: asyncio.Future[Appended]) -> None:
    outcome = Outcome.FAILED if append_failed(stored) else Outcome.STORED
    for each in told:
        each(outcome)
