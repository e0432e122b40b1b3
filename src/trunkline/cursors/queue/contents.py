"""What is in a queue: the state of every offset, and what it takes in memory.

Every offset from the head to the end of the partition is in exactly one of these states:

    settled     acknowledged, dropped or dead-lettered (see settled); also offsets that hold no message: transaction
                markers, aborted records, what compaction removed
    leased      with a consumer (see leases)
    ready       else (see ready): the next ones are in memory, in line, the rest is only in the log

Beside them, messages that were appended and have no place yet are under way (see backing): counted, and dealt to nobody.

Here is how an offset goes from one state to the next; who gets a message, when and why is the cursor's. What changes is noted
for the journal in the same step. `QueueRuntime.held_bytes` knows what the contents of all queues take in memory: it is set
right by `account`, which whoever changes the contents calls once at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import cast

from trunkline.cursors.queue.backing import Backing
from trunkline.cursors.queue.errors import SelectorRefused
from trunkline.cursors.queue.journal import QueueJournal
from trunkline.cursors.queue.leases import Leases
from trunkline.cursors.queue.line import Taken, size_of
from trunkline.cursors.queue.message import Delivery, Lessor, Message
from trunkline.cursors.queue.owner import EXPIRED, QueueOwner
from trunkline.cursors.queue.progress import Progress
from trunkline.cursors.queue.ready import ReadyMessages
from trunkline.cursors.queue.restored import RestoredQueue
from trunkline.cursors.queue.runtime import QueueRuntime
from trunkline.cursors.queue.selection import Selection
from trunkline.cursors.queue.selective_line import Lane
from trunkline.cursors.queue.selector import Selector
from trunkline.cursors.queue.settings import Overflow, QueueSettings
from trunkline.log.store import Durability, TopicInfo
from trunkline.log.ticket import Ticket

_logger = logging.getLogger(__name__)

_MESSAGE_OVERHEAD_BYTES = 200  # of a message in memory, beside its body
_LEASE_OVERHEAD_BYTES = 250
_UNLIMITED = 1 << 62

_make_delivery = cast("Callable[[tuple[object, ...]], Delivery]", partial(tuple.__new__, Delivery))


class Contents:
    __slots__ = (
        "_accounted_bytes", "_backing", "_journal", "_lessor", "_limits", "_owner", "_runtime", "_settings", "acknowledged",
        "dead_lettered", "delivered", "floor", "leases", "line", "progress", "published", "ready", "redelivered", "selection", "settled",
    )  # fmt: skip

    def __init__(
        self,
        lessor: Lessor,
        owner: QueueOwner,
        queue_id: str,
        topic: TopicInfo,
        settings: QueueSettings,
        runtime: QueueRuntime,
        backing: Backing,
        journal: QueueJournal | None,
        restored: RestoredQueue | None,
        *,
        refresh: Callable[[], bool],
        loaded: Callable[[bool], None],
    ) -> None:
        """`lessor` is the queue that consumers know. For `refresh` and `loaded` see ReadyMessages."""
        self._lessor = lessor
        self._owner = owner
        self._settings = settings
        self._runtime = runtime
        self._limits = runtime.limits
        self._backing = backing
        self._journal = journal
        self._accounted_bytes = 0
        self.published = self.delivered = self.redelivered = self.acknowledged = self.dead_lettered = 0
        self.floor: Callable[[], int] | None = None  # nothing from this offset on is trimmed, settled or not
        self.leases = Leases()
        bounds = backing.bounds()
        in_order = settings.max_priority is None and not settings.order_by_key
        self.progress = Progress(queue_id, topic.id, bounds.log_start_offset, in_order=in_order)
        self.settled = self.progress.settled
        if restored is not None:
            self._restore(queue_id, restored, bounds.log_start_offset, bounds.high_watermark)
        self.ready = ReadyMessages(
            backing.tp,
            settings,
            runtime,
            self.progress,
            self.leases,
            end=bounds.last_stable_offset,
            refresh=refresh,
            loaded=loaded,
        )
        self.line = self.ready.line
        self.selection: Selection | None = None

    def _restore(self, queue_id: str, restored: RestoredQueue, start: int, end: int) -> None:
        if self.progress.restore(restored, start, end) and self._journal is not None:
            _logger.warning(
                "the log of queue %s ends at %d, before its state: the state is cut back", self._lessor.name, end
            )
            self._journal.write(self.progress.changes(), Durability.DISK)
        if restored.committed and self._journal is not None:
            self._journal.write(self.progress.changes() + restored.committed_keys(queue_id), Durability.OS)

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def ready_count(self) -> int:
        """Of all that is ready, or will be when it has its place."""
        under_way = self._backing.under_way
        if not under_way:
            return self.ready.count
        limit = self._settings.max_length
        if limit is not None and self._settings.overflow is Overflow.DROP_HEAD:  # they will push out as many
            return max(min(self.ready.count + under_way, limit), self.ready.count)
        return self.ready.count + under_way

    @property
    def ready_bytes(self) -> int:
        return self.ready.size_bytes + self._backing.under_way_bytes

    @property
    def may_lease(self) -> bool:
        limits, leases = self._limits, self.leases
        return len(leases) < limits.max_leases and leases.size_bytes < limits.max_leased_bytes

    def room_for(self, messages: Sequence[Message]) -> int:
        """How many of the messages fit. As in RabbitMQ a queue is full when it has reached its maximum, not before."""
        ready, size = self.ready_count, self.ready_bytes
        max_length = self._settings.max_length if self._settings.max_length is not None else _UNLIMITED
        max_bytes = self._settings.max_bytes if self._settings.max_bytes is not None else _UNLIMITED
        for number, message in enumerate(messages):
            if ready >= max_length or size + len(message.value) > max_bytes:
                return number
            ready += 1
            size += len(message.value)
        return len(messages)

    @property
    def in_excess(self) -> bool:
        """Whether there is more than the queue may hold."""
        max_length, max_bytes = self._settings.max_length, self._settings.max_bytes
        return (max_length is not None and self.ready_count > max_length) or (
            max_bytes is not None and self.ready_bytes > max_bytes
        )

    def account(self) -> None:
        held = (
            self.line.size_bytes
            + self.line.count * _MESSAGE_OVERHEAD_BYTES
            + self.leases.size_bytes
            + len(self.leases) * _LEASE_OVERHEAD_BYTES
            + self._backing.under_way_bytes
        )
        self._runtime.held_bytes += held - self._accounted_bytes
        self._accounted_bytes = held

    # -- selective consumers -----------------------------------------------------------------------------------------

    def select(self, selector: Selector, found: Callable[[], None]) -> Lane:
        """The lane of a selector, for one more who uses it. For `found` see Selection."""
        selection = self.selection
        if selection is None:
            if self._settings.order_by_key:
                raise SelectorRefused(f"queue {self._lessor.name!r} is ordered by key and takes no filters")
            selection = self.selection = Selection(
                selector, self._settings.max_priority, self.ready, self._backing, self._runtime, found
            )
            self.ready.select(selection.line)
            self.line = selection.line
        return selection.line.enter_lane(selector)

    def unselect(self) -> None:
        """If nobody selects any more and nothing is in line, be as simple as any other queue."""
        if self.selection is not None and not self.selection.line.in_use and self.ready.unselect():
            self.selection = None
            self.line = self.ready.line

    # -- under way ---------------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[Message], now_ms: int, durability: Durability) -> Ticket:
        """Append messages. The queue hears of their place from its backing."""
        size = size_of(messages)
        count = len(messages)
        stored = self._backing.append(messages, size, now_ms, durability, self.ready.end)
        if self._backing.under_way:
            self.account()
        self.published += count
        progress = self.progress
        progress.mean_bytes = (progress.mean_bytes * 7 + size // count) // 8 if progress.mean_bytes else size // count
        return stored

    def refused(self, count: int) -> None:
        """Messages that were under way are not in the log."""
        self.published -= count
        self.account()

    # -- leased ------------------------------------------------------------------------------------------------------

    def lease(self, taken: Taken, consumer: object, *, selected: bool = False) -> list[Delivery]:
        """To a consumer, until the leases are ended. `selected`: they may be out of their turn."""
        deliveries = self._delivered(taken, consumer)
        self.leases.add(taken.offsets, deliveries, taken.size_bytes)
        if selected:
            self.progress.note_selected(taken.offsets, taken.priors)
        else:
            self.progress.note_delivered(taken.offsets, taken.priors)
        self.touch()
        self.account()
        return deliveries

    def give_away(self, taken: Taken, consumer: object) -> list[Delivery]:
        """To a consumer who will not acknowledge: they are settled at once."""
        deliveries = self._delivered(taken, consumer)
        if self._settings.order_by_key:
            for delivery in deliveries:
                self.line.ended(delivery)
        self.acknowledged += len(deliveries)
        self.settle(taken.offsets)
        self.account()
        return deliveries

    def _delivered(self, taken: Taken, consumer: object) -> list[Delivery]:
        priors = taken.priors
        lessor = self._lessor
        self.delivered += len(taken)
        if priors is None:
            fields = zip(
                taken.offsets, taken.messages, repeat(False), repeat(1), repeat(lessor), repeat(consumer), strict=False
            )
            return list(map(_make_delivery, fields))
        self.redelivered += sum([prior > 0 for prior in priors])
        return [
            Delivery(offset, message, prior > 0, prior + 1, lessor, consumer)
            for offset, message, prior in zip(taken.offsets, taken.messages, priors, strict=True)
        ]

    def end_leases(self, offsets: Iterable[int]) -> list[Delivery]:
        """Those of the offsets that were leased. The caller settles them or puts them back."""
        found = self.leases.end(offsets)
        if self._settings.order_by_key:
            for delivery in found:
                self.line.ended(delivery)
        return found

    def put_back(self, delivery: Delivery, *, seen: bool) -> None:
        """Ready again, in its place. `seen` False: it does not count as delivered."""
        offset, message, _, count, _, _ = delivery
        if not seen:
            count -= 1
            self.progress.set_prior(offset, count)
        self.ready.put_back(offset, message, count)

    # -- settled -----------------------------------------------------------------------------------------------------

    def settle(self, offsets: Sequence[int]) -> None:
        self.progress.settle(offsets)
        self.touch()
        self._trim()

    def discard(self, offset: int, delivery_count: int) -> bool:
        """Settle a message that is ready, if it has been delivered just so often."""
        if self.progress.prior(offset) != delivery_count or not self.ready.discard(offset):
            return False
        self.acknowledged += 1
        self.settle((offset,))
        return True

    def change(self, settings: QueueSettings) -> None:
        self._settings = settings
        self.ready.change(settings)

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Hand a message to whoever takes dead letters, if anybody does. The caller settles it."""
        if self._settings.dead_letter is not None and not (self._settings.drop_expired and reason == EXPIRED):
            self.dead_lettered += 1
            try:
                self._owner.dead_letter(delivery, reason)
            except Exception:
                _logger.exception("a message of queue %s was lost on its way to the dead letters", self._lessor.name)

    def dead_letter_first(self, reason: str) -> None:
        """Settle the first message in line."""
        offset, message, prior = self.line.drop_first()
        self.dead_letter(Delivery(offset, message, prior > 0, prior, self._lessor, None), reason)
        self.settle((offset,))

    def dead_letter_of(self, taken: Taken, numbers: Sequence[int], consumer: object, reason: str) -> Taken | None:
        """Settle these of the messages that were taken for a consumer; the rest, or None when there is none."""
        for number in numbers:
            prior = 0 if taken.priors is None else taken.priors[number]
            delivery = Delivery(taken.offsets[number], taken.messages[number], prior > 0, prior, self._lessor, consumer)
            self.line.ended(delivery)
            self.dead_letter(delivery, reason)
        self.settle([taken.offsets[number] for number in numbers])
        gone = set(numbers)
        kept = [number for number in range(len(taken)) if number not in gone]
        return taken.picked(kept) if kept else None

    def skip_to(self, start: int) -> None:
        """Records before `start` were removed by retention or on a client's wish."""
        self.end_leases([offset for offset in self.leases.held if offset < start])
        self.settled.settle_before(start)
        self._reread_from(self.settled.head)
        self.account()
        self.touch()

    def purge(self) -> int:
        """Settle all that is ready; returns how many."""
        count = self.ready_count
        end = self.ready.end
        self.progress.purge(end, sorted(offset for offset in self.leases.held if offset < end))
        self._reread_from(end)
        self.account()
        self.touch()
        self._trim()
        return count

    def _reread_from(self, offset: int) -> None:
        self.ready.reread_from(offset)
        if self.selection is not None:
            self.selection.begin_again()

    async def peek(self, start: int | None, count: int) -> list[Delivery]:
        """Ready messages from an offset on (None: the oldest), without taking them, in the order of the log."""
        found: list[Delivery] = []
        position = max(self.settled.head, start or 0)
        while len(found) < count and position < max(self.ready.end, self.ready.placed_to) and not self._lessor.gone:
            offsets, messages, end = await self._backing.read(position)
            for offset, message in zip(offsets, messages, strict=True):
                if offset in self.settled or offset in self.leases:
                    continue
                prior = self.progress.prior(offset)
                found.append(Delivery(offset, message, prior > 0, prior, self._lessor, None))
                if len(found) == count:
                    break
            if end == position:
                break
            position = end
        return found

    # -- on disk -----------------------------------------------------------------------------------------------------

    def touch(self) -> None:
        if self._journal is not None:
            self._journal.touch(self.progress)

    def _trim(self) -> None:
        if not self._settings.retain:
            self._backing.trim(self._head, self.progress.mean_bytes)

    def _head(self) -> int:
        head = self.settled.head
        return head if self.floor is None else min(head, self.floor())

    def close(self) -> None:
        """The queue serves nobody any more; what the journal was not given yet it may still get."""
        self.progress.gone = True
        self._backing.close()

    def clear(self) -> None:
        """The queue is deleted: let go of everything."""
        if self._journal is not None:
            self._journal.forget(self.progress)
        self.leases.clear()
        self.ready.reread_from(self.ready.end)
        self.account()
