"""Keep-alive: closes connections that have been silent for one and a half times what they promised [MQTT-3.1.2-24].

A wheel of one-second slots instead of a timer per connection. A connection is in the slot at which it would time out if
nothing more came; when that slot is due and something has come since, it moves to the new one. So a busy connection costs
one move per keep-alive period, and a packet costs nothing here. A connection that the broker does not read is not silent:
its time begins anew when it is read again.
"""

from __future__ import annotations

from typing import Protocol

from trunkline.clock import Clock

SLOT_MS = 1_000


class Watched(Protocol):
    """A connection, as far as its keep-alive goes."""

    keep_alive_ms: float
    last_active_ms: float

    @property
    def ready(self) -> bool: ...

    @property
    def waiting(self) -> bool:
        """Whether the broker does not read it."""

    def keep_alive_expired(self) -> None: ...


class KeepAlive:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, list[Watched]] = {}
        self._next_slot = int(clock.monotonic_ms() // SLOT_MS)

    def add(self, connection: Watched) -> None:
        if connection.keep_alive_ms > 0:
            self._put(connection)

    def _put(self, connection: Watched) -> None:
        due_ms = connection.last_active_ms + connection.keep_alive_ms
        slot = max(self._next_slot, int(due_ms // SLOT_MS) + 1)
        self._slots.setdefault(slot, []).append(connection)

    def expire(self) -> None:
        """Close what has timed out by now."""
        now_ms = self._clock.monotonic_ms()
        current = int(now_ms // SLOT_MS)
        while self._next_slot <= current:
            slot = self._next_slot
            self._next_slot += 1
            for connection in self._slots.pop(slot, ()):
                if not connection.ready:
                    continue
                if connection.waiting:
                    connection.last_active_ms = now_ms
                if connection.last_active_ms + connection.keep_alive_ms <= now_ms:
                    connection.keep_alive_expired()
                else:
                    self._put(connection)
