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
    "MAX_FRAME_BYTES",
    "Buffer",
    "DecodeError",
    "FrameAssembler",
    "RequestHeader",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_request",
    "encode_response",
]

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The largest frame accepted: Kafka's own default for `socket.request.max.bytes`."""

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


class FrameAssembler:
    """Cuts a byte stream into frames.

    Holds at most one incomplete frame, so no more than `max_frame_bytes` plus what one `feed` brings.  After a
    DecodeError it stays failed: the stream has lost its framing.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pending = bytearray()
        self._failed = False

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet, its size included."""
        return len(self._pending)

    def feed(self, data: Buffer) -> list[memoryview]:
        """The frames that `data` completes, each in memory of its own."""
        if self._failed:
            raise DecodeError("the stream has already failed")
        self._pending += data
        frames: list[memoryview] = []
        start = 0
        available = len(self._pending)
        while available - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._pending, start)
            if not 0 <= size <= self._max_frame_bytes:
                self._failed = True
                self._pending.clear()
                raise DecodeError(f"frame of {size} bytes; at most {self._max_frame_bytes} are allowed")
            end = start + _SIZE.size + size
            if end > available:
                break
            frames.append(memoryview(bytes(memoryview(self._pending)[start + _SIZE.size : end])))
            start = end
        if start:
            del self._pending[:start]
        return frames
