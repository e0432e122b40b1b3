"""How far a queue has come: what is settled, what was delivered and how often. What the journal keeps of a queue.

For a queue in order, that messages were delivered is one offset (`delivered_to`); counts are kept of those delivered more than
once. A queue with priorities or keys delivers out of order and keeps a count of every message that is with a consumer; so does
any queue of what it delivers to selective consumers.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from uuid import UUID

from trunkline.cursors.queue import state
from trunkline.cursors.queue.delivery_counts import DeliveryCounts
from trunkline.cursors.queue.journal import StateRecord
from trunkline.cursors.queue.restored import RestoredQueue
from trunkline.cursors.queue.settled import CHUNK_BITS, SettledOffsets


class Progress:
    def __init__(self, queue_id: str, topic_id: UUID, start: int, *, in_order: bool) -> None:
        self._queue_id = queue_id
        self._topic_id = topic_id
        self._in_order = in_order
        self.gone = False  # the queue serves nobody any more
        self.settled = SettledOffsets(start)
        self.delivered_to = start
        self.mean_bytes = 0  # of a message's body, lately
        self._counts = DeliveryCounts()
        self._written: set[int] = set()  # chunks that have a record
        self._removing: set[int] = set()  # chunks whose tombstones the journal was given last

    def restore(self, restored: RestoredQueue, start: int, end: int) -> bool:
        """Go on where the journal says, within the bounds of the log. True if the log ends before the state does."""
        settled = self.settled
        self._written = set(restored.chunks)
        head = restored.head
        if head is None or head.topic_id != self._topic_id:
            settled.touched |= self._written
            return False
        settled.head = head.head
        for number, chunk in restored.chunks.items():
            if chunk.bits:
                settled.chunks[number] = chunk.bits
            self._counts.restore(number, chunk.counts)
        settled.recount()
        lost = settled.cut(end) or head.delivered_to > end
        settled.settle_before(start)
        for committed in restored.committed.values():
            if committed.topic_id == self._topic_id:
                settled.settle(sorted(o for o in set(committed.offsets) if o < end and o not in settled))
        self.delivered_to = min(head.delivered_to, end)
        self.mean_bytes = head.mean_bytes
        if lost:
            self._counts.cut(end)
            settled.touched |= self._written
        return lost

    def committed(self, number: int, offsets: Sequence[int]) -> StateRecord:
        """The record of what a transaction settles, for it to be written with the transaction's messages."""
        committed = state.Committed(self._topic_id, tuple(offsets))
        return state.encode_key(state.COMMITTED, self._queue_id, number), state.encode_committed(committed)

    def settle(self, offsets: Sequence[int]) -> None:
        self.settled.settle(offsets)
        if self._counts:
            self._counts.remove(offsets)

    def purge(self, end: int, kept: Sequence[int]) -> None:
        """Settle everything before `end` but these, ascending."""
        settled = self.settled
        position = settled.head
        for offset in [*kept, end]:
            if not kept:
                settled.settle_before(end)
                break
            for first, count in list(settled.unsettled(position, offset)):
                settled.settle_run(first, count)
            position = offset + 1
        self.keep_counts(frozenset(kept))

    def keep_counts(self, offsets: Container[int]) -> None:
        self._counts.keep(offsets)

    def note_delivered(self, offsets: Sequence[int], priors: Sequence[int] | None) -> None:
        """What must survive a crash: that these were delivered, and how often."""
        counts = self._counts
        if self._in_order:
            self.delivered_to = max(self.delivered_to, offsets[-1] + 1)
            if priors is not None:
                for offset, prior in zip(offsets, priors, strict=True):
                    if prior or offset in counts:
                        counts.set(offset, prior + 1)
        else:
            self.note_selected(offsets, priors)

    def note_selected(self, offsets: Sequence[int], priors: Sequence[int] | None) -> None:
        """The same of messages that were delivered out of their turn: those before them were not."""
        for number, offset in enumerate(offsets):
            self._counts.set(offset, 1 if priors is None else priors[number] + 1)

    def set_prior(self, offset: int, count: int) -> None:
        self._counts.set(offset, count)

    def prior(self, offset: int) -> int:
        """How often the message was delivered."""
        return self._counts.get(offset, 1 if offset < self.delivered_to and self._in_order else 0)

    def priors(self, offsets: Sequence[int]) -> Sequence[int] | None:
        """The same of several, ascending; None: none of them ever was."""
        if not self._counts and (not self._in_order or offsets[0] >= self.delivered_to):
            return None
        return [self.prior(offset) for offset in offsets]

    # -- for the journal ---------------------------------------------------------------------------------------------

    def changes(self) -> list[StateRecord]:
        settled, counts = self.settled, self._counts
        head = state.Head(self._topic_id, settled.head, max(self.delivered_to, settled.head), self.mean_bytes)
        records: list[StateRecord] = [(state.encode_key(state.HEAD, self._queue_id), state.encode_head(head))]
        counts.forget_before(settled.head)
        self._removing = set()
        for number in settled.touched | counts.touched:
            bits = settled.chunks.get(number, 0) if (number + 1) << CHUNK_BITS > settled.head else 0
            chunk = state.Chunk(bits, counts.of_chunk(number))
            if bits or chunk.counts:
                self._written.add(number)
                records.append((state.encode_key(state.CHUNK, self._queue_id, number), state.encode_chunk(chunk)))
            elif number in self._written:
                self._written.discard(number)
                self._removing.add(number)
                records.append((state.encode_key(state.CHUNK, self._queue_id, number), None))
        if settled.touched or counts.touched:
            settled.touched = set()
            counts.touched = set()
        return records

    def unwritten(self) -> None:
        """The last changes could not be written; say them again."""
        self._written |= self._removing
        self.settled.touched |= self._written | set(self.settled.chunks)
        self._counts.touched |= set(self._counts.chunks())

    def tombstones(self) -> list[StateRecord]:
        """What removes the queue from the journal."""
        records: list[StateRecord] = [(state.encode_key(state.HEAD, self._queue_id), None)]
        records += [(state.encode_key(state.CHUNK, self._queue_id, number), None) for number in self._written]
        return records
