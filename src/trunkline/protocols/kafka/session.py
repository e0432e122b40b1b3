"""A Kafka connection as a state machine: request frames in, response buffers out, no socket.

Rules kept:

1. Requests are taken up in the order of arrival, and responses leave in that order, also when a later one is ready
   first (an fsync, a fetch or a join that waits).
2. Work begins when the request arrives: an append has its place in the log before the next request is looked at. The
   handlers in `handlers.IMMEDIATE` run at once up to the first thing they must wait for, so that a produce or a fetch
   is mostly answered in the same turn of the loop; the others start in the next turn, in order.
3. A handler owns what it needs of the request before it first waits: the frame's buffer is used again afterwards.
4. An unknown API or version closes the connection, as in Kafka; only ApiVersions is answered with an error (35, in v0
   form) so that a newer client can step down.
5. `inflight` counts the requests without a response; the server stops reading above its limit.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field

from trunkline.broker.core import BrokerCore
from trunkline.protocols.kafka import apis, handlers
from trunkline.protocols.kafka.codec import DecodeError, RequestHeader, decode_request_header, encode_response
from trunkline.protocols.kafka.context import CloseConnection, Context
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.protocols.kafka.handlers.api_versions import unsupported_api_versions

logger = logging.getLogger(__name__)

Buffers = list[bytes | bytearray | memoryview]


@dataclass(slots=True)
class _Slot:
    """A response's place in the line. `buffers` is empty for a request that gets no response (acks=0)."""

    ready: bool = False
    buffers: Buffers = field(default_factory=list)
    close: bool = False
    held_bytes: int = 0  # of the broker's `unsent_bytes`, while it waits for the responses before it


class Session:
    """One connection's requests. `send` writes buffers, or closes the connection when given None."""

    def __init__(
        self,
        broker: BrokerCore,
        fetch_sessions: FetchSessions,
        client_host: str,
        *,
        send: Callable[[Buffers | None], None],
        ready: Callable[[], None],
    ) -> None:
        self.broker = broker
        self.client_host = client_host
        self._fetch_sessions = fetch_sessions
        self._send = send
        self._ready = ready
        self._line: deque[_Slot] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def inflight(self) -> int:
        return len(self._line)

    def receive(self, frame: memoryview) -> None:
        """Take up one request. Raises DecodeError when the bytes are not one."""
        header, position = decode_request_header(frame)
        api = apis.APIS.get(header.api_key)
        handler = handlers.find(header.api_key)
        if api is None or handler is None:
            raise DecodeError(f"unknown api key {header.api_key}")
        version = header.api_version
        if not api.min_version <= version <= api.max_version:
            if header.api_key != apis.ApiKey.API_VERSIONS:
                raise DecodeError(f"{api.name} version {version} is not supported")
            slot = _Slot()
            self._line.append(slot)
            response = unsupported_api_versions()
            self._finish(slot, encode_response(header.api_key, 0, header.correlation_id, response))
            return
        request_type, _ = apis.load(header.api_key)
        request, _ = request_type.decode(frame, position, version)
        context = Context(
            self.broker,
            header.client_id or "",
            self.client_host,
            header.api_key,
            version,
            self._fetch_sessions,
        )
        slot = _Slot()
        self._line.append(slot)
        work = self._answer(slot, header, handler, context, request)
        if header.api_key in handlers.IMMEDIATE:
            waiting = _begin(work)
            if waiting is _FINISHED:
                return
            work = _carry_on(work, waiting)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """The connection is gone: nothing that still waits for this client is carried on."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        self.broker.unsent_bytes -= sum(slot.held_bytes for slot in self._line)
        self._line.clear()

    async def _answer(
        self, slot: _Slot, header: RequestHeader, handler: handlers.Handler, context: Context, request: apis.Request
    ) -> None:
        buffers: Buffers = []
        try:
            response = await handler(context, request)
            if response is not None:
                buffers = encode_response(header.api_key, header.api_version, header.correlation_id, response)
        except asyncio.CancelledError:
            raise
        except CloseConnection:
            slot.close = True
        except Exception:
            logger.exception("%s from %s failed", apis.APIS[header.api_key].name, self.client_host)
            slot.close = True
        self._finish(slot, buffers)

    def _finish(self, slot: _Slot, buffers: Buffers) -> None:
        slot.ready = True
        slot.buffers = buffers
        if self._closed:
            return
        line = self._line
        if line[0] is not slot:
            slot.held_bytes = sum(map(len, buffers))
            self.broker.unsent_bytes += slot.held_bytes
            return
        while line and line[0].ready:
            done = line.popleft()
            self.broker.unsent_bytes -= done.held_bytes
            if done.close:
                self._send(None)
                return
            if done.buffers:
                self._send(done.buffers)
        self._ready()


_FINISHED = object()


def _begin(work: Coroutine[object, object, None]) -> object:
    """Run a coroutine up to its first wait, without the cost of a task; returns what it waits for."""
    try:
        return work.send(None)
    except StopIteration:
        return _FINISHED


async def _carry_on(work: Coroutine[object, object, None], waiting: object) -> None:
    """Go on, inside a task, with a coroutine that `_begin` started."""
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
