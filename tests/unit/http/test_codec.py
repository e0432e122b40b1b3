"""What is a request, and what is refused, by either reader."""

from __future__ import annotations

from collections.abc import Callable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.http.requests import REFUSED, REFUSED_BY_LLHTTP
from trunkline.protocols.http.codec import Continue, Event, Reader, Refusal, encode_chunk, encode_head
from trunkline.protocols.http.h11_reader import H11Reader
from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.http.llhttp_reader import LlhttpReader
from trunkline.protocols.http.message import Request, Response

LIMITS = HttpLimits(max_body_bytes=100_000)
both = pytest.mark.parametrize("new", [LlhttpReader, H11Reader])
NewReader = Callable[[HttpLimits], Reader]


def fed(reader: Reader, data: bytes, step: int) -> list[Event]:
    return [event for at in range(0, len(data), step) for event in reader.feed(memoryview(data)[at : at + step])]


@both
@pytest.mark.parametrize("step", [1 << 20, 1_000, 7])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(new: NewReader, name: str, step: int) -> None:
    data, status = REFUSED[name]
    found = fed(new(LIMITS), data + b"\r\n" * 4, step)
    refusal = found[-1]
    assert isinstance(refusal, Refusal), found
    assert not any(isinstance(event, Request) for event in found)
    assert refusal.status == status or (new is H11Reader and refusal.status in (400, 431, 501))


@pytest.mark.parametrize("name", REFUSED_BY_LLHTTP)
def test_refused_by_llhttp(name: str) -> None:
    (refusal,) = fed(LlhttpReader(LIMITS), REFUSED_BY_LLHTTP[name], 1 << 20)
    assert isinstance(refusal, Refusal)


@both
def test_nothing_is_read_after_a_refusal(new: NewReader) -> None:
    reader = new(LIMITS)
    assert len(reader.feed(b"rubbish\r\n\r\n")) == 1
    assert reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") == []


@both
@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_requests_in_a_row(new: NewReader, step: int) -> None:
    data = (
        b"POST /a?b=%20 HTTP/1.1\r\nHost: x\r\nA: 1\r\nA: 2\r\nContent-Length: 3\r\n\r\nabc"
        b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;q=1\r\nabc\r\n2\r\nde\r\n0\r\nT: x\r\n\r\n"
        b"GET http://x/d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    first, second, third = (each for each in fed(new(LIMITS), data, step) if isinstance(each, Request))
    assert (first.method, first.path, first.query, first.body) == ("POST", "/a", "b=%20", b"abc")
    assert first.headers["a"] == "1, 2"
    assert (second.body, second.keep_alive) == (b"abcde", True)
    assert "t" not in second.headers
    assert (third.path, third.keep_alive) == ("/d", False)


@pytest.mark.parametrize("step", [1, 11, 1 << 20])
@pytest.mark.parametrize(
    "framed", [b"Content-Length: 2\r\n\r\nhi", b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]
)
def test_an_upgrade_is_passed_over_and_the_body_is_no_request(framed: bytes, step: int) -> None:
    head = b"PUT / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    after = (
        b"GET /2 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n"
    )
    found = fed(LlhttpReader(LIMITS), head + framed + after, step)
    shown = [(each.method, each.path, each.body) for each in found if isinstance(each, Request)]
    assert shown == [("PUT", "/", b"hi"), ("GET", "/2", b""), ("GET", "/3", b"")]


@both
def test_what_was_complete_before_a_refusal_counts(new: NewReader) -> None:
    first, second = new(LIMITS).feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrubbish here\r\n\r\n")
    assert isinstance(first, Request)
    assert isinstance(second, Refusal)


@both
def test_who_waits_for_leave_is_told_of(new: NewReader) -> None:
    reader = new(LIMITS)
    (found,) = reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert isinstance(found, Continue)
    assert reader.within
    (request,) = reader.feed(b"hi")
    assert isinstance(request, Request)
    assert not reader.within
    assert reader.held_bytes == 0


@both
def test_http_1_0_closes_unless_asked_otherwise(new: NewReader) -> None:
    (first,) = new(LIMITS).feed(b"GET / HTTP/1.0\r\n\r\n")
    (second,) = new(LIMITS).feed(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert (first.keep_alive, second.keep_alive) == (False, True)


@both
@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_refused_or_waited_for(new: NewReader, data: bytes, step: int) -> None:
    found = fed(new(LIMITS), b"POST / HTTP/1.1\r\n" + data, step)
    assert sum(isinstance(event, Refusal) for event in found) <= 1


_PIECES = st.sampled_from(
    [b"GET", b"POST", b" ", b"/", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b"Host: a", b"Content-Length: ", b"5", b"0", b":",
     b"Transfer-Encoding: chunked", b",", b"hello", b";", b"\t", b"Connection: close", b"\0", b"x: y"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=20))
def test_what_both_take_they_read_alike(pieces: list[bytes]) -> None:
    data = b"POST / HTTP/1.1\r\nHost: a\r\n" + b"".join(pieces)
    ours, oracle = LlhttpReader(LIMITS).feed(data), H11Reader(LIMITS).feed(data)
    if any(isinstance(event, Refusal) for event in [*ours, *oracle]):
        return
    shown = [
        [(e.method, e.path, e.headers, e.body) for e in found if isinstance(e, Request)] for found in (ours, oracle)
    ]
    assert shown[0] == shown[1]


@given(st.binary(max_size=2_000), st.integers(200, 599))
def test_responses_are_read_by_h11(body: bytes, status: int) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    response = Response(status, body, "text/plain", [("x-a", "b")])
    plain = status % 2 == 0
    head = encode_head(response, date="now", close=False, old=False, length=len(body) if plain else None)
    ending = b"" if status in (204, 304) else body if plain else (encode_chunk(body) if body else b"") + b"0\r\n\r\n"
    client.receive_data(head + ending)
    found = client.next_event()
    assert isinstance(found, h11.Response)
    assert found.status_code == status
    received = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        received += bytes(event.data)
    assert received == (b"" if status in (204, 304) else body)
