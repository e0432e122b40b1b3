"""Frames and headers of the Kafka protocol, without I/O.

    frame     int32 size | header | body              size counts what follows it
    request   int16 api key | int16 version | int32 correlation id | client id (int16 length, nullable) [| tags]
    response  int32 correlation id [| tags]

The tags are there when the API is flexible in that version; the client id keeps its int16 length even then.
A `frame` below is always what follows the size.

Invariants: a size is checked before a byte of its frame is buffered; every fault of the peer is a
`DecodeError`, after which the connection cannot be read further and must be closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import TypeVar

from trunkline.protocols.kafka.apis import (
    APIS,
    Request,
    Response,
    load,
    request_header_version,
    response_header_version,
)
from trunkline.protocols.kafka.wire import (
    FAULTS,
    Buffer,
    DecodeError,
    Message,
    read_nullable_string,
    skip_tags,
    write_nullable_string,
)

__all__ = [
    "LARGE_REQUEST_BYTES",
    "MAX_FRAME_BYTES",
    "Buffer",
    "DecodeError",
    "FrameReader",
    "RequestHeader",
    "SpareBuffers",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_request",
    "encode_response",
]

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The largest frame accepted: Kafka's own default for `socket.request.max.bytes`."""

LARGE_REQUEST_BYTES = 2 * 1024 * 1024
"""Above this a request's buffer is not used again."""

_LARGE_FRAME_BYTES = 256 * 1024  # what does not fit one read
_FIRST_GROWTH_BYTES = 16 * 1024  # what a size alone can make us set aside
_GROWTH_FACTOR = 16  # a sender that has filled a read is trusted with so many times as much
_SPARE_BUFFERS = 16
_SIZE = Struct(">i")
_REQUEST = Struct(">hhi")
_FRAMED_REQUEST = Struct(">ihhi")
_FRAMED_RESPONSE = Struct(">ii")
_FRAMED_FLEXIBLE_RESPONSE = Struct(">iix")

_M = TypeVar("_M", bound=Message)


@dataclass(slots=True)
class RequestHeader:
    """`client_id` is None when it was null, and when API or version are unknown and it could not be read."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header and where the body begins.

    Of a request whose API or version is unknown only the first eight bytes have a known layout: the client id
    is left out then, and the position is behind those bytes.  That is enough to answer it.
    """
    try:
        key, version, correlation_id = _REQUEST.unpack_from(frame)
        api = APIS.get(key)
        if api is None or not api.supports(version):
            return RequestHeader(key, version, correlation_id, None), _REQUEST.size
        client_id, at = read_nullable_string(frame, _REQUEST.size)
        if api.is_flexible(version):
            if frame[at] == 0:
                at += 1
            else:
                at = skip_tags(frame, at)
    except FAULTS as cause:
        raise DecodeError(f"request header: {cause}") from None
    return RequestHeader(key, version, correlation_id, client_id), at


def decode_request(frame: memoryview) -> tuple[RequestHeader, Request]:
    """A whole request of a known API and version."""
    header, at = decode_request_header(frame)
    api = APIS.get(header.api_key)
    if api is None or not api.supports(header.api_version):
        raise DecodeError(f"API {header.api_key} version {header.api_version} is unknown")
    message, _ = load(header.api_key)[0].decode(frame, at, header.api_version)
    return header, message


def encode_response(api_key: int, version: int, correlation_id: int, body: Response | list[Buffer]) -> list[Buffer]:
    """A framed response as buffers to be sent in order; the body may be encoded already."""
    layout = _FRAMED_FLEXIBLE_RESPONSE if response_header_version(api_key, version) else _FRAMED_RESPONSE
    out = bytearray(layout.pack(0, correlation_id))
    return _sized(out, [out, *body] if isinstance(body, list) else body.encode_after(out, version))


