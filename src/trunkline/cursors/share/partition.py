"""One share group's view of one partition: which records are done with, which are held, which can be had.

    offsets   … done with …│ … in flight: held, free again or done with … │ … never given out …
                           head                                           end

`Progress`, a queue's own account, keeps the durable part: the head, what above it is done with, where the end is and how often
records were delivered. `InFlight` says who holds what until when, which no restart survives: all of it is free again then.
Batches are not looked into: offsets are all that is known of records, and a batch of the log is given out as it is.

    a record is     becomes
    never given out held, by being acquired
    held            done with: accepted, rejected, not in the log (a gap), or released after its last delivery
                    free: released, its lock over, or its member's session closed
    free            held; or done with, when the log holds no data there any more

What always holds: every offset between head and end is in flight, or done with, and not both. A delivery count never falls,
and a record is given out at most `delivery_limit` times; one more after a restart, which may have come before the last
consumer saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from trunkline.cursors.queue.progress import Progress
from trunkline.cursors.queue.restored import RestoredQueue
from trunkline.cursors.share.errors import InvalidAcknowledgement, RecordNotHeld
from trunkline.cursors.share.in_flight import InFlight, Run
from trunkline.log.topic import TopicPartition

_LEAST_ISOLATED_COUNT = 2


class AcknowledgeType(IntEnum):
    GAP = 0  # there is no record at this offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # hold on to it


class Acknowledgement(NamedTuple):
    """Offsets, and what becomes of them: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Acquired(NamedTuple):
    first: int
    last: int
    deliveries: int  # this one included


class Span(NamedTuple):
    """The offsets of a batch in the log; without data for control batches and aborted transactions."""

    first: int
    last: int
    has_data: bool


