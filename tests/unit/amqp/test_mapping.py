"""Messages as records: nothing of a message is lost on the way to the log and back."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.messaging.typed_values import FieldValue, Timestamp
from trunkline.log.records import decode_headers, encode_headers
from trunkline.protocols.amqp.codec import NO_PROPERTIES, FrameError, Properties, decode_properties, encode_properties
from trunkline.protocols.amqp.mapping import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_BYTES,
    Envelopes,
    envelope_of,
    envelope_of_section,
)

_short = st.text(max_size=20)
_names = st.one_of(
    st.text(min_size=1, max_size=12),
    st.sampled_from(["amqp.exchange", "amqp.headers", "amqp.priority", "amqp.bcc", "x-delay"]),
    st.sampled_from(["x-death", "x-first-death-queue", "x-last-death-reason"]),
)
_scalars: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.builds(Timestamp, st.integers(0, 2**40)),
    st.decimals(-1000, 1000, places=2).map(Decimal),
)
_fields: st.SearchStrategy[FieldValue] = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
_properties = st.builds(
    Properties,
    content_type=st.none() | _short,
    content_encoding=st.none() | _short,
    headers=st.none() | st.dictionaries(_names, _fields, max_size=5),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | _short | st.binary(max_size=9).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    reply_to=st.none() | _short,
    expiration=st.none() | _short,
    message_id=st.none() | _short,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | _short,
    user_id=st.none() | _short,
    app_id=st.none() | _short,
    cluster_id=st.none() | _short,
)


@given(exchange=_short, routing_key=_short, properties=_properties)
def test_every_property_and_header_comes_back_as_it_was(
    exchange: str, routing_key: str, properties: Properties
) -> None:
    section = encode_properties(properties)
    envelope = envelope_of(exchange, routing_key, section)
    back = envelope_of_section(envelope.section)
    assert (back.exchange, back.routing_key, back.addressed) == (exchange, routing_key, True)
    assert back.persistent == (properties.delivery_mode == 2)
    decoded = decode_properties(back.properties)
    expected = decode_properties(section)
    if expected.headers == {}:
        expected.headers = None  # an empty table and none are the same record
    assert decoded == expected


def test_headers_keep_their_exact_encoding() -> None:
    # A signed octet, a short and an unsigned long: Python values would come back as other types.
    table = b"\x01ab\xff" + b"\x01bs\x00\x07" + b"\x01ci\x00\x00\x00\x09"
    section = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert envelope_of_section(envelope_of("", "q", section).section).properties == section


def test_a_record_of_another_protocol_has_its_headers_as_strings() -> None:
    section = encode_headers([("trace", b"abc"), ("empty", None), ("raw", b"\xff\xfe")])
    envelope = envelope_of_section(section)
    assert not envelope.addressed
    assert decode_properties(envelope.properties).headers == {"trace": "abc", "empty": None, "raw": b"\xff\xfe"}


@pytest.mark.parametrize(
    "hostile",
    [
        [("amqp.exchange", b"x" * 300), ("amqp.routing-key", b"\xff")],
        [
            ("amqp.exchange", b""),
            ("amqp.priority", b"many"),
            ("amqp.delivery-mode", b"999"),
            ("amqp.timestamp", b"1" * 30),
        ],
        [("amqp.exchange", b""), ("amqp.content-type", b"x" * 300)],
        [("x" * 300, b"a name too long for a table")],
        [("x-death", b"not json")],
        [("x-death", b'{"a":1}')],
    ],
)
def test_a_foreign_writer_cannot_make_a_message_undeliverable(hostile: list[tuple[str, bytes | None]]) -> None:
    envelope = envelope_of_section(encode_headers(hostile))
    decode_properties(envelope.properties)
    assert len(envelope.exchange.encode()) <= 765  # three bytes for each that was not UTF-8


@pytest.mark.parametrize(
    "section", [b"", b"\x00", b"\x80\x00\x05ab", b"\x00\x01", b"\x00\x00x", b"\x20\x00\x00\x00\x00\x09"]
)
def test_malformed_properties_are_a_frame_error(section: bytes) -> None:
    with pytest.raises(FrameError):
        envelope_of("", "q", section)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        (Properties(headers={"CC": "a"}), '{unacceptable_type_in_header,"CC",longstr}'),
        (Properties(headers={"CC": None}), '{unacceptable_type_in_header,"CC",void}'),
        (Properties(headers={"BCC": {"a": 1}}), '{unacceptable_type_in_header,"BCC",table}'),
        (Properties(headers={"BCC": True}), '{unacceptable_type_in_header,"BCC",bool}'),
        (Properties(delivery_mode=0), "{delivery_mode_unknown,0}"),
        (Properties(delivery_mode=3), "{delivery_mode_unknown,3}"),
    ],
)
def test_messages_that_rabbitmq_does_not_take_are_refused_in_its_words(properties: Properties, why: str) -> None:
    with pytest.raises(FrameError) as caught:
        envelope_of("", "q", encode_properties(properties))
    assert caught.value.reply_text == f"PRECONDITION_FAILED - invalid message: {why}"


def test_blind_copies_are_kept_for_the_broker_and_not_shown() -> None:
    sent = encode_properties(Properties(headers={"BCC": ["secret", 5], "CC": ["c"], "own": 1}))
    envelope = envelope_of("", "q", sent)
    assert envelope.copies == ("secret", "c")
    assert dict(decode_headers(envelope.section))["amqp.bcc"] == b'["secret",5]'
    for seen in (envelope, envelope_of_section(envelope.section)):
        assert decode_properties(seen.properties).headers == {"CC": ["c"], "own": 1}


def test_what_is_remembered_is_bounded() -> None:
    envelopes = Envelopes()
    for number in range(MAX_REMEMBERED + 10):
        envelopes.of_publication("", f"key-{number}", NO_PROPERTIES)
    assert len(envelopes.by_publication) <= MAX_REMEMBERED
    assert len(envelopes.by_section) <= MAX_REMEMBERED
    large = encode_properties(Properties(headers={"h": "x" * MAX_REMEMBERED_BYTES}))
    count = len(envelopes.by_publication)
    assert envelopes.of_publication("", "q", large).properties == large
    assert len(envelopes.by_publication) == count


def test_a_header_can_be_added_to_properties_without_any() -> None:
    envelope = envelope_of("", "q", encode_properties(Properties(content_type="a", message_id="m")))
    decoded = decode_properties(envelope.with_header("x-delivery-count", 2))
    assert decoded == Properties(content_type="a", message_id="m", headers={"x-delivery-count": 2})


def test_kafka_sees_scalars_as_text() -> None:
    headers: dict[str, FieldValue] = {"i": 7, "b": True, "f": 1.5, "s": "text", "t": Timestamp(9), "v": None}
    record = dict(decode_headers(envelope_of("", "q", encode_properties(Properties(headers=headers))).section))
    assert {name: record[name] for name in headers} == {
        "i": b"7", "b": b"true", "f": b"1.5", "s": b"text", "t": b"9", "v": None
    }  # fmt: skip
