"""The journal: the one place that writes queue state to `__queue_state` and reads it back.

Share groups keep theirs in the same form in a topic of their own (see `cursors/share`).

Queues say that they changed (`touch`); once per turn of the event loop `flush` asks each of them for its records and appends all
of them as one batch. Plain acknowledgements are written to the operating system, which a killed process does not lose;
`commit` also waits for the disk, for protocols that promise it.

A crash loses what was not flushed: the acknowledgements of the last turn, upon which their messages come again. When an append
fails nothing is forgotten: the queues stay touched and their records are written by the next flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Protocol

from trunkline.clock import Clock
from trunkline.cursors.queue import state
from trunkline.cursors.queue.limits import QUEUE_STATE_CONFIG
from trunkline.log.errors import LogError
from trunkline.log.records import LightRecord
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended, Ticket

_logger = logging.getLogger(__name__)

_RETRY_S = 1.0  # after records were refused that were under way
QUEUE_STATE = TopicPartition("__queue_state", 0)
StateRecord = tuple[bytes, bytes | None]


class Journaled(Protocol):
    @property
    def gone(self) -> bool: ...

    def changes(self) -> list[StateRecord]:
        """The records for everything that changed since they were last asked for."""
        ...

    def unwritten(self) -> None:
        """The records could not be written: they count as changed again."""
        ...


class QueueJournal:
    def __init__(
        self, store: LogStore, clock: Clock, on_touch: Callable[[], None], topic: str = QUEUE_STATE.topic
    ) -> None:
        """`on_touch` is called whenever there is something to flush."""
        self._store = store
        self._topic = StateTopic(store, clock, topic, QUEUE_STATE_CONFIG)
        self._touched: dict[Journaled, None] = {}
        self._unsynced = False
        self._on_touch = on_touch
        self._number = clock.wall_ms() << 16

    def next_number(self) -> int:
        """One that no record of an earlier run has."""
        self._number += 1
        return self._number

    async def open(self) -> None:
        """Create the topic if it is not there."""
        await self._topic.open()

    def replay(self) -> AsyncIterator[list[LightRecord]]:
        return self._topic.replay()

    async def read_value(self, offset: int) -> bytes | None:
        """The value of one record, by its offset; None when it is gone."""
        return await self._topic.value_at(offset)

    def touch(self, queue: Journaled) -> None:
        self._touched[queue] = None
        self._on_touch()

    def forget(self, queue: Journaled) -> None:
        self._touched.pop(queue, None)

    @property
    def pending(self) -> bool:
        return bool(self._touched)

    def flush(self) -> None:
        """Write what changed to the operating system."""
        if self._touched:
            try:
                self._append_changes(Durability.OS)
            except LogError as error:
                _logger.error("queue state was not written and will be tried again: %s", error)

    def commit(self) -> asyncio.Future[Appended] | None:
        """Write what changed; the future completes when all state so far is on disk. None: it is there already."""
        appended = self._append_changes(Durability.DISK)
        if appended is None and self._unsynced:
            return self.write([(state.SYNC, None)], Durability.DISK)
        return appended

    def write(self, records: Iterable[StateRecord], durability: Durability) -> Ticket:
        """Append records of the caller's own making."""
        ticket = self._topic.put([state_record(key, value) for key, value in records], durability)
        self._unsynced = durability is not Durability.DISK
        return ticket

    def _append_changes(self, durability: Durability) -> Ticket | None:
        queues = list(self._touched)
        self._touched.clear()
        records: list[StateRecord] = []
        for queue in queues:
            records += queue.changes()
        if not records:
            return None
        try:
            ticket = self.write(records, durability)
        except LogError:
            self._take_back(queues)
            raise
        if ticket.place is None:
            ticket.when_placed(partial(self._arrived, queues))
        return ticket

    def _arrived(self, queues: list[Journaled], ticket: Ticket) -> None:
        """Records that were under way have their place; or were refused, and so are written again in a while."""
        if ticket.place is None:
            error = None if ticket.cancelled() else ticket.exception()
            _logger.error("queue state was not written and will be tried again: %s", error)
            self._take_back([queue for queue in queues if not queue.gone])
            ticket.get_loop().call_later(_RETRY_S, self._on_touch)

    def _take_back(self, queues: Iterable[Journaled]) -> None:
        for queue in queues:
            queue.unwritten()
            self._touched[queue] = None
