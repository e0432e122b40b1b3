"""Selective receive: a queue's lanes, and the scout that finds messages for them.

A queue gets one of these with its first selector, and its line is replaced by a selective one; when nobody selects any more and
the line is empty, both go. Queues without selectors know nothing of it.

The scout looks where lanes have not looked yet: first at the rest of the line, then at the backlog in the log, as far as
it goes. Of the backlog only what a lane wants is kept in memory, ahead of its turn: `MAX_SOUGHT` for a lane, for all together no more
than a line may hold (`buffer_messages`, twice `buffer_bytes`). Then the scout waits until something of it was taken. So a message
is found however far back it lies, and a new selector costs one pass through the backlog, a piece at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trunkline.cursors.queue.backing import Backing
from trunkline.cursors.queue.message import Message
from trunkline.cursors.queue.ready import ReadyMessages
from trunkline.cursors.queue.runtime import QueueRuntime
from trunkline.cursors.queue.selective_line import MAX_SOUGHT, Lane, SelectiveLine
from trunkline.cursors.queue.selector import Selector
from trunkline.log.errors import LogError, OffsetOutOfRange, UnknownTopicOrPartition

_logger = logging.getLogger(__name__)


class Selection:
    __slots__ = ("_backing", "_found", "_ready", "_round", "_runtime", "_scouting", "line")

    def __init__(
        self,
        selector: Selector,
        max_priority: int | None,
        ready: ReadyMessages,
        backing: Backing,
        runtime: QueueRuntime,
        found: Callable[[], None],
    ) -> None:
        """`found` is called when lanes have got something, or know that there is nothing."""
        self._ready = ready
        self._backing = backing
        self._runtime = runtime
        self._found = found
        self._round = 0
        self._scouting: asyncio.Task[None] | None = None
        self.line = SelectiveLine(max_priority, selector)

    def begin_again(self) -> None:
        """The line was emptied, and reading begins elsewhere."""
        self._round += 1

    @property
    def unfinished(self) -> bool:
        """Whether there is something that lanes have not looked at, and room for what they find."""
        if self.line.unexamined():
            return True
        return bool(self._seeking())

    def _seeking(self) -> list[Lane]:
        read_to, end = self._ready.read_to, self._ready.end
        if read_to >= end:
            return []
        room = self._ready.has_room_ahead()
        return [lane for lane in self.line.seeking() if lane.looked_to < end and (room or not lane.stuck)]

    def start_scout(self) -> asyncio.Task[None] | None:
        if self._scouting is None and self.unfinished and not self._runtime.closed:
            self._scouting = asyncio.get_running_loop().create_task(self._scout(), name="scout")
            self._runtime.start_task(self._scouting)
        return self._scouting

    async def _scout(self) -> None:
        try:
            while self.unfinished and not self._runtime.closed:
                lanes = self.line.unexamined()
                for lane in lanes:
                    self.line.examine(lane)
                if lanes:
                    await asyncio.sleep(0)
                else:
                    await self._look_on()
                self._found()
        except (OffsetOutOfRange, UnknownTopicOrPartition):
            pass  # trimmed or deleted meanwhile, which the queue will notice
        except LogError as error:
            _logger.error("the backlog of a queue cannot be read for its selective consumers: %s", error)
        finally:
            self._scouting = None

    async def _look_on(self) -> None:
        """Read a piece of the backlog for those lanes that are furthest behind."""
        ready, this_round = self._ready, self._round
        lanes = self._seeking()
        start = max(min(lane.looked_to for lane in lanes), ready.read_to)
        lanes = [lane for lane in lanes if lane.looked_to <= start]
        offsets, messages, following = await self._backing.read(start)
        if this_round != self._round:
            return
        end = min(following if following > start else ready.end, ready.end)
        stuck = False
        for offset, message in zip(offsets, messages, strict=True):
            if offset >= end:
                break
            if not ready.is_behind(offset) or not any(lane in lanes for lane in self.line.lanes_for(message)):
                continue
            if not self._enter(offset, message):
                stuck = True
                end = offset
                break
            for lane in [lane for lane in lanes if lane.live >= MAX_SOUGHT]:
                lane.looked_to = offset + 1
                lanes.remove(lane)
        for lane in lanes:
            lane.looked_to = end
            lane.stuck = stuck

    def _enter(self, offset: int, message: Message) -> bool:
        ready = self._ready
        if ready.enter_ahead(offset, message):
            return True
        ready.put_behind(self.line.shed())
        return ready.enter_ahead(offset, message)
