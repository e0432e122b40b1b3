"""The pulse of a connection: heartbeats, and how long its opening and its closing may take."""

from __future__ import annotations

from typing import Protocol

from trunkline.protocols.amqp.connection import Connection
from trunkline.protocols.amqp.frames import HEARTBEAT_FRAME
from trunkline.protocols.amqp.states import ConnectionState


class Beating(Connection, Protocol):
    """What a pulse asks of the connection that it is of."""

    state: ConnectionState

    @property
    def readable(self) -> bool: ...


class Pulse:
    """Times are of the monotonic clock, in milliseconds."""

    __slots__ = ("closing_ms", "opened_ms", "read_ms", "written_ms")

    def __init__(self, now_ms: float) -> None:
        self.opened_ms = now_ms
        self.read_ms = now_ms
        self.written_ms = now_ms
        self.closing_ms = 0.0

    def tick(self, session: Beating, now_ms: float) -> None:
        if session.state is ConnectionState.CLOSING:
            if now_ms - self.closing_ms > session.limits.close_timeout_ms:
                session.end()
        elif session.state is not ConnectionState.RUNNING:
            if now_ms - self.opened_ms > session.limits.handshake_timeout_ms:
                session.end()
        elif session.heartbeat_s:
            interval_ms = session.heartbeat_s * 1000
            if now_ms - self.read_ms > 2 * interval_ms and session.readable:
                session.complain("missed heartbeats", f"missed heartbeats, timeout: {session.heartbeat_s}s")
                session.end()
            elif now_ms - self.written_ms >= interval_ms / 2:
                session.send(HEARTBEAT_FRAME)
