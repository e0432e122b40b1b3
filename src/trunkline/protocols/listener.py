"""Where connections come in: what every protocol's server needs of sockets, written once.

Accepting. Whoever is accepted has a descriptor. A process has only so many, and the log needs some of them, so the
connections of all listeners are counted (`broker.connections`); one above `max_open_connections` is accepted and closed,
which its client sees at once. asyncio's own servers make a connection count only after everything that waits has been
accepted, thousands at a time; here it counts before the next one is accepted. When there is no descriptor all the same,
the listener rests for `_REST_S`, and those who want to connect wait in the kernel's queue.

Input. Whatever a connection makes the broker keep, because it is not complete or waits for its turn, is told to the
broker's input budget (`hold_input`): see `trunkline.budget`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from trunkline.broker.core import BrokerCore

_BACKLOG = 4_096
_ACCEPTS_PER_TURN = 256
_REST_S = 1.0
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Refusal = Callable[[], str]


class Listener:
    """Accepts connections on one address. `refusal` says why the server takes no more, or nothing."""

    def __init__(self, broker: BrokerCore, make: Callable[[], ServedConnection], refusal: Refusal) -> None:
        self.refused = 0
        self.arriving = 0  # connections that are accepted, and not yet made
        self._broker = broker
        self._make = make
        self._refusal = refusal
        self._sockets: list[socket.socket] = []
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Bind and listen; returns the address that clients connect to. OSError says which address cannot be had."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                try:
                    sock = socket.socket(family, socket.SOCK_STREAM)
                except OSError:  # a family of addresses that this machine does without
                    continue
                self._sockets.append(sock)
                _bind(sock, address)
        except OSError:
            self.close()
            raise
        for sock in self._sockets:
            sock.listen(_BACKLOG)
            loop.add_reader(sock, self._accept, sock)
        bound = self._sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def close(self) -> None:
        """Accept no more. Connections that are there stay."""
        for timer in self._resting.values():
            timer.cancel()
        self._resting.clear()
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for task in self._connecting:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        broker = self._broker
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                broker.complaints.add("accept", "listener", f"no connection can be accepted: {error.strerror}")
                loop.remove_reader(listening)
                self._resting[listening] = loop.call_later(_REST_S, self._wake, listening)
                return
            refusal = self._refusal()
            if broker.connections >= broker.limits.max_open_connections:
                refusal = f"max_open_connections={broker.limits.max_open_connections} is reached"
            if refusal:
                self.refused += 1
                sock.close()
                broker.complaints.add("connections", str(address[0]), f"refused a connection: {refusal}")
                continue
            sock.setblocking(False)
            broker.connections += 1
            self.arriving += 1
            task = loop.create_task(self._connect(loop, sock))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _wake(self, listening: socket.socket) -> None:
        del self._resting[listening]
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _connect(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        connection = self._make()
        connection.listener = self
        try:
            await loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:  # gone already
            self._broker.complaints.add("accept", "listener", f"a connection was lost at once: {error}")
        finally:
            if not connection.made:
                self.arriving -= 1
                self._broker.connections -= 1


def _bind(sock: socket.socket, address: tuple[object, ...]) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind(address)
    except OSError as error:
        text = f"error while attempting to bind on address {address!r}: {(error.strerror or str(error)).lower()}"
        raise OSError(error.errno, text) from None


def _host(address: tuple[object, ...]) -> str:
    """The host of a socket's address; of an IPv4 client on an IPv6 socket, in IPv4's form."""
    return str(address[0]).removeprefix("::ffff:")


class ServedConnection(asyncio.BufferedProtocol):
    """One client's connection: what every protocol's has in common."""

    holding = "a connection"

    __slots__ = ("_broker", "_held_bytes", "_transport", "host", "listener", "local_host", "made", "port")

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self._held_bytes = 0
        self.listener: Listener | None = None  # that it came in by
        self.made = False
        self.host = "unknown"
        self.port = 0
        self.local_host = "unknown"  # the address that the client has reached us at

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made = True
        if self.listener is not None:
            self.listener.arriving -= 1
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.host, self.port = _host(peer), int(peer[1])
        local = transport.get_extra_info("sockname")
        if isinstance(local, tuple):
            self.local_host = _host(local)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections -= 1
        self.hold_input(0)

    @property
    def origin(self) -> str:
        return self.host

    def hold_input(self, now_bytes: int) -> None:
        """So many bytes of this client's input are kept from now on."""
        if now_bytes != self._held_bytes:
            self._held_bytes = now_bytes
            self._broker.input.hold(self, now_bytes)

    def let_go(self) -> None:
        """Close, in the protocol's own words, because of what this client makes the broker hold."""
        self._held_bytes = 0
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