class SharePartition:
    def __init__(self, group_id: str, tp: TopicPartition, progress: Progress) -> None:
        self.group_id = group_id
        self.tp = tp
        self.progress = progress
        self.in_flight = InFlight()
        self._watchers: dict[Callable[[], None], None] = {}

    def restore(self, restored: RestoredQueue, start: int, end: int) -> None:
        """Go on where the journal says, within the bounds of the log: what was held is free again."""
        self.progress.restore(restored, start, end)
        self.in_flight.clear()
        for first, count in self.progress.settled.unsettled(self.head, self.end):
            for prior, offsets in groupby(range(first, first + count), self.progress.prior):
                run = list(offsets)
                self.in_flight.add(Run(run[0], run[-1], prior))

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """Everything before it is done with: Kafka's share-partition start offset."""
        return self.progress.settled.head

    @property
    def end(self) -> int:
        """Nothing from here on was given out yet."""
        return max(self.progress.delivered_to, self.progress.settled.head)

    @property
    def next_offset(self) -> int:
        """Where to look for a record that can be had."""
        free = self.in_flight.first_free()
        return self.end if free is None else free.first

    def can_give(self, max_locks: int) -> bool:
        return self.in_flight.free > 0 or self.end - self.head < max_locks

    def lag(self, log_end: int) -> int:
        """Records that are not done with."""
        return max(log_end - self.head - self.progress.settled.above, 0)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def watch(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when records that were held can be had, or more can be held."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()

    def close(self) -> None:
        """The group is done with the partition: nobody holds anything of it."""
        self.in_flight.clear()
        self._wake()

    # -- giving out --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        member: str,
        spans: Sequence[Span],
        *,
        read_from: int,
        max_records: int,
        batch_records: int,
        strict: bool,
        max_locks: int,
        delivery_limit: int,
        until_ms: float,
    ) -> list[Acquired]:
        """Lock records of what was read from `read_from` on, lowest offsets first.

        About `max_records`: what belongs to one batch, or was acquired at once before, stays together unless `strict`. Ranges are
        of about `batch_records` records, so that they can be acknowledged in such portions.
        """
        if not spans:
            return []
        taken: list[Acquired] = []
        self._pass_over_gaps(spans, read_from)
        last = spans[-1].last
        left = self._acquire_free(member, spans, max_records, strict, delivery_limit, until_ms, taken)
        if left > 0 and last >= self.end:
            room = min(left, max_locks - (self.end - self.head))
            if room > 0:
                self._acquire_new(member, spans, room, batch_records, strict, until_ms, taken)
        return taken

    def _pass_over_gaps(self, spans: Sequence[Span], read_from: int) -> None:
        """Be done with what is free and not in the log, or not data."""
        position = read_from
        for span in spans:
            if span.first > position:
                self._drop_free(position, span.first - 1)
            if not span.has_data:
                self._drop_free(span.first, span.last)
            position = span.last + 1

    def _drop_free(self, first: int, last: int) -> None:
        if self.in_flight.free and first < self.end:
            for run in self.in_flight.within(first, last):
                if run.member is None:
                    self._done_with(run)

    def _acquire_free(
        self,
        member: str,
        spans: Sequence[Span],
        max_records: int,
        strict: bool,
        delivery_limit: int,
        until_ms: float,
        taken: list[Acquired],
    ) -> int:
        """Give out again; returns how many more records are wanted."""
        flight = self.in_flight
        left = max_records
        if not flight.free or spans[0].first >= self.end:
            return left
        isolated_from = max(_LEAST_ISOLATED_COUNT, -(-delivery_limit // 2))
        for found in flight.overlapping(spans[0].first, spans[-1].last):
            if left <= 0:
                break
            if found.member is not None:
                continue
            first, last = max(found.first, spans[0].first), min(found.last, spans[-1].last)
            size = last - first + 1
            isolated = found.count >= isolated_from
            if isolated:
                # One bad record must not take all that were delivered with it along: give out less and less at once.
                if taken:
                    return 0
                halvings = found.count - isolated_from + 1
                size = 1 if found.count >= delivery_limit - 1 else max(size >> halvings, 1)
            if strict:
                size = min(size, left)
            (run,) = flight.within(first, first + size - 1)
            flight.hold(run, member, until_ms)
            prior, run.count = run.count, min(run.count + 1, max(delivery_limit, run.count))
            self.progress.note_delivered(range(run.first, run.last + 1), [run.count - 1] * len(run))
            assert run.count >= prior
            taken.append(Acquired(run.first, run.last, run.count))
            left -= size
            if isolated:
                return 0
        return left

    def _acquire_new(
        self,
        member: str,
        spans: Sequence[Span],
        room: int,
        batch_records: int,
        strict: bool,
        until_ms: float,
        taken: list[Acquired],
    ) -> None:
        """Give out what never was, and be done with the gaps in it."""
        progress = self.progress
        run: Run | None = None
        for span in spans:
            end = self.end
            if span.last < end:
                continue
            if room <= 0:
                break
            first, last = max(span.first, end), span.last
            if first > end:
                self._settle_new(end, first - 1)
                run = None
            if not span.has_data:
                self._settle_new(first, last)
                run = None
                continue
            if strict:
                last = min(last, first + room - 1)
            progress.note_delivered(range(first, last + 1), None)
            if run is not None and len(run) < batch_records:
                run.last = last
                taken[-1] = Acquired(run.first, last, 1)
            else:
                run = Run(first, last, 1, member, until_ms)
                self.in_flight.add(run)
                taken.append(Acquired(first, last, 1))
            room -= last - first + 1

    def _settle_new(self, first: int, last: int) -> None:
        self.progress.settle(range(first, last + 1))
        self.progress.delivered_to = max(self.progress.delivered_to, last + 1)

    # -- taking back -------------------------------------------------------------------------------------------------

    def acknowledge(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        *,
        delivery_limit: int,
        renewable: bool,
        until_ms: float,
    ) -> None:
        """Do what a member says of records that it holds; all of it, or nothing and an error."""
        for each in acknowledgements:
            self._check(member, each, renewable)
        could_give = self._given_up()
        for first, last, types in acknowledgements:
            if len(types) == 1:
                self._settle(first, last, types[0], delivery_limit, until_ms)
                continue
            offset = first
            for kind, same in groupby(types):
                count = sum(1 for _ in same)
                self._settle(offset, offset + count - 1, kind, delivery_limit, until_ms)
                offset += count
        if self._given_up() != could_give:
            self._wake()

    def _given_up(self) -> tuple[int, int]:
        """What changes when there is something to have that there was not: records that are free, and the head."""
        return self.in_flight.free, self.head

    def _check(self, member: str, acknowledgement: Acknowledgement, renewable: bool) -> None:
        first, last, types = acknowledgement
        if last < first or first < 0:
            raise InvalidAcknowledgement(f"offsets {first} to {last}")
        if len(types) != 1 and len(types) != last - first + 1:
            raise InvalidAcknowledgement(f"{len(types)} acknowledge types for offsets {first} to {last}")
        if not _TYPES.issuperset(types):
            raise InvalidAcknowledgement("Invalid acknowledge type")
        if last < self.head:
            return
        if last >= self.end:
            raise InvalidAcknowledgement("Batch record not found. The last offset in request is past acquired records.")
        if AcknowledgeType.RENEW in types and not renewable:
            raise RecordNotHeld("Renewing acquisition locks is not enabled for the group.")
        expected = max(first, self.head)
        for run in self.in_flight.overlapping(expected, last):
            if run.first > expected:
                break
            if run.member != member:
                what = "is not acquired" if run.member is None else "is acquired by another member"
                raise RecordNotHeld(f"The offset {expected} cannot be acknowledged: it {what}.")
            expected = run.last + 1
        if expected <= last:
            raise RecordNotHeld(f"The offset {expected} cannot be acknowledged: it is not acquired.")

    def _settle(self, first: int, last: int, kind: int, delivery_limit: int, until_ms: float) -> None:
        for run in self.in_flight.within(max(first, self.head), last):
            if kind == AcknowledgeType.RENEW:
                run.until_ms = until_ms
            elif kind == AcknowledgeType.RELEASE:
                self._release(run, delivery_limit)
            else:
                self._done_with(run)

    def _done_with(self, run: Run) -> None:
        self.in_flight.remove(run)
        self.progress.settle(range(run.first, run.last + 1))

    def _release(self, run: Run, delivery_limit: int) -> None:
        if run.count >= delivery_limit:
            self._done_with(run)
        else:
            self.in_flight.let_go(run)

    def release_all(self, member: str, delivery_limit: int) -> bool:
        """The member's session is over: what it holds can be had by others. True if it held anything."""
        return self._release_those([run for run in self.in_flight if run.member == member], delivery_limit)

    def release_late(self, now_ms: float, delivery_limit: int) -> bool:
        """Take back what was held too long. True if there was anything."""
        late = [run for run in self.in_flight if run.member is not None and run.until_ms <= now_ms]
        return self._release_those(late, delivery_limit)

    def _release_those(self, runs: Sequence[Run], delivery_limit: int) -> bool:
        for run in runs:
            self._release(run, delivery_limit)
        if runs:
            self._wake()
        return bool(runs)

    def next_deadline_ms(self) -> float | None:
        """When the next lock ends."""
        return min((run.until_ms for run in self.in_flight if run.member is not None), default=None)

    def trim(self, start: int) -> bool:
        """The log begins here now: be done with everything before. True if that changed anything."""
        if start <= self.head:
            return False
        flight = self.in_flight
        for run in flight.within(self.head, start - 1):
            flight.remove(run)
        self.progress.settled.settle_before(start)
        self.progress.delivered_to = max(self.progress.delivered_to, start)
        self._wake()
        return True


_TYPES = frozenset(int(kind) for kind in AcknowledgeType)
