"""Where connections come in: the only file with sockets in it.

Whoever is accepted has a descriptor. A process has only so many, and the log needs some of them, so the connections of
all listeners are counted (`broker.counters.connections`); one above `max_open_connections` is accepted and closed, which its
client sees at once. asyncio's own servers make a connection count only after everything that waits has been accepted,
thousands at a time; here it counts before the next one is accepted. When there is no descriptor all the same, the
listener rests for `_REST_S`, and those who want to connect wait in the kernel's queue.

With `tls`, a connection is made when its handshake is complete. Until then it counts, for `_TLS_HANDSHAKE_S` at most, and one
address may have `_MAX_HANDSHAKES` of them under way. Who does not answer our end of it within `_TLS_SHUTDOWN_S` is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from typing import TYPE_CHECKING, Generic, Protocol

from trunkline.protocols.listener.connection import Home, ServedConnection
from trunkline.protocols.listener.session import S

if TYPE_CHECKING:
    from trunkline.protocols.listener.session import MakeSession

_BACKLOG = 4_096
_ACCEPTS_PER_TURN = 256
_REST_S = 1.0
_TLS_HANDSHAKE_S = 10.0
_TLS_SHUTDOWN_S = 2.0
_MAX_HANDSHAKES = 500
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Secured(Protocol):
    """How TLS is done from now on: certificates may be replaced while a listener runs."""

    @property
    def context(self) -> ssl.SSLContext: ...


class Listener(Generic[S]):
    """Accepts connections on one address, as long as the server does not refuse them."""

    def __init__(
        self, server: Home[S], make_session: MakeSession[S], name: str = "", tls: Secured | None = None
    ) -> None:
        self._name = name
        self._server = server
        self._broker = server.broker
        self._make_session = make_session
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._handshakes: dict[str, int] = {}  # TLS handshakes under way, by address

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
            refusal = self._server.refusal()
            if broker.counters.connections >= broker.limits.max_open_connections:
                refusal = f"max_open_connections={broker.limits.max_open_connections} is reached"
            host = str(address[0])
            if broker.access.book.quotas.of_addresses and not refusal:
                wait_ms = broker.access.book.quotas.connection_wait_ms(host, broker.clock.monotonic_ms())
                if wait_ms:
                    refusal = "connection_creation_rate of its address is exceeded"
            if self._handshakes.get(host, 0) >= _MAX_HANDSHAKES:
                refusal = f"{_MAX_HANDSHAKES} TLS handshakes from its address are under way"
            if refusal:
                self._server.refused += 1
                sock.close()
                broker.complaints.add("connections", host, f"refused a connection: {refusal}")
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # gone already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            broker.counters.connections += 1
            self._server.arriving += 1
            if self._tls is not None:
                self._handshakes[host] = self._handshakes.get(host, 0) + 1
            connecting = self._connect(loop, sock) if self._tls is None else self._shake_hands(loop, sock, host)
            task = loop.create_task(connecting)
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _wake(self, listening: socket.socket) -> None:
        del self._resting[listening]
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _connect(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        connection = ServedConnection(self._server, self._make_session, self._name)
        try:
            await loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:  # gone already
            self._broker.complaints.add("accept", "listener", f"a connection was lost at once: {error}")
        finally:
            self._end_of_connecting(connection)

    async def _shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, host: str) -> None:
        assert self._tls is not None
        connection = ServedConnection(self._server, self._make_session, self._name)
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls.context,
                ssl_handshake_timeout=_TLS_HANDSHAKE_S,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
            )
        except OSError as error:
            why = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
            self._broker.complaints.add("TLS handshake", host, f"a TLS handshake failed ({self._name}): {why}")
        finally:
            if self._handshakes[host] == 1:
                del self._handshakes[host]
            else:
                self._handshakes[host] -= 1
            self._end_of_connecting(connection)

    def _end_of_connecting(self, connection: ServedConnection[S]) -> None:
        if not connection.made:
            self._server.arriving -= 1
            self._broker.counters.connections -= 1


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
