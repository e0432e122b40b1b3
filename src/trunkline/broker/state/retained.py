"""Retained messages: the last message of each topic name that asked to be kept, for those who subscribe later.

A fold of `__retained` (key: the topic name; value: the payload; headers: the message's record headers; a tombstone
clears). Payloads are kept in memory, since a subscription wants them at once; `max_messages` and `max_bytes` bound that.
Names are also in a tree by level, so that the names that match a filter are found without looking at the others: a lookup
costs the nodes whose prefix matches a prefix of the filter, plus the names found.

Volatile entries (statistics) are in the same tree but never written.

A crash loses what was not flushed, of which nobody was told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trunkline.broker.keyed_state import KeyedState
from trunkline.clock import Clock
from trunkline.log.records import NO_HEADERS
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Ticket

RETAINED_TOPIC = "__retained"
_ENTRY_OVERHEAD_BYTES = 400


class Retained(NamedTuple):
    payload: bytes
    headers: bytes
    timestamp_ms: int
    volatile: bool = False


class RetainedFull(Exception):
    """One of the limits is reached; the text names it."""


class _Level(dict[str, "_Level"]):
    """The names below a prefix. `name` is set where one ends."""

    __slots__ = ("name",)

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None


class RetainedMessages:
    def __init__(
        self, store: LogStore, clock: Clock, *, max_messages: int = 1_000_000, max_bytes: int = 1 << 30
    ) -> None:
        self._clock = clock
        self._state = KeyedState(store, clock, RETAINED_TOPIC)
        self._messages: dict[str, Retained] = {}
        self._root = _Level()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._volatile = 0
        self._reserved = 0
        self._reserved_bytes = 0
        self.size_bytes = 0

    async def start(self) -> None:
        await self._state.topic.open()
        async for records in self._state.topic.replay():
            for _offset, timestamp_ms, key, value, headers in records:
                if key is None:
                    continue
                name = key.decode(errors="replace")
                if value is None:
                    self._remove(name)
                else:
                    self._insert(name, Retained(value, headers, timestamp_ms))

    def __len__(self) -> int:
        """How many are kept, without the volatile ones."""
        return len(self._messages) - self._volatile

    def get(self, name: str) -> Retained | None:
        return self._messages.get(name)

    def reserve(self, name: str, payload_bytes: int) -> bool:
        """Keep room for a message that is about to be put; False if there is none, so that its publisher can be told.

        `end_reservations` gives the room back, once the message is put. An empty one clears, and needs none.
        """
        if not self._has_room(name, payload_bytes):
            return False
        if payload_bytes and name not in self._messages:
            self._reserved += 1
        self._reserved_bytes += payload_bytes
        return True

    def end_reservations(self) -> None:
        self._reserved = self._reserved_bytes = 0

    def _has_room(self, name: str, payload_bytes: int) -> bool:
        known = self._messages.get(name)
        if known is not None and payload_bytes <= len(known.payload):
            return True
        if payload_bytes and known is None and len(self) + self._reserved >= self._max_messages:
            return False
        return not payload_bytes or self.size_bytes + self._reserved_bytes + payload_bytes <= self._max_bytes

    def put(self, name: str, payload: bytes, headers: bytes, *, volatile: bool = False, reserved: bool = False) -> None:
        """Keep this as the last message of the name. Stored at the next flush. What is not reserved may be refused."""
        if not volatile and not reserved and not self._has_room(name, len(payload)):
            full = name not in self._messages and len(self) + self._reserved >= self._max_messages
            limit = f"messages={self._max_messages}" if full else f"bytes={self._max_bytes}"
            raise RetainedFull(f"max_retained_{limit} is reached")
        self._insert(name, Retained(payload, headers, self._clock.wall_ms(), volatile))
        if not volatile:
            self._state.put(name.encode(), payload, headers)

    def clear(self, name: str) -> bool:
        """Forget the name's message; False if there was none."""
        before = self._messages.get(name)
        if before is None:
            return False
        self._remove(name)
        if not before.volatile:
            self._state.put(name.encode(), None, NO_HEADERS)
        return True

    @property
    def dirty(self) -> bool:
        return self._state.dirty

    def flush(self, durability: Durability) -> Ticket:
        return self._state.flush(durability)

    def matching(self, topic_filter: str) -> Iterator[str]:
        """The names that an MQTT filter matches. The messages must not change meanwhile."""
        if "+" not in topic_filter and "#" not in topic_filter:
            if topic_filter in self._messages:
                yield topic_filter
            return
        levels = topic_filter.split("/")
        stack: list[tuple[_Level, int]] = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if depth == len(levels):
                if node.name is not None:
                    yield node.name
                continue
            level = levels[depth]
            if level == "#":
                yield from self._below(node, hide_dollar=depth == 0)
            elif level == "+":
                stack.extend((child, depth + 1) for key, child in node.items() if depth > 0 or not key.startswith("$"))
            else:
                following = node.get(level)
                if following is not None:
                    stack.append((following, depth + 1))

    def _below(self, top: _Level, *, hide_dollar: bool) -> Iterator[str]:
        stack = [top]
        while stack:
            node = stack.pop()
            if node.name is not None:
                yield node.name
            if node is top and hide_dollar:
                stack.extend(child for key, child in node.items() if not key.startswith("$"))
            else:
                stack.extend(node.values())

    def _insert(self, name: str, message: Retained) -> None:
        before = self._messages.get(name)
        if before is None:
            node = self._root
            for level in name.split("/"):
                following = node.get(level)
                if following is None:
                    following = node[level] = _Level()
                node = following
            node.name = name
            self.size_bytes += len(name) + _ENTRY_OVERHEAD_BYTES
        else:
            self.size_bytes -= len(before.payload) + len(before.headers)
            self._volatile -= before.volatile
        self._messages[name] = message
        self._volatile += message.volatile
        self.size_bytes += len(message.payload) + len(message.headers)

    def _remove(self, name: str) -> None:
        message = self._messages.pop(name, None)
        if message is None:
            return
        self._volatile -= message.volatile
        self.size_bytes -= len(message.payload) + len(message.headers) + len(name) + _ENTRY_OVERHEAD_BYTES
        path = [self._root]
        levels = name.split("/")
        for level in levels:
            path.append(path[-1][level])
        path[-1].name = None
        while levels and not path[-1] and path[-1].name is None:
            path.pop()
            del path[-1][levels.pop()]