def encode_request(request: Request, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A framed request as buffers to be sent in order."""
    out = bytearray(_FRAMED_REQUEST.pack(0, request.API_KEY, version, correlation_id))
    write_nullable_string(out, client_id)
    if request_header_version(request.API_KEY, version) == 2:
        out.append(0)
    return _sized(out, request.encode_after(out, version))


def decode_response(response_type: type[_M], frame: memoryview, version: int, correlation_id: int) -> _M:
    """The response to the request that had this version and correlation id."""
    try:
        (answered,) = _SIZE.unpack_from(frame)
        at = _SIZE.size
        if response_header_version(response_type.API_KEY, version):
            at = skip_tags(frame, at)
    except FAULTS as cause:
        raise DecodeError(f"response header: {cause}") from None
    if answered != correlation_id:
        raise DecodeError(f"response to request {answered} where {correlation_id} was due")
    return response_type.decode(frame, at, version)[0]


def _sized(out: bytearray, parts: list[Buffer]) -> list[Buffer]:
    """Fill in the size; `out` backs the first part, and packing into it does not move it."""
    _SIZE.pack_into(out, 0, sum(map(len, parts)) - _SIZE.size)
    return parts


class SpareBuffers:
    """Buffers of large frames, to be used again by whoever sends one. `None` when there is none that is large enough."""

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def keep(self, buffer: bytearray) -> None:
        self._buffers.append(buffer)
        if len(self._buffers) > _SPARE_BUFFERS:
            self._buffers.remove(min(self._buffers, key=len))

    def take(self, size: int) -> bytearray | None:
        for position, buffer in enumerate(self._buffers):
            if len(buffer) >= size:
                return self._buffers.pop(position)
        return None


class FrameReader:
    """Cuts what is read from a connection into frames, and hands them over one by one (`take`) while it may (`may_take`).

    A frame is handed over where it lies, in the buffer that was read into, so it is gone when `take` returns. What may
    not be taken yet, or is not complete, waits here as a copy. A frame that is larger than a read gets a buffer of its
    own, which grows as bytes arrive, never as the size claims; the connection is told to read what comes next into it
    (`read_into`).
    """

    __slots__ = ("_frame", "_have", "_may_take", "_need", "_read_into", "_rest", "_spares", "_take", "held_bytes",
                 "max_frame_bytes")  # fmt: skip

    def __init__(
        self,
        max_frame_bytes: int,
        spares: SpareBuffers,
        *,
        may_take: Callable[[], bool],
        take: Callable[[memoryview], None],
        read_into: Callable[[memoryview | None], None],
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._spares = spares
        self._may_take = may_take
        self._take = take
        self._read_into = read_into
        self._rest = b""
        self._frame: bytearray | None = None  # a large one
        self._have = 0
        self._need = 0
        self.held_bytes = 0  # of a frame that is not complete, and of those that wait

    def feed(self, data: memoryview) -> bool:
        """This was read, where we asked for. False when frames are left that may not be taken.

        Raises DecodeError for a size that cannot be: the stream has lost its framing.
        """
        if self._frame is not None:
            self._grow(len(data))
            return True
        if self._rest:
            data = memoryview(self._rest + data)
            self._keep(b"")
        return self._cut(data)

    def go_on(self) -> bool:
        """Hand over what waits; False when frames are left again."""
        rest = self._rest
        self._keep(b"")
        return self._cut(memoryview(rest))

    def clear(self) -> None:
        self._frame = None
        self._keep(b"")

    def _keep(self, rest: bytes) -> None:
        self._rest = rest
        self.held_bytes = len(rest)

    def _cut(self, data: memoryview) -> bool:
        position, end = 0, len(data)
        all_taken = True
        while end - position >= _SIZE.size:
            if not self._may_take():
                all_taken = False
                break
            (size,) = _SIZE.unpack_from(data, position)
            if not 0 <= size <= self.max_frame_bytes:
                raise DecodeError(f"a request of {size} bytes (max_request_bytes is {self.max_frame_bytes})")
            start = position + _SIZE.size
            if end - start < size:
                if size + _SIZE.size > _LARGE_FRAME_BYTES:
                    self._begin_large(data[start:], size)
                    return True
                break
            position = start + size
            self._take(data[start:position])
        if position < end:
            self._keep(bytes(data[position:]))
        return all_taken

    def _begin_large(self, head: memoryview, size: int) -> None:
        frame = self._spares.take(size)
        if frame is None:
            frame = bytearray(min(size, max(_FIRST_GROWTH_BYTES, len(head) * _GROWTH_FACTOR)))
        frame[: len(head)] = head
        self._frame, self._have, self._need = frame, len(head), size
        self.held_bytes = len(frame)
        self._read_into(memoryview(frame)[self._have : size])

    def _grow(self, more_bytes: int) -> None:
        frame, need = self._frame, self._need
        assert frame is not None
        self._have += more_bytes
        if self._have == need:
            self._frame = None
            self.held_bytes = 0
            self._read_into(None)
            self._take(memoryview(frame)[:need])
            if len(frame) <= LARGE_REQUEST_BYTES:
                self._spares.keep(frame)
            return
        if self._have == len(frame):
            self._frame = bytearray(min(need, len(frame) * 2))
            self._frame[: self._have] = frame
            frame = self._frame
            self.held_bytes = len(frame)
        self._read_into(memoryview(frame)[self._have : need])
