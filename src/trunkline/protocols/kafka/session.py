"""A Kafka connection as a state machine: bytes in, response buffers out, no socket.

Rules kept:

1. Requests take effect in the order of arrival, and responses leave in that order, also when a later one is ready
   first (an fsync, a fetch or a join that waits). Apache Kafka has this from looking at a connection's next request
   only when the last one is answered. Here a request begins once every earlier one has *taken effect*:

       by default                         when it is answered
       handlers.AT_FIRST_WAIT             when it first waits: what it changes is changed by then
       a handler that says so itself      when it calls `Context.took_effect`: a produce once its appends have their
                                          places, a fetch once it has read and waits for more to come
       handlers.AMONG_THEMSELVES          at once, for the next request of the same kind: a row of them keeps its order

   So a stream of produces, fetches or commits never waits for an earlier one's fsync, and what waits for other clients
   (a fetch, a join) holds up nobody. At most one request, the last that has begun, has yet to take effect, or a row of
   one kind.
2. A request that may not begin yet waits in the session. It owns its bytes: the frame's buffer is used again. The
   connection is read no further while one waits, so it is one at a time.
3. A handler runs at once up to the first thing it must wait for, so that most requests are answered in the turn of the
   loop that read them, without the cost of a task. It owns what it needs of the request before it first waits.
4. An unknown API or version closes the connection, as in Kafka; only ApiVersions is answered with an error (35, in v0
   form) so that a newer client can step down.
5. The connection is not read while its answers wait to be sent, while it has `max_in_flight_requests` requests without a
   response, or while a request waits for earlier ones. What has been read by then waits in the frame reader. Answers
   that wait for those before them count as unsent.
6. Who has to log in is answered nothing else before, and what it sends behind its login waits for that: see
   `authentication`.
7. A request must be complete `max_request_ms` after its first byte, as far as it is read. A connection without a byte in
   either direction for `max_idle_ms`, and without an open request, is closed, as Kafka does.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import NamedTuple

from trunkline.broker.administration.connections import About
from trunkline.broker.core import BrokerCore
from trunkline.protocols.kafka import apis, handlers
from trunkline.protocols.kafka.authentication import BEFORE_LOGIN, MAX_BYTES_BEFORE_LOGIN, Authentication
from trunkline.protocols.kafka.codec import (
    LARGE_REQUEST_BYTES,
    DecodeError,
    FrameReader,
    RequestHeader,
    SpareBuffers,
    decode_request_header,
    encode_response,
)
from trunkline.protocols.kafka.context import CloseConnection, Context
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.protocols.kafka.handlers.api_versions import unsupported_api_versions
from trunkline.protocols.kafka.share_sessions import ShareSessions
from trunkline.protocols.listener.session import Wire
from trunkline.security.quotas import FETCH, PRODUCE, REQUEST

_UNTIMED = frozenset({apis.ApiKey.API_VERSIONS, apis.ApiKey.SASL_HANDSHAKE, apis.ApiKey.SASL_AUTHENTICATE})
_MOST_REQUEST_WAIT_MS = 1_000.0  # as in Kafka: a window of its quotas
_MOST_WAIT_MS = 60_000.0
Buffers = list[bytes | bytearray | memoryview]


class _Slot:
    """A response's place in the line. `buffers` is empty for a request that gets no response (acks=0)."""

    __slots__ = (
        "api_key",
        "begun_s",
        "buffers",
        "busy_s",
        "close",
        "frame_bytes",
        "held_bytes",
        "ready",
        "request_bytes",
        "session",
        "settled",
    )

    def __init__(self, session: Session, api_key: int) -> None:
        self.session = session
        self.api_key = api_key
        self.settled = False  # it has taken effect
        self.ready = False
        self.buffers: Buffers = []
        self.close = False
        self.held_bytes = 0  # of the broker's `unsent_bytes`, while it waits for the responses before it
        self.frame_bytes = 0
        self.begun_s = 0.0  # when it began, and how long it took up to its first wait: only while there are quotas
        self.busy_s = -1.0
        self.request_bytes = 0  # of the session's `_waiting_bytes`, until it is answered

    def settle(self) -> None:
        """The request has taken effect. May be called more than once, and before it has waited for anything."""
        if not self.settled:
            self.settled = True
            if self.session.unsettled:
                self.session.settled(self)


class _Waiting(NamedTuple):
    """A request that may not begin yet."""

    slot: _Slot
    work: Coroutine[object, object, None]


