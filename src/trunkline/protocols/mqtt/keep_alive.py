"""Keep-alive: closes connections that have been silent for one and a half times what they promised [MQTT-3.1.2-24].

A wheel of one-second slots instead of a timer per connection. A connection is in the slot at which it would time out if
nothing more came; when that slot is due and something has come since, it moves to the new one. So a busy connection costs
one move per keep-alive period, and a packet costs nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.clock import Clock

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.session import Session

SLOT_MS = 1_000


class KeepAlive:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, list[Session]] = {}
        self._next_slot = int(clock.monotonic_ms() // SLOT_MS)

    def add(self, session: Session) -> None:
        if session.keep_alive_ms > 0:
            self._put(session)

    def _put(self, session: Session) -> None:
        due_ms = session.last_active_ms + session.keep_alive_ms
        slot = max(self._next_slot, int(due_ms // SLOT_MS) + 1)
        self._slots.setdefault(slot, []).append(session)

    def expire(self) -> None:
        """Close what has timed out by now."""
        now_ms = self._clock.monotonic_ms()
        current = int(now_ms // SLOT_MS)
        while self._next_slot <= current:
            slot = self._next_slot
            self._next_slot += 1
            for session in self._slots.pop(slot, ()):
                if not session.ready:
                    continue
                if session.last_active_ms + session.keep_alive_ms <= now_ms:
                    session.keep_alive_expired()
                else:
                    self._put(session)
