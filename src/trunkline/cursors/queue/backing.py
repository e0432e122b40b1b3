"""The partition behind a queue: the queue's messages go in here, and its settled prefix is trimmed away.

Appends. Messages have offsets when the ticket of their append says so: `placed` is called, at once if the store knows the
place at once. Until then they are under way, and no cursor has them; the places of several come in the order of the appends.

A queue on an ephemeral topic, which is this process's own memory, may write behind: messages get the offsets that follow the
last place, consumers who wait for them get them, and at the end of the same turn they are written. Until then nobody else can
append, because nothing else runs. If that write fails the offsets are void, and so the queue ends (`failed`).

Trimming. When the settled prefix comes to about `trim_bytes`, the log is told; one trim at a time.

`appended` is called when others append to the partition, not for our own appends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from trunkline.cursors.queue.message import Message
from trunkline.cursors.queue.runtime import QueueRuntime
from trunkline.cursors.queue.traits import encode_messages, messages_of
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.log.portions import read_portion
from trunkline.log.store import Bounds, Durability, TopicInfo, TopicPartition
from trunkline.log.ticket import Appended, Ticket

_logger = logging.getLogger(__name__)

_RECORD_BYTES = 24  # of a record in the log, beside its body


class Placed(Protocol):
    def __call__(self, base: int, messages: Sequence[Message], size: int, now_ms: int, /) -> None:
        """These messages stand in the log from `base` on; they were appended at this time."""
        ...


class Backing:
    def __init__(
        self,
        topic: TopicInfo,
        runtime: QueueRuntime,
        *,
        placed: Placed,
        refused: Callable[[int], None],
        appended: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self.tp = TopicPartition(topic.name, 0)
        self._topic_id = topic.id
        self._runtime = runtime
        self._store = runtime.store
        self._placed = placed
        self._refused = refused
        self._appended = appended
        self._failed = failed
        self._writing = False
        self._closed = False
        self.under_way = 0  # messages that are appended and have no place yet
        self.under_way_bytes = 0
        self._last_under_way: Ticket | None = None
        self._unwritten: list[tuple[int, Sequence[Message], int, int]] = []  # first offset, messages, size, time
        self._trimming = False
        bounds = self._store.bounds(self.tp)
        self._trimmed_to = bounds.log_start_offset
        # Where the next message will stand. None: only the ticket can tell.
        self._next: int | None = bounds.high_watermark if topic.ephemeral else None
        self._own = topic.ephemeral
        self._store.watch(self.tp, self._on_append, decodes=True)

    def _on_append(self) -> None:
        if not self._writing:
            self._next = None
            self._appended()

    def close(self) -> None:
        """Take no notice of the log any more."""
        self._closed = True
        self._unwritten.clear()
        self.under_way = self.under_way_bytes = 0
        self._store.unwatch(self.tp, self._on_append)

    @property
    def there(self) -> bool:
        """Whether the topic is still the one that the queue was opened on."""
        info = self._store.topic(self.tp.topic)
        return info is not None and info.id == self._topic_id

    def bounds(self) -> Bounds:
        return self._store.bounds(self.tp)

    # -- messages ----------------------------------------------------------------------------------------------------

    def append(
        self, messages: Sequence[Message], size: int, now_ms: int, durability: Durability, known_end: int
    ) -> Ticket:
        """Append messages; the ticket completes when they are stored as well as `durability` asks.

        `known_end` is the end of the queue as its cursor knows it. When it is not where the messages will stand, because a
        transaction is open or others appended, the cursor will look at the log: then nothing is written behind.
        """
        base = self._next
        if base is None or base != known_end or not (self._unwritten or self._runtime.put_off(self._write_behind)):
            self._write_behind()
            ticket = self._write(messages, size, now_ms, durability)
            place = ticket.place
            if place is not None:
                self._placed(place.base_offset, messages, size, now_ms)
            else:
                self.under_way += len(messages)
                self.under_way_bytes += size
                self._last_under_way = ticket
                ticket.when_placed(partial(self._arrived, messages, size, now_ms))
            return ticket
        self._unwritten.append((base, messages, size, now_ms))
        self._next = base + len(messages)
        ticket = Ticket(loop=asyncio.get_running_loop())
        ticket.place = Appended(base, self._next - 1, -1, self._trimmed_to)
        ticket.set_result(ticket.place)
        self._placed(base, messages, size, now_ms)
        return ticket

    def _arrived(self, messages: Sequence[Message], size: int, now_ms: int, ticket: Ticket) -> None:
        """The place of messages that were under way is known; or there is none."""
        if self._closed:
            return
        self.under_way -= len(messages)
        self.under_way_bytes -= size
        if ticket is self._last_under_way:
            self._last_under_way = None
        if ticket.place is not None:
            self._placed(ticket.place.base_offset, messages, size, now_ms)
            return
        error = None if ticket.cancelled() else ticket.exception()
        if not isinstance(error, UnknownTopicOrPartition):  # else the queue is about to go, and its messages with it
            _logger.warning("%d messages were not appended to %s: %s", len(messages), self.tp, error)
        self._refused(len(messages))

    async def all_placed(self) -> None:
        """Wait until what is under way has its place, or has none."""
        if self._last_under_way is not None:
            await self._last_under_way.until_placed()

    def _write(self, messages: Sequence[Message], size: int, now_ms: int, durability: Durability) -> Ticket:
        batches = encode_messages(messages, size, now_ms, self._runtime.limits.batch_bytes)
        self._writing = True
        try:
            ticket = self._store.append(self.tp, batches, durability)
        finally:
            self._writing = False
        if self._own and ticket.place is not None:
            self._next = ticket.place.last_offset + 1
        return ticket

    def _write_behind(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        try:
            for base, messages, size, now_ms in unwritten:
                place = self._write(messages, size, now_ms, Durability.NONE).place
                assert place is not None, "an ephemeral topic knows the place at once"
                assert place.base_offset == base, "nobody else appends in the middle of a turn"
        except LogError as error:
            _logger.error("queue %s ends, because its messages cannot be written: %s", self.tp.topic, error)
            self._failed()

    async def read(self, offset: int) -> tuple[list[int], list[Message], int]:
        """Committed messages from an offset on, their offsets, and where to read on."""
        portion = await read_portion(self._store, self.tp, offset, self._runtime.limits.read_bytes)
        return *messages_of(portion.records), portion.following

    # -- trim --------------------------------------------------------------------------------------------------------

    def trim(self, head: Callable[[], int], mean_bytes: int) -> None:
        """Free what lies before `head`, when there is about a segment of it. `mean_bytes` is that of a message."""
        if self._trimming or self._closed or self._runtime.closed:
            return
        to = head()
        if (to - self._trimmed_to) * (mean_bytes + _RECORD_BYTES) < self._runtime.limits.trim_bytes:
            return
        self._trimming = True
        task = asyncio.get_running_loop().create_task(self._trim_to(to, head, mean_bytes), name=f"trim {self.tp.topic}")
        self._runtime.start_task(task)

    async def _trim_to(self, to: int, head: Callable[[], int], mean_bytes: int) -> None:
        try:
            self._trimmed_to = await self._store.trim(self.tp, to)
        except LogError as error:
            _logger.error("the settled messages of %s stay for now: %s", self.tp.topic, error)
            self._trimmed_to = to
        finally:
            self._trimming = False
        self.trim(head, mean_bytes)  # the head may have moved on meanwhile
