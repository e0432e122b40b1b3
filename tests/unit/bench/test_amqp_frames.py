"""The AMQP generator notices every way in which a broker can go wrong, and counts confirms however they come."""

from __future__ import annotations

import pytest

from trunkline.bench.amqp_cases import KINDS, AmqpCase, all_amqp_cases
from trunkline.bench.amqp_contest import FULL, QUICK
from trunkline.bench.amqp_frames import (
    ACK_BYTES,
    CONSUMER_TAG,
    Confirms,
    Deliveries,
    acknowledgement_up_to,
    acknowledgements,
    body_of,
    property_section,
    publications,
)
from trunkline.bench.librdkafka import LoadError
from trunkline.protocols.amqp.codec import Parser, encode_confirm, encode_deliveries
from trunkline.protocols.amqp.frames import Ack, Publish


def delivered(sequences: list[int], size_bytes: int = 100, persistent: bool = False) -> bytes:
    section = property_section(persistent=persistent)
    messages = [("x", "key", False, section, body_of(number, size_bytes)) for number in sequences]
    return encode_deliveries(1, CONSUMER_TAG.encode(), 1, messages, 131_072)


@pytest.mark.parametrize("persistent", [False, True])
def test_publications_are_what_a_client_would_send(persistent: bool) -> None:
    frames = publications("x", ["one", "two"], 100, persistent, 5)
    assert len(frames) % 5 == 0
    events = Parser(expect_header=False).feed(frames)
    assert [type(event) for event in events] == [Publish] * 5
    found = [
        (event.exchange, event.routing_key, event.properties, event.body)
        for event in events
        if isinstance(event, Publish)
    ]
    section = property_section(persistent=persistent)
    assert found == [("x", ("one", "two")[n % 2], section, body_of(n, 100)) for n in range(5)]


def test_keys_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        publications("", ["a", "bb"], 100, False, 1)


@pytest.mark.parametrize("size_bytes", [16, 100, 1000])
def test_whole_deliveries_pass(size_bytes: int) -> None:
    data = delivered(list(range(10)), size_bytes, persistent=True)
    Deliveries("x", "key", size_bytes, persistent=True).check(memoryview(data), 10)


@pytest.mark.parametrize("sequences", [[0, 2, 1], [0, 0, 1], [1, 2, 3], [0, 1, 1]])
def test_lost_repeated_and_reordered_messages_are_noticed(sequences: list[int]) -> None:
    with pytest.raises(LoadError, match="delivery"):
        Deliveries("x", "key", 100, persistent=False).check(memoryview(delivered(sequences)), 3)


def test_a_damaged_message_is_noticed() -> None:
    data = bytearray(delivered([0, 1, 2]))
    data[-2] ^= 1  # the last byte of the last body
    with pytest.raises(LoadError, match="delivery 2"):
        Deliveries("x", "key", 100, persistent=False).check(memoryview(bytes(data)), 3)


def test_missing_messages_are_noticed() -> None:
    with pytest.raises(LoadError, match="2 of 3"):
        Deliveries("x", "key", 100, persistent=False).check(memoryview(delivered([0, 1])), 3)


def test_acknowledgements_are_frames_of_one_length() -> None:
    frames = acknowledgements(300)
    assert len(frames) == 300 * ACK_BYTES == 300 * len(acknowledgement_up_to(1))
    assert Parser(expect_header=False).feed(frames) == [Ack(1, tag, False) for tag in range(1, 301)]


def test_confirms_are_counted_once_in_any_order_and_any_pieces() -> None:
    data = b"".join(
        encode_confirm(1, tag, multiple)
        for tag, multiple in [
            (1, False),
            (3, False),
            (2, False),
            (7, False),
            (6, True),
            (7, True),
            (9, False),
            (8, False),
        ]
    )
    confirms = Confirms()
    counts = []
    for start in range(0, len(data), 10):
        confirms.feed(data[start : start + 10])
        counts.append(confirms.confirmed)
    assert counts[-1] == 9
    assert counts == sorted(counts)


def test_a_nack_is_no_confirm() -> None:
    with pytest.raises(LoadError, match="60\\.120"):
        Confirms().feed(encode_confirm(1, 1, False, nack=True))


def test_every_case_has_work_and_a_name_of_its_own() -> None:
    cases = all_amqp_cases()
    assert len({case.name for case in cases}) == len(cases) == 2 * len(KINDS)
    for case in cases:
        assert FULL.messages(case) >= QUICK.messages(case) > 0
    assert AmqpCase("request-reply", 1000).figures == ("request-reply/1KB/p50", "request-reply/1KB/p99")
