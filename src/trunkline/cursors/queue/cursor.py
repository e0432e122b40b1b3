"""The queue cursor: a record leased to one consumer, then acknowledged, released or dead-lettered.

Protocol-neutral, and on LogStore alone. A queue is a topic of one partition and this. What is in it, and in which state, is
its contents (see contents); here is what is done with them and when: put, dealt to consumers, settled, expired, dropped.

The log is the truth and memory is bounded (see limits). Opening a queue of ten million messages reads nothing but its state
records. Priorities and keys look ahead `buffer_messages` into a backlog; within a priority, order is that of offsets.

A publication is taken over when its append has a place, from memory if it continues what the cursor knows, else from the
log; until then it is under way: counted, and dealt to nobody. What others append to the topic is noticed by `store.watch`, and
taken over once nothing is under way before it, so that nothing counts twice. An open Kafka transaction holds back what follows it.

Time: a message expires when its own time or the queue's is over (see lifetimes), and is dead-lettered when it comes to the front of the line, by
itself or through a consumer. Leases with a deadline are released when it passes.

After `kill -9`, messages whose settlement the journal wrote stay settled; all others come again, in order, and those that had
been handed out are marked redelivered: the journal is written before consumers are called. When power loss cut the log back
before the head, the state is cut back with it, at once and on disk, because offsets will be used again.

Limits: `ready_bytes` is an estimate for what was in the backlog at the start; a foreign append is counted as so many messages
before transaction markers in it are seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from trunkline.cursors.queue.backing import Backing
from trunkline.cursors.queue.consumers import Consumers, QueueConsumer
from trunkline.cursors.queue.contents import Contents
from trunkline.cursors.queue.errors import QueueFull, QueueGone
from trunkline.cursors.queue.journal import StateRecord
from trunkline.cursors.queue.lifetimes import FOREVER_MS, Lifetimes
from trunkline.cursors.queue.line import Taken
from trunkline.cursors.queue.message import Delivery, Message, QueueStats
from trunkline.cursors.queue.owner import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, UNDELIVERABLE, QueueOwner
from trunkline.cursors.queue.restored import RestoredQueue
from trunkline.cursors.queue.runtime import Handout, QueueRuntime
from trunkline.cursors.queue.schedule import Schedule, ScheduledMessage, Scheduling
from trunkline.cursors.queue.selective_line import Lane
from trunkline.cursors.queue.selector import Selector
from trunkline.cursors.queue.settings import Overflow, QueueSettings
from trunkline.log.store import Durability, TopicInfo
from trunkline.log.ticket import Appended, Ticket

_logger = logging.getLogger(__name__)

_UNLIMITED = 1 << 62
_RETRY_MS = 1_000  # after a failed read


class QueueCursor:
    # A broker has tens of thousands of these, and an instance with a dictionary of thirty names takes a kilobyte more.
    __slots__ = (
        "_backing", "_clock", "_contents", "_journal", "_leases", "_lifetimes", "_limits", "_line", "_owner", "_ready",
        "_runtime", "_schedule", "_undeliverable", "_withheld", "consumers", "deleted", "durable", "gone", "last_used_ms",
        "name", "settings", "topic",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: str,
        name: str,
        topic: TopicInfo,
        settings: QueueSettings,
        runtime: QueueRuntime,
        owner: QueueOwner,
        *,
        durable: bool = True,
        restored: RestoredQueue | None = None,
    ) -> None:
        """Open a queue on a topic of one partition. `restored` is what the journal knows of it."""
        self.name = name
        self.topic = topic.name
        self.settings = settings
        self.durable = durable
        self.gone = False
        self.deleted = False  # gone on somebody's wish, and its messages with it
        self.last_used_ms = runtime.clock.monotonic_ms()
        self._runtime = runtime
        self._owner = owner
        self._clock = runtime.clock
        self._limits = runtime.limits
        self._journal = runtime.journal if durable else None
        self.consumers = Consumers(name, single_active=settings.single_active_consumer, by_key=settings.order_by_key)
        self._lifetimes = Lifetimes(self._clock, settings.message_ttl_ms)
        self._schedule = Schedule(
            queue_id,
            self._journal,
            self._limits,
            self._clock.wall_ms() << 16,
            put=self.put,
            refused_is_done=settings.overflow is Overflow.REJECT_PUBLISH_DLX,
            arm=self._arm,
        )
        if restored is not None:
            for number, (due_ms, offset) in restored.scheduled.items():
                self._schedule.restore(number, due_ms, offset)
        self._withheld = False  # there is more in the log than was taken over
        self._undeliverable = 0
        self._backing = Backing(
            topic,
            runtime,
            placed=self._on_placed,
            refused=self._on_refused,
            appended=self._on_append,
            failed=self._cannot_write,
        )
        self._contents = Contents(
            self,
            owner,
            queue_id,
            topic,
            settings,
            runtime,
            self._backing,
            self._journal,
            restored,
            refresh=self._refresh,
            loaded=self._loaded,
        )
        self._ready = self._contents.ready
        self._line = self._contents.line
        self._leases = self._contents.leases
        self._arm()

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return self._contents.ready_count

    @property
    def unacked(self) -> int:
        return len(self._leases)

    @property
    def ready_bytes(self) -> int:
        return self._contents.ready_bytes

    @property
    def loaded(self) -> int:
        """Ready messages that are in memory."""
        return self._line.count

    def stats(self) -> QueueStats:
        contents = self._contents
        return QueueStats(
            ready=self.ready,
            unacked=len(self._leases),
            delayed=len(self._schedule),
            consumers=len(self.consumers),
            ready_bytes=self.ready_bytes,
            unacked_bytes=self._leases.size_bytes,
            buffered_bytes=self._line.size_bytes,
            head_offset=contents.settled.head,
            end_offset=self._ready.end,
            published=contents.published,
            delivered=contents.delivered,
            redelivered=contents.redelivered,
            acknowledged=contents.acknowledged,
            dead_lettered=contents.dead_lettered,
        )

    # -- put ---------------------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[Message], durability: Durability = Durability.OS) -> Ticket:
        """Append messages, all in one write; they are deliverable once they have a place. QueueFull says how many were taken."""
        if self.gone:
            raise QueueGone(f"queue {self.name!r} was deleted")
        settings = self.settings
        if settings.overflow is not Overflow.DROP_HEAD and (
            settings.max_length is not None or settings.max_bytes is not None
        ):
            room = self._contents.room_for(messages)
            if room < len(messages):
                stored = self._contents.append(messages[:room], self._clock.wall_ms(), durability) if room else None
                if settings.overflow is Overflow.REJECT_PUBLISH_DLX:
                    for message in messages[room:]:
                        self._contents.dead_letter(Delivery(-1, message, False, 0, self, None), MAXLEN)
                raise QueueFull(self.name, room, stored)
        return self._contents.append(messages, self._clock.wall_ms(), durability)

    def _on_placed(self, base: int, messages: Sequence[Message], size: int, now_ms: int) -> None:
        """Messages that we appended have their place."""
        ready, settings = self._ready, self.settings
        awaited = len(self.consumers) > 0
        if awaited:
            self._lifetimes.awaited(messages[0].timestamp_ms)
        if base == ready.end:
            ready.enter(base, list(messages), size, now_ms, awaited=awaited)
            self._contents.account()
            if settings.max_length is not None or settings.max_bytes is not None:
                self._drop_excess()
            if ready.expiring:
                self._arm()
        else:
            ready.note(base + len(messages))
            self._refresh()  # somebody's transaction is open, or an append of somebody else was not seen yet
        if awaited or self._withheld:
            self._runtime.wake(self)

    def _on_refused(self, count: int) -> None:
        self._contents.refused(count)
        if self._withheld:
            self._runtime.wake(self)

    # -- the log -----------------------------------------------------------------------------------------------------

    def _on_append(self) -> None:
        if not self.gone:
            self._runtime.wake(self)

    def _cannot_write(self) -> None:
        """Offsets were given out that the log does not have. As in RabbitMQ, a queue that fails is gone."""
        self._end("its messages cannot be written")
        self.deleted = False

    def _refresh(self) -> bool:
        """Take over what others did to the partition: appended, committed, trimmed. False: the topic was deleted."""
        if self.gone:
            return False
        if not self._backing.there:
            self._end("the topic was deleted")
            return False
        bounds = self._backing.bounds()
        end = bounds.last_stable_offset
        # While messages of ours are under way, what is new beyond the last place may be them.
        self._withheld = self._backing.under_way > 0 and end > self._ready.placed_to
        self._ready.extend_to(self._ready.placed_to if self._withheld else end)
        if bounds.log_start_offset > self._contents.settled.head:
            self._contents.skip_to(bounds.log_start_offset)
            self._runtime.wake(self)
        return True

    async def load(self, selector: Selector | None = None) -> bool:
        """Read the backlog until something can be acquired; False when nothing can, read or not."""
        if selector is not None:
            return await self._load_selected(selector)
        while not await self._ready.load():
            if not self._backing.under_way:
                return False
            await self._backing.all_placed()
        return self._contents.may_lease

    async def catch_up(self, placed_to: int) -> None:
        """Take over what was stored before this offset. If there is room in memory it is read: then `ready` counts no
        transaction markers or aborted records there."""
        self._ready.note(placed_to)
        await self._ready.catch_up()

    def _loaded(self, done: bool) -> None:
        """A read of the backlog has ended."""
        if self.gone:
            return
        if not done:
            self._runtime.arm(self, self._clock.monotonic_ms() + _RETRY_MS)
            return
        self._contents.account()
        self._contents.touch()  # it may have met offsets without a message
        self._drop_excess()
        if self._ready.expiring:
            self._arm()
        self._runtime.wake(self)

    # -- acquire -----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        max_messages: int,
        max_bytes: int = _UNLIMITED,
        consumer: object = None,
        lease_ms: int | None = None,
        *,
        no_ack: bool = False,
        selector: Selector | None = None,
    ) -> list[Delivery]:
        """Lease what is next in line; never waits. Empty with messages ready: they must be read first, see `load`."""
        self.last_used_ms = self._clock.monotonic_ms()
        if selector is not None:
            return self._acquire_selected(selector, max_messages, max_bytes, consumer, lease_ms, no_ack=no_ack)
        deliveries = self.acquire_in_turn(max_messages, max_bytes, consumer, lease_ms, no_ack=no_ack)
        if deliveries and self._journal is not None:
            self._journal.flush()
        return deliveries

    def acquire_in_turn(
        self,
        max_messages: int,
        max_bytes: int = _UNLIMITED,
        consumer: object = None,
        lease_ms: int | None = None,
        *,
        no_ack: bool = False,
    ) -> list[Delivery]:
        """The same for who shows the messages to a consumer in the output of this turn, and not before.

        The journal notes what was delivered once for all who do so.
        """
        taken = self._take(max_messages, max_bytes, consumer) if self._line.count and self._ready.in_order else None
        self._start_load()
        return [] if taken is None else self._lease(taken, consumer, lease_ms, no_ack=no_ack)

    def _take(self, limit: int, max_bytes: int, consumer: object) -> Taken | None:
        if not self._contents.may_lease:
            return None
        limit = min(limit, self._limits.max_leases - len(self._leases))
        while True:
            taken = self._line.take(limit, max_bytes, consumer)
            if taken is None or not self._ready.expiring:
                return taken
            live = self._without_expired(taken, consumer)
            if live is not None:
                return live

    def _without_expired(self, taken: Taken, consumer: object) -> Taken | None:
        """Dead-letter those of the messages whose time is over; the rest, or None when there is none."""
        dead = self._lifetimes.expired(taken.messages)
        return self._contents.dead_letter_of(taken, dead, consumer, EXPIRED) if dead else taken

    def _lease(
        self, taken: Taken, consumer: object, lease_ms: int | None, *, no_ack: bool, selected: bool = False
    ) -> list[Delivery]:
        if no_ack:
            return self._contents.give_away(taken, consumer)
        deliveries = self._contents.lease(taken, consumer, selected=selected)
        deadline_ms = lease_ms if lease_ms is not None else self.settings.lease_ms
        if deadline_ms is not None:
            at_ms = self._clock.monotonic_ms() + deadline_ms
            for offset in taken.offsets:
                self._leases.set_deadline(offset, at_ms)
            self._arm()
        return deliveries

    def deal(self, handout: Handout) -> None:
        """The queue's part of a turn: choose what consumers get, and lease it to them."""
        self._lifetimes.begin_deal()
        try:
            if not self._refresh():
                return
            if self._ready.expiring:
                self._expire_first()
            if len(self.consumers):
                self._deal(handout)
            elif self._ready.expiring and not self._line.count:
                self._start_load()
            if self._contents.selection is not None:
                self._unselect()
        finally:
            self._lifetimes.end_deal()

    def _deal(self, handout: Handout) -> None:
        if not self._line.count and not self._ready.short:
            return  # before anybody is asked: a queue may have thousands of consumers who wait
        if self.consumers.selective:
            self._deal_selectively(handout)
            return
        limits = self._limits
        willing = self.consumers.willing()
        if not willing:
            return
        limit = min(limits.turn_messages, limits.max_leases - len(self._leases))
        if self._line.count and self._ready.in_order and self._contents.may_lease:
            again = False
            for registration, taken in self.consumers.deal(self._line, willing, limit, limits.turn_bytes):
                again = True
                live = self._without_expired(taken, registration.consumer) if self._ready.expiring else taken
                if live is not None:
                    deliveries = self._lease(
                        live, registration.consumer, registration.lease_ms, no_ack=registration.no_ack
                    )
                    handout.append((self, registration.consumer, deliveries))
            if again and self._line.count:
                self._runtime.wake(self)
        self._start_load()

    def _start_load(self) -> None:
        if not self.gone:
            self._ready.start_load()

    # -- selective consumers -----------------------------------------------------------------------------------------

    def _select(self, selector: Selector) -> Lane:
        lane = self._contents.select(selector, self._look_again)
        self._line = self._contents.line
        return lane

    def _leave(self, lane: Lane) -> None:
        if self._contents.selection is not None:
            self._contents.selection.line.leave_lane(lane)
            self._unselect()

    def _unselect(self) -> None:
        self._contents.unselect()
        self._line = self._contents.line

    def _look_again(self) -> None:
        """The scout has found something, or come to the end."""
        self._contents.account()
        if self._ready.expiring:
            self._arm()
        if len(self.consumers) and not self.gone:
            self._runtime.wake(self)

    def _deal_selectively(self, handout: Handout) -> None:
        selection = self._contents.selection
        assert selection is not None
        limits = self._limits
        limit = min(limits.turn_messages, limits.max_leases - len(self._leases))
        if self._ready.in_order and self._contents.may_lease:
            again = False
            for registration, taken in self.consumers.deal_selectively(selection.line, limit, limits.turn_bytes):
                again = True
                live = self._without_expired(taken, registration.consumer) if self._ready.expiring else taken
                if live is not None:
                    selected = registration.lane is not None
                    deliveries = self._lease(
                        live,
                        registration.consumer,
                        registration.lease_ms,
                        no_ack=registration.no_ack,
                        selected=selected,
                    )
                    handout.append((self, registration.consumer, deliveries))
            if again and self._line.count:
                self._runtime.wake(self)
        self._start_load()
        selection.start_scout()

    def _acquire_selected(
        self,
        selector: Selector,
        max_messages: int,
        max_bytes: int,
        consumer: object,
        lease_ms: int | None,
        *,
        no_ack: bool,
    ) -> list[Delivery]:
        lane = self._select(selector)
        try:
            selection = self._contents.selection
            assert selection is not None
            limit = min(max_messages, self._limits.max_leases - len(self._leases))
            live = taken = None
            while live is None and self._ready.in_order and self._contents.may_lease:
                taken = selection.line.take_from(lane, limit, max_bytes)
                if taken is None:
                    break
                live = self._without_expired(taken, consumer) if self._ready.expiring else taken
            if live is None:
                return []
            deliveries = self._lease(live, consumer, lease_ms, no_ack=no_ack, selected=True)
        finally:
            self._leave(lane)
        if self._journal is not None:
            self._journal.flush()
        return deliveries

    def look(self, selector: Selector) -> Delivery | None:
        """The first message that a selector matches, without taking it; never waits, see `acquire`. Nobody holds it."""
        lane = self._select(selector)
        try:
            selection = self._contents.selection
            assert selection is not None
            while (found := selection.line.look(lane)) is not None:
                offset, message = found
                if not self._ready.expiring or self._lifetimes.last_ms(message) >= self._lifetimes.now_ms():
                    prior = self._contents.progress.prior(offset)
                    return Delivery(offset, message, prior > 0, prior, self, None)
                taken = selection.line.take_from(lane, 1, 0)
                assert taken is not None
                self._without_expired(taken, None)
                self._contents.account()
            return None
        finally:
            self._leave(lane)

    async def _load_selected(self, selector: Selector) -> bool:
        lane = self._select(selector)
        try:
            while self._refresh():
                selection = self._contents.selection
                assert selection is not None
                if not self._ready.in_order and (loading := self._ready.start_load()) is not None:
                    await asyncio.shield(loading)
                elif selection.line.look(lane) is not None:
                    return self._contents.may_lease
                elif (scouting := selection.start_scout()) is not None:
                    await asyncio.shield(scouting)
                elif self._backing.under_way:
                    await self._backing.all_placed()
                else:
                    return False
            return False
        finally:
            self._leave(lane)

    # -- settle ------------------------------------------------------------------------------------------------------

    def acknowledge(self, offsets: Iterable[int]) -> int:
        """The consumer is done with these. Offsets that are not leased (any more) are passed over; returns how many were."""
        found = self._contents.end_leases(offsets)
        if found:
            contents = self._contents
            contents.acknowledged += len(found)
            contents.settle([delivery[0] for delivery in found])
            contents.account()
            if len(self.consumers) and contents.ready_count:
                self._runtime.wake(self)
        return len(found)

    def acknowledge_up_to(self, offset: int, consumer: object) -> int:
        """Acknowledge what this consumer holds up to and including `offset`."""
        return self.acknowledge(self.held_by(consumer, offset))

    def held_by(self, consumer: object, up_to: int = _UNLIMITED) -> list[int]:
        """The offsets that are leased to a consumer, ascending."""
        return self._leases.held_by(consumer, up_to)

    def release(self, offsets: Iterable[int], *, redelivered: bool = True) -> int:
        """Back to their places in line. `redelivered` False: the consumer never saw them."""
        found = self._contents.end_leases(offsets)
        if not found:
            return 0
        limit = self.settings.delivery_limit
        worn: list[int] = []
        for delivery in found:
            if redelivered and limit is not None and delivery.delivery_count > limit:
                worn.append(delivery.offset)
                self._contents.dead_letter(delivery, DELIVERY_LIMIT)
            else:
                self._contents.put_back(delivery, seen=redelivered)
        if worn:
            self._contents.settle(worn)
        self._drop_excess()
        self._contents.account()
        if self._ready.expiring:
            self._arm()
        self._contents.touch()
        self._runtime.wake(self)
        return len(found)

    def retry(self, offsets: Iterable[int], delay_ms: int | None = None) -> int:
        """Back in line when so much time has passed; None: after the queue's own back-off.

        Until then they are leased to nobody: they count as unacknowledged, and after a crash they are ready at once.
        """
        given = list(offsets)
        at_once = [offset for offset in given if not self._defer(offset, delay_ms)]
        deferred = len(given) - len(at_once)
        if deferred:
            self._arm()
            self._runtime.wake(self)
        return deferred + (self.release(at_once) if at_once else 0)

    def _defer(self, offset: int, delay_ms: int | None) -> bool:
        delivery = self._leases.held.get(offset)
        if delivery is None:
            return False
        limit = self.settings.delivery_limit
        if limit is not None and delivery.delivery_count > limit:
            return False
        wait_ms = self.settings.backoff_after(delivery.delivery_count) if delay_ms is None else delay_ms
        if wait_ms <= 0:
            return False
        self._leases.hand_over(delivery, self._clock.monotonic_ms() + wait_ms)
        return True

    def holds(self, delivery: Delivery) -> bool:
        """Whether the lease of this very delivery lasts: the message may be another consumer's by now."""
        return self._leases.is_of(delivery)

    def keep(self, delivery: Delivery) -> bool:
        """Let the lease have no deadline any more, if it lasts: what was decided about it is on its way to the disk."""
        if not self._leases.is_of(delivery):
            return False
        self._leases.keep(delivery.offset)
        return True

    def committing(self, offsets: Sequence[int]) -> StateRecord | None:
        """What is to be written with a transaction's messages so that these are settled with it; None: nothing is kept.

        They are acknowledged as usual once it is committed, and then the record is let go with `forget_committed`.
        """
        if self._journal is None:
            return None
        return self._contents.progress.committed(self._journal.next_number(), offsets)

    def forget_committed(self, record: StateRecord) -> None:
        if self._journal is not None:
            self._journal.flush()
            self._journal.write([(record[0], None)], Durability.OS)

    def reject(self, offsets: Iterable[int], reason: str = REJECTED) -> int:
        """Give these up: dead-lettered, or dropped."""
        found = self._contents.end_leases(offsets)
        for delivery in found:
            self._contents.dead_letter(delivery, reason)
        if found:
            self._contents.settle([delivery.offset for delivery in found])
            self._contents.account()
            self._runtime.wake(self)
        return len(found)

    def is_leased(self, offset: int, delivery_count: int) -> bool:
        """Whether the message is leased, and has been delivered just so often."""
        held = self._leases.held.get(offset)
        return held is not None and held.delivery_count == delivery_count

    def was_last(self, offset: int, delivery_count: int) -> bool:
        """Whether the message has not been delivered again since, leased or not."""
        held = self._leases.held.get(offset)
        count = self._contents.progress.prior(offset) if held is None else held.delivery_count
        return count == delivery_count

    def is_settled(self, offset: int) -> bool:
        return offset in self._contents.settled

    def discard(self, offset: int, delivery_count: int) -> bool:
        """Settle a message whose lease has ended, for who had it last: False if it was delivered again, or is settled."""
        contents = self._contents
        if offset in self._leases:
            return self.is_leased(offset, delivery_count) and self.acknowledge([offset]) == 1
        if not contents.discard(offset, delivery_count):
            return False
        contents.account()
        return True

    def give_up(self, delivery: Delivery, why: object) -> None:
        """A message that can be given to nobody, for what is in it: dead-lettered, or dropped.

        The broker's log tells of the first, and then whenever their number has doubled.
        """
        self._undeliverable += 1
        if self._undeliverable & (self._undeliverable - 1) == 0:
            _logger.error(
                "queue %s: the message at offset %d cannot be delivered and is given up (number %d): %s",
                self.name,
                delivery.offset,
                self._undeliverable,
                why,
            )
        if not self.reject([delivery.offset], UNDELIVERABLE):
            # It was taken without acknowledgement, and so is settled already.
            self._contents.dead_letter(delivery, UNDELIVERABLE)

    def extend(self, offset: int, lease_ms: int) -> bool:
        """Let the lease end so long from now. 0 ends it at once; False when there is no such lease."""
        if offset not in self._leases:
            return False
        if lease_ms <= 0:
            return self.release([offset]) == 1
        self._leases.set_deadline(offset, self._clock.monotonic_ms() + lease_ms)
        self._arm()
        return True

    def committed(self) -> asyncio.Future[Appended] | None:
        """Completes when everything settled so far is on disk; None: it is, or the queue is not durable."""
        return None if self._journal is None else self._journal.commit()

    def _drop_excess(self) -> None:
        """Drop from the front of the line what is more than the queue may hold."""
        if self.settings.overflow is not Overflow.DROP_HEAD:
            return
        contents = self._contents
        while contents.in_excess and self._line.first() is not None:
            contents.dead_letter_first(MAXLEN)
        if contents.in_excess:
            self._start_load()
        contents.account()

    async def purge(self) -> int:
        """Drop every ready message; returns how many. What is leased stays leased."""
        await self._backing.all_placed()
        self._refresh()
        return self._contents.purge()

    async def peek(self, start: int | None = None, count: int = 1) -> list[Delivery]:
        """Ready messages from an offset on (None: the oldest), without taking them, in the order of the log."""
        await self._backing.all_placed()
        self._refresh()
        return await self._contents.peek(start, count)

    # -- time --------------------------------------------------------------------------------------------------------

    def _expire_first(self) -> None:
        now_ms = self._lifetimes.now_ms()
        while (first := self._line.first()) is not None and self._lifetimes.last_ms(first[1]) < now_ms:
            self._contents.dead_letter_first(EXPIRED)
        self._ready.calm()
        if not self._line.count:
            self._start_load()
        self._contents.account()

    def next_deadline_ms(self) -> float | None:
        """When `expire` has something to do, on the monotonic clock."""
        found: list[float] = []
        lease_ms = self._leases.next_deadline_ms()
        if lease_ms is not None:
            found.append(lease_ms)
        to_monotonic_ms = self._clock.monotonic_ms() - self._clock.wall_ms()
        if self._ready.expiring and (first := self._line.first()) is not None:
            last_ms = self._lifetimes.last_ms(first[1])
            if last_ms < FOREVER_MS:
                found.append(last_ms + 1 + to_monotonic_ms)
        if self.settings.expires_ms is not None and not len(self.consumers):
            found.append(self.last_used_ms + self.settings.expires_ms)
        due_ms = self._schedule.next_due_ms()
        if due_ms is not None:
            found.append(due_ms + to_monotonic_ms)
        return min(found, default=None)

    def _arm(self) -> None:
        if not self.gone:
            self._runtime.arm(self, self.next_deadline_ms())

    def expire(self) -> None:
        """Release leases whose deadline has passed, let scheduled messages in, drop what expired at the front."""
        if self.gone:
            return
        now_ms = self._clock.monotonic_ms()
        late = self._leases.late(now_ms)
        if late:
            self.release(late)
        unread = self._schedule.let_in(self._clock.wall_ms())
        if unread:
            reading = self._schedule.read_in(unread, self._clock.wall_ms)
            self._runtime.start_task(asyncio.get_running_loop().create_task(reading))
        if self._ready.expiring:
            self._expire_first()
        if not self._line.count:
            self._start_load()
        expires_ms = self.settings.expires_ms
        if expires_ms is not None and not len(self.consumers) and self.last_used_ms + expires_ms <= now_ms:
            self._owner.expired()
            return
        self._arm()

    # -- scheduled messages ------------------------------------------------------------------------------------------

    def schedule(self, message: Message, at_ms: int, durability: Durability = Durability.DISK) -> Scheduling:
        """Let a message in at a time of the wall clock. ScheduleFull when too many wait."""
        if message.timestamp_ms < 0:
            message = message._replace(timestamp_ms=self._clock.wall_ms())
        scheduling = self._schedule.add(message, at_ms, durability)
        self._arm()
        return scheduling

    def cancel(self, number: int) -> bool:
        """Drop a scheduled message; False when it is not there (any more)."""
        cancelled = self._schedule.remove([number]) == 1
        self._arm()
        return cancelled

    async def cancel_chosen(self, chosen: Callable[[Message], bool]) -> bool:
        """Drop the first scheduled message that is chosen; looks at each, in the log where it is in memory no more."""
        for entry in self._schedule.listed():
            message = await self._schedule.body(entry)
            if message is not None and chosen(message):
                return self.cancel(entry.id)
        return False

    def scheduled(self) -> list[ScheduledMessage]:
        return self._schedule.listed()

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(
        self,
        consumer: QueueConsumer,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        selector: Selector | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """Push messages to a consumer from the next turn on, all or those that a selector matches.

        With `lease_ms` each is leased for so long, whatever the queue's settings say. ConsumerRefused when somebody is
        exclusive, SelectorRefused when the queue takes no selectors.
        """
        if self.gone:
            raise QueueGone(f"queue {self.name!r} was deleted")
        self.consumers.check_free(exclusive=exclusive)
        lane = None if selector is None else self._select(selector)
        self.consumers.add(consumer, no_ack=no_ack, exclusive=exclusive, lane=lane, lease_ms=lease_ms)
        self._runtime.wake(self)

    def remove_consumer(self, consumer: QueueConsumer, *, release: bool = False) -> None:
        """Push nothing more. What it holds stays leased until it is settled or released; with `release`, until now."""
        registration = self.consumers.remove(consumer)
        if registration is None:
            return
        if registration.lane is not None:
            self._leave(registration.lane)
        if release:
            self.release(self.held_by(consumer))
        self.touch()
        self._runtime.wake(self)
        if not len(self.consumers):
            self._owner.unused()

    def touch(self) -> None:
        """Somebody uses the queue: its own expiry counts from now."""
        self.last_used_ms = self._clock.monotonic_ms()
        if self.settings.expires_ms is not None and not self.gone:
            self._arm()

    def wake(self) -> None:
        """A consumer has credit again."""
        self._runtime.wake(self)

    # -- state -------------------------------------------------------------------------------------------------------

    def change(self, settings: QueueSettings) -> None:
        """Go on with other settings. Priorities and order by key stay as they are: they are how messages stand in line."""
        before = self.settings
        assert (settings.max_priority, settings.order_by_key) == (before.max_priority, before.order_by_key)
        self.settings = settings
        self._lifetimes.change(settings.message_ttl_ms)
        self._contents.change(settings)
        self._drop_excess()
        self._runtime.wake(self)
        self._arm()

    def keep_from(self, floor: Callable[[], int]) -> None:
        """Let settled messages be read in the log from this offset on, until it moves."""
        self._contents.floor = floor

    def tombstones(self) -> list[StateRecord]:
        """What removes the queue from the journal."""
        return self._contents.progress.tombstones() + self._schedule.tombstones()

    def _end(self, reason: str) -> None:
        self.vanish(reason)
        self._owner.gone()

    def vanish(self, reason: str) -> None:
        """The queue is deleted: consumers are told, everything in memory is let go."""
        if self.gone:
            return
        self.gone = self.deleted = True
        self._contents.close()
        self._runtime.forget(self)
        for consumer in self.consumers:
            self.consumers.remove(consumer)
            try:
                consumer.cancelled(reason)
            except Exception:
                _logger.exception("a consumer of queue %s failed", self.name)
        self._contents.clear()

    def close(self) -> None:
        """Stop watching the log; the broker goes down."""
        self.gone = True
        self._contents.close()
        self._runtime.arm(self, None)
