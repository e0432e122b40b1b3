"""The ready messages of a queue: the line in memory, and the backlog behind it in the log.

The line holds everything ready before `read_to` and, with priorities, urgent messages put beyond it. `end` is where the queue
ends: the last stable offset of the partition, so far as it was noticed. What is put while `read_to` is the end, and there is
room, enters the line without being read back; all else stays in the log and is read in pieces when the line gets short.
`placed_to` is the end of what is known to stand in the log. It may be ahead of `end`: an open transaction holds it back, or it
was not noticed yet that what precedes it is stable.

Reading takes time, in which the queue may be purged, trimmed or deleted: `reread_from` makes whatever is under way void.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter

from trunkline.cursors.queue.leases import Leases
from trunkline.cursors.queue.line import FifoLine, Line, RankedLine, size_of
from trunkline.cursors.queue.message import Message
from trunkline.cursors.queue.progress import Progress
from trunkline.cursors.queue.runtime import QueueRuntime
from trunkline.cursors.queue.selective_line import SelectiveLine
from trunkline.cursors.queue.settings import QueueSettings
from trunkline.cursors.queue.traits import messages_of
from trunkline.log.errors import LogError, OffsetOutOfRange, UnknownTopicOrPartition
from trunkline.log.portions import decode_portion
from trunkline.log.store import TopicPartition

_logger = logging.getLogger(__name__)
_expiry_of = itemgetter(4)
_UNLIMITED_BYTES = 1 << 62


class ReadyMessages:
    def __init__(
        self,
        tp: TopicPartition,
        settings: QueueSettings,
        runtime: QueueRuntime,
        progress: Progress,
        leases: Leases,
        *,
        end: int,
        refresh: Callable[[], bool],
        loaded: Callable[[bool], None],
    ) -> None:
        """`refresh` looks at the partition and says whether the queue is still there; `loaded` hears how a read went."""
        self._tp = tp
        self._runtime = runtime
        self._limits = runtime.limits
        self._progress = progress
        self._leases = leases
        self._refresh = refresh
        self._loaded = loaded
        self._ttl = settings.message_ttl_ms is not None
        self._by_priority = settings.max_priority is not None
        self._ranked = self._by_priority or settings.order_by_key
        self._settings = settings
        self.line: Line = self._plain_line()
        self.end = self.placed_to = end
        self.read_to = progress.settled.head
        self.backlog_bytes = 0  # ready and not in the line: an estimate
        self.expiring = self._ttl  # some message in the line may expire
        self._urgent: set[int] = set()  # in the line, or taken from it, beyond `read_to`; what is ahead is, too
        self._generation = 0
        self._loading: asyncio.Task[None] | None = None
        self.backlog_bytes = self.count * progress.mean_bytes

    @property
    def count(self) -> int:
        """Of all that is ready: arithmetic on offsets."""
        settled = self._progress.settled
        return max(self.end - settled.head - settled.above - len(self._leases), 0)

    @property
    def size_bytes(self) -> int:
        return self.line.size_bytes + max(self.backlog_bytes, 0)

    def _plain_line(self) -> Line:
        settings = self._settings
        if self._ranked:
            return RankedLine(settings.max_priority, by_key=settings.order_by_key)
        return FifoLine()

    # -- selective consumers -----------------------------------------------------------------------------------------

    def select(self, line: SelectiveLine) -> None:
        """From now on this is the line: what is in the other one goes there."""
        taken = self.line.take(self.line.count, _UNLIMITED_BYTES, None)
        if taken is not None:
            line.append(taken.offsets, taken.messages, taken.priors, taken.size_bytes)
        self.line = line

    def unselect(self) -> bool:
        """Be content with the simpler line again; False while what is ahead is on the way."""
        if self.line.count or self._urgent:
            return False
        self.line = self._plain_line()
        return True

    def is_behind(self, offset: int) -> bool:
        """Whether an offset is ready and in the log alone."""
        if offset < self.read_to or offset in self._urgent or offset in self._leases:
            return False
        return offset not in self._progress.settled

    def has_room_ahead(self, size: int = 0) -> bool:
        """Whether one more may be ahead: a message in the line that lies beyond what was read."""
        line, limits = self.line, self._limits
        if len(self._urgent) >= limits.max_leases:  # those that are settled need not be known any more
            self._urgent = {offset for offset in self._urgent if offset not in self._progress.settled}
        if (
            line.ahead_count >= limits.buffer_messages
            or len(self._urgent) >= limits.max_leases + limits.buffer_messages
        ):
            return False
        return line.size_bytes + size <= 2 * limits.buffer_bytes or not line.ahead_count

    def put_behind(self, offsets: Sequence[int]) -> None:
        """These are not in the line any more, and only in the log."""
        self._urgent.difference_update(offsets)
        self.backlog_bytes += len(offsets) * self._progress.mean_bytes

    def enter_ahead(self, offset: int, message: Message) -> bool:
        """Put into the selective line what was found in the backlog; False if there is no room."""
        size = len(message.value)
        if not self.has_room_ahead(size):
            return False
        assert isinstance(self.line, SelectiveLine)
        self._urgent.add(offset)
        self.line.append_ahead(offset, message, self._progress.prior(offset))
        self.backlog_bytes = max(self.backlog_bytes - size, 0)
        if message.expires_ms is not None:
            self.expiring = True
        return True

    # -- in ----------------------------------------------------------------------------------------------------------

    def enter(self, base: int, messages: list[Message], size: int, now_ms: int, *, awaited: bool) -> None:
        """Messages were appended at the end of the queue. `awaited`: there are consumers."""
        self.end = self.placed_to = base + len(messages)
        if not self.expiring:
            self.expiring = any(map(_expiry_of, messages))
        if self.expiring or messages[0].timestamp_ms < 0:
            messages = [m._replace(timestamp_ms=now_ms) if m.timestamp_ms < 0 else m for m in messages]
        if self.read_to == base and self._has_room(size, len(messages), awaited=awaited):
            self.line.append(range(base, self.end), messages, None, size)
            self.read_to = self.end
            return
        self.backlog_bytes += size
        if self._by_priority:
            self._enter_urgent(base, messages)

    def _has_room(self, size: int, count: int, *, awaited: bool = False) -> bool:
        line, limits = self.line, self._limits
        if line.size_bytes + size > limits.buffer_bytes or line.count + count > limits.buffer_messages:
            return not line.count
        return self._runtime.held_bytes + size <= limits.total_buffer_bytes or (not line.count and awaited)

    def _enter_urgent(self, base: int, messages: Sequence[Message]) -> None:
        """Behind a deep backlog, what has a priority goes into the line all the same, as long as there is room."""
        for offset, message in enumerate(messages, base):
            size = len(message.value)
            if message.priority <= 0 or len(self._urgent) >= self._limits.buffer_messages:
                continue
            if self._has_room(size, 1):
                self.line.append([offset], [message], None, size)
                self._urgent.add(offset)
                self.backlog_bytes -= size

    def extend_to(self, end: int) -> None:
        """Others appended, or a transaction was ended."""
        if end > self.end:
            self.backlog_bytes += (end - self.end) * self._progress.mean_bytes
            self.end = end

    def note(self, placed_to: int) -> None:
        """Messages stand in the log before this offset."""
        self.placed_to = max(self.placed_to, placed_to)

    def put_back(self, offset: int, message: Message, prior: int) -> None:
        if offset < self.read_to or offset in self._urgent:
            self.line.put_back(offset, message, prior)
        else:  # the line was emptied meanwhile, and comes to it again
            self._progress.set_prior(offset, prior)
            self.backlog_bytes += len(message.value)

    def reread_from(self, offset: int) -> None:
        """Empty the line: what is ready from `offset` on is read again."""
        self._generation += 1
        self.line.clear()
        self._urgent.clear()
        self.read_to = offset
        self.backlog_bytes = self.count * self._progress.mean_bytes if offset < self.end else 0

    def change(self, settings: QueueSettings) -> None:
        self._ttl = settings.message_ttl_ms is not None
        self.expiring = self.expiring or self._ttl

    def discard(self, offset: int) -> bool:
        """Take a message out that is about to be settled, wherever it stands; False: there is no such message."""
        if not self._progress.settled.head <= offset < self.end or offset in self._progress.settled:
            return False
        if not self.line.remove(offset):
            self.backlog_bytes = max(self.backlog_bytes - self._progress.mean_bytes, 0)
        return True

    def calm(self) -> None:
        """Nothing is ready: nothing may expire, until something comes."""
        if not self.line.count and self.read_to >= self.end:
            self.expiring = self._ttl

    # -- from the log ------------------------------------------------------------------------------------------------

    @property
    def short(self) -> bool:
        """Whether the line should be filled from the log."""
        if self.read_to >= self.end:
            return False
        line, limits = self.line, self._limits
        if self._ranked:
            return line.count < limits.buffer_messages and line.size_bytes < limits.buffer_bytes
        if line.ahead_count:
            return line.count - line.ahead_count < limits.turn_messages
        return line.count < limits.turn_messages and line.size_bytes < limits.read_bytes

    @property
    def in_order(self) -> bool:
        """Whether what is first in the line is next. With ranks only once all that should be in the line was read."""
        return not self._ranked or not self.short

    @property
    def _unnoticed(self) -> bool:
        """Whether a read may find more than is known to be there."""
        return self.read_to >= self.end and self.placed_to > self.end

    def start_load(self, *, look: bool = False) -> asyncio.Task[None] | None:
        """Fill the line if it is short. `look` also for messages that stand in the log and were not noticed yet."""
        if self._loading is None and (self.short or (look and self._unnoticed)) and not self._runtime.closed:
            self._loading = asyncio.get_running_loop().create_task(self._load(), name=f"load {self._tp}")
            self._runtime.start_task(self._loading)
        return self._loading

    async def load(self) -> bool:
        """Read until something is in the line; False when nothing is there, or only what waits for its key."""
        while self.line.count <= self.line.ahead_count or not self.in_order:
            if not await self._read_on():
                break
        return self.line.first() is not None

    async def catch_up(self) -> None:
        """Read on as long as the line has room, also for what stands in the log and was not noticed yet."""
        while await self._read_on():
            pass

    async def _read_on(self) -> bool:
        """False when there is nothing to read, or a read brought nothing."""
        if self._loading is not None:
            await asyncio.shield(self._loading)
            return True  # it may have begun before there was what the caller looks for
        loading = self.start_load(look=True) if self._refresh() else None
        if loading is None:
            return False
        before = self.read_to
        await asyncio.shield(loading)
        return self.read_to > before

    async def _load(self) -> None:
        generation = self._generation
        start = max(self.read_to, self._progress.settled.head)
        done = True
        try:
            store = self._runtime.store
            part = await store.read(self._tp, start, self._limits.read_bytes, committed=True, verified=True)
            records, end = await decode_portion(store, self._tp, part, start)
            # What others appended is taken over before it is counted.
            if self._refresh() and generation == self._generation:
                if not len(part.records):
                    end = part.bounds.last_stable_offset  # compaction left nothing from here on
                self._take_in(start, *self._up_to_end(*messages_of(records), end))
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            self._refresh()  # trimmed or deleted meanwhile
        except LogError as error:
            _logger.error("the messages of %s cannot be read; to be tried again: %s", self._tp, error)
            done = False
        finally:
            self._loading = None
        self._loaded(done)

    def _up_to_end(self, offsets: list[int], messages: list[Message], end: int) -> tuple[list[int], list[Message], int]:
        """Without what lies beyond the end of the queue as it is known: our own, of which we have not heard yet."""
        if end > self.end:
            count = bisect_left(offsets, self.end)
            return offsets[:count], messages[:count], self.end
        return offsets, messages, end

    def _take_in(self, start: int, offsets: list[int], messages: list[Message], end: int) -> None:
        """Messages were read: those that are ready go into the line."""
        settled = self._progress.settled
        if len(offsets) != end - start:
            self._settle_gaps(start, offsets, end)
        if settled.chunks or settled.head > start or self._leases or self._urgent:
            kept = [
                number
                for number, offset in enumerate(offsets)
                if offset not in self._leases and offset not in self._urgent and offset not in settled
            ]
            if self._urgent:
                if isinstance(self.line, SelectiveLine):
                    self.line.reach(self._urgent.intersection(offsets))
                self._urgent.difference_update(offsets)
            if len(kept) != len(offsets):
                offsets = [offsets[number] for number in kept]
                messages = [messages[number] for number in kept]
        self.read_to = max(self.read_to, end)
        if messages:
            size = size_of(messages)
            self.line.append(offsets, messages, self._progress.priors(offsets), size)
            self.backlog_bytes = max(self.backlog_bytes - size, 0)
            if not self.expiring:
                self.expiring = any(map(_expiry_of, messages))
        if self.read_to >= self.end:
            self.backlog_bytes = 0

    def _settle_gaps(self, start: int, offsets: list[int], end: int) -> None:
        """Offsets without a message count as settled."""
        settled = self._progress.settled
        position = start
        for offset in [*offsets, end]:
            if offset > position:
                for first, count in list(settled.unsettled(position, min(offset, self.end))):
                    settled.settle_run(first, count)
            position = offset + 1
