"""The line of a queue that some consume by a selector.

For each selector there is a *lane*: the messages of the line that it matches, in the order of the line. A message that enters the
line is put into its lanes then, by one look into the index of all selectors; so a selective consumer takes the first of its
lane, and nobody looks through the line per message. Who has no selector takes the first of all.

A new lane has to look through what is in line already: at so many messages at once, at the rest when the event loop has time (see
scout). It gives out what comes before the first message that it has not looked at yet, so its order is right from the start. Fields that
selectors compare with `=` are indexed on that occasion: a later selector that names one of them looks only at the messages with its
value. Lanes that nobody uses any more are kept for a while, for those who ask again and again.

A message that is *ahead* is in line before its turn: it lies in the log behind what was read, and was found for a lane there.
It is given out through lanes alone until reading has come to it.

Taking, putting back: O(lanes of the message * log n). Memory: some 300 bytes a message, and 100 for each lane and indexed field.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter

from trunkline.cursors.queue.line import Line, Taken
from trunkline.cursors.queue.message import Message
from trunkline.cursors.queue.selector import Selector, SelectorIndex

EXAMINED_AT_ONCE = 1_024  # messages that a new lane looks at before anybody else has a turn
MAX_IDLE_LANES = 16
MAX_SOUGHT = 256  # messages in a lane from which on nothing more is sought for it in the log
MAX_INDEXED_FIELDS = 8

_Rank = tuple[int, int]  # negated priority, offset


class _Order:
    """Messages by rank. What is not in line any more is passed over when it comes up."""

    __slots__ = ("heap", "live")

    def __init__(self) -> None:
        self.heap: list[_Rank] = []
        self.live = 0

    def add(self, rank: _Rank) -> None:
        heappush(self.heap, rank)
        self.live += 1

    def first(self, entries: dict[int, _Entry]) -> _Rank | None:
        heap = self.heap
        while heap and heap[0][1] not in entries:
            heappop(heap)
        return heap[0] if heap else None

    def lose(self, entries: dict[int, _Entry]) -> None:
        """One of the messages is not in line any more."""
        self.live -= 1
        if len(self.heap) > 64 and len(self.heap) > 4 * self.live:
            self.heap = [rank for rank in set(self.heap) if rank[1] in entries]
            heapify(self.heap)

    def clear(self) -> None:
        self.heap.clear()
        self.live = 0


class _Bucket(_Order):
    """The messages in which an indexed field has one value."""

    __slots__ = ("field", "key")

    def __init__(self, field: Hashable, key: Hashable) -> None:
        super().__init__()
        self.field = field
        self.key = key


class Lane(_Order):
    """What one selector matches."""

    __slots__ = ("indexes", "looked_to", "selector", "stuck", "unexamined", "users")

    def __init__(self, selector: Selector) -> None:
        super().__init__()
        self.selector = selector
        self.users = 0
        self.looked_to = 0  # how far it knows the log behind what was read
        self.stuck = False  # what comes next there is for it, and found no room
        self.unexamined: list[_Entry] = []  # was in line before the lane was made; the first comes last
        self.indexes: list[Hashable] = []  # fields that are being indexed on the way


class _Entry:
    __slots__ = ("message", "orders", "prior", "rank")

    def __init__(self, rank: _Rank, message: Message, prior: int) -> None:
        self.rank = rank
        self.message = message
        self.prior = prior
        self.orders: list[_Order] = []


_rank_of = attrgetter("rank")


class SelectiveLine(Line):
    def __init__(self, max_priority: int | None, selector: Selector) -> None:
        """`selector` is any that the line will have."""
        super().__init__()
        self._max_priority = max_priority
        self._sort = selector
        self._entries: dict[int, _Entry] = {}
        self._all = _Order()
        self._ahead: set[int] = set()  # in line, or taken from it, before their turn
        self._lanes: dict[Selector, Lane] = {}
        self._idle: dict[Selector, Lane] = {}  # those that nobody uses; the longest so comes first
        self._selectors: SelectorIndex = selector.index()
        self._indexed: dict[Hashable, dict[Hashable, _Bucket]] = {}
        self._unfinished: set[Hashable] = set()  # fields whose index does not have all messages yet

    # -- in ----------------------------------------------------------------------------------------------------------

    def append(self, offsets: Sequence[int], messages: list[Message], priors: Sequence[int] | None, size: int) -> None:
        for number, message in enumerate(messages):
            self._enter(offsets[number], message, 0 if priors is None else priors[number])
        self.count += len(messages)
        self.size_bytes += size

    def put_back(self, offset: int, message: Message, prior: int) -> None:
        self._enter(offset, message, prior)
        self.count += 1
        self.size_bytes += len(message.value)

    def append_ahead(self, offset: int, message: Message, prior: int) -> None:
        """A message that was found for a lane, behind what was read."""
        self._ahead.add(offset)
        self.put_back(offset, message, prior)

    def reach(self, offsets: Iterable[int]) -> None:
        """Reading has come to these: they are in line like all others."""
        for offset in self._ahead.intersection(offsets):
            self._ahead.discard(offset)
            entry = self._entries.get(offset)
            if entry is not None:
                self.ahead_count -= 1
                self._all.add(entry.rank)
                entry.orders.append(self._all)

    def lanes_for(self, message: Message) -> list[Lane]:
        """Whose message it is, or would be."""
        return [self._lanes[selector] for selector in self._selectors.matching(self._sort.fields_of(message))]

    def shed(self) -> list[int]:
        """Forget what nobody waits for: idle lanes, and what is ahead for them alone. Their offsets, which are only in the log now."""
        for lane in list(self._idle.values()):
            self._drop_lane(lane)
        self._idle.clear()
        shed: list[int] = []
        for offset in self._ahead:
            entry = self._entries.get(offset)
            if entry is not None and not any(isinstance(order, Lane) for order in entry.orders):
                shed.append(offset)
                self.count -= 1
                self.size_bytes -= len(entry.message.value)
                self._leave(offset, entry)
        self._ahead.difference_update(shed)
        return shed

    def _enter(self, offset: int, message: Message, prior: int) -> None:
        priority = 0 if self._max_priority is None else -min(message.priority, self._max_priority)
        entry = self._entries[offset] = _Entry((priority, offset), message, prior)
        if offset in self._ahead:
            self.ahead_count += 1
        else:
            self._all.add(entry.rank)
            entry.orders.append(self._all)
        if not self._lanes and not self._indexed:
            return
        fields = self._sort.fields_of(message)
        for field in self._indexed:
            self._index(field, entry, fields)
        for selector in self._selectors.matching(fields):
            lane = self._lanes[selector]
            lane.add(entry.rank)
            entry.orders.append(lane)

    def _index(self, field: Hashable, entry: _Entry, fields: object) -> None:
        key = self._sort.key_of(fields, field)
        if key is None:
            return
        buckets = self._indexed[field]
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = _Bucket(field, key)
        bucket.add(entry.rank)
        entry.orders.append(bucket)

    # -- lanes -------------------------------------------------------------------------------------------------------

    def enter_lane(self, selector: Selector) -> Lane:
        """The selector's lane, for one more who uses it."""
        lane = self._lanes.get(selector)
        if lane is not None:
            lane.users += 1
            self._idle.pop(selector, None)
            return lane
        lane = self._lanes[selector] = Lane(selector)
        lane.users = 1
        lane.unexamined = sorted(self._candidates(lane), key=_rank_of, reverse=True)
        self._selectors.add(selector)
        self.examine(lane)
        return lane

    def leave_lane(self, lane: Lane) -> None:
        lane.users -= 1
        if lane.users or self._lanes.get(lane.selector) is not lane:
            return
        self._idle[lane.selector] = lane
        if len(self._idle) > MAX_IDLE_LANES:
            self._drop_lane(self._idle.pop(next(iter(self._idle))))

    def _drop_lane(self, lane: Lane) -> None:
        del self._lanes[lane.selector]
        self._selectors.remove(lane.selector)
        for rank in lane.heap:
            entry = self._entries.get(rank[1])
            if entry is not None and lane in entry.orders:
                entry.orders.remove(lane)
        for field in lane.indexes:  # half an index is none
            self._unfinished.discard(field)
            for bucket in self._indexed.pop(field).values():
                for rank in bucket.heap:
                    entry = self._entries.get(rank[1])
                    if entry is not None and bucket in entry.orders:
                        entry.orders.remove(bucket)

    def _candidates(self, lane: Lane) -> Iterable[_Entry]:
        """What the lane has to look at: the smallest bucket that all it wants is in, or everything."""
        smallest: Sequence[_Rank] | None = None
        for field, key in lane.selector.equalities:
            if field in self._indexed:
                if field not in self._unfinished:
                    bucket = self._indexed[field].get(key)
                    found = [] if bucket is None else bucket.heap
                    if smallest is None or len(found) < len(smallest):
                        smallest = found
            elif len(self._indexed) < MAX_INDEXED_FIELDS:
                self._indexed[field] = {}
                self._unfinished.add(field)
                lane.indexes.append(field)
        if smallest is None or lane.indexes:
            return self._entries.values()
        return [self._entries[offset] for _, offset in set(smallest) if offset in self._entries]

    def examine(self, lane: Lane, limit: int = EXAMINED_AT_ONCE) -> bool:
        """Look at what was in line before the lane was made; True when that is done."""
        unexamined, entries, selector = lane.unexamined, self._entries, lane.selector
        while unexamined and limit:
            limit -= 1
            entry = unexamined.pop()
            if entries.get(entry.rank[1]) is not entry:
                continue  # it was taken meanwhile; if it was put back, the lane was looked for then
            fields = selector.fields_of(entry.message)
            for field in lane.indexes:
                self._index(field, entry, fields)
            if selector.matches(fields):
                lane.add(entry.rank)
                entry.orders.append(lane)
        if unexamined:
            return False
        self._unfinished.difference_update(lane.indexes)
        lane.indexes = []
        return True

    def unexamined(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.unexamined]

    @property
    def in_use(self) -> bool:
        """Whether it does more than another line would."""
        return bool(self.count or self._ahead or len(self._lanes) > len(self._idle))

    def seeking(self) -> list[Lane]:
        """Lanes that have use for more."""
        return [lane for lane in self._lanes.values() if lane.users and lane.live < MAX_SOUGHT]

    # -- out ---------------------------------------------------------------------------------------------------------

    def take(self, limit: int, max_bytes: int, consumer: object) -> Taken | None:
        return self._take(self._all, limit, max_bytes, None)

    def take_from(self, lane: Lane, limit: int, max_bytes: int) -> Taken | None:
        """The next messages of a lane; see `take`."""
        return self._take(lane, limit, max_bytes, lane)

    def look(self, lane: Lane) -> tuple[int, Message] | None:
        """The next message of a lane, which stays where it is."""
        rank = lane.first(self._entries)
        if rank is None or not self._in_order(rank, lane):
            return None
        return rank[1], self._entries[rank[1]].message

    def _in_order(self, rank: _Rank, lane: Lane) -> bool:
        """Whether nothing that the lane wants can come before it."""
        if lane.unexamined and rank > lane.unexamined[-1].rank:
            return False
        return rank[1] < lane.looked_to or rank[1] not in self._ahead

    def _take(self, order: _Order, limit: int, max_bytes: int, lane: Lane | None) -> Taken | None:
        offsets: list[int] = []
        messages: list[Message] = []
        priors: list[int] = []
        size = 0
        entries = self._entries
        while len(offsets) < limit and (rank := order.first(entries)) is not None:
            if lane is not None and not self._in_order(rank, lane):
                break
            entry = entries[rank[1]]
            own_bytes = len(entry.message.value)
            if offsets and size + own_bytes > max_bytes:
                break
            self._leave(rank[1], entry)
            offsets.append(rank[1])
            messages.append(entry.message)
            priors.append(entry.prior)
            size += own_bytes
        if not offsets:
            return None
        self.count -= len(offsets)
        self.size_bytes -= size
        return Taken(offsets, messages, priors, size)

    def _leave(self, offset: int, entry: _Entry) -> None:
        entries = self._entries
        del entries[offset]
        if offset in self._ahead:
            self.ahead_count -= 1
        for order in entry.orders:
            order.lose(entries)
            if not order.live and isinstance(order, _Bucket):
                del self._indexed[order.field][order.key]

    def first(self) -> tuple[int, Message] | None:
        rank = self._all.first(self._entries)
        return None if rank is None else (rank[1], self._entries[rank[1]].message)

    def drop_first(self) -> tuple[int, Message, int]:
        taken = self.take(1, 0, None)
        assert taken is not None
        assert taken.priors is not None
        return taken.offsets[0], taken.messages[0], taken.priors[0]

    def remove(self, offset: int) -> bool:
        entry = self._entries.get(offset)
        if entry is None:
            return False
        self._leave(offset, entry)
        self._ahead.discard(offset)
        self.count -= 1
        self.size_bytes -= len(entry.message.value)
        return True

    def clear(self) -> None:
        self._entries.clear()
        self._all.clear()
        self._ahead.clear()
        self.ahead_count = 0
        for buckets in self._indexed.values():
            buckets.clear()
        for lane in self._lanes.values():
            lane.clear()
            lane.looked_to = 0
            lane.stuck = False
            lane.unexamined.clear()
            self.examine(lane)
        self.count = self.size_bytes = 0
