"""Requests that are refused, and those that must be taken, for both readers."""

from __future__ import annotations

_POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "content-length and transfer-encoding": (
        _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "transfer-encoding and content-length": (
        _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (_POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
    "a list of lengths": (_POST + b"Content-Length: 1, 2\r\n\r\nx", 400),
    "a length with a sign": (_POST + b"Content-Length: +1\r\n\r\nx", 400),
    "a negative length": (_POST + b"Content-Length: -1\r\n\r\nx", 400),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "a NUL": (b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 400),
    "a space before the first field": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "an unknown coding": (_POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "two codings": (_POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "a coding behind a vertical tab": (_POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk's size with 0x": (_CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n", 400),
    "a chunk's size that overflows": (_CHUNKED + b"fffffffffffffffffffff\r\nhello", 400),
    "a chunk that is longer than its size": (_CHUNKED + b"5\r\nhelloXX0\r\n\r\n", 400),
    "a negative chunk": (_CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "HTTP/1.0 in chunks": (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "no version": (b"GET /\r\n\r\n", 505),
    "a space in the target": (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no header name": (b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n", 400),
    "a body too large": (_POST + b"Content-Length: 100001\r\n\r\n", 413),
    "a length beyond numbers": (_POST + b"Content-Length: 99999999999999999\r\n\r\n", 413),
    "chunks too large": (_CHUNKED + b"ffff\r\n" + b"x" * 0xFFFF + b"\r\nffff\r\n" + b"x" * 0xFFFF, 413),
    "a header too large": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "a target too long": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    "an endless header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 400_000, 431),
    "too many fields": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
    "an expectation": (_POST + b"Content-Length: 1\r\nExpect: tea\r\n\r\n", 417),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}
# llhttp refuses these; h11 takes some of them: it reads LF as the end of a line everywhere, and unfolds folded lines itself.
REFUSED_BY_LLHTTP: dict[str, bytes] = {
    "lines that end with LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "one line that ends with LF": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a header that ends with LF": b"GET / HTTP/1.1\r\nHost: a\r\n\n",
    "a CR within a line": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "a chunk's size that ends with LF": _CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "HTTP/2": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
}
