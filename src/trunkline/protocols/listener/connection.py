"""A client's connection, the same class for every protocol: bytes in to its session, bytes from its session out.

Reading. All connections of a server share one buffer: `get_buffer`, the read and `buffer_updated` happen without a pause
between them, so an idle connection owns no buffer, no task and no timer. A session that waits for something large has
it read into a buffer of its own (`read_into`). What a session keeps of its input counts against the broker's input
budget: see `trunkline.budget`.

Writing. When a client does not take what is sent, the transport says so (`pause_writing`) above the server's
`high_water_bytes`; the session then sends answers only. From there on what is unsent is counted, for all protocols
together, in `broker.counters.unsent_bytes`. Sessions push back when that nears `max_unsent_bytes`; what cannot be pushed back is
bounded by the broker's output budget, which ends the connections that hold most of it.

Closing. The last packet says why, so it must arrive. A socket that is closed while input is unread resets the connection,
and the client may then lose what was sent to it. So our side says that there is no more, and what still comes is discarded
until the client closes too, for `_LINGER_S` at most. TLS has no way to close one side: there the connection ends when
nothing has come for `_TLS_LINGER_S`. Who has not taken everything yet gets more time, up to `_MAX_LINGERS` times as much;
but when it is more than `high_water_bytes`, the connection ends at once.

Nothing here looks at the socket: a transport over TLS does as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol

from trunkline.broker.administration.connections import About
from trunkline.protocols.listener.session import Accountable, Buffer, MakeSession, S
from trunkline.security.certificates import distinguished_name

if TYPE_CHECKING:
    from trunkline.broker.core import BrokerCore

_JOIN_BYTES = 32 * 1024  # below this, one copy is cheaper than one more system call
_LINGER_S = 2.0
_TLS_LINGER_S = 0.25
_MAX_LINGERS = 8


class Home(Protocol[S]):
    """What connections and listeners ask of the server that they belong to."""

    broker: BrokerCore
    holding: str  # what a connection is called in complaints
    high_water_bytes: int
    scratch: memoryview
    arriving: int
    refused: int

    def add(self, connection: ServedConnection[S]) -> None: ...

    def remove(self, connection: ServedConnection[S]) -> None: ...

    def failed(self, connection: ServedConnection[S], error: Exception) -> None: ...

    def refusal(self) -> str: ...


class ServedConnection(asyncio.BufferedProtocol, Generic[S]):
    __slots__ = ("_closing", "_heard", "_held_bytes", "_into", "_lingering", "_make_session", "_server", "_transport", "_unsent",
                 "host", "listener", "number", "session", "since_ms")  # fmt: skip

    def __init__(self, server: Home[S], make_session: MakeSession[S], listener: str = "") -> None:
        self._server = server
        self.listener = listener
        self._make_session = make_session
        self._transport: asyncio.Transport | None = None
        self._into: memoryview | None = None
        self._held_bytes = 0
        self._unsent: _Unsent | None = None  # while the client does not take what is sent
        self._closing = False
        self._heard = False  # while closing
        self._lingering: asyncio.TimerHandle | None = None
        self.session: S | None = None
        self.host = "unknown"
        self.number = 0
        self.since_ms = 0

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        server = self._server
        server.arriving -= 1
        self._transport = transport
        transport.set_write_buffer_limits(high=server.high_water_bytes, low=server.high_water_bytes // 4)
        self.host = _host(transport.get_extra_info("peername"))
        self.number = server.broker.connections.next_number()
        self.since_ms = server.broker.clock.wall_ms()
        server.add(self)
        self.session = self._make_session(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.remove(self)
        self._server.broker.counters.connections -= 1
        if self._lingering is not None:
            self._lingering.cancel()
        self._forget_unsent()
        self._end_session()

    def _end_session(self) -> None:
        session, self.session = self.session, None
        self._into = None
        if session is not None:
            session.lost()
            self.hold_input(0)

    @property
    def made(self) -> bool:
        return self._transport is not None

    @property
    def port(self) -> int:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return int(peer[1]) if isinstance(peer, tuple) else 0

    @property
    def certificate(self) -> str:
        shown = None if self._transport is None else self._transport.get_extra_info("peercert")
        return distinguished_name(shown["subject"]) if shown else ""

    @property
    def local_host(self) -> str:
        return _host(None if self._transport is None else self._transport.get_extra_info("sockname"))

    # -- for whoever looks at connections: see the administration's ------------------------------------------------

    def about(self) -> About | None:
        return self.session.about() if isinstance(self.session, Accountable) else None

    def force_close(self, reason: str) -> None:
        if isinstance(self.session, Accountable):
            self.session.force_close(reason)
        else:
            self.close()

    # -- in ------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        into = self._into
        return self._server.scratch if into is None else into

    def buffer_updated(self, nbytes: int) -> None:
        session = self.session
        if session is None or self._closing:
            self._heard = True
            return
        into = self._into
        try:
            session.read(self._server.scratch[:nbytes] if into is None else into[:nbytes])
        except Exception as error:
            self._server.failed(self, error)
            self.abort()
            return
        held_bytes = session.held_bytes
        if held_bytes != self._held_bytes:
            self.hold_input(held_bytes)

    def eof_received(self) -> bool:
        return False

    def read_into(self, buffer: memoryview | None) -> None:
        self._into = buffer

    def pause_reading(self) -> None:
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self.count_input()
        if self._transport is not None:
            self._transport.resume_reading()

    def count_input(self) -> None:
        if self.session is not None:
            self.hold_input(self.session.held_bytes)

    def hold_input(self, now_bytes: int) -> None:
        """So many bytes of this client's input are kept from now on."""
        if now_bytes != self._held_bytes:
            self._held_bytes = now_bytes
            self._server.broker.input.hold(self, now_bytes)

    # As a holder of input: see `trunkline.budget`.

    @property
    def origin(self) -> str:
        return self.host

    @property
    def holding(self) -> str:
        return self._server.holding

    def let_go(self) -> None:
        """Close, in the protocol's own words, because of what this client makes the broker hold."""
        self._held_bytes = 0
        if self.session is not None:
            self.session.out_of_input()

    # -- out -----------------------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        transport = self._transport
        if transport is not None and not self._closing and not transport.is_closing():
            transport.write(data)
            if self._unsent is not None:
                self._unsent.count(transport.get_write_buffer_size())

    def write_all(self, buffers: Sequence[Buffer]) -> None:
        transport = self._transport
        if transport is None or self._closing or transport.is_closing():
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif sum(map(len, buffers)) <= _JOIN_BYTES:
            transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                transport.write(buffer)
                if transport.is_closing():  # the client is gone
                    return
        if self._unsent is not None:
            self._unsent.count(transport.get_write_buffer_size())

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def crowded(self) -> bool:
        broker = self._server.broker
        return broker.counters.unsent_bytes > broker.limits.max_unsent_bytes

    def pause_writing(self) -> None:
        assert self._transport is not None
        if self.session is not None:
            self.session.pause_writing()
        self._unsent = _Unsent(self._server.broker, self.host, self._server.holding, self._transport.abort)
        self._unsent.count(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._forget_unsent()
        if self.session is not None:
            self.session.resume_writing()

    def _forget_unsent(self) -> None:
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            unsent.count(0)

    # -- the end -------------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        if self.session is not None:
            self.session.shut_down()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        transport = self._transport
        if self._closing or transport is None:
            return
        self._closing = True
        if transport.is_closing():
            return
        if self._unsent is not None:
            transport.abort()
            return
        try:
            if transport.can_write_eof():
                transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
            return
        self._into = None
        transport.resume_reading()
        asyncio.get_running_loop().call_soon(self._end_session)  # what it held is free at once
        self._linger(transport, _MAX_LINGERS)

    def _linger(self, transport: asyncio.Transport, times: int) -> None:
        self._heard = False
        told = transport.can_write_eof() or transport.get_write_buffer_size() > 0
        loop = asyncio.get_running_loop()
        self._lingering = loop.call_later(_LINGER_S if told else _TLS_LINGER_S, self._hang_up, transport, times - 1)

    def _hang_up(self, transport: asyncio.Transport, times: int) -> None:
        """The client has had its time: go, unless it has to take something yet, or cannot know that it is over."""
        unsent = transport.get_write_buffer_size() > 0
        if times and (unsent or (self._heard and not transport.can_write_eof())):
            self._linger(transport, times)
        elif unsent:
            transport.abort()
        else:
            transport.close()


class _Unsent:
    """What a client has not taken, as a part of what all have not: a holder of the broker's output budget."""

    __slots__ = ("_broker", "_bytes", "holding", "let_go", "origin")

    def __init__(self, broker: BrokerCore, origin: str, holding: str, let_go: Callable[[], None]) -> None:
        self._broker = broker
        self._bytes = 0
        self.origin = origin
        self.holding = holding
        self.let_go = let_go

    def count(self, now_bytes: int) -> None:
        broker = self._broker
        broker.counters.unsent_bytes += now_bytes - self._bytes
        self._bytes = now_bytes
        broker.output.hold(self, now_bytes)


def _host(address: object) -> str:
    """The host of a socket's address; of an IPv4 client on an IPv6 socket, in IPv4's form."""
    return str(address[0]).removeprefix("::ffff:") if isinstance(address, tuple) else "unknown"
