"""The AMQP listener: the only file of this protocol with a socket in it.

Reading. All connections share one scratch buffer: `get_buffer`, the read and `buffer_updated` happen without a pause
between them, so an idle connection owns no buffer; what is incomplete is kept by the session's parser, which bounds it, and
counts against the broker's input budget.

Back-pressure. A connection is not read while its session has something to finish first (a declaration, a commit), while
too many of its publications wait for the disk, or while the broker is short of space and it publishes. A client that does
not take its deliveries off the connection gets no more once `write_high_water_bytes` wait for it, but its
acknowledgements are still read: a client may be sending them before it reads on. Only when answers to what it asks for
come to `_STOP_READING_FACTOR` times as much is it not read either.

Time. Once a second every session looks at its heartbeat.
"""

from __future__ import annotations

import asyncio
import ipaddress

from trunkline.broker.core import BrokerCore
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.service import Service
from trunkline.protocols.amqp.session import Session
from trunkline.protocols.listener import Listener, ServedConnection

_SCRATCH_BYTES = 256 * 1024
_TICK_S = 1.0
_CLOSE_S = 2.0
_LINGER_S = 2.0
_STOP_READING_FACTOR = 4


class AmqpServer:
    """Accepts connections on one address."""

    def __init__(self, broker: BrokerCore, limits: AmqpLimits | None = None) -> None:
        self.broker = broker
        self.service = Service(broker, limits)
        self.connections: set[Connection] = set()
        self.scratch_view = memoryview(bytearray(_SCRATCH_BYTES))
        self._listener = Listener(broker, lambda: Connection(self), self._refusal)
        self._ticker: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        bound = await self._listener.start(host, port)
        self._ticker = loop.call_later(_TICK_S, self._tick, loop)
        self.service.space.subscribe(self._tell_blocked)
        return bound

    @property
    def refused(self) -> int:
        return self._listener.refused

    def _refusal(self) -> str:
        most = self.broker.limits.max_connections
        here = len(self.connections) + self._listener.arriving
        return f"max_connections={most} is reached" if here >= most else ""

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now_ms = self.broker.clock.monotonic_ms()
        for connection in list(self.connections):
            connection.tick(now_ms)
        self._ticker = loop.call_later(_TICK_S, self._tick, loop)

    def _tell_blocked(self, reason: str | None) -> None:
        for connection in list(self.connections):
            connection.tell_blocked(reason)

    async def close(self) -> None:
        """Tell every client, give them a moment to answer, then go."""
        if self._ticker is not None:
            self._ticker.cancel()
        self._listener.close()
        loop = asyncio.get_running_loop()
        for connection in list(self.connections):
            connection.shut_down()
        deadline = loop.time() + _CLOSE_S
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        while self.connections and loop.time() < deadline + _CLOSE_S:
            await asyncio.sleep(0.01)


class Connection(ServedConnection):
    """One client. Bytes in to the session, bytes from the session out."""

    __slots__ = ("_closing", "_reading", "_server", "_session", "_unsent_bytes")

    holding = "an AMQP connection"

    def __init__(self, server: AmqpServer) -> None:
        super().__init__(server.broker)
        self._server = server
        self._session: Session | None = None
        self._reading = True
        self._closing = False
        self._unsent_bytes = 0

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        server = self._server
        server.connections.add(self)
        high = server.service.limits.write_high_water_bytes
        transport.set_write_buffer_limits(high=high, low=high // 4)
        peer = f"{self.host}:{self.port}"
        self._session = Session(server.service, self, peer=peer, loopback=_is_loopback(self.host))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.connections.discard(self)
        self._forget_unsent()
        self._end_session()

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.connection_lost()
            self.hold_input(0)

    def let_go(self) -> None:
        self._held_bytes = 0
        if self._session is not None:
            self._session.out_of_input()

    def shut_down(self) -> None:
        if self._session is not None:
            self._session.force_close("broker forced connection closure with reason 'shutdown'")

    def tick(self, now_ms: float) -> None:
        if self._session is not None:
            self._session.tick(now_ms)

    def tell_blocked(self, reason: str | None) -> None:
        session = self._session
        if session is not None:
            session.tell_blocked(reason)
            if self._reading and not self._may_read(session):
                self._pause_reading()

    # -- in ------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        session = self._session
        if session is None or self._closing:
            return
        turn = self._server.service.turn
        turn.hold()
        try:
            session.receive(self._server.scratch_view[:nbytes])
        except Exception as error:
            self._broker.complaints.add("failed AMQP frame", self.host, "closing an AMQP connection", error=error)
            self.abort()
            return
        finally:
            turn.let_go()
        held_bytes = session.held_bytes
        if held_bytes != self._held_bytes:
            self.hold_input(held_bytes)
        if self._reading and not self._may_read(session):
            self._pause_reading()

    def eof_received(self) -> bool:
        return False

    def _may_read(self, session: Session) -> bool:
        if not session.readable:
            return False
        if session.writable or self._transport is None:
            return True
        most_bytes = _STOP_READING_FACTOR * self._server.service.limits.write_high_water_bytes
        return self._transport.get_write_buffer_size() < most_bytes

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def readable_again(self) -> None:
        session = self._session
        if session is not None:
            self.hold_input(session.held_bytes)
        if self._reading or session is None or not self._may_read(session):
            return
        if self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # -- out -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)
            if self._unsent_bytes:
                self._count_unsent(transport)

    def close(self) -> None:
        """Send the rest, then say that there is no more and wait for the client to hang up.

        Clients still send acknowledgements behind their connection.close. Were the socket closed before they are read, the
        operating system would reset the connection, and take what the client has not read yet with it. At once when the
        client does not take what is sent, or it would never end.
        """
        self._closing = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._session is not None and not self._session.writable:
            transport.abort()
            return
        try:
            transport.write_eof()
        except OSError:  # the client is gone already
            transport.abort()
            return
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._end_session)  # what it held is free at once, not when the client hangs up
        loop.call_later(_LINGER_S, transport.abort)

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.set_writable(False)
        assert self._transport is not None
        self._count_unsent(self._transport)

    def resume_writing(self) -> None:
        self._forget_unsent()
        if self._session is not None:
            self._session.set_writable(True)
            self.readable_again()

    def _count_unsent(self, transport: asyncio.Transport) -> None:
        now_bytes = transport.get_write_buffer_size()
        self._server.broker.unsent_bytes += now_bytes - self._unsent_bytes
        self._unsent_bytes = now_bytes

    def _forget_unsent(self) -> None:
        self._server.broker.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
