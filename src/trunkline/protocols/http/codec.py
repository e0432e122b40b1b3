"""HTTP/1.1 bytes to whole requests, and responses to bytes. No I/O.

The grammar is read by llhttp (`httptools`), strictly; where that has no wheel, by h11 (`h11_reader`). Both feed a `Gathering`,
which decides what is a request. Two refusals are llhttp's alone: h11 takes LF as the end of a line, and unfolds folded lines.

Refused, because two servers in a row might disagree on where such a request ends: Content-Length together with Transfer-Encoding,
or given twice, or not digits alone; any Transfer-Encoding but `chunked`, and that one in HTTP/1.0; folded header lines; a line
that ends with LF alone; white space before a colon; sizes of chunks that are not plain hexadecimal; control characters; HTTP/1.1
without Host, or with two. After a refusal nothing more is read from the connection.

Wishes to change the protocol (`Upgrade: h2c`, which Java's client sends with every first request) are passed over, as the
standard allows. Header fields behind the last chunk are read and dropped.

Bounds: `max_header_bytes`, `max_header_fields`, `max_body_bytes` of `HttpLimits`.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.http.message import Request, Response, reason_of
from trunkline.protocols.listener.session import Buffer


class Refusal(Exception):
    """What was sent is no request that is served; the connection ends with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Continue:
    """The client waits for leave to send the body of its request."""


Event: TypeAlias = Request | Continue | Refusal


class Reader(Protocol):
    """Turns bytes into the events of a connection. A `Refusal` is the last."""

    @property
    def held_bytes(self) -> int:
        """What is kept of a request that is not complete."""

    @property
    def within(self) -> bool:
        """Whether a request has begun that is not complete."""

    def feed(self, data: Buffer) -> list[Event]: ...


class Gathering:
    """The requests of a connection, from what a reader finds in its bytes."""

    __slots__ = ("_body", "_body_bytes", "_fields", "_head_bytes", "_headers", "_hosts", "_in_body", "_limits", "_target",
                 "events", "within")  # fmt: skip

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.events: list[Event] = []
        self.within = False
        self.begin()
        self.within = False

    def begin(self) -> None:
        self.within = True
        self._target = b""
        self._headers: dict[str, str] = {}
        self._fields = self._head_bytes = self._hosts = 0
        self._in_body = False
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._head_bytes + self._body_bytes if self.within else 0

    @property
    def framing(self) -> bytes:
        """The field that says how long the body is; nothing, if there is none."""
        if "transfer-encoding" in self._headers:
            return b"transfer-encoding: chunked"
        length = self._headers.get("content-length", "0")
        return b"content-length: " + length.encode() if int(length) else b""

    @property
    def in_head(self) -> bool:
        return self.within and not self._in_body

    def target(self, part: bytes) -> None:
        self._target += part
        self.count_head(len(part))

    def count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.max_header_bytes:
            raise Refusal(431, f"the header has more than {self._limits.max_header_bytes} bytes")

    def header(self, name: bytes, value: bytes) -> None:
        self.count_head(len(name) + len(value) + 4)
        self._fields += 1
        if self._fields > self._limits.max_header_fields:
            raise Refusal(431, f"the header has more than {self._limits.max_header_fields} fields")
        if self._in_body:
            return
        known = self._headers
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        if key == "host":
            self._hosts += 1
        if key in known:
            if key in ("content-length", "transfer-encoding"):
                raise Refusal(400, f"{key} is given twice")
            text = f"{known[key]}, {text}"
        known[key] = text

    def head_ends(self, method: str, version: str) -> None:
        self._in_body = True
        headers = self._headers
        if version not in ("1.1", "1.0"):
            raise Refusal(505, f"HTTP/{version} is not served")
        if self._hosts > 1 or (version == "1.1" and not self._hosts):
            raise Refusal(400, "a request names its host, once")
        if method == "CONNECT":
            raise Refusal(501, "this is no proxy")
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None:
            if length is not None:
                raise Refusal(400, "both content-length and transfer-encoding are given")
            if version == "1.0":
                raise Refusal(400, "HTTP/1.0 has no transfer-encoding")
            if coding.lower() != "chunked":
                raise Refusal(501, "no transfer-encoding but chunked is served")
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise Refusal(400, "content-length is no number")
            if len(length) > 18 or int(length) > self._limits.max_body_bytes:
                raise self._too_large()
        expected = headers.get("expect")
        if expected is not None and version == "1.1":
            if expected.lower() != "100-continue":
                raise Refusal(417, "nothing can be expected but 100-continue")
            self.events.append(Continue())

    def body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._limits.max_body_bytes:
            raise self._too_large()
        self._body.append(part)

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body has more than {self._limits.max_body_bytes} bytes")

    def end(self, method: str, version: str) -> None:
        target = self._target.decode("latin-1")
        if not target.startswith("/") and target != "*":
            scheme, found, rest = target.partition("://")  # the form for proxies, which servers must take, too
            if not found or scheme.lower() not in ("http", "https"):
                raise Refusal(400, "the target of the request is no path")
            slash = rest.find("/")
            target = rest[slash:] if slash >= 0 else "/"
        path, _, query = target.partition("?")
        self.events.append(
            Request(
                method,
                path,
                query,
                self._headers,
                self._body[0] if len(self._body) == 1 else b"".join(self._body),
                _keeps_alive(self._headers.get("connection", ""), old=version == "1.0"),
                version == "1.0",
            )
        )
        self.within = False
        self._body, self._body_bytes = [], 0


def _keeps_alive(connection: str, *, old: bool) -> bool:
    if not connection:
        return not old
    options = {each.strip().lower() for each in connection.split(",")}
    return "close" not in options and (not old or "keep-alive" in options)


# -- out -----------------------------------------------------------------------------------------------------------------

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_BODY = frozenset({204, 304})


def encode_head(response: Response, *, date: str, close: bool, old: bool, length: int | None) -> bytes:
    """The head of a response; `length` is that of its body, None for one in chunks or up to the end of the connection."""
    lines = [f"HTTP/1.1 {response.status} {reason_of(response.status)}", f"date: {date}"]
    if response.content_type:
        lines.append(f"content-type: {response.content_type}")
    for name, value in response.headers:
        assert not any(each in value for each in "\r\n\0"), "a header field is one line"
        lines.append(f"{name}: {value}")
    if length is not None:
        if response.status not in _NO_BODY:
            lines.append(f"content-length: {length}")
    elif not old:
        lines.append("transfer-encoding: chunked")
    if close:
        lines.append("connection: close")
    elif old:
        lines.append("connection: keep-alive")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1", "replace")


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
