"""AMQP 0-9-1 frames to events, in bulk.

    frame     u8 type (1 method, 2 content header, 3 content body, 8 heartbeat), u16 channel, u32 size, payload, 0xCE
    message   a method frame that carries content, a header frame (u16 class, u16 0, u64 body size, properties), then
              body frames until the size is reached; none when it is 0. Frames of other channels may lie in between.

`Parser.feed` takes whatever a read gave and returns the events of everything complete in it. A publication whose three
frames lie whole and one after the other in the buffer, which is nearly every one, is taken in one step; all others go
frame by frame through the same checks. A violation ends the list as a `FrameError`, after the events of what came before
it; from then on the parser ignores what it is fed. The one exception is a message over `max_body_bytes`: its `FrameError`
names its channel, its bytes are skipped, and parsing goes on.

Bounded: a frame by `frame_max_bytes`, on a server until the client's tune-ok and then by what that says, which may be in
the same read, up to `offered_frame_max_bytes`; a body by `max_body_bytes`, the bodies that wait for their last frame on all
channels together by `max_unfinished_bytes`, the cache of decoded publish arguments by `MAX_CACHED_ROUTES`. `held_bytes` is
what all of that comes to now.

This module is compiled where a C compiler is present. Positions are `i64` and every read is checked against the end of
the buffer first: compiled slices are silent about what is missing.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from trunkline.broker.messaging.typed_values import MalformedValue, ValueReader
from trunkline.protocols.amqp.arguments import decode_method
from trunkline.protocols.amqp.errors import (
    FRAME_ERROR,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    FrameError,
)
from trunkline.protocols.amqp.frames import (
    ACK,
    BODY_FRAME,
    CLASS_BASIC,
    DEFAULT_FRAME_MAX_BYTES,
    DELIVER,
    FRAME_END,
    FRAME_OVERHEAD_BYTES,
    HEADER_FIXED_BYTES,
    HEADER_FRAME,
    HEARTBEAT_KIND,
    METHOD_FRAME,
    NACK,
    PROTOCOL_HEADER,
    PUBLISH,
    REJECT,
    Ack,
    Content,
    Deliver,
    Event,
    Heartbeat,
    MethodFrame,
    Nack,
    ProtocolHeader,
    Publish,
    Reject,
)
from trunkline.protocols.amqp.methods import ConnectionTuneOk, Method

DEFAULT_MAX_BODY_BYTES: Final = 134_217_728
DEFAULT_MAX_UNFINISHED_BYTES: Final = 2 * DEFAULT_MAX_BODY_BYTES
MAX_CACHED_ROUTES: Final = 4_096

ParserEvent: TypeAlias = Event | FrameError

# What a channel waits for, and the frames that it then takes; any other is an UNEXPECTED_FRAME.
AWAITS_METHOD: Final = 0
AWAITS_HEADER: Final = 1
AWAITS_BODY: Final = 2
SKIPS_BODY: Final = 3  # of a message over the limit: its sender may give up on it
TAKEN_FRAMES: Final[dict[int, tuple[int, ...]]] = {
    AWAITS_METHOD: (METHOD_FRAME,),
    AWAITS_HEADER: (HEADER_FRAME,),
    AWAITS_BODY: (BODY_FRAME,),
    SKIPS_BODY: (BODY_FRAME, METHOD_FRAME),
}
_FRAME_NAMES: Final = {METHOD_FRAME: "method", HEADER_FRAME: "content header", BODY_FRAME: "content body"}


class _Route:
    """The decoded arguments of a basic.publish."""

    def __init__(self, exchange: str, routing_key: str, mandatory: bool, immediate: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate


class _Unfinished:
    """A method with content of which the header, or part of the body, has not come."""

    def __init__(self, route: _Route | None, method: Method | None, method_id: int) -> None:
        self.route = route
        self.method = method
        self.method_id = method_id
        self.awaits = AWAITS_HEADER
        self.properties: bytes = b""
        self.chunks: list[bytes] = []
        self.held_bytes: i64 = 0
        self.left_bytes: i64 = 0


class Parser:
    def __init__(
        self,
        *,
        expect_header: bool = True,
        frame_max_bytes: int = DEFAULT_FRAME_MAX_BYTES,
        offered_frame_max_bytes: int = 0,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        max_unfinished_bytes: int = DEFAULT_MAX_UNFINISHED_BYTES,
        deliveries: bool = False,
    ) -> None:
        """`deliveries`: those that lie whole in the buffer come as `Deliver`, as publications come as `Publish`."""
        self._deliveries = deliveries
        self._frame_max: i64 = frame_max_bytes
        self._offered_frame_max: i64 = offered_frame_max_bytes
        self._max_body: i64 = max_body_bytes
        self._max_unfinished: i64 = max_unfinished_bytes
        self._unfinished_bytes: i64 = 0
        self._unfinished: dict[int, _Unfinished] = {}
        self._routes: dict[bytes, _Route] = {}
        self._routes_bytes: i64 = 0
        # Input that is short of a frame waits here, unjoined until the frame can be whole: bytes that trickle in
        # cost no copying.
        self._waiting: list[bytes] = []
        self._waiting_bytes: i64 = 0
        self._wanted_bytes: i64 = 0
        self._header_expected = expect_header
        self._stopped = False

    def set_frame_max(self, frame_max_bytes: int) -> None:
        """The negotiated maximum; 0 means that the default stays."""
        self._frame_max = frame_max_bytes or DEFAULT_FRAME_MAX_BYTES

    @property
    def stopped(self) -> bool:
        """True after a violation: nothing that comes is looked at."""
        return self._stopped

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for frames and messages that are not complete."""
        return self._waiting_bytes + self._unfinished_bytes

    @property
    def held_bytes(self) -> int:
        """All bytes of the other side's that are kept here: those, and the cached arguments."""
        return self._waiting_bytes + self._unfinished_bytes + self._routes_bytes

    def forget_channel(self, channel: int) -> None:
        """Drop what is unfinished on a channel that is gone."""
        gone = self._unfinished.pop(channel, None)
        if gone is not None:
            self._unfinished_bytes -= gone.held_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        if self._stopped:
            return events
        piece = data if isinstance(data, bytes) else bytes(data)
        if self._waiting_bytes > 0:
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            if self._waiting_bytes < self._wanted_bytes:
                return events
            piece = b"".join(self._waiting)
            self._waiting = []
            self._waiting_bytes = 0
        position: i64 = 0
        if self._header_expected:
            if len(piece) < 8:
                self._wait(piece, 8)
                return events
            self._header_expected = False
            received = piece[:8]
            accepted = received == PROTOCOL_HEADER
            events.append(ProtocolHeader(accepted, received))
            if not accepted:
                self._stopped = True
                return events
            position = 8
        try:
            position = self._parse(piece, position, events)
        except FrameError as error:
            self.stop()
            events.append(error)
            return events
        if position < len(piece):
            self._wait(piece[position:], self._wanted_bytes)
        return events

    def _wait(self, rest: bytes, wanted_bytes: i64) -> None:
        self._wanted_bytes = wanted_bytes
        if len(rest) > 0:
            self._waiting = [rest]
            self._waiting_bytes = len(rest)

    def stop(self) -> None:
        """Look at nothing that comes from now on, and let go of what is held."""
        self._stopped = True
        self._waiting = []
        self._waiting_bytes = 0
        self._unfinished.clear()
        self._unfinished_bytes = 0
        self._forget_routes()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._routes_bytes = 0

    def _parse(self, data: bytes, position: i64, events: list[ParserEvent]) -> i64:
        """Parse whole frames; returns where the first incomplete one starts and notes how long it must become."""
        end: i64 = len(data)
        # Clients that forget the frame's own bytes are forgiven, as by RabbitMQ.
        max_payload: i64 = self._frame_max
        routes = self._routes
        while end - position >= FRAME_OVERHEAD_BYTES:
            kind: i64 = data[position]
            channel: i64 = int(read_i16_be(data, position + 1)) & 0xFFFF
            size: i64 = int(read_i32_be(data, position + 3))
            if size < 0 or size > max_payload:
                raise self._oversized_frame(kind, size)
            payload: i64 = position + 7
            finish: i64 = payload + size
            if finish >= end:
                self._wanted_bytes = size + FRAME_OVERHEAD_BYTES
                return position
            if data[finish] != FRAME_END:
                raise FrameError(FRAME_ERROR, f"a frame ends with 0x{data[finish]:02x} and not with 0xce")
            position = finish + 1
            if kind == METHOD_FRAME:
                if size < 4:
                    raise FrameError(FRAME_ERROR, "a method frame is too short for a method")
                number: i64 = int(read_i32_be(data, payload))
                if self._unfinished and channel in self._unfinished:
                    self._take_frame(channel, METHOD_FRAME)
                    del self._unfinished[channel]
                if number == PUBLISH and channel != 0:
                    arguments = data[payload + 4 : finish]
                    route = routes.get(arguments)
                    if route is None:
                        route = self._add_route(arguments)
                    next_position = self._take_message(data, position, end, max_payload, channel, route, events)
                    if next_position != 0:
                        position = next_position
                    else:
                        self._unfinished[channel] = _Unfinished(route, None, 40)
                elif number == ACK and size == 13:
                    events.append(Ack(channel, _tag(data, payload + 4), data[payload + 12] & 1 != 0))
                elif number == DELIVER and self._deliveries and channel != 0:
                    next_position = self._take_delivery(data, payload, finish, end, max_payload, channel, events)
                    if next_position != 0:
                        position = next_position
                    else:
                        self._take_method(data, payload, finish, channel, number, events)
                else:
                    self._take_method(data, payload, finish, channel, number, events)
                    max_payload = self._frame_max
            elif kind == HEADER_FRAME:
                self._take_header(data, payload, finish, channel, events)
            elif kind == BODY_FRAME:
                self._take_body(data, payload, finish, channel, events)
            elif kind == HEARTBEAT_KIND:
                if size != 0:
                    raise FrameError(FRAME_ERROR, "a heartbeat is empty")
                if channel != 0:
                    raise FrameError(UNEXPECTED_FRAME, f"a heartbeat on channel {channel}")
                events.append(Heartbeat())
            else:
                raise FrameError(FRAME_ERROR, f"there is no frame type {kind}")
        self._wanted_bytes = FRAME_OVERHEAD_BYTES
        return position

    def _oversized_frame(self, kind: int, size: int) -> FrameError:
        if kind not in (METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_KIND):
            return FrameError(FRAME_ERROR, f"there is no frame type {kind}")
        size_bytes = (size & 0xFFFFFFFF) + FRAME_OVERHEAD_BYTES
        return FrameError(FRAME_ERROR, f"a frame of {size_bytes} bytes; at most {self._frame_max} were agreed on")

    def _take_frame(self, channel: i64, kind: int) -> _Unfinished:
        """The message that a frame belongs to, if it is one that its channel waits for."""
        unfinished = self._unfinished.get(channel)
        if unfinished is None:
            text = f"expected method frame, got {_FRAME_NAMES[kind]} frame instead"
            raise FrameError(UNEXPECTED_FRAME, text)
        if kind not in TAKEN_FRAMES[unfinished.awaits]:
            expected = "header" if unfinished.awaits == AWAITS_HEADER else "body"
            text = f"expected content {expected} for class {CLASS_BASIC}, got {_FRAME_NAMES[kind]} frame instead"
            raise FrameError(UNEXPECTED_FRAME, text, CLASS_BASIC, unfinished.method_id)
        return unfinished

    def _add_route(self, arguments: bytes) -> _Route:
        reader = ValueReader(arguments)
        try:
            reader.short()
            exchange = reader.short_string()
            routing_key = reader.short_string()
            bits = reader.octet()
        except MalformedValue as error:
            raise FrameError(SYNTAX_ERROR, f"basic.publish: {error.text}", CLASS_BASIC, 40) from None
        if reader.position != reader.end:
            raise FrameError(SYNTAX_ERROR, "basic.publish: bytes are left over after the arguments", CLASS_BASIC, 40)
        return self._remember(arguments, _Route(exchange, routing_key, bits & 1 != 0, bits & 2 != 0))

    def _take_message(
        self,
        data: bytes,
        position: i64,
        end: i64,
        max_payload: i64,
        channel: i64,
        route: _Route,
        events: list[ParserEvent],
    ) -> i64:
        """Take the content of a publication that follows at `position`; returns what follows it, or 0: see `_content`."""
        position, properties, body = self._content(data, position, end, max_payload, channel)
        if position != 0:
            events.append(
                Publish(channel, route.exchange, route.routing_key, route.mandatory, route.immediate, properties, body)
            )
        return position

    def _take_delivery(
        self,
        data: bytes,
        payload: i64,
        finish: i64,
        end: i64,
        max_payload: i64,
        channel: i64,
        events: list[ParserEvent],
    ) -> i64:
        """Take a basic.deliver and its content; returns what follows them, or 0: see `_content`."""
        at: i64 = payload + 5
        if at >= finish:
            return 0
        at += int(data[payload + 4])
        if at + 9 >= finish:
            return 0
        arguments = data[at + 9 : finish]
        route = self._routes.get(arguments)
        if route is None:
            route = self._add_address(arguments)
            if route is None:
                return 0
        position, properties, body = self._content(data, finish + 1, end, max_payload, channel)
        if position != 0:
            events.append(
                Deliver(
                    channel,
                    data[payload + 5 : at],
                    _tag(data, at),
                    data[at + 8] & 1 != 0,
                    route.exchange,
                    route.routing_key,
                    properties,
                    body,
                )
            )
        return position

    def _add_address(self, arguments: bytes) -> _Route | None:
        """Exchange and routing key of a delivery; None if they are malformed, which the slow way then says."""
        reader = ValueReader(arguments)
        try:
            exchange = reader.short_string()
            routing_key = reader.short_string()
        except MalformedValue:
            return None
        if reader.position != reader.end:
            return None
        return self._remember(arguments, _Route(exchange, routing_key, False, False))

    def _remember(self, arguments: bytes, route: _Route) -> _Route:
        if len(self._routes) >= MAX_CACHED_ROUTES:
            self._forget_routes()
        self._routes[arguments] = route
        self._routes_bytes += 2 * len(arguments)
        return route

    def _content(
        self, data: bytes, position: i64, end: i64, max_payload: i64, channel: i64
    ) -> tuple[i64, bytes, bytes]:
        """A header and at most one body frame that follow at `position`: what follows them, properties, body.

        Returns 0, having done nothing, unless both are here, whole and regular: then the caller goes frame by frame.
        """
        if end - position < FRAME_OVERHEAD_BYTES + HEADER_FIXED_BYTES or data[position] != HEADER_FRAME:
            return 0, b"", b""
        size: i64 = int(read_i32_be(data, position + 3))
        payload: i64 = position + 7
        finish: i64 = payload + size
        if (
            size < HEADER_FIXED_BYTES
            or size > max_payload
            or finish >= end
            or int(read_i16_be(data, position + 1)) & 0xFFFF != channel
            or data[finish] != FRAME_END
            or int(read_i32_be(data, payload)) != CLASS_BASIC << 16
        ):
            return 0, b"", b""
        body_size: i64 = read_i64_be(data, payload + 4)
        properties = data[payload + 12 : finish]
        position = finish + 1
        body: bytes = b""
        if body_size != 0:
            payload = position + 7
            finish = payload + body_size
            if (
                body_size < 0
                or body_size > max_payload
                or body_size > self._max_body
                or finish >= end
                or data[position] != BODY_FRAME
                or int(read_i32_be(data, position + 3)) != body_size
                or int(read_i16_be(data, position + 1)) & 0xFFFF != channel
                or data[finish] != FRAME_END
            ):
                return 0, b"", b""
            body = data[payload:finish]
            position = finish + 1
        return position, properties, body

    def _take_method(
        self, data: bytes, payload: i64, finish: i64, channel: i64, number: i64, events: list[ParserEvent]
    ) -> None:
        size: i64 = finish - payload
        if number == NACK and size == 13:
            bits: i64 = data[payload + 12]
            events.append(Nack(channel, _tag(data, payload + 4), bits & 1 != 0, bits & 2 != 0))
            return
        if number == REJECT and size == 13:
            events.append(Reject(channel, _tag(data, payload + 4), data[payload + 12] & 1 != 0))
            return
        method = decode_method((number >> 16) & 0xFFFF, number & 0xFFFF, data[payload + 4 : finish])
        if isinstance(method, ConnectionTuneOk) and self._offered_frame_max > 0:
            asked: i64 = method.frame_max
            if asked == 0 or asked > self._offered_frame_max:
                asked = self._offered_frame_max
            self._frame_max = asked
            self._offered_frame_max = 0
        if method.HAS_CONTENT:
            if channel == 0:
                raise FrameError(UNEXPECTED_FRAME, f"{method.NAME} on channel 0", method.CLASS_ID, method.METHOD_ID)
            self._unfinished[channel] = _Unfinished(None, method, method.METHOD_ID)
        else:
            events.append(MethodFrame(channel, method))

    def _take_header(self, data: bytes, payload: i64, finish: i64, channel: i64, events: list[ParserEvent]) -> None:
        unfinished = self._take_frame(channel, HEADER_FRAME)
        if finish - payload < HEADER_FIXED_BYTES:
            raise FrameError(FRAME_ERROR, "a content header frame is too short", CLASS_BASIC, unfinished.method_id)
        class_id: i64 = int(read_i16_be(data, payload)) & 0xFFFF
        if class_id != CLASS_BASIC:
            text = f"expected content header for class {CLASS_BASIC}, got one for class {class_id} instead"
            raise FrameError(UNEXPECTED_FRAME, text, CLASS_BASIC, unfinished.method_id)
        if int(read_i16_be(data, payload + 2)) != 0:
            raise FrameError(FRAME_ERROR, "a content header's weight is 0", CLASS_BASIC, unfinished.method_id)
        size: i64 = read_i64_be(data, payload + 4)
        if size < 0:
            raise FrameError(FRAME_ERROR, "a body of 2^63 bytes or more", CLASS_BASIC, unfinished.method_id)
        unfinished.awaits = AWAITS_BODY
        unfinished.left_bytes = size
        unfinished.properties = data[payload + 12 : finish]
        if size > self._max_body:
            unfinished.awaits = SKIPS_BODY
            text = f"message size {size} is larger than configured max size {self._max_body}"
            events.append(FrameError(PRECONDITION_FAILED, text, CLASS_BASIC, unfinished.method_id, channel))
        if size == 0:
            self._finish(unfinished, channel, events)

    def _take_body(self, data: bytes, payload: i64, finish: i64, channel: i64, events: list[ParserEvent]) -> None:
        unfinished = self._take_frame(channel, BODY_FRAME)
        size: i64 = finish - payload
        if size > unfinished.left_bytes:
            text = f"{size} bytes of body where {unfinished.left_bytes} were left"
            raise FrameError(FRAME_ERROR, text, CLASS_BASIC, unfinished.method_id)
        unfinished.left_bytes -= size
        if unfinished.awaits == AWAITS_BODY and size > 0:
            unfinished.chunks.append(data[payload:finish])
            unfinished.held_bytes += size
            self._unfinished_bytes += size
            if self._unfinished_bytes > self._max_unfinished:
                text = f"unfinished messages hold more than {self._max_unfinished} bytes"
                raise FrameError(RESOURCE_ERROR, text, CLASS_BASIC, unfinished.method_id)
        if unfinished.left_bytes == 0:
            self._finish(unfinished, channel, events)

    def _finish(self, unfinished: _Unfinished, channel: i64, events: list[ParserEvent]) -> None:
        del self._unfinished[channel]
        self._unfinished_bytes -= unfinished.held_bytes
        if unfinished.awaits == SKIPS_BODY:
            return
        chunks = unfinished.chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        route = unfinished.route
        method = unfinished.method
        if route is not None:
            events.append(
                Publish(
                    channel,
                    route.exchange,
                    route.routing_key,
                    route.mandatory,
                    route.immediate,
                    unfinished.properties,
                    body,
                )
            )
        elif method is not None:
            events.append(Content(channel, method, unfinished.properties, body))


def _tag(data: bytes, position: i64) -> int:
    tag: int = read_i64_be(data, position)
    return tag if tag >= 0 else tag + 2**64
