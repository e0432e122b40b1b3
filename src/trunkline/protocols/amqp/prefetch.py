"""The prefetch of a channel: how many deliveries all of its consumers may hold together (basic.qos with `global`).

Rules kept:

1. What counts is a delivery to a consumer, from its sending to its settlement: in a transaction, to the commit. What
   basic.get fetched does not count.
2. What is free goes to queues in turn. It is shared out when the first queue of a turn asks: to those that wait,
   longest first, and if there is more than one for each of them, evenly to all that have something ready. Which of
   a queue's consumers get its share, the queue decides: by their priorities, then in turn.
3. A queue that gets nothing waits in line, and is woken when it is next and something is free.
4. A queue that has a share and does not ask for it has nothing to deliver. It leaves the line, and the share goes to
   the next at once.

So a queue waits for at most one delivery of each other queue of the channel, and nothing is free while a queue waits that
could deliver.

The line also holds those whom the channel's maximum of unsettled deliveries stopped. Costs per turn and queue, not per
message; the line has at most one place for each queue that the channel consumes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from trunkline.broker.turn import Turn
from trunkline.cursors.queue import QueueCursor


class Share:
    """What one queue may deliver to the channel in this turn, to whichever of the channel's consumers."""

    __slots__ = ("asked", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = False


class ChannelPrefetch:
    """`consumed` gives the queues that the channel consumes from and acknowledges."""

    __slots__ = ("_consumed", "_line", "_shares", "_turn", "held", "limit")

    def __init__(self, turn: Turn, consumed: Callable[[], Iterable[QueueCursor]]) -> None:
        self._turn = turn
        self._consumed = consumed
        self.limit = 0  # none
        self.held = 0  # deliveries to consumers that are not settled
        self._line: dict[QueueCursor, None] = {}  # queues that wait, the longest first
        self._shares: dict[QueueCursor, Share] = {}  # of this turn

    def set_limit(self, limit: int) -> None:
        self.limit = limit
        self._offer()

    def share_of(self, queue: QueueCursor) -> Share:
        """What a queue may deliver in this turn; with nothing left, it waits in line."""
        if not self._shares:
            self._share_out(queue)
        share = self._shares.get(queue)
        if share is None:
            self.wait(queue)
            return Share(0)
        share.asked = True
        self._line.pop(queue, None)
        return share

    def wait(self, queue: QueueCursor) -> None:
        """Wake the queue when the channel can take more."""
        self._line.setdefault(queue)

    def freed(self, count: int) -> None:
        """So many deliveries were settled."""
        self.held -= count
        if self._line:
            self._offer()

    def close(self) -> None:
        self._line.clear()

    def _share_out(self, asking: QueueCursor) -> None:
        free = self.limit - self.held
        if free <= 0:
            return
        queues = list(islice(self._line, free))
        if free > len(queues):
            queues = list(dict.fromkeys((*queues, asking, *(queue for queue in self._consumed() if queue.ready))))
        each, rest = divmod(free, len(queues))
        self._shares = {queue: Share(each + (place < rest)) for place, queue in enumerate(queues[:free])}
        self._turn.collect(self._end_turn)

    def _end_turn(self) -> None:
        """What was shared out is delivered, or is free again."""
        shares, self._shares = self._shares, {}
        for queue, share in shares.items():
            if not share.asked:
                self._line.pop(queue, None)
        if self._line:
            self._offer()

    def _offer(self) -> None:
        """Wake those whose turn it is."""
        free = self.limit - self.held if self.limit else len(self._line)
        for queue in list(islice(self._line, max(free, 0))):
            if not self.limit:
                del self._line[queue]  # it comes back if the channel's maximum still stops it
            queue.wake()
