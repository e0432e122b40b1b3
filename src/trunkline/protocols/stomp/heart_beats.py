"""The heart-beats of a connection: that its client sends, and that it is sent.

    CONNECT    heart-beat:cx,cy     it can send one every cx ms, and wants one every cy ms; 0 for none
    CONNECTED  heart-beat:sx,sy     we send one every sx ms, and want one every sy ms

We answer with what the client asked for, but no shorter than `min_heart_beat_ms`. Whatever is sent counts as a beat. A
client that has been silent for twice as long as it said is gone.
"""

from __future__ import annotations

from typing import Final

from trunkline.protocols.stomp.errors import invalid_header

TICK_MS: Final = 200.0
_PATIENCE: Final = 2
_MAX_DIGITS: Final = 9


class HeartBeats:
    """Times are of the monotonic clock, in milliseconds."""

    __slots__ = ("expect_ms", "read_ms", "send_ms", "written_ms")

    def __init__(self, now_ms: float) -> None:
        self.read_ms = now_ms
        self.written_ms = now_ms
        self.send_ms = 0
        self.expect_ms = 0

    def agree(self, asked: str, least_ms: int) -> str:
        """The answer to what a CONNECT has under `heart-beat`; StompError."""
        parts = [part.strip() for part in asked.split(",")]
        if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) <= _MAX_DIGITS for p in parts):
            raise invalid_header("'heart-beat' must be two numbers")
        can_ms, wants_ms = map(int, parts)
        self.send_ms = max(wants_ms, least_ms) if wants_ms else 0
        self.expect_ms = max(can_ms, least_ms) if can_ms else 0
        return f"{self.send_ms},{self.expect_ms}"

    def due(self, now_ms: float) -> bool:
        """Whether a beat is to be sent, if nothing else is before the next tick."""
        return self.send_ms > 0 and now_ms - self.written_ms + TICK_MS >= self.send_ms

    def missed(self, now_ms: float) -> bool:
        return self.expect_ms > 0 and now_ms - self.read_ms > _PATIENCE * self.expect_ms
