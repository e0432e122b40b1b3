"""The Kafka listener: the only file of this protocol with a socket in it.

Reading. All connections of a loop share one scratch buffer: `get_buffer`, the read and `buffer_updated` happen without
a pause between them, so an idle connection owns no buffer. A request that fits the scratch buffer is copied out of it
in one piece; a larger one gets a buffer of its own that grows as bytes arrive, never as the length prefix claims, and
is read into directly. What is kept of requests that are not complete, or must wait, counts against the broker's input budget;
a request must be complete `max_request_ms` after its first byte.

Back-pressure. A connection is not read while its answers wait to be sent (`pause_writing`), while it has
`max_in_flight_requests` requests open, or while a request waits for earlier ones to take effect. What is unsent on all
paused connections, being read for a fetch or waiting for the answers before it is counted, and fetches are cut smaller
as that sum nears `max_unsent_bytes`. A connection without a byte in either direction for `max_idle_ms`, and without an
open request, is closed, as Kafka does.
"""

from __future__ import annotations

import asyncio
import struct

from trunkline.broker.core import BrokerCore
from trunkline.protocols.kafka.codec import DecodeError
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.protocols.kafka.session import LARGE_REQUEST_BYTES, Session
from trunkline.protocols.listener import Listener, ServedConnection

_LENGTH = struct.Struct(">i")
_SCRATCH_BYTES = 256 * 1024
_FIRST_GROWTH_BYTES = 16 * 1024  # what a length prefix alone can make us set aside
_GROWTH_FACTOR = 16  # a sender that has filled a read is trusted with so many times as much
_SPARE_FRAMES = 16  # buffers of large requests that serve again
_WRITE_HIGH_WATER_BYTES = 256 * 1024
_MAX_SWEEP_PERIOD_MS = 30_000
_JOIN_BYTES = 32 * 1024  # below this, one copy is cheaper than one more system call


