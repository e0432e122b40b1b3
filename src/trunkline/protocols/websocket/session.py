"""A protocol inside WebSocket frames: between a connection and its session, and without a socket.

To the connection it is the session, to the session it is the connection. What a read brought of payload is handed on as one
read, whatever the frames were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from trunkline.broker.administration.connections import About
from trunkline.protocols.listener.session import Accountable, Buffer, S, Wire
from trunkline.protocols.websocket.codec import GOING_AWAY, Opcode, Subprotocol, WebSocket, frame_header


class WebSocketSession(Generic[S]):
    __slots__ = ("_text", "_websocket", "_wire", "inside")

    def __init__(
        self, wire: Wire, subprotocol: Subprotocol, max_frame_bytes: int, make_session: Callable[[Wire], S]
    ) -> None:
        self._wire = wire
        self._websocket = WebSocket(max_frame_bytes, subprotocol)
        self._text = subprotocol.text
        self.inside = make_session(self)

    # -- for the connection ----------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return self.inside.held_bytes + self._websocket.held_bytes

    def read(self, data: memoryview) -> None:
        websocket = self._websocket
        payloads = websocket.receive(bytes(data))
        output = websocket.take_output()
        if output:
            self._wire.write(output)
        if payloads:
            self.inside.read(memoryview(payloads[0] if len(payloads) == 1 else b"".join(payloads)))
        if websocket.closed:
            self._wire.close()

    def pause_writing(self) -> None:
        self.inside.pause_writing()

    def resume_writing(self) -> None:
        self.inside.resume_writing()

    def out_of_input(self) -> None:
        self.inside.out_of_input()

    def about(self) -> About | None:
        return self.inside.about() if isinstance(self.inside, Accountable) else None

    def force_close(self, reason: str) -> None:
        if isinstance(self.inside, Accountable):
            self.inside.force_close(reason)
        else:
            self._wire.close()

    def shut_down(self) -> None:
        self.inside.shut_down()

    def lost(self) -> None:
        self.inside.lost()

    # -- for the session -------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._wire.host

    @property
    def port(self) -> int:
        return self._wire.port

    @property
    def local_host(self) -> str:
        return self._wire.local_host

    @property
    def listener(self) -> str:
        return self._wire.listener

    @property
    def certificate(self) -> str:
        return self._wire.certificate

    def write(self, data: Buffer) -> None:
        if self._websocket.open and not self._websocket.closed:
            payload = bytes(data)
            opcode = Opcode.TEXT if self._text and _is_text(payload) else Opcode.BINARY
            self._wire.write(frame_header(opcode, len(payload)) + payload)

    def write_all(self, buffers: Sequence[Buffer]) -> None:
        self.write(b"".join(buffers))

    def close(self) -> None:
        goodbye = self._websocket.say_goodbye(GOING_AWAY)
        if goodbye:
            self._wire.write(goodbye)
        self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def read_into(self, buffer: memoryview | None) -> None:
        """What comes is masked, so it is read into the buffer that all share: a session is handed what was read."""

    def count_input(self) -> None:
        self._wire.count_input()

    def unsent_bytes(self) -> int:
        return self._wire.unsent_bytes()

    def crowded(self) -> bool:
        return self._wire.crowded()


def _is_text(payload: bytes) -> bool:
    """A text frame that is not UTF-8 ends the connection, on the client's side."""
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
