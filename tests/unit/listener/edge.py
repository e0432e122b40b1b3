"""A server with the least of a protocol over it, and blocking clients, in the clear and over TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerLimits, BrokerSettings
from trunkline.log.memory.store import MemoryStore
from trunkline.protocols.listener.server import Server
from trunkline.protocols.listener.session import Wire

PATIENCE_S = 20.0
BYE = b"bye"
FAREWELL = b"so long" * 1_000


class Talk:
    """A session that keeps what it reads. A read that begins with `BYE` is answered with `FAREWELL`, and the end."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.got = bytearray()
        self.events: list[str] = []
        self.holds = False
        self.fails = False

    @property
    def held_bytes(self) -> int:
        return len(self.got) if self.holds else 0

    def read(self, data: memoryview) -> None:
        if self.fails:
            raise ValueError("on purpose")
        self.got += data
        if data[: len(BYE)] == BYE:
            self.wire.write(FAREWELL)
            self.wire.close()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def out_of_input(self) -> None:
        self.events.append("out of input")
        self.wire.close()

    def shut_down(self) -> None:
        self.events.append("shut down")
        self.wire.write(FAREWELL)
        self.wire.close()

    def lost(self) -> None:
        self.events.append("lost")


class TalkServer(Server[Talk]):
    def __init__(self, broker: BrokerCore, holding: str = "a talk", max_connections: int = 100) -> None:
        super().__init__(broker, holding, max_connections=max_connections, high_water_bytes=100_000, tick_ms=10)
        self.talks: list[Talk] = []
        self.ticks = 0
        self.port = 0

    async def open(self, *, tls: bool = False) -> int:
        context = Nameless() if tls else None
        _, self.port = await self.listen("127.0.0.1", 0, "talk", tls=context)
        return self.port

    def make_session(self, wire: Wire) -> Talk:
        self.talks.append(Talk(wire))
        return self.talks[-1]

    def tick(self) -> None:
        self.ticks += 1


class Nameless:
    """TLS without certificates."""

    def __init__(self) -> None:
        self.context = tls_context(ssl.PROTOCOL_TLS_SERVER)


def tls_context(side: int) -> ssl.SSLContext:
    """Without certificates: who is who does not matter here."""
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


def dial(port: int, *, tls: bool = False) -> socket.socket:
    """A blocking client, for a thread. Its buffers are small, so that what it does not take piles up at the server."""
    plain = socket.socket()
    plain.settimeout(PATIENCE_S)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    plain.connect(("127.0.0.1", port))
    return tls_context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain) if tls else plain


def read_all(client: socket.socket) -> bytes:
    """Up to the end that the server has made; ConnectionError if it is not a clean one."""
    got = bytearray()
    while piece := client.recv(65_536):
        got += piece
    return bytes(got)


async def greeted(client: socket.socket, server: TalkServer) -> Talk:
    """Say hello; returns the session that has heard it."""
    known = sum(bool(talk.got) for talk in server.talks)
    await asyncio.to_thread(client.sendall, b"hello")
    await until(lambda: sum(bool(talk.got) for talk in server.talks) > known)
    return next(talk for talk in reversed(server.talks) if talk.got == b"hello")


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(0.001)


def broker_with(**limits: int) -> BrokerCore:
    """The edge needs nothing of it but limits, counts and complaints: it is not started."""
    return BrokerCore(MemoryStore(), settings=BrokerSettings(limits=BrokerLimits(**limits)), with_messaging=False)


def with_server(
    scenario: Callable[[TalkServer], Awaitable[None]], *, max_connections: int = 100, **limits: int
) -> None:
    async def run() -> None:
        broker = broker_with(**limits)
        async with asyncio.timeout(3 * PATIENCE_S):
            server = TalkServer(broker, max_connections=max_connections)
            try:
                await scenario(server)
            finally:
                await server.close()
            assert (
                broker.counters.connections,
                broker.counters.unsent_bytes,
                broker.input.held_bytes,
                broker.output.held_bytes,
            ) == (0,) * 4
            assert all(talk.events.count("lost") == 1 for talk in server.talks)

    asyncio.run(run())
