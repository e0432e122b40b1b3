"""WebSocket (RFC 6455), as much as messaging protocols need of it, on the server's side and without a socket.

    frame    u8 FIN, 3 reserved bits, opcode (4 bits); u8 mask bit, length (7 bits; 126: u16 follows, 127: u64 follows);
             4 bytes mask (from a client, always); payload

`WebSocket.receive` takes what was read and returns the payload bytes of the data frames in it, in order: what is spoken
inside may begin and end anywhere in them. What is to be sent back meanwhile (the answer to the handshake, pongs, a close
frame) is in `take_output`.

What is spoken inside is a `Subprotocol`: the names that clients offer it by, whether they must, and whether it is text. A
text frame closes the connection of one that is binary.

Bounded: the handshake by `MAX_HANDSHAKE_BYTES`, a frame by `max_frame_bytes`; frames are passed on as they arrive, so a large
one is never held.
"""

from __future__ import annotations

import base64
import hashlib
from enum import IntEnum
from typing import NamedTuple

MAX_HANDSHAKE_BYTES = 16 << 10
MAX_CONTROL_BYTES = 125
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA, TOO_LARGE = 1000, 1001, 1002, 1003, 1009


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class Subprotocol(NamedTuple):
    """`names` in the order in which they are preferred."""

    names: tuple[str, ...]
    required: bool = True  # False: a client that offers none of the names is taken, too
    text: bool = False  # sent in text frames where it is text, and taken in both kinds


def frame(opcode: int, payload: bytes) -> bytes:
    """A whole, final, unmasked frame."""
    return frame_header(opcode, len(payload)) + payload


def frame_header(opcode: int, size: int) -> bytes:
    first = bytes((0x80 | opcode,))
    if size < 126:
        return first + bytes((size,))
    if size < 1 << 16:
        return first + b"\x7e" + size.to_bytes(2, "big")
    return first + b"\x7f" + size.to_bytes(8, "big")