class KafkaServer:
    """Accepts connections on one address. Limits come from the broker's configuration."""

    def __init__(self, broker: BrokerCore) -> None:
        self.broker = broker
        self.connections: set[Connection] = set()
        self.scratch = bytearray(_SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.fetch_sessions = FetchSessions()
        self._spares: list[bytearray] = []  # buffers of large requests, to be used again by whoever sends one
        self._listener = Listener(broker, lambda: Connection(self), self._refusal)
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        bound = await self._listener.start(host, port)
        self._schedule_sweep(loop)
        return bound

    @property
    def refused(self) -> int:
        return self._listener.refused

    def _refusal(self) -> str:
        most = self.broker.limits.max_connections
        here = len(self.connections) + self._listener.arriving
        return f"max_connections={most} is reached" if here >= most else ""

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self.broker.limits
        period_ms = min(_MAX_SWEEP_PERIOD_MS, limits.max_idle_ms / 4, limits.max_request_ms / 4)
        self._sweep = loop.call_later(period_ms / 1000, self._close_overdue, loop)

    def _close_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connections that are idle, and those whose request never ends."""
        now_ms, limits = self.broker.clock.monotonic_ms(), self.broker.limits
        for connection in list(self.connections):
            if connection.idle_since(now_ms - limits.max_idle_ms):
                connection.abort()
            elif connection.receiving_since(now_ms - limits.max_request_ms):
                connection.drop(f"a request was not complete after max_request_ms={limits.max_request_ms}")
        self._schedule_sweep(loop)

    def keep_spare(self, frame: bytearray) -> None:
        self._spares.append(frame)
        if len(self._spares) > _SPARE_FRAMES:
            self._spares.remove(min(self._spares, key=len))

    def take_spare(self, size: int) -> bytearray | None:
        for position, frame in enumerate(self._spares):
            if len(frame) >= size:
                return self._spares.pop(position)
        return None

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._listener.close()
        for connection in list(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)


class Connection(ServedConnection):
    """One client. Bytes in, frames to the session; buffers from the session, bytes out."""

    holding = "a Kafka connection"

    __slots__ = ("_backlog", "_begun_ms", "_frame", "_frame_have", "_frame_need", "_last_active_ms", "_paused_writing",
                 "_reading", "_server", "_session", "_unsent_bytes")  # fmt: skip

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server.broker)
        self._server = server
        self._session: Session | None = None
        self._backlog = b""  # bytes of requests not yet taken up: a partial one, or whole ones that must wait
        self._frame: bytearray | None = None  # a large request being read straight into its own buffer
        self._frame_have = 0
        self._frame_need = 0
        self._begun_ms: float | None = None  # when the first byte of an incomplete request came
        self._paused_writing = False
        self._reading = True
        self._unsent_bytes = 0
        self._last_active_ms = server.broker.clock.monotonic_ms()

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        server = self._server
        server.connections.add(self)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES, low=_WRITE_HIGH_WATER_BYTES // 4)
        self._session = Session(
            server.broker, server.fetch_sessions, self.host, self.local_host, send=self._send, ready=self._ready
        )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.connections.discard(self)
        self._forget_unsent()
        self._end_session()

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._backlog = b""
        self._frame = None
        self._count_input()

    def let_go(self) -> None:
        super().let_go()
        self._end_session()

    def idle_since(self, before_ms: float) -> bool:
        return self._last_active_ms < before_ms and (self._session is None or self._session.inflight == 0)

    def receiving_since(self, before_ms: float) -> bool:
        """Whether the request that is being received began before that. What we do not read now is not held against it."""
        return self._reading and self._begun_ms is not None and self._begun_ms < before_ms

    # -- in ------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_have : self._frame_need]
        return self._server.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        if self._session is None:
            return
        self._last_active_ms = self._server.broker.clock.monotonic_ms()
        if self._frame is not None:
            self._frame_have += nbytes
            if self._frame_have == self._frame_need:
                self._finish_frame()
                self._count_input()
            elif self._frame_have == len(self._frame):
                self._grow_frame()
                self._count_input()
            return
        if self._backlog:
            data = self._backlog + self._server.scratch_view[:nbytes]
            self._backlog = b""
            self._consume(memoryview(data))
        else:
            self._consume(self._server.scratch_view[:nbytes])
        self._count_input()

    def _count_input(self) -> None:
        frame = self._frame
        held_bytes = len(self._backlog) if frame is None else len(frame)
        if self._session is not None:
            held_bytes += self._session.waiting_bytes
        if held_bytes != self._held_bytes:
            self.hold_input(held_bytes)

    def eof_received(self) -> bool:
        return False

    def _grow_frame(self) -> None:
        assert self._frame is not None
        grown = min(self._frame_need, len(self._frame) * 2)
        bigger = bytearray(grown)
        bigger[: self._frame_have] = memoryview(self._frame)[: self._frame_have]
        self._frame = bigger

    def _finish_frame(self) -> None:
        frame, need = self._frame, self._frame_need
        assert frame is not None
        self._frame = None
        self._frame_have = self._frame_need = 0
        self._begun_ms = None
        self._handle(memoryview(frame)[:need])
        # Sessions keep no reference to a request's bytes, so the buffer can serve another one.
        if len(frame) <= LARGE_REQUEST_BYTES:
            self._server.keep_spare(frame)

    def _consume(self, data: memoryview) -> None:
        """Take whole frames off `data`; keep what is left for later."""
        position, end = 0, len(data)
        max_frame_bytes = self._server.broker.limits.max_request_bytes
        while end - position >= 4:
            session = self._session
            if session is None:
                return
            if not self._may_proceed(session):
                self._pause_reading()
                break
            length: int = _LENGTH.unpack_from(data, position)[0]
            if length < 0 or length > max_frame_bytes:
                self.drop(f"a request of {length} bytes (max_request_bytes is {max_frame_bytes})")
                return
            start = position + 4
            if end - start >= length:
                position = start + length
                self._begun_ms = None
                self._handle(data[start:position])
            elif length + 4 > _SCRATCH_BYTES:
                self._start_frame(data[start:], length)
                break
            else:
                break
        if position < end and self._session is not None:
            if self._begun_ms is None:
                self._begun_ms = self._last_active_ms
            if self._frame is None:
                self._backlog = bytes(data[position:])

    def _start_frame(self, head: memoryview, length: int) -> None:
        frame = self._server.take_spare(length)
        if frame is None:
            frame = bytearray(min(length, max(_FIRST_GROWTH_BYTES, len(head) * _GROWTH_FACTOR)))
        frame[: len(head)] = head
        self._frame, self._frame_have, self._frame_need = frame, len(head), length

    def _handle(self, frame: memoryview) -> None:
        session = self._session
        if session is None:
            return
        try:
            session.receive(frame)
        except DecodeError as error:
            self.drop(str(error))
        except Exception as error:
            text = "closing a Kafka connection: a request failed"
            self._broker.complaints.add("failed Kafka request", self.host, text, error=error)
            self.abort()

    def drop(self, reason: str) -> None:
        self._broker.complaints.add("bad Kafka request", self.host, f"closing a Kafka connection: {reason}")
        self._close()
        self._end_session()

    # -- out and back-pressure -----------------------------------------------------------------------------------

    def _send(self, buffers: list[bytes | bytearray | memoryview] | None) -> None:
        """Write one response; None closes the connection, as Kafka does when acks=0 produce fails."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._last_active_ms = self._server.broker.clock.monotonic_ms()
        if buffers is None:
            self._close()
        elif len(buffers) == 1:
            transport.write(buffers[0])
        elif sum(map(len, buffers)) <= _JOIN_BYTES:
            transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                transport.write(buffer)
                if transport.is_closing():  # the client is gone
                    return
        if self._paused_writing:
            self._count_unsent(transport)

    def _close(self) -> None:
        """Close once everything is sent; at once when the client does not take it, or it would never end."""
        if self._transport is not None:
            if self._paused_writing:
                self._transport.abort()
            else:
                self._transport.close()

    def _may_proceed(self, session: Session) -> bool:
        limits = self._server.broker.limits
        return (
            not self._paused_writing
            and not session.holds_back
            and session.inflight < limits.max_in_flight_requests
            and session.waiting_bytes < limits.max_request_bytes
        )

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _ready(self) -> None:
        """The session can take more requests: start with those that wait here."""
        if self._held_bytes:
            self._count_input()
        if self._reading or self._session is None or not self._may_proceed(self._session):
            return
        backlog, self._backlog = self._backlog, b""
        if backlog:
            self._reading = True  # so that _consume can pause again
            self._consume(memoryview(backlog))
            self._count_input()
            if not self._reading:
                return
        self._reading = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._paused_writing = True
        assert self._transport is not None
        self._count_unsent(self._transport)

    def resume_writing(self) -> None:
        self._paused_writing = False
        self._forget_unsent()
        self._ready()

    def _count_unsent(self, transport: asyncio.Transport) -> None:
        now_bytes = transport.get_write_buffer_size()
        self._server.broker.unsent_bytes += now_bytes - self._unsent_bytes
        self._unsent_bytes = now_bytes

    def _forget_unsent(self) -> None:
        self._server.broker.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
