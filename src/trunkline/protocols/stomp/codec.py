"""STOMP frames: bytes to frames and back, without a socket.

    frame    command EOL *(name ":" value EOL) EOL body NUL, and EOLs before the next, which are heart-beats
    EOL      LF, or CR LF
    body     as long as the header content-length says, else up to the first NUL

Names and values are escaped, in a way that differs between the versions (`ESCAPES`): not at all in 1.0, and never in CONNECT
and CONNECTED. So the parser keeps the lines as they came, and `headers_of` reads them when the version is known.

A SEND is told apart at once, since it comes once per message. Its `key` is its head without receipt, transaction and
content-length: what SENDs to one place mostly have in common, by which their envelope is remembered.

Everything malformed is one `MalformedFrame`, the last that a parser returns. Bounded: a head by `max_head_bytes` and
`max_headers`, a body by `max_body_bytes`.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

V1_0: Final = 10
V1_1: Final = 11
V1_2: Final = 12
_MAX_COMMAND_BYTES: Final = 32
_LF: Final = 10
_CR: Final = 13
_SEND: Final = b"SEND"
_RECEIPT: Final = b"receipt:"
_TRANSACTION: Final = b"transaction:"
_CONTENT_LENGTH: Final = b"content-length:"
_MAX_LENGTH_DIGITS: Final = 12


@mypyc_attr(native_class=False)
class MalformedFrame(Exception):
    """Bytes that are no frame, or one that is too large."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Send:
    """A SEND frame. `receipt` and `transaction` are as they came; empty: none."""

    def __init__(self, key: bytes, receipt: bytes, transaction: bytes, body: bytes) -> None:
        self.key: Final = key
        self.receipt: Final = receipt
        self.transaction: Final = transaction
        self.body: Final = body


class Frame:
    """Any other frame; `lines` are its headers as they came."""

    def __init__(self, command: bytes, lines: list[bytes], body: bytes) -> None:
        self.command: Final = command
        self.lines: Final = lines
        self.body: Final = body


Event = Send | Frame | MalformedFrame


class Parser:
    """`feed` takes what was read and returns the frames that are complete. After a MalformedFrame it returns nothing more."""

    def __init__(self, max_headers: int, max_head_bytes: int, max_body_bytes: int) -> None:
        self._max_headers: i64 = max_headers
        self._max_head_bytes: i64 = max_head_bytes
        self._max_body_bytes: i64 = max_body_bytes
        self._pieces: list[bytes] = []  # of a frame that is not complete
        self._held_bytes: i64 = 0
        self._needed_bytes: i64 = 0  # so many, before it is worth a look
        self._until_nul = False  # a body without a length: not before there is a NUL
        self.stopped = False

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def stop(self) -> None:
        self.stopped = True
        self._pieces = []
        self._held_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if self.stopped:
            return events
        if self._held_bytes:
            self._pieces.append(data)
            self._held_bytes += len(data)
            waiting = self._held_bytes < self._needed_bytes or (self._until_nul and b"\0" not in data)
            if waiting:
                if self._until_nul and self._held_bytes > self._max_head_bytes + self._max_body_bytes:
                    events.append(self._malformed(f"a body has at most {self._max_body_bytes} bytes"))
                return events
            data = b"".join(self._pieces)
            self._pieces = []
            self._held_bytes = 0
        self._needed_bytes = 0
        self._until_nul = False
        position: i64 = 0
        end: i64 = len(data)
        try:
            while position < end:
                octet = data[position]
                if octet in (_LF, _CR):
                    position += 1
                    continue
                after = self._take(data, position, end, events)
                if after < 0:
                    break
                position = after
        except MalformedFrame as error:
            self.stop()
            events.append(error)
            return events
        if position < end:
            self._pieces.append(data[position:] if position else data)
            self._held_bytes = end - position
        return events

    def _malformed(self, text: str) -> MalformedFrame:
        self.stop()
        return MalformedFrame(text)

    def _take(self, data: bytes, start: i64, end: i64, events: list[Event]) -> i64:
        """Take the frame that begins at `start`; returns where it ends, or -1 if it is not complete."""
        head_end: i64 = data.find(b"\n\n", start)
        body: i64 = head_end + 2
        returned: i64 = data.find(b"\n\r\n", start, end if head_end < 0 else head_end)
        if returned >= 0:
            head_end = returned
            body = returned + 3
        if (end if head_end < 0 else head_end) - start > self._max_head_bytes:
            raise MalformedFrame(f"command and headers have at most {self._max_head_bytes} bytes")
        if head_end < 0:
            if data.find(b"\n", start, start + _MAX_COMMAND_BYTES) < 0 and end - start > _MAX_COMMAND_BYTES:
                raise MalformedFrame("this is not STOMP")
            return -1
        lines = data[start:head_end].split(b"\n")
        if len(lines) > self._max_headers + 1:
            raise MalformedFrame(f"a frame has at most {self._max_headers} headers")
        if returned >= 0 or b"\r" in lines[0]:
            lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
        command = lines[0]
        if len(command) > _MAX_COMMAND_BYTES:
            raise MalformedFrame("this is not STOMP")
        is_send = command == _SEND
        receipt = b""
        transaction = b""
        length: i64 = -1
        kept: list[bytes] = []
        for index in range(1, len(lines)):
            line = lines[index]
            if line.startswith(_CONTENT_LENGTH):
                if length < 0:
                    length = _length_of(line)
            elif is_send and line.startswith(_RECEIPT):
                receipt = receipt or line[8:]
            elif is_send and line.startswith(_TRANSACTION):
                transaction = transaction or line[12:]
            else:
                kept.append(line)
        stop: i64
        if length >= 0:
            if length > self._max_body_bytes:
                raise MalformedFrame(f"a body has at most {self._max_body_bytes} bytes")
            stop = body + length
            if stop >= end:
                self._needed_bytes = stop + 1 - start
                return -1
            if data[stop] != 0:
                raise MalformedFrame("a body is longer than its content-length says")
        else:
            stop = data.find(b"\0", body)
            if (end if stop < 0 else stop) - body > self._max_body_bytes:
                raise MalformedFrame(f"a body has at most {self._max_body_bytes} bytes")
            if stop < 0:
                self._until_nul = True
                return -1
        if is_send:
            events.append(Send(b"\n".join(kept), receipt, transaction, data[body:stop]))
        else:
            events.append(Frame(command, kept, data[body:stop]))
        return stop + 1