def accept_key(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def unmask(data: bytes, mask: bytes, start: int) -> bytes:
    """`data` without its mask; `start` is how many bytes of the frame came before."""
    if not data:
        return b""
    turn = start % 4
    key = (mask[turn:] + mask[:turn]) * (len(data) // 4 + 1)
    return (int.from_bytes(data, "little") ^ int.from_bytes(key[: len(data)], "little")).to_bytes(len(data), "little")


class WebSocket:
    """`open` after the handshake; `closed` after either side has said goodbye, or an error."""

    def __init__(self, max_frame_bytes: int, inside: Subprotocol) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._inside = inside
        self._accepted_data = (Opcode.BINARY, Opcode.TEXT) if inside.text else (Opcode.BINARY,)
        self._buffer = b""
        self._out: list[bytes] = []
        self.open = False
        self.closed = False
        self._opcode = Opcode.BINARY
        self._mask = b""
        self._size = 0
        self._done = 0  # bytes of the current frame that were taken
        self._in_frame = False
        self._final = True
        self._in_message = False
        self._control = b""

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def take_output(self) -> bytes:
        out, self._out = b"".join(self._out), []
        return out

    def receive(self, data: bytes) -> list[bytes]:
        if self.closed:
            return []
        self._buffer = self._buffer + data if self._buffer else data
        if not self.open and not self._handshake():
            return []
        payloads: list[bytes] = []
        while not self.closed and self._step(payloads):
            pass
        return payloads

    def say_goodbye(self, code: int = NORMAL) -> bytes:
        """The close frame to send before closing; empty if it was sent."""
        if self.closed or not self.open:
            return b""
        self.closed = True
        return frame(Opcode.CLOSE, code.to_bytes(2, "big"))

    # -- handshake -----------------------------------------------------------------------------------------------------

    def _handshake(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            if len(self._buffer) > MAX_HANDSHAKE_BYTES:
                self._refuse("431 Request Header Fields Too Large", "the request is too large")
            return False
        self._buffer = rest
        lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, separator, value = line.partition(":")
            if separator:
                name = name.strip().lower()
                headers[name] = f"{headers[name]},{value.strip()}" if name in headers else value.strip()
        if not lines[0].startswith("GET ") or not lines[0].endswith("HTTP/1.1"):
            self._refuse("405 Method Not Allowed", "only a WebSocket handshake is served here")
            return False
        key = headers.get("sec-websocket-key", "")
        if "websocket" not in _words(headers.get("upgrade", "")) or "upgrade" not in _words(headers.get("connection", "")) or not key:  # fmt: skip
            self._refuse("400 Bad Request", "this is not a WebSocket handshake")
            return False
        if headers.get("sec-websocket-version") != "13":
            self._refuse(
                "426 Upgrade Required", "only version 13 of WebSocket is spoken", "Sec-WebSocket-Version: 13\r\n"
            )
            return False
        offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
        chosen = next((each for each in self._inside.names if each in offered), None)
        if chosen is None and self._inside.required:
            self._refuse("400 Bad Request", f"the subprotocol must be {self._inside.names[0]}")
            return False
        told = "" if chosen is None else f"Sec-WebSocket-Protocol: {chosen}\r\n"
        self._out.append(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Accept: {accept_key(key)}\r\n{told}\r\n".encode()
        )
        self.open = True
        return True

    def _refuse(self, status: str, text: str, headers: str = "") -> None:
        body = text + "\n"
        self._out.append(
            f"HTTP/1.1 {status}\r\n{headers}Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\n\r\n{body}".encode()
        )
        self._buffer = b""
        self.closed = True

    # -- frames --------------------------------------------------------------------------------------------------------

    def _step(self, payloads: list[bytes]) -> bool:
        """Take one frame's header or a piece of its payload off the buffer; False when more input is needed."""
        if not self._in_frame:
            return self._take_header()
        piece = self._buffer[: self._size - self._done]
        self._buffer = self._buffer[len(piece) :]
        data = unmask(piece, self._mask, self._done)
        self._done += len(piece)
        if self._opcode >= Opcode.CLOSE:
            self._control += data
        elif data:
            payloads.append(data)
        if self._done < self._size:
            return False
        self._in_frame = False
        if self._opcode >= Opcode.CLOSE:
            self._finish_control()
        else:
            self._in_message = not self._final
        return bool(self._buffer)

    def _take_header(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        first, second = buffer[0], buffer[1]
        size, start = second & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes(buffer[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < start + 4:
            if not second & 0x80:
                self._fail(PROTOCOL_ERROR)
            return False
        opcode = first & 0x0F
        control = opcode >= Opcode.CLOSE
        final = bool(first & 0x80)
        if first & 0x70 or not second & 0x80 or opcode not in _OPCODES or (control and (size > MAX_CONTROL_BYTES or not final)):  # fmt: skip
            self._fail(PROTOCOL_ERROR)
            return False
        if not control:
            if opcode != Opcode.CONTINUATION and opcode not in self._accepted_data:
                self._fail(UNSUPPORTED_DATA)
                return False
            if (opcode == Opcode.CONTINUATION) != self._in_message:
                self._fail(PROTOCOL_ERROR)
                return False
            if size > self._max_frame_bytes:
                self._fail(TOO_LARGE)
                return False
            self._final = final
            self._in_message = True
        self._opcode = Opcode(opcode)
        self._mask = buffer[start : start + 4]
        self._buffer = buffer[start + 4 :]
        self._size, self._done, self._control = size, 0, b""
        self._in_frame = True
        return True

    def _finish_control(self) -> None:
        if self._opcode == Opcode.PING:
            self._out.append(frame(Opcode.PONG, self._control))
        elif self._opcode == Opcode.CLOSE:
            self._out.append(frame(Opcode.CLOSE, self._control[:2]))
            self.closed = True

    def _fail(self, code: int) -> None:
        self._out.append(frame(Opcode.CLOSE, code.to_bytes(2, "big")))
        self._buffer = b""
        self.closed = True


_OPCODES = frozenset(Opcode)


def _words(value: str) -> list[str]:
    return [word.strip().lower() for word in value.split(",")]