class Session:
    """One connection's requests."""

    def __init__(
        self,
        broker: BrokerCore,
        fetch_sessions: FetchSessions,
        share_sessions: ShareSessions,
        spares: SpareBuffers,
        wire: Wire,
    ) -> None:
        self.broker = broker
        self.client_host = wire.host
        self.local_host = wire.local_host
        self.authentication = Authentication(broker, wire)
        self.listener = wire.listener
        self._fetch_sessions = fetch_sessions
        self._share_sessions = share_sessions
        self._at_end: dict[Hashable, Callable[[], None]] = {}
        self._wire = wire
        self._frames = FrameReader(
            broker.limits.max_request_bytes if self.authentication.known else MAX_BYTES_BEFORE_LOGIN,
            spares,
            may_take=self._may_proceed,
            take=self.receive,
            read_into=wire.read_into,
        )
        self._line: deque[_Slot] = deque()
        self.unsettled: list[_Slot] = []  # begun, and yet to take effect: one, or a row of one kind
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._quotas = broker.access.book.quotas
        self._muted: asyncio.TimerHandle | None = None  # while a quota keeps this client from being read
        self._reading = True
        self._writable = True
        self._begun_ms: float | None = None  # when the first byte of an incomplete request came
        self._last_active_ms = broker.clock.monotonic_ms()
        # Of requests that are large, or had to wait, and are not answered: their buffers live as long.
        self._waiting_bytes = 0

    # -- bytes in ------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return self._frames.held_bytes + self._waiting_bytes

    def read(self, data: memoryview) -> None:
        self._last_active_ms = self.broker.clock.monotonic_ms()
        try:
            all_taken = self._frames.feed(data)
        except DecodeError as error:
            self._drop(str(error))
            return
        if self._frames.held_bytes:
            self._keep(all_taken)

    def _keep(self, all_taken: bool) -> None:
        """Not all that was read is taken up: a request is not complete, or must wait."""
        if self._closed:
            self._frames.clear()
            return
        if not all_taken:
            self._reading = False
            self._wire.pause_reading()
        if self._begun_ms is None:
            self._begun_ms = self._last_active_ms

    def _may_proceed(self) -> bool:
        limits = self.broker.limits
        return (
            self._writable
            and not self.authentication.busy
            and not self.holds_back
            and self.inflight < limits.max_in_flight_requests
            and self._waiting_bytes < limits.max_request_bytes
            and not self._closed
            and self._muted is None
        )

    def _ready(self) -> None:
        """More requests may be taken, perhaps: start with those that wait here."""
        if not self._reading and self._may_proceed():
            self._reading = True
            try:
                all_taken = self._frames.go_on()
            except DecodeError as error:
                self._drop(str(error))
                return
            if self._frames.held_bytes:
                self._keep(all_taken)
            if self._reading:
                self._wire.resume_reading()
            else:
                self._wire.count_input()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._ready()

    # -- the end -------------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        limits = self.broker.limits
        if self._last_active_ms < now_ms - limits.max_idle_ms and not self._line:
            self._wire.abort()
        elif self._reading and self._begun_ms is not None and self._begun_ms < now_ms - limits.max_request_ms:
            self._drop(f"a request was not complete after max_request_ms={limits.max_request_ms}")

    def _drop(self, reason: str) -> None:
        self.broker.complaints.add("bad Kafka request", self.client_host, f"closing a Kafka connection: {reason}")
        self._wire.close()
        self.lost()

    def out_of_input(self) -> None:
        self._wire.abort()
        self.lost()

    def about(self) -> About:
        return About("Kafka", self.authentication.principal, {"requests_in_flight": self.inflight})

    def force_close(self, reason: str) -> None:
        """The protocol has no word for it: the client connects again, or not."""
        self._wire.close()
        self.lost()

    def shut_down(self) -> None:
        self._wire.abort()

    def lost(self) -> None:
        """Nothing that still waits for this client is carried on."""
        self._closed = True
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._frames.clear()
        self._waiting_bytes = 0
        for task in list(self._tasks):
            task.cancel()
        for waiting in self._waiting:
            waiting.work.close()
        self._waiting.clear()
        self.unsettled.clear()
        self.broker.counters.unsent_bytes -= sum(slot.held_bytes for slot in self._line)
        self._line.clear()
        for at_end in list(self._at_end.values()):
            at_end()
        self._at_end.clear()

    # -- requests ------------------------------------------------------------------------------------------------

    @property
    def inflight(self) -> int:
        """Requests without a response."""
        return len(self._line)

    @property
    def holds_back(self) -> bool:
        """Whether a request waits for earlier ones; the next would only wait behind it."""
        return bool(self._waiting)

    def receive(self, frame: memoryview) -> None:
        """Take up one request. Raises DecodeError when the bytes are not one."""
        self._begun_ms = None
        authentication = self.authentication
        if authentication.raw:
            self._receive_token(bytes(frame))
            return
        header, position = decode_request_header(frame)
        api = apis.APIS.get(header.api_key)
        handler = handlers.find(header.api_key)
        if api is None or handler is None:
            raise DecodeError(f"unknown api key {header.api_key}")
        if not authentication.known or self._last_active_ms > authentication.expires_ms:
            self._check_before_login(header.api_key, api.name)
        version = header.api_version
        slot = _Slot(self, header.api_key)
        slot.frame_bytes = len(frame)
        if not api.min_version <= version <= api.max_version:
            if header.api_key != apis.ApiKey.API_VERSIONS:
                raise DecodeError(f"{api.name} version {version} is not supported")
            self._line.append(slot)
            response = unsupported_api_versions()
            self._finish(slot, encode_response(header.api_key, 0, header.correlation_id, response))
            return
        must_wait = bool(self._waiting) or (bool(self.unsettled) and not self._may_begin(header.api_key))
        if must_wait:
            frame = memoryview(bytes(frame))
        request_type, _ = apis.load(header.api_key)
        request, _ = request_type.decode(frame, position, version)
        context = Context(
            self.broker,
            header.client_id or "",
            self.client_host,
            self.local_host,
            self.listener,
            header.api_key,
            version,
            self._fetch_sessions,
            self._share_sessions,
            authentication.principal,
            authentication,
            slot.settle,
            self._at_end,
        )
        if must_wait or len(frame) > LARGE_REQUEST_BYTES:
            slot.request_bytes = len(frame)
            self._waiting_bytes += len(frame)
        self._line.append(slot)
        work = self._answer(slot, header, handler, context, request)
        if must_wait:
            self._waiting.append(_Waiting(slot, work))
        else:
            self._begin(slot, work)

    def _check_before_login(self, api_key: int, name: str) -> None:
        if api_key not in BEFORE_LOGIN:
            late = self.authentication.known
            raise DecodeError(f"{name} {'after its login has expired' if late else 'before the client has logged in'}")

    def _receive_token(self, token: bytes) -> None:
        """A bare token, as SaslHandshake 0 announces them; the answer is one, too."""
        slot = _Slot(self, -1)
        self._line.append(slot)
        self._begin(slot, self._answer_token(slot, token))

    async def _answer_token(self, slot: _Slot, token: bytes) -> None:
        outcome = await self.authentication.step(token)
        slot.close = self.authentication.failed
        self._logged_in()
        self._finish(slot, [] if slot.close else [len(outcome.answer).to_bytes(4, "big") + outcome.answer])

    def _logged_in(self) -> None:
        if self.authentication.known:
            self._frames.max_frame_bytes = self.broker.limits.max_request_bytes

    def _may_begin(self, api_key: int) -> bool:
        """Whether every request that has begun has taken effect, as far as one of this kind can tell."""
        unsettled = self.unsettled
        return not unsettled or (unsettled[-1].api_key == api_key and api_key in handlers.AMONG_THEMSELVES)

    def _begin(self, slot: _Slot, work: Coroutine[object, object, None]) -> None:
        """Run a handler up to its first wait, without the cost of a task, and on from there in one."""
        timed = self._quotas.active
        if timed:
            slot.begun_s = time.perf_counter()
        try:
            waiting_for = work.send(None)
        except StopIteration:
            return
        if timed:
            slot.busy_s = time.perf_counter() - slot.begun_s
        if not slot.settled:
            if slot.api_key in handlers.AT_FIRST_WAIT:
                slot.settled = True
            else:
                self.unsettled.append(slot)
        task = asyncio.get_running_loop().create_task(_carry_on(work, waiting_for))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settled(self, slot: _Slot) -> None:
        """A request has taken effect. In the turn in which it began nobody waits for that yet."""
        if slot in self.unsettled:
            self.unsettled.remove(slot)
            if self._waiting:
                # Not from inside the handler that says so: the next one is not a part of its work.
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Begin what waited, as far as it may, and ask for more."""
        while self._waiting:
            if not self._may_begin(self._waiting[0].slot.api_key):
                return
            slot, work = self._waiting.popleft()
            self._begin(slot, work)
        if not self._closed:
            self._ready()

    async def _answer(
        self, slot: _Slot, header: RequestHeader, handler: handlers.Handler, context: Context, request: apis.Request
    ) -> None:
        buffers: Buffers = []
        try:
            response = await handler(context, request)
            if self._quotas.active:
                self._throttle(slot, context, response)
            if response is not None:
                buffers = encode_response(header.api_key, header.api_version, header.correlation_id, response)
            if header.api_key == apis.ApiKey.SASL_AUTHENTICATE:
                slot.close = self.authentication.failed
                self._logged_in()
        except asyncio.CancelledError:
            raise
        except CloseConnection:
            slot.close = True
        except Exception as error:
            text = f"{apis.APIS[header.api_key].name} failed"
            self.broker.complaints.add("failed Kafka request", self.client_host, text, error=error)
            slot.close = True
        self._finish(slot, buffers)

    def _throttle(self, slot: _Slot, context: Context, response: apis.Response | None) -> None:
        """Count a request against its client's quotas; who is above them is told so, and not read until it is below them."""
        from trunkline.protocols.kafka.messages.fetch import FetchResponse  # only who has quotas needs it here

        quotas, now_ms = self._quotas, self.broker.clock.monotonic_ms()
        whose = (context.principal.name, context.client_id)
        wait_ms = 0.0
        if slot.api_key == apis.ApiKey.PRODUCE:
            wait_ms = quotas.charge(PRODUCE, *whose, slot.frame_bytes, now_ms)
        elif isinstance(response, FetchResponse):
            size = sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)
            wait_ms = quotas.charge_if_it_fits(FETCH, *whose, size, now_ms) if size else 0.0
            if wait_ms:
                response.responses = []  # it is read again when the client asks again
        if slot.api_key not in _UNTIMED:
            busy_s = slot.busy_s if slot.busy_s >= 0 else time.perf_counter() - slot.begun_s
            percent_s = busy_s * 100 if slot.begun_s else 0.0
            wait_ms = max(wait_ms, min(quotas.charge(REQUEST, *whose, percent_s, now_ms), _MOST_REQUEST_WAIT_MS))
        if wait_ms < 1:
            return
        if response is not None and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = int(min(wait_ms, _MOST_WAIT_MS))
        self._mute(min(wait_ms, _MOST_WAIT_MS))

    def _mute(self, wait_ms: float) -> None:
        if self._muted is not None:
            self._muted.cancel()
        self._muted = asyncio.get_running_loop().call_later(wait_ms / 1000, self._unmute)
        if self._reading:
            self._reading = False
            self._wire.pause_reading()

    def _unmute(self) -> None:
        self._muted = None
        if not self._closed:
            self._ready()

    def _finish(self, slot: _Slot, buffers: Buffers) -> None:
        slot.ready = True
        slot.buffers = buffers
        if self._closed:
            return
        if slot.request_bytes:
            self._waiting_bytes -= slot.request_bytes
            self._wire.count_input()
            if self._closed:
                return
        if not slot.settled:
            slot.settle()
        line = self._line
        if line[0] is not slot:
            slot.held_bytes = sum(map(len, buffers))
            self.broker.counters.unsent_bytes += slot.held_bytes
            return
        while line and line[0].ready:
            done = line.popleft()
            self.broker.counters.unsent_bytes -= done.held_bytes
            if done.buffers:
                self._last_active_ms = self.broker.clock.monotonic_ms()
                self._wire.write_all(done.buffers)
            if done.close:
                self._wire.close()
                self.lost()
                return
        if not self._reading:
            self._ready()


async def _carry_on(work: Coroutine[object, object, None], waiting: object) -> None:
    """Go on, inside a task, with a coroutine that has begun outside."""
    await _resume(work, waiting)


@types.coroutine
def _resume(work: Coroutine[object, object, None], waiting: object) -> Generator[object, object, None]:
    while True:
        try:
            value = yield waiting
        except BaseException as error:
            try:
                waiting = work.throw(error)
            except StopIteration:
                return
        else:
            try:
                waiting = work.send(value)
            except StopIteration:
                return
