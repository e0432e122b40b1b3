"""The line: ready messages that are in memory, in the order in which consumers get them.

Two of them. `FifoLine` works on whole chunks as they were put or read: taking a hundred messages is a slice. `RankedLine` is for
queues with priorities or ordering by key and works per message, on heaps.

What always holds: a message that is put back goes to its place, which is the order of offsets (within its priority); `count`
and `size_bytes` are exact. A line is bounded by whoever fills it (`QueueLimits.buffer_bytes`, `buffer_messages`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from trunkline.cursors.queue.message import Delivery, Message

_UNLIMITED_BYTES = 1 << 62


class Taken:
    """Messages taken out of a line: parallel lists. `priors` are earlier deliveries of each; None: of none any."""

    __slots__ = ("messages", "offsets", "priors", "size_bytes")

    def __init__(
        self, offsets: Sequence[int], messages: list[Message], priors: Sequence[int] | None, size_bytes: int
    ) -> None:
        self.offsets = offsets
        self.messages = messages
        self.priors = priors
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return len(self.messages)

    def every(self, start: int, step: int) -> Taken:
        """Every `step`th message from the one at `start` on: how messages are dealt to several consumers."""
        messages = self.messages[start::step]
        priors = None if self.priors is None else self.priors[start::step]
        return Taken(self.offsets[start::step], messages, priors, size_of(messages))

    def picked(self, numbers: Sequence[int]) -> Taken:
        """The messages at these places."""
        messages = [self.messages[number] for number in numbers]
        priors = None if self.priors is None else [self.priors[number] for number in numbers]
        return Taken([self.offsets[number] for number in numbers], messages, priors, size_of(messages))


def size_of(messages: Sequence[Message]) -> int:
    return sum([len(message[0]) for message in messages])


class Line(ABC):
    def __init__(self) -> None:
        self.count = 0
        self.ahead_count = 0  # of those, in line before their turn: see selective_line
        self.size_bytes = 0

    @abstractmethod
    def append(self, offsets: Sequence[int], messages: list[Message], priors: Sequence[int] | None, size: int) -> None:
        """Add messages behind all others, ascending by offset."""

    @abstractmethod
    def put_back(self, offset: int, message: Message, prior: int) -> None: ...

    @abstractmethod
    def take(self, limit: int, max_bytes: int, consumer: object) -> Taken | None:
        """The next messages for a consumer: at most `limit`, and no more than `max_bytes` unless one alone is larger."""

    @abstractmethod
    def first(self) -> tuple[int, Message] | None:
        """The next message in line, whoever gets it."""

    @abstractmethod
    def drop_first(self) -> tuple[int, Message, int]: ...

    @abstractmethod
    def remove(self, offset: int) -> bool:
        """Take one message out, wherever it stands in line; False when it does not. Looks at the line from the front on."""

    def ended(self, delivery: Delivery) -> bool:
        """A lease ended. True if that made messages deliverable that were not."""
        return False

    @abstractmethod
    def clear(self) -> None: ...


class _Chunk:
    __slots__ = ("messages", "offsets", "position", "priors", "size_bytes")

    def __init__(
        self, offsets: Sequence[int], messages: list[Message], priors: Sequence[int] | None, size_bytes: int
    ) -> None:
        self.offsets = offsets
        self.messages = messages
        self.priors = priors
        self.size_bytes = size_bytes  # of what is left
        self.position = 0


class FifoLine(Line):
    """Messages put back, by offset, then chunks. Everything put back was taken from a chunk, so its offset is smaller."""

    def __init__(self) -> None:
        super().__init__()
        self._returned: list[tuple[int, Message, int]] = []
        self._chunks: deque[_Chunk] = deque()

    def append(self, offsets: Sequence[int], messages: list[Message], priors: Sequence[int] | None, size: int) -> None:
        self._chunks.append(_Chunk(offsets, messages, priors, size))
        self.count += len(messages)
        self.size_bytes += size

    def put_back(self, offset: int, message: Message, prior: int) -> None:
        heappush(self._returned, (offset, message, prior))
        self.count += 1
        self.size_bytes += len(message.value)

    def take(self, limit: int, max_bytes: int, consumer: object) -> Taken | None:
        if limit <= 0 or not self.count:
            return None
        taken = self._take_returned(limit, max_bytes) if self._returned else None
        while self._chunks and (taken is None or (len(taken) < limit and taken.size_bytes < max_bytes)):
            if taken is None:
                taken = self._take_chunk(limit, max_bytes, at_least_one=True)
                continue
            more = self._take_chunk(limit - len(taken), max_bytes - taken.size_bytes, at_least_one=False)
            if more is None:
                break
            taken = _joined(taken, more)
        return taken

    def _take_returned(self, limit: int, max_bytes: int) -> Taken:
        offsets: list[int] = []
        messages: list[Message] = []
        priors: list[int] = []
        size = 0
        returned = self._returned
        while returned and len(offsets) < limit:
            own_bytes = len(returned[0][1].value)
            if offsets and size + own_bytes > max_bytes:
                break
            offset, message, prior = heappop(returned)
            offsets.append(offset)
            messages.append(message)
            priors.append(prior)
            size += own_bytes
        self.count -= len(offsets)
        self.size_bytes -= size
        return Taken(offsets, messages, priors, size)

    def _take_chunk(self, limit: int, max_bytes: int, *, at_least_one: bool) -> Taken | None:
        chunk = self._chunks[0]
        start = chunk.position
        count = len(chunk.messages) - start
        if count <= limit and chunk.size_bytes <= max_bytes:
            self._chunks.popleft()
            self.count -= count
            self.size_bytes -= chunk.size_bytes
            if start == 0:
                return Taken(chunk.offsets, chunk.messages, chunk.priors, chunk.size_bytes)
            priors = None if chunk.priors is None else chunk.priors[start:]
            return Taken(chunk.offsets[start:], chunk.messages[start:], priors, chunk.size_bytes)
        end = start + min(limit, count)
        messages = chunk.messages[start:end]
        size = size_of(messages)
        if size > max_bytes:
            size = number = 0
            for message in messages:
                if size + len(message.value) > max_bytes and (number or not at_least_one):
                    break
                size += len(message.value)
                number += 1
            if number == 0:
                return None
            end = start + number
            del messages[number:]
        priors = None if chunk.priors is None else chunk.priors[start:end]
        chunk.position = end
        chunk.size_bytes -= size
        if end == len(chunk.messages):
            self._chunks.popleft()
        self.count -= end - start
        self.size_bytes -= size
        return Taken(chunk.offsets[start:end], messages, priors, size)

    def first(self) -> tuple[int, Message] | None:
        if self._returned:
            return self._returned[0][:2]
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        return chunk.offsets[chunk.position], chunk.messages[chunk.position]

    def drop_first(self) -> tuple[int, Message, int]:
        taken = self.take(1, _UNLIMITED_BYTES, None)
        assert taken is not None
        return taken.offsets[0], taken.messages[0], 0 if taken.priors is None else taken.priors[0]

    def remove(self, offset: int) -> bool:
        for place, (returned, message, _) in enumerate(self._returned):
            if returned == offset:
                self._returned[place] = self._returned[-1]
                self._returned.pop()
                heapify(self._returned)
                self.count -= 1
                self.size_bytes -= len(message.value)
                return True
        for number, chunk in enumerate(self._chunks):
            if chunk.offsets[-1] >= offset:
                place = bisect_left(chunk.offsets, offset, chunk.position)
                if place < len(chunk.offsets) and chunk.offsets[place] == offset:
                    self._cut_out(number, chunk, place)
                    return True
                return False
        return False

    def _cut_out(self, number: int, chunk: _Chunk, place: int) -> None:
        start, size = chunk.position, len(chunk.messages[place].value)
        kept = [each for each in range(start, len(chunk.messages)) if each != place]
        priors = None if chunk.priors is None else [chunk.priors[each] for each in kept]
        if kept:
            messages = [chunk.messages[each] for each in kept]
            offsets = [chunk.offsets[each] for each in kept]
            self._chunks[number] = _Chunk(offsets, messages, priors, chunk.size_bytes - size)
        else:
            del self._chunks[number]
        self.count -= 1
        self.size_bytes -= size

    def clear(self) -> None:
        self._returned.clear()
        self._chunks.clear()
        self.count = self.size_bytes = 0


def _joined(one: Taken, two: Taken) -> Taken:
    messages = one.messages + two.messages
    priors: list[int] | None = None
    if one.priors is not None or two.priors is not None:
        priors = [*(one.priors or [0] * len(one)), *(two.priors or [0] * len(two))]
    return Taken([*one.offsets, *two.offsets], messages, priors, one.size_bytes + two.size_bytes)


_Entry = tuple[int, int, Message, int]  # negated priority, offset, message, earlier deliveries


class RankedLine(Line):
    """By priority, then by offset; and with `by_key`, the records of one key with one consumer at a time.

    A key belongs to a consumer while that has a lease on a record of it. Records of a key that belongs to somebody else are
    set aside when they come up, and come back in line when the key's last lease ends or its owner asks for more. They
    count as ready. Records without a key are free.
    """

    def __init__(self, max_priority: int | None, *, by_key: bool) -> None:
        super().__init__()
        self._max_priority = max_priority
        self._by_key = by_key
        self._heap: list[_Entry] = []
        self._owners: dict[bytes, tuple[object, int]] = {}
        self._aside: dict[bytes, list[_Entry]] = {}
        self._waiting_for: dict[object, set[bytes]] = {}  # owner -> its keys with something set aside

    def _rank(self, message: Message) -> int:
        return 0 if self._max_priority is None else -min(message.priority, self._max_priority)

    def append(self, offsets: Sequence[int], messages: list[Message], priors: Sequence[int] | None, size: int) -> None:
        for number, message in enumerate(messages):
            prior = 0 if priors is None else priors[number]
            heappush(self._heap, (self._rank(message), offsets[number], message, prior))
        self.count += len(messages)
        self.size_bytes += size

    def put_back(self, offset: int, message: Message, prior: int) -> None:
        heappush(self._heap, (self._rank(message), offset, message, prior))
        self.count += 1
        self.size_bytes += len(message.value)

    def take(self, limit: int, max_bytes: int, consumer: object) -> Taken | None:
        if self._by_key:
            for key in self._waiting_for.pop(consumer, ()):
                self._bring_back(key)
        offsets: list[int] = []
        messages: list[Message] = []
        priors: list[int] = []
        size = 0
        heap = self._heap
        while heap and len(offsets) < limit:
            entry = heap[0]
            _, offset, message, prior = entry
            if self._by_key and message.key is not None and not self._claim(message.key, consumer, heap):
                continue
            own_bytes = len(message.value)
            if offsets and size + own_bytes > max_bytes:
                break
            heappop(heap)
            offsets.append(offset)
            messages.append(message)
            priors.append(prior)
            size += own_bytes
            if self._by_key and message.key is not None:
                held = self._owners.get(message.key)
                self._owners[message.key] = (consumer, 1 if held is None else held[1] + 1)
        if not offsets:
            return None
        self.count -= len(offsets)
        self.size_bytes -= size
        return Taken(offsets, messages, priors, size)

    def _claim(self, key: bytes, consumer: object, heap: list[_Entry]) -> bool:
        """Whether the consumer may have the key; else the first entry, which has it, is set aside."""
        held = self._owners.get(key)
        if held is None or held[0] is consumer:
            return True
        self._aside.setdefault(key, []).append(heappop(heap))
        self._waiting_for.setdefault(held[0], set()).add(key)
        return False

    def _bring_back(self, key: bytes) -> None:
        for entry in self._aside.pop(key, ()):
            heappush(self._heap, entry)

    def ended(self, delivery: Delivery) -> bool:
        key = delivery.message.key
        if not self._by_key or key is None:
            return False
        held = self._owners.get(key)
        if held is None:
            return False
        owner, leases = held
        if leases > 1:
            self._owners[key] = (owner, leases - 1)
            return False
        del self._owners[key]
        waiting = self._waiting_for.get(owner)
        if waiting is not None:
            waiting.discard(key)
            if not waiting:
                del self._waiting_for[owner]
        freed = key in self._aside
        self._bring_back(key)
        return freed

    def first(self) -> tuple[int, Message] | None:
        return self._heap[0][1:3] if self._heap else None

    def drop_first(self) -> tuple[int, Message, int]:
        _, offset, message, prior = heappop(self._heap)
        self.count -= 1
        self.size_bytes -= len(message.value)
        return offset, message, prior

    def remove(self, offset: int) -> bool:
        for entries in (self._heap, *self._aside.values()):
            for place, entry in enumerate(entries):
                if entry[1] == offset:
                    entries[place] = entries[-1]
                    entries.pop()
                    heapify(entries)  # what is set aside need not be one, and may
                    self.count -= 1
                    self.size_bytes -= len(entry[2].value)
                    return True
        return False

    def clear(self) -> None:
        """Leases keep their keys: what they block is not in line any more, but what comes may be."""
        self._heap.clear()
        self._aside.clear()
        self._waiting_for.clear()
        self.count = self.size_bytes = 0
