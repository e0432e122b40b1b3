"""An HTTP connection without a socket: order, streams, time-outs, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from tests.unit.plain_wire import PlainWire
from trunkline.broker.complaints import Complaints
from trunkline.broker.turn import Turn
from trunkline.clock import ManualClock
from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.http.message import Handler, HttpError, Request, Response
from trunkline.protocols.http.router import Router
from trunkline.protocols.http.session import Session
from trunkline.protocols.listener.session import Buffer


class Client(PlainWire):
    def __init__(self) -> None:
        super().__init__()
        self.received = b""

    def write(self, data: Buffer) -> None:
        if not self.closed:
            self.received += bytes(data)

    def bodies(self) -> list[str]:
        return [part.split("\r\n\r\n", 1)[-1] for part in self.received.decode().split("HTTP/1.1 ")[1:]]

    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.received.decode().split("HTTP/1.1 ")[1:]]


class Home:
    def __init__(self, handler: Handler, limits: HttpLimits | None = None) -> None:
        self.handler = handler
        self.limits = limits or HttpLimits()
        self.clock = ManualClock()
        self.turn = Turn()
        self.complaints = Complaints()


def connected(handler: Handler, limits: HttpLimits | None = None) -> tuple[Home, Session, Client]:
    home, client = Home(handler, limits), Client()
    return home, Session(home, client), client


def get(path: str, method: str = "GET", more: str = "") -> memoryview:
    return memoryview(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n".encode())


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def run() -> None:
        slow: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        begun: list[str] = []

        def handle(request: Request) -> Response | Awaitable[Response]:
            begun.append(request.path)
            return slow if request.path == "/slow" else Response(body=request.path.encode())

        _, session, client = connected(handle)
        session.read(memoryview(bytes(get("/a")) + bytes(get("/slow")) + bytes(get("/b"))))
        assert begun == ["/a", "/slow"], "what was sent later does not take effect before"
        assert client.bodies() == ["/a"]
        slow.set_result(Response(body=b"at last"))
        await asyncio.sleep(0)
        assert client.bodies() == ["/a", "at last", "/b"]

    asyncio.run(run())


def test_who_sends_too_far_ahead_is_not_read() -> None:
    async def run() -> None:
        slow: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        _, session, client = connected(
            lambda request: slow if request.path == "/slow" else Response(), HttpLimits(max_waiting_requests=2)
        )
        session.read(get("/slow"))
        assert client.reading
        session.read(get("/a"))
        session.read(get("/b"))
        assert not client.reading
        slow.set_result(Response())
        await asyncio.sleep(0)
        assert client.reading
        assert client.statuses() == [200, 200, 200]

    asyncio.run(run())


def test_head_has_the_length_and_no_body() -> None:
    _, session, client = connected(lambda request: Response(body=b"hello"))
    session.read(get("/", "HEAD"))
    assert b"content-length: 5\r\n" in client.received
    assert client.received.endswith(b"\r\n\r\n")


def test_leave_to_send_a_body_is_given_once_and_in_turn() -> None:
    _, session, client = connected(lambda request: Response(body=request.body))
    session.read(get("/", "POST", "Content-Length: 2\r\nExpect: 100-continue\r\n"))
    assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
    session.read(memoryview(b"hi"))
    assert client.statuses() == [100, 200]
    session.read(memoryview(bytes(get("/", "POST", "Content-Length: 2\r\nExpect: 100-continue\r\n")) + b"hi"))
    assert client.statuses() == [100, 200, 200]


def test_a_refusal_is_the_last_answer() -> None:
    async def run() -> None:
        _, session, client = connected(lambda request: Response())
        session.read(memoryview(bytes(get("/")) + b"GET / HTTP/9\r\n\r\n"))
        assert client.statuses() == [200, 400]
        assert b"connection: close" in client.received
        assert client.closed

    asyncio.run(run())


def test_a_fault_of_ours_is_500_and_the_connection_stays() -> None:
    async def run() -> None:
        def handle(request: Request) -> Response:
            raise HttpError(418, "a teapot") if request.path == "/tea" else RuntimeError("ours")

        _, session, client = connected(handle)
        session.read(get("/tea"))
        session.read(get("/"))
        assert client.statuses() == [418, 500]
        assert "ours" not in client.received.decode()
        assert not client.closed

    asyncio.run(run())


async def _three() -> AsyncIterator[bytes]:
    for part in (b"a", b"", b"bc"):
        yield part


def test_a_stream_comes_in_chunks_and_waits_for_a_slow_client() -> None:
    async def run() -> None:
        _, session, client = connected(lambda request: Response(stream=_three(), content_type="text/event-stream"))
        session.pause_writing()
        session.read(get("/"))
        assert client.received == b"", "a request of a client who takes nothing is not begun"
        session.resume_writing()
        session.pause_writing()
        await asyncio.sleep(0.01)
        assert client.received.endswith(b"1\r\na\r\n")
        session.resume_writing()
        await asyncio.sleep(0.01)
        assert client.received.endswith(b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
        session.read(get("/"))
        await asyncio.sleep(0.01)
        assert client.statuses() == [200, 200]

    asyncio.run(run())


def test_a_stream_ends_when_its_client_goes() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x"
                    await asyncio.sleep(3600)
            finally:
                ended.set()

        _, session, _ = connected(lambda request: Response(stream=endless()))
        session.read(get("/"))
        await asyncio.sleep(0)
        session.lost()
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(run())


def test_what_a_client_waited_for_is_cancelled_when_it_goes_unless_others_wait_too() -> None:
    async def run() -> None:
        shared: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        cancelled = asyncio.Event()

        async def wait(request: Request) -> Response:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return Response()

        _, session, _ = connected(wait)
        session.read(get("/"))
        await asyncio.sleep(0)
        session.lost()
        await asyncio.wait_for(cancelled.wait(), 5)
        _, session, _ = connected(lambda request: shared)
        session.read(get("/"))
        session.lost()
        assert not shared.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "after_ms", "status"), [("GET / HTTP/1.1\r\n", 61_000, [408]), ("", 121_000, []), ("", 61_000, None)]
)
def test_time_outs(sent: str, after_ms: int, status: list[int] | None) -> None:
    home, session, client = connected(lambda request: Response())
    if sent:
        session.read(memoryview(sent.encode()))
    home.clock.advance(after_ms)
    session.tick(home.clock.monotonic_ms())
    assert client.closed is (status is not None)
    assert client.statuses() == (status or [])


def test_drops_fed_one_by_one_do_not_put_off_the_time_out() -> None:
    home, session, client = connected(lambda request: Response())
    for byte in b"GET / HTTP/1.1\r\nX: aaaaaaaaaaaaaaaaaaa":
        session.read(memoryview(bytes([byte])))
        home.clock.advance(2_000)
        session.tick(home.clock.monotonic_ms())
    assert client.statuses() == [408]


def test_routes() -> None:
    router = Router()
    router.add("GET", "/api/queues/{vhost}/{name}", lambda r: Response(body=repr(dict(r.parameters)).encode()))
    router.add("GET", "/api/queues/all/of", lambda r: Response(body=b"literal"))
    router.add("POST", "/files/{path*}", lambda r: Response(body=r.parameters["path"].encode()))
    _, session, client = connected(router)
    session.read(get("/api/queues/%2F/a%20b"))
    session.read(get("/api/queues/all/of"))
    session.read(get("/files/a/b", "POST"))
    assert client.bodies() == ["{'vhost': '/', 'name': 'a b'}", "literal", "a/b"]


def test_what_is_not_there_and_what_is_there_otherwise() -> None:
    router = Router()
    router.add("GET", "/a", lambda request: Response())
    _, session, client = connected(router)
    for request in (get("/b"), get("/a/b"), get("/" + "a/" * 40), get("/a", "POST")):
        session.read(request)
    assert client.statuses() == [404, 404, 414, 405]
    assert b"allow: GET, HEAD\r\n" in client.received
