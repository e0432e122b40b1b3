"""How long messages of a queue may wait: until a time of their own, or as long as the queue lets any of them.

Whether a message has expired is judged by the wall clock; but in the deal after messages came, by the time when they did. A
message with no time to live at all is for a consumer who waits already, however long the turn takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.clock import Clock
from trunkline.cursors.queue.message import Message

FOREVER_MS = 1 << 62


class Lifetimes:
    __slots__ = ("_clock", "_judged_ms", "_put_ms", "_ttl_ms")

    def __init__(self, clock: Clock, ttl_ms: int | None) -> None:
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._put_ms: int | None = None  # when the first message since the last deal came, while consumers waited
        self._judged_ms: int | None = None  # that time, during the deal

    def change(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    def awaited(self, timestamp_ms: int) -> None:
        """Messages came for which consumers wait."""
        if self._put_ms is None:
            self._put_ms = timestamp_ms

    def begin_deal(self) -> None:
        self._judged_ms, self._put_ms = self._put_ms, None

    def end_deal(self) -> None:
        self._judged_ms = None

    def now_ms(self) -> int:
        """The time by which expiry is judged."""
        return self._clock.wall_ms() if self._judged_ms is None else self._judged_ms

    def last_ms(self, message: Message) -> int:
        """The last millisecond of the wall clock at which the message may be delivered."""
        own_ms = FOREVER_MS if message.expires_ms is None else message.expires_ms
        return own_ms if self._ttl_ms is None else min(own_ms, message.timestamp_ms + self._ttl_ms)

    def expired(self, messages: Sequence[Message]) -> list[int]:
        """Which of the messages may not be delivered any more, by their place in the sequence."""
        now_ms = self.now_ms()
        return [number for number, message in enumerate(messages) if self.last_ms(message) < now_ms]
