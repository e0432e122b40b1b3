"""Messages that wait for their time before they enter the queue: listable, cancellable and, for a durable queue, durable.

A scheduled message is a record of `__queue_state` with its body; a tombstone removes it when it has entered the queue or was
cancelled. In memory is an index, and the bodies up to `max_scheduled_bytes`; those of a durable queue beyond that are let go
when their record has a place, and read back when they are due. A message whose record is refused is not scheduled.

A crash between the entry into the queue and the tombstone lets the message enter twice; both are written in the same turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from trunkline.cursors.queue import state
from trunkline.cursors.queue.errors import QueueFull, QueueGone, ScheduleFull
from trunkline.cursors.queue.journal import QueueJournal, StateRecord
from trunkline.cursors.queue.limits import QueueLimits
from trunkline.cursors.queue.message import Message
from trunkline.deadlines import Deadlines
from trunkline.log.errors import LogError
from trunkline.log.store import Durability
from trunkline.log.ticket import Appended, Ticket

_logger = logging.getLogger(__name__)

Put = Callable[[list[Message], Durability], Ticket]

RETRY_MS = 1_000  # after a read that failed, or a queue that was full


class Scheduling(NamedTuple):
    """A message that was scheduled. `stored` completes when it is as durable as was asked for."""

    id: int
    due_ms: int
    stored: asyncio.Future[Appended] | None  # None: the queue is not durable


class ScheduledMessage(NamedTuple):
    id: int
    due_ms: int
    state_offset: int  # of its record; -1: there is none, or its place is not known yet
    message: Message | None  # None: in the log only


class Schedule:
    def __init__(
        self,
        queue_id: str,
        journal: QueueJournal | None,
        limits: QueueLimits,
        first_id: int,
        *,
        put: Put,
        refused_is_done: bool,
        arm: Callable[[], None],
    ) -> None:
        """`put` lets messages into the queue; when that is full, what it refuses is `refused_is_done`, or tried again.
        `arm` is called when messages have become due at another time, of their own accord."""
        self._queue_id = queue_id
        self._put = put
        self._refused_is_done = refused_is_done
        self._journal = journal
        self._arm = arm
        self._limits = limits
        self._entries: dict[int, ScheduledMessage] = {}
        self._timetable: Deadlines[int] = Deadlines()  # by the wall clock, which is what senders mean
        self._held_bytes = 0
        self._next_id = first_id

    def __len__(self) -> int:
        return len(self._entries)

    def restore(self, number: int, due_ms: int, state_offset: int) -> None:
        self._add(ScheduledMessage(number, due_ms, state_offset, None))
        self._next_id = max(self._next_id, number + 1)

    def add(self, message: Message, due_ms: int, durability: Durability) -> Scheduling:
        size = len(message.value)
        held = self._held_bytes + size <= self._limits.max_scheduled_bytes
        if len(self._entries) >= self._limits.max_scheduled or (self._journal is None and not held):
            raise ScheduleFull(f"{len(self._entries)} messages of queue {self._queue_id!r} wait for their time already")
        number = self._next_id
        stored = None
        if self._journal is not None:
            record = (
                state.encode_key(state.SCHEDULED, self._queue_id, number),
                state.encode_scheduled(message, due_ms),
            )
            stored = self._journal.write([record], durability)
        self._next_id += 1
        self._add(ScheduledMessage(number, due_ms, -1, message))
        if stored is not None:
            stored.when_placed(partial(self._recorded, number, held))
        return Scheduling(number, due_ms, stored)

    def _recorded(self, number: int, held: bool, ticket: Ticket) -> None:
        """The record of a message has its place; or there will be none, which the ticket tells whoever scheduled it."""
        entry = self._entries.get(number)
        if entry is None or entry.message is None:
            return
        if ticket.place is None:
            self._forget(entry)
            return
        if not held:
            self._held_bytes -= len(entry.message.value)
        kept = entry.message if held else None
        self._entries[number] = entry._replace(state_offset=ticket.place.base_offset, message=kept)

    def _forget(self, entry: ScheduledMessage) -> None:
        del self._entries[entry.id]
        self._timetable.cancel(entry.id)
        if entry.message is not None:
            self._held_bytes -= len(entry.message.value)

    def _add(self, entry: ScheduledMessage) -> None:
        self._entries[entry.id] = entry
        self._timetable.set(entry.id, entry.due_ms)
        if entry.message is not None:
            self._held_bytes += len(entry.message.value)

    def next_due_ms(self) -> float | None:
        return self._timetable.next_ms()

    def due(self, now_ms: int) -> list[ScheduledMessage]:
        """Take out of the timetable what is due. The entries stay until they are removed, or put back with `retry`."""
        return [self._entries[number] for number in self._timetable.due(now_ms)]

    def retry(self, entries: Sequence[ScheduledMessage], due_ms: int) -> None:
        for entry in entries:
            if entry.id in self._entries:
                self._timetable.set(entry.id, due_ms)

    def remove(self, numbers: Sequence[int]) -> int:
        """Forget messages that entered the queue or were cancelled; returns how many there were."""
        gone = [entry for number in numbers if (entry := self._entries.get(number)) is not None]
        for entry in gone:
            self._forget(entry)
        if gone and self._journal is not None:
            self._journal.write(
                [(state.encode_key(state.SCHEDULED, self._queue_id, entry.id), None) for entry in gone], Durability.OS
            )
        return len(gone)

    def tombstones(self) -> list[StateRecord]:
        return [(state.encode_key(state.SCHEDULED, self._queue_id, number), None) for number in self._entries]

    def listed(self) -> list[ScheduledMessage]:
        """By time, soonest first."""
        return sorted(self._entries.values(), key=lambda entry: (entry.due_ms, entry.id))

    # -- into the queue ----------------------------------------------------------------------------------------------

    def let_in(self, now_ms: int) -> list[ScheduledMessage]:
        """Put what is due and in memory; returns what is due and must be read first (see `read_in`).

        What the queue does not take tries again later.
        """
        due = self.due(now_ms)
        held = [entry for entry in due if entry.message is not None]
        if held:
            self._enter(held, [entry.message for entry in held if entry.message is not None], now_ms)
        return [entry for entry in due if entry.message is None]

    async def read_in(self, entries: Sequence[ScheduledMessage], now_ms: Callable[[], int]) -> None:
        """Put messages that are due but only in the log, one by one."""
        for entry in entries:
            try:
                message = await self.body(entry)
            except (LogError, ValueError) as error:
                _logger.error("a scheduled message of queue %s cannot be read: %s", self._queue_id, error)
                self.retry([entry], now_ms() + RETRY_MS)
                continue
            if message is not None and entry.id in self._entries:
                self._enter([entry], [message], now_ms())
        self._arm()

    def _enter(self, entries: Sequence[ScheduledMessage], messages: Sequence[Message], now_ms: int) -> None:
        """Its own time counts from now for a message that had to wait."""
        fresh = [
            message._replace(
                timestamp_ms=now_ms,
                expires_ms=None if message.expires_ms is None else now_ms + message.expires_ms - message.timestamp_ms,
            )
            for message in messages
        ]
        taken, ticket = self._put_due(fresh)
        self.retry(entries[taken:], now_ms + RETRY_MS)
        if ticket is None or ticket.place is not None:
            self.remove([entry.id for entry in entries[:taken]])
        else:
            ticket.when_placed(partial(self._entered, entries[:taken], now_ms))

    def _put_due(self, messages: list[Message]) -> tuple[int, Ticket | None]:
        """How many, from the first on, are done with, and the ticket of those that the queue has taken."""
        try:
            return len(messages), self._put(messages, Durability.OS)
        except QueueFull as full:
            return len(messages) if self._refused_is_done else full.accepted, full.stored
        except (LogError, QueueGone) as error:
            _logger.error("scheduled messages of queue %s will be tried again: %s", self._queue_id, error)
            return 0, None

    def _entered(self, entries: Sequence[ScheduledMessage], now_ms: int, ticket: Ticket) -> None:
        if ticket.place is not None:
            self.remove([entry.id for entry in entries])
        else:
            self.retry(entries, now_ms + RETRY_MS)
            self._arm()

    async def body(self, entry: ScheduledMessage) -> Message | None:
        if entry.message is not None:
            return entry.message
        assert self._journal is not None, "only a durable queue leaves bodies in the log"
        value = await self._journal.read_value(entry.state_offset)
        return None if value is None else state.decode_scheduled(value)
