"""HTTP over sockets, in the clear and over TLS, with Python's own client."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Awaitable

import pytest

from tests.unit.listener.edge import Nameless, tls_context
from trunkline.broker.core import BrokerCore
from trunkline.log.memory.store import MemoryStore
from trunkline.protocols.http.message import Request, Response
from trunkline.protocols.http.server import HttpServer

_LARGE = b"x" * 3_000_000


async def _large() -> AsyncIterator[bytes]:
    for at in range(0, len(_LARGE), 100_000):
        yield _LARGE[at : at + 100_000]


async def _later(request: Request) -> Response:
    await asyncio.sleep(0)
    return Response(body=request.body)


def handle(request: Request) -> Response | Awaitable[Response]:
    if request.path == "/large":
        return Response(stream=_large())
    return _later(request)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_client_is_served_on_one_connection(tls: bool) -> None:
    async def run() -> None:
        server = HttpServer(BrokerCore(MemoryStore()), handle)
        context = Nameless() if tls else None
        _, port = await server.listen("127.0.0.1", 0, "http", tls=context)
        await asyncio.to_thread(_talk, port, tls=tls)
        assert len(server.connections) <= 1
        await server.close()
        assert not server.connections

    asyncio.run(run())


def _talk(port: int, *, tls: bool) -> None:
    client = (
        http.client.HTTPSConnection("127.0.0.1", port, context=tls_context(ssl.PROTOCOL_TLS_CLIENT), timeout=20)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    )
    for _ in range(3):
        client.request("POST", "/", body=_LARGE)
        assert client.getresponse().read() == _LARGE
        client.request("POST", "/", body=iter([b"a", b"b" * 100_000]), encode_chunked=True)
        assert client.getresponse().read() == b"a" + b"b" * 100_000
        client.request("GET", "/large")
        assert client.getresponse().read() == _LARGE
        client.request("HEAD", "/large")
        assert client.getresponse().read() == b""
    client.close()
