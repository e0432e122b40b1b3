"""STOMP frames, without a socket: any frame, in any pieces, of any version; and everything that is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.protocols.stomp.codec import (
    V1_0,
    V1_1,
    V1_2,
    Event,
    Frame,
    MalformedFrame,
    Parser,
    Send,
    encode_frame,
    encode_messages,
    encode_receipt,
    escaped,
    headers_of,
    unescaped,
)

VERSIONS = (V1_0, V1_1, V1_2)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = texts.filter(bool)
reserved = ("receipt", "transaction", "content-length")


def parser(*, headers: int = 100, head_bytes: int = 10_000, body_bytes: int = 100_000) -> Parser:
    return Parser(headers, head_bytes, body_bytes)


def fed(data: bytes, at: Parser | None = None) -> list[Event]:
    return (at or parser()).feed(data)


def malformed(events: list[Event]) -> str:
    assert events
    last = events[-1]
    assert isinstance(last, MalformedFrame)
    return last.text


@given(st.sampled_from(VERSIONS[1:]), st.binary(max_size=50).filter(lambda raw: b"\r" not in raw))
def test_what_is_escaped_is_read_back(version: int, raw: bytes) -> None:
    line = escaped(raw, version)
    assert b"\n" not in line
    assert b":" not in line
    assert unescaped(line, version) == raw


@given(st.binary(max_size=50))
def test_a_carriage_return_is_escaped_in_1_2(raw: bytes) -> None:
    assert b"\r" not in escaped(raw, V1_2)
    assert unescaped(escaped(raw, V1_2), V1_2) == raw


@given(
    st.sampled_from((V1_1, V1_2)),
    st.dictionaries(names.filter(lambda name: name not in reserved), texts, max_size=8),
    st.binary(max_size=300),
    st.data(),
)
def test_frames_in_any_pieces_are_the_frames_that_were_sent(
    version: int, headers: dict[str, str], body: bytes, data: st.DataObject
) -> None:
    if version == V1_1:
        headers = {
            name.replace("\r", ""): value.replace("\r", "") for name, value in headers.items() if name.strip("\r")
        }
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    length = (b"content-length", str(len(body)).encode())
    stream = b"".join(
        eol + encode_frame(command, [*pairs, length], body, version)
        for command, eol in ((b"SEND", b"\n"), (b"ACK", b"\r\n"), (b"SEND", b""))
    )
    at = parser()
    events: list[Event] = []
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        events += at.feed(stream[position : position + size])
        position += size
    assert at.held_bytes == 0
    assert [type(event) for event in events] == [Send, Frame, Send]
    for event in events:
        assert not isinstance(event, MalformedFrame)
        assert event.body == body
        lines = event.lines if isinstance(event, Frame) else event.key.split(b"\n") if event.key else []
        assert headers_of(lines, version) == headers


@given(st.binary(max_size=400), st.integers(1, 7))
def test_any_bytes_give_frames_or_one_error(noise: bytes, size: int) -> None:
    at = parser(headers=5, head_bytes=100, body_bytes=100)
    events: list[Event] = []
    for position in range(0, len(noise), size):
        events += at.feed(noise[position : position + size])
        assert at.held_bytes <= 300
    assert sum(isinstance(event, MalformedFrame) for event in events) <= 1
    for event in events:
        if isinstance(event, Frame):
            for version in VERSIONS:
                try:
                    headers_of(event.lines, version)
                except MalformedFrame:
                    pass


def test_a_send_is_told_by_what_it_has_in_common_with_others() -> None:
    first, second = fed(
        b"SEND\ndestination:/queue/a\nreceipt:1\ncontent-length:2\nfoo:bar\n\nab\0"
        b"SEND\ndestination:/queue/a\nfoo:bar\nreceipt:2\ntransaction:t\nreceipt:3\n\nabc\0"
    )
    assert isinstance(first, Send)
    assert isinstance(second, Send)
    assert first.key == second.key == b"destination:/queue/a\nfoo:bar"
    assert (first.receipt, first.transaction, first.body) == (b"1", b"", b"ab")
    assert (second.receipt, second.transaction, second.body) == (b"2", b"t", b"abc")


def test_lines_may_end_in_carriage_return_and_line_feed() -> None:
    (event,) = fed(b"SEND\r\ndestination:/queue/a\r\nfoo:bar\r\n\r\nbody\r\n\0")
    assert isinstance(event, Send)
    assert event.key == b"destination:/queue/a\nfoo:bar"
    assert event.body == b"body\r\n"


def test_a_body_with_a_length_may_have_nuls_and_one_without_ends_at_the_first() -> None:
    counted, uncounted = fed(b"SEND\ncontent-length:3\n\na\0b\0\n\nSEND\n\nab\0")
    assert isinstance(counted, Send)
    assert isinstance(uncounted, Send)
    assert (counted.body, uncounted.body) == (b"a\0b", b"ab")


def test_of_several_headers_with_one_name_the_first_counts() -> None:
    assert headers_of([b"a:1", b"b:2", b"a:3"], V1_2) == {"a": "1", "b": "2"}


def test_1_0_has_no_escapes_and_what_it_cannot_say_is_left_out() -> None:
    assert headers_of([rb"a:x\ny"], V1_0) == {"a": r"x\ny"}
    assert encode_frame(b"MESSAGE", [(b"a", b"x\ny"), (b"b", b"c:d")], b"", V1_0) == b"MESSAGE\nb:c:d\n\n\0\n"


@pytest.mark.parametrize("line", [rb"a:\t", b"a:b\\", rb"\q:b"])
def test_an_escape_that_does_not_exist_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedFrame):
        headers_of([line], V1_2)


@pytest.mark.parametrize("line", [b"nothing", b"a:\xff"])
def test_what_is_no_header_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedFrame):
        headers_of([line], V1_2)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1 and more that has no end of line in it",
        b"SEND\ncontent-length:x\n\n\0",
        b"SEND\ncontent-length:-1\n\n\0",
        b"SEND\ncontent-length:1\n\nabc\0",
        b"SEND\ncontent-length:100001\n\n",
        b"SEND\n" + b"a:b\n" * 101 + b"\n\0",
        b"SEND\na:" + b"b" * 10_001,
        b"SEND\n\n" + b"b" * 100_001,
    ],
)
def test_the_malformed_and_the_too_large_stop_the_parser(data: bytes) -> None:
    at = parser()
    assert malformed(at.feed(data))
    assert at.stopped
    assert at.feed(b"SEND\n\n\0") == []
    assert at.held_bytes == 0


def test_a_large_body_in_small_pieces_is_not_looked_at_each_time() -> None:
    at = Parser(10, 1_000, 64 << 20)
    size = 32 << 20
    at.feed(b"SEND\ncontent-length:%d\n\n" % size)
    piece = bytes(1 << 16)
    events = [event for _ in range(size // len(piece)) for event in at.feed(piece)]
    assert events == []
    (event,) = at.feed(b"\0")
    assert isinstance(event, Send)
    assert len(event.body) == size


def test_messages_have_an_id_each_and_an_ack_where_they_are_to_be_acknowledged() -> None:
    contents = [(b"/queue/a", False, b"foo:bar\n", b"one"), (b"/queue/b", True, b"", b"\0")]
    encoded = encode_messages(b"MESSAGE\nsubscription:1\ndestination:", b"T_1@@s@@", True, 7, contents)
    first, second = fed(encoded)
    assert isinstance(first, Frame)
    assert isinstance(second, Frame)
    assert headers_of(first.lines, V1_2) == {
        "subscription": "1", "destination": "/queue/a", "message-id": "T_1@@s@@7", "redelivered": "false",
        "ack": "T_1@@s@@7", "foo": "bar",
    }  # fmt: skip
    assert headers_of(second.lines, V1_2)["redelivered"] == "true"
    assert (first.body, second.body) == (b"one", b"\0")
    assert encode_receipt(b"r\\c1") == b"RECEIPT\nreceipt-id:r\\c1\n\n\0\n"
