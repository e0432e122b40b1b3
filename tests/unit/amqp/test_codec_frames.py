"""The AMQP parser and the encoders of messages: what goes in comes out, however it is cut, and violations are named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.amqp.codec_samples import MIN_FRAME_MAX_BYTES, cut, names, streams
from trunkline.protocols.amqp import codec, errors
from trunkline.protocols.amqp.codec import FrameError, Parser
from trunkline.protocols.amqp.frames import Content, Deliver, Event, Heartbeat, MethodFrame, ProtocolHeader, Publish
from trunkline.protocols.amqp.methods import (
    BasicDeliver,
    BasicGetOk,
    BasicReturn,
    ChannelOpen,
    ConnectionTuneOk,
    TxSelect,
)

NO_PROPERTIES = codec.NO_PROPERTIES


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + bytes([end])


def header(channel: int, size: int, class_id: int = 60, weight: int = 0) -> bytes:
    fixed = class_id.to_bytes(2, "big") + weight.to_bytes(2, "big") + size.to_bytes(8, "big")
    return frame(2, channel, fixed + NO_PROPERTIES)


def publish_method(channel: int, exchange: str = "", key: str = "q") -> bytes:
    whole = codec.encode_publish(channel, exchange, key, NO_PROPERTIES, b"", MIN_FRAME_MAX_BYTES)
    return whole[: 8 + int.from_bytes(whole[3:7], "big")]


def fed(data: bytes, **limits: int) -> list[codec.ParserEvent]:
    return Parser(expect_header=False, deliveries=False, **limits).feed(data)


def violation(data: bytes, **limits: int) -> FrameError:
    """The error that `data` ends in; it must end the parser, too."""
    parser = Parser(expect_header=False, deliveries=False, **limits)
    events = parser.feed(data)
    assert events
    error = events[-1]
    assert isinstance(error, FrameError)
    assert error.channel == 0
    assert parser.stopped
    assert parser.feed(codec.HEARTBEAT_FRAME) == []
    return error


@given(streams(), st.lists(st.integers(0, 100_000), max_size=12))
def test_any_cutting_gives_the_same_events(stream: tuple[bytes, list[Event]], places: list[int]) -> None:
    sent, meant = stream
    parser = Parser(expect_header=False, frame_max_bytes=MIN_FRAME_MAX_BYTES)
    events = [event for piece in cut(sent, places) for event in parser.feed(memoryview(piece))]
    assert events == meant
    assert parser.buffered_bytes == 0


@settings(max_examples=20)
@given(streams())
def test_single_bytes_give_the_same_events(stream: tuple[bytes, list[Event]]) -> None:
    sent, meant = stream
    parser = Parser(expect_header=False)
    assert [event for at in range(len(sent)) for event in parser.feed(sent[at : at + 1])] == meant


@given(streams(), st.data())
def test_damaged_streams_give_events_or_a_frame_error(stream: tuple[bytes, list[Event]], data: st.DataObject) -> None:
    damaged = bytearray(stream[0] or b"\x00")
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    parser = Parser(expect_header=False)
    whole = parser.feed(bytes(damaged))
    again = Parser(expect_header=False)
    pieces = [event for piece in cut(bytes(damaged), data.draw(st.lists(st.integers(0, 9999), max_size=5)))
              for event in again.feed(piece)]  # fmt: skip
    assert [repr(event) for event in whole] == [repr(event) for event in pieces]


@given(st.binary(max_size=400))
def test_noise_gives_a_frame_error_or_nothing(noise: bytes) -> None:
    for events in (fed(noise), fed(b"\x01\x00\x01" + len(noise).to_bytes(4, "big") + noise + b"\xce")):
        assert all(isinstance(event, (Event, FrameError)) for event in events)


def test_protocol_header_comes_first() -> None:
    parser = Parser()
    assert parser.feed(b"AMQP\x00") == []
    assert parser.feed(b"\x00\x09\x01" + codec.HEARTBEAT_FRAME) == [
        ProtocolHeader(True, b"AMQP\x00\x00\x09\x01"),
        Heartbeat(),
    ]


@pytest.mark.parametrize(
    "opening", [b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"]
)
def test_another_protocol_is_not_accepted(opening: bytes) -> None:
    parser = Parser()
    assert parser.feed(opening) == [ProtocolHeader(False, opening[:8])]
    assert parser.stopped
    assert parser.feed(codec.HEARTBEAT_FRAME) == []


def test_channels_may_interleave_their_frames() -> None:
    sent = (
        publish_method(1, "a") + publish_method(2, "b") + header(1, 4) + frame(3, 1, b"on") + header(2, 3)
        + codec.encode_method(3, TxSelect()) + frame(3, 2, b"two") + codec.HEARTBEAT_FRAME + frame(3, 1, b"e!")
    )  # fmt: skip
    assert fed(sent) == [
        MethodFrame(3, TxSelect()),
        Publish(2, "b", "q", False, False, NO_PROPERTIES, b"two"),
        Heartbeat(),
        Publish(1, "a", "q", False, False, NO_PROPERTIES, b"one!"),
    ]


def test_empty_body_needs_no_body_frame_and_empty_body_frames_add_nothing() -> None:
    assert fed(publish_method(1) + header(1, 0)) == [Publish(1, "", "q", False, False, NO_PROPERTIES, b"")]
    sent = publish_method(1) + header(1, 2) + frame(3, 1, b"") + frame(3, 1, b"ab")
    assert fed(sent) == [Publish(1, "", "q", False, False, NO_PROPERTIES, b"ab")]


def test_events_before_a_violation_are_kept() -> None:
    events = fed(codec.encode_publish(1, "", "q", NO_PROPERTIES, b"x", 4096) + frame(7, 0, b""))
    assert events[0] == Publish(1, "", "q", False, False, NO_PROPERTIES, b"x")
    assert isinstance(events[1], FrameError)


@pytest.mark.parametrize(
    ("sent", "reply_code"),
    [
        (frame(1, 0, b"\x00\x0a\x00\x33", end=0xCD), errors.FRAME_ERROR),
        (frame(7, 0, b""), errors.FRAME_ERROR),
        (b"GET / HTTP/1.1\r\n", errors.FRAME_ERROR),
        (b"\x01\x00\x00\xff\xff\xff\xff\x00", errors.FRAME_ERROR),
        (frame(1, 1, b"\x00\x0a"), errors.FRAME_ERROR),
        (frame(8, 1, b""), errors.UNEXPECTED_FRAME),
        (frame(8, 0, b"x"), errors.FRAME_ERROR),
        (frame(1, 1, b"\x00\x0a\x00\x63"), errors.COMMAND_INVALID),
        (frame(1, 1, b"\x00\x07\x00\x0a"), errors.NOT_IMPLEMENTED),
        (frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x05ab"), errors.SYNTAX_ERROR),
        (frame(1, 1, b"\x00\x5a\x00\x0a\x00"), errors.SYNTAX_ERROR),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x02\xff\xff\x00\x00"), errors.SYNTAX_ERROR),
        (header(1, 3), errors.UNEXPECTED_FRAME),
        (frame(3, 1, b"body"), errors.UNEXPECTED_FRAME),
        (publish_method(1) + codec.encode_method(1, TxSelect()), errors.UNEXPECTED_FRAME),
        (publish_method(1) + publish_method(1), errors.UNEXPECTED_FRAME),
        (publish_method(1) + frame(3, 1, b"x"), errors.UNEXPECTED_FRAME),
        (publish_method(1) + header(1, 2) + header(1, 2), errors.UNEXPECTED_FRAME),
        (publish_method(1) + header(1, 2) + publish_method(1), errors.UNEXPECTED_FRAME),
        (publish_method(1) + header(1, 2, class_id=50), errors.UNEXPECTED_FRAME),
        (publish_method(1) + header(1, 2, weight=1), errors.FRAME_ERROR),
        (publish_method(1) + header(1, 2**63), errors.FRAME_ERROR),
        (publish_method(1) + frame(2, 1, bytes(12)), errors.FRAME_ERROR),
        (publish_method(1) + header(1, 2) + frame(3, 1, b"abc"), errors.FRAME_ERROR),
        (publish_method(1) + header(1, 0) + frame(3, 1, b""), errors.UNEXPECTED_FRAME),
        (publish_method(0), errors.UNEXPECTED_FRAME),
    ],
)  # fmt: skip
def test_violations_end_the_connection_with_their_reply_code(sent: bytes, reply_code: int) -> None:
    error = violation(sent)
    assert error.reply_code == reply_code
    assert error.reply_text.startswith(errors.REPLY_NAMES[reply_code])
    assert len(error.reply_text.encode()) < 256


def test_frames_over_the_agreed_size_are_refused_from_their_first_bytes() -> None:
    parser = Parser(expect_header=False, frame_max_bytes=4096)
    assert parser.feed(frame(1, 1, b"\x00\x14\x00\x0a\x00" + bytes(4092))[:8])[0].__class__ is FrameError
    roomy = Parser(expect_header=False)
    roomy.set_frame_max(8192)
    # Eight bytes more than agreed on are forgiven.
    assert len(roomy.feed(codec.encode_publish(1, "", "q", NO_PROPERTIES, bytes(8192), 8200))) == 1
    assert isinstance(roomy.feed(codec.encode_publish(1, "", "q", NO_PROPERTIES, bytes(8193), 8201))[-1], FrameError)


@pytest.mark.parametrize(("asked", "agreed"), [(0, 20_000), (8_192, 8_192), (20_000, 20_000), (1 << 31, 20_000)])
def test_a_servers_frames_are_small_until_the_client_has_tuned(asked: int, agreed: int) -> None:
    def server() -> Parser:
        return Parser(expect_header=False, frame_max_bytes=4096, offered_frame_max_bytes=20_000)

    def publish(size: int) -> bytes:
        return codec.encode_publish(1, "", "q", NO_PROPERTIES, bytes(size), 1 << 20)

    tuned = codec.encode_method(0, ConnectionTuneOk(0, asked, 0))
    assert isinstance(server().feed(publish(5_000))[-1], FrameError)
    assert [type(event) for event in server().feed(tuned + publish(agreed))] == [MethodFrame, Publish]
    assert [type(event) for event in server().feed(tuned + publish(agreed + 1))] == [MethodFrame, FrameError]
    parser = server()
    parser.feed(tuned + tuned.replace(asked.to_bytes(4, "big"), (1 << 30).to_bytes(4, "big")))
    assert isinstance(parser.feed(publish(agreed + 1))[-1], FrameError)


def test_a_message_over_the_limit_ends_its_channel_only() -> None:
    large = codec.encode_publish(1, "", "q", NO_PROPERTIES, bytes(9000), 4096)
    small = codec.encode_publish(2, "", "q", NO_PROPERTIES, bytes(8), 4096)
    parser = Parser(expect_header=False, max_body_bytes=8999)
    events = parser.feed(large + small)
    error = events[0]
    assert isinstance(error, FrameError)
    assert (error.reply_code, error.channel, error.class_id, error.method_id) == (406, 1, 60, 40)
    assert events[1:] == [Publish(2, "", "q", False, False, NO_PROPERTIES, bytes(8))]
    assert not parser.stopped
    assert parser.buffered_bytes == 0


def test_unfinished_bodies_on_all_channels_together_are_bounded() -> None:
    parser = Parser(expect_header=False, max_unfinished_bytes=10_000)
    for channel in range(1, 4):
        assert parser.feed(publish_method(channel) + header(channel, 5000) + frame(3, channel, bytes(3000))) == []
    assert parser.buffered_bytes == 9000
    parser.forget_channel(1)
    assert parser.feed(frame(3, 2, bytes(2000))) == [Publish(2, "", "q", False, False, NO_PROPERTIES, bytes(5000))]
    assert parser.buffered_bytes == 3000
    error = violation(
        b"".join(publish_method(c) + header(c, 5000) + frame(3, c, bytes(3000)) for c in range(1, 5)),
        max_unfinished_bytes=10_000,
    )
    assert error.reply_code == errors.RESOURCE_ERROR


def test_more_routes_than_the_cache_holds_are_all_told_apart() -> None:
    sent = b"".join(codec.encode_publish(1, "x", f"key.{n}", NO_PROPERTIES, b"", 4096) for n in range(9000))
    assert [event.routing_key for event in fed(sent) if isinstance(event, Publish)] == [f"key.{n}" for n in range(9000)]


messages = st.lists(
    st.tuples(names, names, st.booleans(), st.just(NO_PROPERTIES), st.binary(max_size=50).map(lambda b: b * 200)),
    max_size=6,
)


@given(messages, st.integers(1, 65_535), st.integers(1, 2**62), names)
def test_deliveries_come_out_as_they_went_in(
    items: list[codec.Message], channel: int, first_tag: int, consumer: str
) -> None:
    sent = codec.encode_deliveries(channel, consumer.encode(), first_tag, items, 4096)
    assert fed(sent, frame_max_bytes=4096) == [
        Content(channel, BasicDeliver(consumer, first_tag + n, again, exchange, key), section, body)
        for n, (exchange, key, again, section, body) in enumerate(items)
    ]


def test_get_ok_return_and_confirms() -> None:
    section = codec.encode_properties(codec.Properties(content_type="text/plain"))
    got = codec.encode_get_ok(7, 2**63, ("x", "k", True, section, b"body"), 12, 4096)
    assert fed(got) == [Content(7, BasicGetOk(2**63, True, "x", "k", 12), section, b"body")]
    back = codec.encode_return(7, 312, "NO_ROUTE", "x", "k", section, b"", 4096)
    assert fed(back) == [Content(7, BasicReturn(312, "NO_ROUTE", "x", "k"), section, b"")]
    assert codec.encode_confirm(1, 5, True).hex() == "0100010000000d003c0050000000000000000501ce"
    assert codec.encode_confirm(1, 5, False, nack=True).hex() == "0100010000000d003c0078000000000000000500ce"
    assert fed(codec.encode_method(65_535, ChannelOpen())) == [MethodFrame(65_535, ChannelOpen())]


def test_values_that_do_not_fit_are_refused_when_written() -> None:
    with pytest.raises(ValueError, match="16 bits"):
        codec.encode_method(65_536, TxSelect())
    with pytest.raises(ValueError, match="at most 255"):
        codec.encode_publish(1, "x" * 256, "", NO_PROPERTIES, b"", 4096)
    with pytest.raises(ValueError, match="2 bytes"):
        codec.encode_method(0, ConnectionTuneOk(70_000, 0, 0))
    with pytest.raises(ValueError, match="4096"):
        codec.encode_deliveries(1, b"c", 1, [("", "", False, NO_PROPERTIES, b"")], 100)


def test_deliveries_come_as_light_events_where_a_client_asks_for_them() -> None:
    messages = [("ex", "key", number % 2 == 1, NO_PROPERTIES, b"x" * number) for number in range(5)]
    data = codec.encode_deliveries(3, b"tag", 7, messages, 4096)
    light = Parser(expect_header=False, deliveries=True)
    events = [event for at in range(0, len(data), 11) for event in light.feed(data[at : at + 11])]
    whole = Parser(expect_header=False, deliveries=True).feed(data)
    assert whole == [
        Deliver(3, b"tag", 7 + number, number % 2 == 1, "ex", "key", NO_PROPERTIES, b"x" * number)
        for number in range(5)
    ]
    # What comes in pieces comes as it always did: the same methods with the same content.
    assert [event.body for event in events if isinstance(event, Content | Deliver)] == [b"x" * n for n in range(5)]