def _length_of(line: bytes) -> i64:
    digits = line[15:].strip()
    if not digits.isdigit() or len(digits) > _MAX_LENGTH_DIGITS:
        raise MalformedFrame("content-length is not a number")
    return int(digits)


# -- headers -----------------------------------------------------------------------------------------------------------


def headers_of(lines: list[bytes], version: int) -> dict[str, str]:
    """The headers of a frame; of several with one name the first counts. MalformedFrame."""
    headers: dict[str, str] = {}
    for line in lines:
        colon = line.find(b":")
        if colon < 0:
            raise MalformedFrame("a header has no colon")
        name, value = line[:colon], line[colon + 1 :]
        if version > V1_0 and b"\\" in line:
            name, value = unescaped(name, version), unescaped(value, version)
        try:
            headers.setdefault(name.decode(), value.decode())
        except UnicodeDecodeError:
            raise MalformedFrame("a header is not UTF-8") from None
    return headers


def unescaped(text: bytes, version: int) -> bytes:
    """MalformedFrame for an escape that the version does not know."""
    parts = text.split(b"\\")
    if len(parts) == 1 or version == V1_0:
        return text
    out = [parts[0]]
    index = 1
    while index < len(parts):
        part = parts[index]
        if not part:  # two in a row
            index += 1
            if index == len(parts):
                raise MalformedFrame("a header ends in the middle of an escape")
            out.append(b"\\")
            out.append(parts[index])
        elif part.startswith(b"n"):
            out.append(b"\n" + part[1:])
        elif part.startswith(b"c"):
            out.append(b":" + part[1:])
        elif part.startswith(b"r") and version > V1_1:
            out.append(b"\r" + part[1:])
        else:
            raise MalformedFrame("a header has an escape that does not exist")
        index += 1
    return b"".join(out)


def escaped(text: bytes, version: int) -> bytes:
    if version == V1_0:
        return text
    text = text.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b":", b"\\c")
    return text.replace(b"\r", b"\\r") if version > V1_1 else text


def header_line(name: bytes, value: bytes, version: int) -> bytes:
    """A header with its end of line; nothing for one that this version cannot say."""
    if b"\0" in name or b"\0" in value:
        return b""
    if version == V1_0 and (b"\n" in name or b":" in name or b"\n" in value):
        return b""
    if version == V1_1 and (name.endswith(b"\r") or value.endswith(b"\r")):
        return b""
    return escaped(name, version) + b":" + escaped(value, version) + b"\n"


# -- frames out --------------------------------------------------------------------------------------------------------


def encode_frame(command: bytes, headers: list[tuple[bytes, bytes]], body: bytes, version: int) -> bytes:
    """A frame of the server. CONNECTED is not escaped: that is version 1.0."""
    lines = b"".join([header_line(name, value, version) for name, value in headers])
    return command + b"\n" + lines + b"\n" + body + b"\0\n"


def encode_receipt(receipt: bytes) -> bytes:
    """`receipt` as the client sent it, escapes and all."""
    return b"RECEIPT\nreceipt-id:" + receipt + b"\n\n\0\n"


# Destination, redelivered, header lines, body.
Content = tuple[bytes, bool, bytes, bytes]


def encode_messages(head: bytes, ids: bytes, with_ack: bool, first: int, contents: list[Content]) -> bytes:
    """MESSAGE frames of one subscription. `head` is their beginning, up to the destination; `ids` that of their ids."""
    parts: list[bytes] = []
    number: i64 = first
    for destination, redelivered, lines, body in contents:
        message_id = ids + str(number).encode()
        parts.append(head)
        parts.append(destination)
        parts.append(b"\nmessage-id:")
        parts.append(message_id)
        parts.append(b"\nredelivered:true\n" if redelivered else b"\nredelivered:false\n")
        if with_ack:
            parts.append(b"ack:")
            parts.append(message_id)
            parts.append(b"\n")
        parts.append(b"content-length:")
        parts.append(str(len(body)).encode())
        parts.append(b"\n")
        parts.append(lines)
        parts.append(b"\n")
        parts.append(body)
        parts.append(b"\0\n")
        number += 1
    return b"".join(parts)
