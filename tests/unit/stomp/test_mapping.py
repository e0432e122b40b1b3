"""Destinations and the envelopes of STOMP messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.messaging.envelope import read_section
from trunkline.log.records import encode_headers
from trunkline.protocols.stomp.codec import V1_0, V1_2, headers_of
from trunkline.protocols.stomp.destination import Destination, Kind, destination_of, parse_destination
from trunkline.protocols.stomp.errors import StompError
from trunkline.protocols.stomp.mapping import Envelopes, envelope_of

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("text", "destination", "address"),
    [
        ("/queue/a.b", Destination(Kind.QUEUE, "a.b"), ("", "a.b")),
        ("/queue/a%2Fb", Destination(Kind.QUEUE, "a/b"), ("", "a/b")),
        ("plain", Destination(Kind.QUEUE, "plain"), ("", "plain")),
        ("/amq/queue/x", Destination(Kind.AMQ_QUEUE, "x"), ("", "x")),
        ("/topic/a.*", Destination(Kind.TOPIC, "amq.topic", "a.*"), ("amq.topic", "a.*")),
        ("/exchange/e", Destination(Kind.EXCHANGE, "e"), ("e", "")),
        ("/exchange/e/k", Destination(Kind.EXCHANGE, "e", "k"), ("e", "k")),
        ("/reply-queue/amq.gen-1/2", Destination(Kind.REPLY, "amq.gen-1/2"), ("", "amq.gen-1/2")),
        ("/temp-queue/t", Destination(Kind.TEMPORARY, "t"), ("", "t")),
    ],
)
def test_destinations_are_read_as_rabbitmq_reads_them(
    text: str, destination: Destination, address: tuple[str, str]
) -> None:
    assert parse_destination(text) == destination
    assert destination.address == address


@pytest.mark.parametrize(
    "text", ["/queue", "/queue/", "/queue/a/b", "/topic/", "/exchange", "/exchange//k", "/exchange/a/b/c", "/foo/bar", "/", ""]
)  # fmt: skip
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(StompError, match="destination"):
        parse_destination(text)


@given(texts, texts)
def test_where_a_message_was_sent_can_be_sent_to(exchange: str, key: str) -> None:
    if len(exchange.encode()) <= 255 and len(key.encode()) <= 255:
        assert parse_destination(destination_of(exchange, key)).address == (exchange, key)
        assert parse_destination(destination_of("", key)).address == ("", key)


def test_headers_of_a_send_are_properties_or_headers_of_the_message() -> None:
    envelope = envelope_of(
        {
            "destination": "/queue/q", "content-type": "text/plain", "persistent": "true", "priority": "3",
            "expiration": "60000", "amqp-message-id": "m", "reply-to": "/reply-queue/amq.gen-x", "colour": "red",
        }
    )  # fmt: skip
    assert (envelope.exchange, envelope.routing_key, envelope.declares) == ("", "q", "q")
    assert (envelope.persistent, envelope.priority, envelope.expiration_ms) == (True, 3, 60_000)
    found = read_section(envelope.section)
    assert found.reserved["amqp.content-type"] == b"text/plain"
    assert found.reserved["amqp.delivery-mode"] == b"2"
    assert found.reserved["amqp.reply-to"] == b"amq.gen-x"
    assert found.reserved["amqp.message-id"] == b"m"
    assert [name for name, _ in found.table] == ["colour"]


@pytest.mark.parametrize(
    "headers",
    [{"priority": "x"}, {"priority": "256"}, {"expiration": "-1"}, {"persistent": "yes"}, {"timestamp": "1.5"},
     {"message-id": "mine"}, {"content-type": "x" * 256}, {"n" * 256: "v"}],
)  # fmt: skip
def test_a_header_that_cannot_be_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(StompError, match="Invalid header"):
        envelope_of({"destination": "/queue/q", **headers})


@given(
    st.lists(st.tuples(texts, st.one_of(st.none(), st.binary(max_size=30))), max_size=8), st.sampled_from((V1_0, V1_2))
)
def test_a_record_with_any_headers_is_shown_in_lines_that_can_be_read(
    headers: list[tuple[str, bytes | None]], version: int
) -> None:
    envelope = Envelopes(version).of_record(encode_headers(headers))
    lines = envelope.lines.split(b"\n")
    assert lines.pop() == b""
    for line in lines:
        assert b"\0" not in line
        assert b":" in line
    shown = {line.partition(b":")[0] for line in lines}
    assert not shown & {b"message-id", b"content-length", b"destination", b"subscription", b"ack"}


def test_headers_with_a_reserved_name_do_not_shadow_the_servers_own() -> None:
    envelope = Envelopes(V1_2).of_record(encode_headers([("content-length", b"7"), ("ack", b"x"), ("a:b", b"c\nd")]))
    assert headers_of(envelope.lines.split(b"\n")[:-1], V1_2) == {"a:b": "c\nd"}
