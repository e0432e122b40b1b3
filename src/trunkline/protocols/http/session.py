"""An HTTP connection: requests in, each answered before the next is begun.

Rules it keeps:
1. Requests take effect, and are answered, in the order in which they were sent. A client may send `max_waiting_requests` ahead;
   then it is not read until it has been answered. A request that waits for a message holds up those behind it, and nobody else.
2. After a refusal, a request that says `Connection: close`, or a fault of ours, the answer is the last, and the connection ends.
3. While a client does not take what is sent to it, no request of it is begun, and a stream waits; after `max_unsent_ms` it is cut off.
4. When the client goes, what it waits for is cancelled: handlers that await must leave things as if they had not been asked, or
   be done with them.

    idle ── bytes ──> reading ── whole request ──> handling ── response ──> idle
                         └── max_request_ms: 408       └── stream ──> streaming ──> idle
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from email.utils import formatdate
from typing import Protocol

from trunkline.broker.complaints import Complaints
from trunkline.broker.turn import Turn
from trunkline.clock import Clock
from trunkline.protocols.http.codec import (
    CONTINUE,
    LAST_CHUNK,
    Continue,
    Event,
    Refusal,
    encode_chunk,
    encode_head,
)
from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.http.message import Handler, HttpError, Request, Response
from trunkline.protocols.http.reader import new_reader
from trunkline.protocols.listener.session import Wire
from trunkline.security.principal import anonymous


class Service(Protocol):
    """What the connections of a server share."""

    handler: Handler
    limits: HttpLimits
    turn: Turn
    complaints: Complaints

    @property
    def clock(self) -> Clock: ...


class Session:
    __slots__ = ("_began_ms", "_closed", "_handling", "_last_ms", "_paused_ms", "_pending", "_reader", "_reading", "_service",
 "_streaming",                 "_waiting", "_wire", "_writable")  # fmt: skip

    def __init__(self, service: Service, wire: Wire) -> None:
        self._service = service
        self._wire = wire
        self._reader = new_reader(service.limits)
        self._waiting: deque[Event] = deque()
        self._handling: Request | None = None
        self._pending: asyncio.Future[Response] | asyncio.Task[None] | None = None
        self._writable: asyncio.Event | None = None
        self._paused_ms: float | None = None
        self._reading = True
        self._streaming = False
        self._closed = False
        self._last_ms = service.clock.monotonic_ms()
        self._began_ms: float | None = None  # when the request began that is not complete

    # -- in ------------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        waiting = sum([len(each.body) for each in self._waiting if isinstance(each, Request)]) if self._waiting else 0
        return self._reader.held_bytes + waiting

    def read(self, data: memoryview) -> None:
        if self._closed:
            return
        turn = self._service.turn
        turn.hold()
        try:
            self._waiting.extend(self._reader.feed(data))
            self._last_ms = self._service.clock.monotonic_ms()
            if not self._reader.within:
                self._began_ms = None
            elif self._began_ms is None:
                self._began_ms = self._last_ms
            self._advance()
        finally:
            turn.let_go()

    def _advance(self) -> None:
        """Take up what waits, until something has to be waited for."""
        while self._waiting and self._handling is None and self._paused_ms is None and not self._closed:
            event = self._waiting.popleft()
            if isinstance(event, Request):
                self._handle(event)
            elif isinstance(event, Refusal):
                self._finish(event)
            elif isinstance(event, Continue) and not self._waiting:  # else the client did not wait for it
                self._wire.write(CONTINUE)
        crowded = len(self._waiting) >= self._service.limits.max_waiting_requests
        if crowded and self._reading:
            self._reading = False
            self._wire.pause_reading()
        elif not crowded and not self._reading and not self._closed:
            self._reading = True
            self._wire.resume_reading()

    def _finish(self, refusal: Refusal) -> None:
        self._service.complaints.add("HTTP", self._wire.host, f"refused a request: {refusal}")
        self._end_with(HttpError(refusal.status, str(refusal)).response())

    def _end_with(self, response: Response) -> None:
        head = encode_head(response, date=self._date(), close=True, old=False, length=len(response.body))
        self._wire.write(head + response.body)
        self._close()

    def _handle(self, request: Request) -> None:
        wire = self._wire
        request.client, request.listener = wire.host, wire.listener
        request.principal = anonymous(wire.host)
        self._handling = request
        try:
            answer = self._service.handler(request)
        except Exception as error:
            self._respond(request, self._failure(error))
            return
        if isinstance(answer, Response):
            self._respond(request, answer)
        else:
            self._await(request, answer)

    def _await(self, request: Request, answer: Awaitable[Response]) -> None:
        pending: asyncio.Future[Response] = asyncio.ensure_future(answer)
        self._pending = pending
        pending.add_done_callback(lambda done: self._answered(request, done))

    def _answered(self, request: Request, done: asyncio.Future[Response]) -> None:
        if self._closed or self._pending is not done:
            if not done.cancelled():
                done.exception()  # nobody is there to be told
            return
        self._pending = None
        turn = self._service.turn
        turn.hold()
        try:
            try:
                response = done.result()
            except (Exception, asyncio.CancelledError) as error:
                response = self._failure(error)
            self._respond(request, response)
            self._advance()
        finally:
            turn.let_go()
        self._wire.count_input()

    def _failure(self, error: BaseException) -> Response:
        if isinstance(error, HttpError):
            return error.response()
        self._service.complaints.add("HTTP failure", self._wire.host, "a request failed", error=error)
        return HttpError(500).response()

    # -- out -----------------------------------------------------------------------------------------------------

    def _respond(self, request: Request, response: Response) -> None:
        close = not request.keep_alive or (response.stream is not None and request.old)
        if response.stream is not None:
            head = encode_head(response, date=self._date(), close=close, old=request.old, length=None)
            self._wire.write(head)
            if request.method == "HEAD":
                self._done(close=close)
                return
            task = asyncio.get_running_loop().create_task(self._stream(response.stream, close=close, plain=request.old))
            self._pending = task
            self._streaming = True
            return
        body = response.body
        head = encode_head(response, date=self._date(), close=close, old=request.old, length=len(body))
        self._wire.write(head if request.method == "HEAD" or not body else head + body)
        self._done(close=close)

    async def _stream(self, parts: AsyncIterator[bytes], *, close: bool, plain: bool) -> None:
        try:
            async for part in parts:
                if part:
                    self._wire.write(part if plain else encode_chunk(part))
                if self._paused_ms is not None:
                    self._writable = asyncio.Event()
                    await self._writable.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._service.complaints.add("HTTP failure", self._wire.host, "a stream failed", error=error)
            self._close()  # without the last chunk the client knows that something is missing
            return
        finally:
            closing = getattr(parts, "aclose", None)
            if closing is not None:
                await closing()
        if self._closed:
            return
        if not plain:
            self._wire.write(LAST_CHUNK)
        self._pending = None
        self._streaming = False
        self._done(close=close)
        self._advance()

    def _done(self, *, close: bool) -> None:
        self._handling = None
        self._last_ms = self._service.clock.monotonic_ms()
        if close:
            self._close()

    def _date(self) -> str:
        return http_date(self._service.clock.wall_ms() // 1000)

    def pause_writing(self) -> None:
        self._paused_ms = self._service.clock.monotonic_ms()

    def resume_writing(self) -> None:
        self._paused_ms = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if not self._closed:
            self._advance()

    # -- the end -------------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        limits = self._service.limits
        if self._closed:
            return
        if self._paused_ms is not None:
            if now_ms - self._paused_ms > limits.max_unsent_ms:
                self._wire.abort()
        elif self._handling is not None:
            return
        elif self._began_ms is not None:
            if now_ms - self._began_ms > limits.max_request_ms:
                self._end_with(HttpError(408).response())
        elif now_ms - self._last_ms > limits.max_idle_ms:
            self._close()

    def out_of_input(self) -> None:
        self._end_with(HttpError(503, "the broker holds too much of what clients have begun to send").response())

    def shut_down(self) -> None:
        if self._handling is not None and not self._streaming:
            self._end_with(HttpError(503, "the broker ends").response())
        self._close()

    def _close(self) -> None:
        self._give_up()
        self._wire.close()

    def lost(self) -> None:
        self._give_up()

    def _give_up(self) -> None:
        self._closed = True
        self._waiting.clear()
        pending, self._pending = self._pending, None
        # A future that is no task may be one that others wait for, too.
        if isinstance(pending, asyncio.Task) and pending is not asyncio.current_task():
            pending.cancel()


_dated: tuple[int, str] = (-1, "")


def http_date(now_s: int) -> str:
    """The time of the wall clock as HTTP says it; made once a second."""
    global _dated  # noqa: PLW0603
    if _dated[0] != now_s:
        _dated = (now_s, formatdate(now_s, usegmt=True))
    return _dated[1]
