"""WebSocket frames and the handshake, without a socket."""

from __future__ import annotations

import os
import random

import pytest

from trunkline.protocols.websocket.codec import (
    MAX_HANDSHAKE_BYTES,
    PROTOCOL_ERROR,
    TOO_LARGE,
    UNSUPPORTED_DATA,
    Opcode,
    Subprotocol,
    WebSocket,
    accept_key,
    frame,
    unmask,
)

MQTT = Subprotocol(("mqtt", "mqttv3.1"))
STOMP = Subprotocol(("v12.stomp", "v11.stomp"), required=False, text=True)
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: chat, mqtt\r\n\r\n"
)


def masked(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    mask = os.urandom(4)
    whole = frame(opcode, payload)
    head = whole[: len(whole) - len(payload)]
    first = head[0] if final else head[0] & 0x7F
    return bytes((first, head[1] | 0x80)) + head[2:] + mask + unmask(payload, mask, 0)


def opened(max_frame_bytes: int = 1 << 20) -> WebSocket:
    websocket = WebSocket(max_frame_bytes, MQTT)
    assert websocket.receive(REQUEST) == []
    assert websocket.open
    websocket.take_output()
    return websocket


def test_the_key_of_the_rfc_is_accepted_as_the_rfc_says() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    websocket = WebSocket(100, MQTT)
    websocket.receive(REQUEST)
    answer = websocket.take_output()
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (REQUEST.replace(b"GET", b"POST"), b"405"),
        (REQUEST.replace(b"Upgrade: WebSocket\r\n", b""), b"400"),
        (REQUEST.replace(b"Version: 13", b"Version: 8"), b"426"),
        (REQUEST.replace(b"chat, mqtt", b"chat"), b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HANDSHAKE_BYTES, b"431"),
    ],
)
def test_a_bad_handshake_is_answered_in_http_and_closed(request_bytes: bytes, status: bytes) -> None:
    websocket = WebSocket(100, MQTT)
    websocket.receive(request_bytes)
    assert websocket.take_output().split(b" ")[1] == status
    assert websocket.closed
    assert not websocket.open


def test_frames_in_any_pieces_give_the_same_bytes() -> None:
    source = random.Random(6)
    for _ in range(50):
        sent = bytearray()
        stream = bytearray(REQUEST)
        pings = 0
        for _ in range(source.randrange(1, 12)):
            payload = source.randbytes(source.choice([0, 1, 125, 126, 300, 70_000]))
            sent += payload
            half = len(payload) // 2
            stream += masked(Opcode.BINARY, payload[:half], final=False)
            if source.random() < 0.5:
                stream += masked(Opcode.PING, b"p")
                pings += 1
            stream += masked(Opcode.CONTINUATION, payload[half:])
        websocket = WebSocket(1 << 20, MQTT)
        got = bytearray()
        position = 0
        while position < len(stream):
            size = source.choice([1, 2, 7, 100, 5000, 100_000])
            for piece in websocket.receive(bytes(stream[position : position + size])):
                got += piece
            position += size
        assert got == sent
        assert websocket.take_output().count(frame(Opcode.PONG, b"p")) == pings


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (masked(Opcode.TEXT, b"x"), UNSUPPORTED_DATA),
        (frame(Opcode.BINARY, b"unmasked"), PROTOCOL_ERROR),
        (masked(Opcode.CONTINUATION, b"of nothing"), PROTOCOL_ERROR),
        (masked(Opcode.BINARY, b"a", final=False) + masked(Opcode.BINARY, b"b"), PROTOCOL_ERROR),
        (masked(Opcode.PING, b"x", final=False), PROTOCOL_ERROR),
        (masked(3, b"x"), PROTOCOL_ERROR),
        (bytes((0xC2, 0x81)) + b"mask" + b"x", PROTOCOL_ERROR),
        (masked(Opcode.BINARY, b"x" * 101), TOO_LARGE),
    ],
    # Masks are random: without names of their own the tests would be called differently in every worker.
    ids=["text", "unmasked", "continuation", "interrupted", "long ping", "opcode", "reserved bits", "too large"],
)
def test_what_is_not_allowed_closes_with_a_code(data: bytes, code: int) -> None:
    websocket = opened(100)
    websocket.receive(data)
    assert websocket.take_output().endswith(frame(Opcode.CLOSE, code.to_bytes(2, "big")))
    assert websocket.closed
    assert websocket.receive(masked(Opcode.BINARY, b"more")) == []


def test_a_close_frame_is_answered() -> None:
    websocket = opened()
    assert websocket.receive(masked(Opcode.BINARY, b"last") + masked(Opcode.CLOSE, b"\x03\xe8bye")) == [b"last"]
    assert websocket.take_output() == frame(Opcode.CLOSE, b"\x03\xe8")
    assert websocket.closed
    assert websocket.say_goodbye() == b""


def test_a_protocol_of_text_is_taken_in_both_kinds_of_frames() -> None:
    websocket = WebSocket(100, STOMP)
    websocket.receive(REQUEST.replace(b"chat, mqtt", b"v11.stomp, v12.stomp"))
    assert b"Sec-WebSocket-Protocol: v12.stomp\r\n" in websocket.take_output()
    assert websocket.receive(masked(Opcode.TEXT, b"text") + masked(Opcode.BINARY, b"bytes")) == [b"text", b"bytes"]
    assert not websocket.closed


def test_a_subprotocol_that_is_not_required_need_not_be_offered() -> None:
    websocket = WebSocket(100, STOMP)
    websocket.receive(REQUEST.replace(b"Sec-WebSocket-Protocol: chat, mqtt\r\n", b""))
    assert websocket.open
    assert b"Sec-WebSocket-Protocol" not in websocket.take_output()
