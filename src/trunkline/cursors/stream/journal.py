"""The journal: the one place that writes group state to `__consumer_offsets` and reads it back.

Whatever is written in the same turn of the event loop shares one batch and one fsync. A write's `apply` runs when its
records are on disk, in the order in which the writes were made, whether or not its caller still waits; then its future
completes. When the append fails, `apply` does not run and the future fails with COORDINATOR_NOT_AVAILABLE, upon which
clients try again. So memory that changes only in `apply` is never ahead of the log, and a crash loses only what no one
was told.

Transactional commits do not share a batch, as a batch has one producer. They are applied (to what is pending) as soon as
their place in the log is known: the end of the transaction may follow at once, and its marker gets its place after them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from trunkline.clock import Clock
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.limits import GroupLimits
from trunkline.log.batch import BatchHeader, NewRecord, build_batch
from trunkline.log.errors import BatchTooLarge, LogError, ProducerFenced
from trunkline.log.records import LightNewRecord
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended, Ticket

_LOG = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITION = TopicPartition(OFFSETS_TOPIC, 0)
_BATCH_TARGET_BYTES = 512 << 10  # a shared batch is closed at this size; a single larger record still gets its own
_RECORD_OVERHEAD_BYTES = 32
_UNAVAILABLE = GroupErrorName.COORDINATOR_NOT_AVAILABLE

JournalRecord = tuple[bytes, bytes | None]
Apply = Callable[[int], None]


class _Write(NamedTuple):
    records: Sequence[JournalRecord]
    apply: Apply | None
    done: asyncio.Future[int]


class _Place(NamedTuple):
    """Where a write's records went: the batches of its turn that hold them, and the first one's index in its batch."""

    first_batch: int
    last_batch: int
    index_in_batch: int


class Written(NamedTuple):
    """Everything that was written up to some moment."""

    end_offset_so_far: int
    unplaced: tuple[Ticket, ...]

    async def end_offset(self) -> int:
        """The offset behind it; known when all of it has its place."""
        for ticket in self.unplaced:
            await ticket.until_placed()
        places = [ticket.place for ticket in self.unplaced if ticket.place is not None]
        return max([self.end_offset_so_far, *(place.last_offset + 1 for place in places)])


class Journal:
    def __init__(self, store: LogStore, clock: Clock, limits: GroupLimits) -> None:
        self._clock = clock
        self._limits = limits
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "max.message.bytes": str(limits.max_batch_bytes),
            "segment.bytes": str(100 << 20),
        }
        self._topic = StateTopic(store, clock, OFFSETS_TOPIC, settings)
        self._waiting: list[_Write] = []
        self._unplaced: dict[Ticket, None] = {}
        self._end_offset = 0  # behind what was written and has its place
        self._backlog_records = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._last_flight: asyncio.Task[None] | None = None
        self._scheduled = False

    async def open(self) -> None:
        """Create `__consumer_offsets` if it is not there."""
        await self._topic.open()

    def replay(self) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Every batch of the log, those of open transactions and markers included: which of them count, the fold says."""
        return self._topic.replay_batches()

    def write(self, records: Sequence[JournalRecord], apply: Apply | None = None) -> asyncio.Future[int]:
        """Write records together. `apply` and the future get the offset of the first; the others follow it."""
        assert records, "a write has at least one record"
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_mark_retrieved)
        if self._backlog_records + len(records) > self._limits.max_journal_backlog_records:
            done.set_exception(GroupError(_UNAVAILABLE, "too many group changes are waiting"))
            return done
        self._backlog_records += len(records)
        self._waiting.append(_Write(records, apply, done))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        return done

    async def write_transactional(
        self, records: Sequence[JournalRecord], producer_id: int, producer_epoch: int, apply: Apply
    ) -> None:
        """Append as part of a producer's transaction. `apply` runs once appended; returns when it is on disk."""
        self.flush()  # keeps the order in which the writes were asked for
        batch = build_batch(
            [NewRecord(key, value) for key, value in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            timestamp_ms=self._clock.wall_ms(),
        )
        write = _Write(records, apply, asyncio.get_running_loop().create_future())
        write.done.add_done_callback(_mark_retrieved)
        try:
            ticket = self._noted(self._topic.append(batch, Durability.DISK))
            ticket.when_placed(lambda placed: self._complete(write, placed.place.base_offset) if placed.place else None)
            await asyncio.shield(ticket)
        except LogError as error:
            raise _refusal(error) from error
        await write.done  # it was applied with the place; this is how that went

    async def settle(self) -> None:
        """Wait until everything written so far is applied, and on disk but for what belongs to a transaction."""
        self.flush()
        while self._in_flight:
            await asyncio.wait(set(self._in_flight))
        for ticket in tuple(self._unplaced):
            await ticket.until_placed()

    def written(self) -> Written:
        """Everything that was written before this call, for who must tell it from what comes after."""
        self.flush()
        return Written(max(self._end_offset, self._topic.following), tuple(self._unplaced))

    def _noted(self, ticket: Ticket) -> Ticket:
        if ticket.place is None:
            self._unplaced[ticket] = None
        ticket.when_placed(self._placed)
        return ticket

    def _placed(self, ticket: Ticket) -> None:
        self._unplaced.pop(ticket, None)
        if ticket.place is not None:
            self._end_offset = ticket.place.last_offset + 1

    def flush(self) -> None:
        """Append what waits, without waiting for the end of this turn."""
        self._scheduled = False
        writes, self._waiting = self._waiting, []
        if not writes:
            return
        tickets, places = self._append(writes)
        flight = asyncio.get_running_loop().create_task(self._land(writes, tickets, places, self._last_flight))
        self._last_flight = flight
        self._in_flight.add(flight)
        flight.add_done_callback(self._in_flight.discard)

    def _append(self, writes: Sequence[_Write]) -> tuple[list[Ticket], list[_Place]]:
        """Append all records now, so that their order in the log is the order of the writes."""
        tickets: list[Ticket] = []
        places: list[_Place] = []
        batch: list[LightNewRecord] = []
        size = 0
        for write in writes:
            first: tuple[int, int] | None = None
            for key, value in write.records:
                record_bytes = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
                if batch and size + record_bytes > _BATCH_TARGET_BYTES:
                    tickets.append(self._append_batch(batch))
                    batch, size = [], 0
                first = first or (len(tickets), len(batch))
                batch.append(state_record(key, value))
                size += record_bytes
            assert first is not None
            places.append(_Place(first[0], len(tickets), first[1]))
        tickets.append(self._append_batch(batch))
        return tickets, places

    def _append_batch(self, records: list[LightNewRecord]) -> Ticket:
        try:
            return self._noted(self._topic.put(records, Durability.DISK))
        except LogError as error:
            failed = Ticket(loop=asyncio.get_running_loop())
            failed.set_exception(error)
            return failed

    async def _land(
        self,
        writes: Sequence[_Write],
        tickets: Sequence[Ticket],
        places: Sequence[_Place],
        before: asyncio.Task[None] | None,
    ) -> None:
        results = await asyncio.gather(*tickets, return_exceptions=True)
        if before is not None and not before.done():
            await asyncio.wait({before})  # fsyncs may complete out of order; applying may not
        for write, place in zip(writes, places, strict=True):
            self._backlog_records -= len(write.records)
            failure = next(
                (r for r in results[place.first_batch : place.last_batch + 1] if isinstance(r, BaseException)), None
            )
            first = results[place.first_batch]
            if failure is None and isinstance(first, Appended):
                self._complete(write, first.base_offset + place.index_in_batch)
            elif not write.done.done():
                _LOG.error("could not write group state: %s", failure)
                write.done.set_exception(_refusal(failure) if failure else GroupError(_UNAVAILABLE))

    def _complete(self, write: _Write, position: int) -> None:
        try:
            if write.apply is not None:
                write.apply(position)
        except Exception as error:
            # The other writes of the turn are on disk too and must still be applied.
            _LOG.exception("could not apply a group change that is on disk")
            if not write.done.done():
                write.done.set_exception(_refusal(error))
        if not write.done.done():
            write.done.set_result(position)


def _refusal(error: BaseException) -> GroupError:
    if isinstance(error, GroupError):
        return error
    if isinstance(error, ProducerFenced):
        return GroupError(GroupErrorName.INVALID_PRODUCER_EPOCH, str(error))
    if isinstance(error, BatchTooLarge):
        return GroupError(GroupErrorName.INVALID_COMMIT_OFFSET_SIZE, str(error))
    return GroupError(_UNAVAILABLE, str(error))


def _mark_retrieved(future: asyncio.Future[int]) -> None:
    """Writes that nobody waits for may fail; the failure was logged where it happened."""
    if not future.cancelled():
        future.exception()
