"""The history that dead letters carry."""

from __future__ import annotations

import json

import pytest

from trunkline.broker.messaging.dead_letters import bury
from trunkline.broker.messaging.deaths import DEATHS_HEADER, MAX_DEATHS
from trunkline.log.records import NO_HEADERS, decode_headers, encode_headers

NOW_MS = 1_700_000_000_123


def deaths(section: bytes) -> list[dict[str, object]]:
    value = dict(decode_headers(section))[DEATHS_HEADER]
    assert value is not None
    found = json.loads(value)
    assert isinstance(found, list)
    return found


def test_a_first_death_is_noted_with_its_place_reason_and_time() -> None:
    section = encode_headers(
        [("amqp.exchange", b"x"), ("amqp.routing-key", b"k"), ("amqp.expiration", b"50"), ("own", b"1")]
    )
    letter = bury(section, "q", "expired", routing_key=None, exchange="dlx", now_ms=NOW_MS)
    headers = dict(decode_headers(letter.section))
    assert letter.routing_keys == ("k",)
    assert (headers["amqp.exchange"], headers["amqp.routing-key"], headers["own"]) == (b"dlx", b"k", b"1")
    assert "amqp.expiration" not in headers
    assert deaths(letter.section) == [
        {
            "count": 1,
            "reason": "expired",
            "queue": "q",
            "time": NOW_MS // 1000,
            "exchange": "x",
            "routing-keys": ["k"],
            "original-expiration": "50",
        }
    ]
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (b"q", b"expired")


def test_the_same_death_again_is_counted_and_comes_first() -> None:
    section = NO_HEADERS
    for queue, reason in [("a", "rejected"), ("b", "expired"), ("a", "rejected"), ("a", "expired")]:
        section = bury(section, queue, reason, routing_key="k", exchange="", now_ms=NOW_MS).section
    assert [(d["queue"], d["reason"], d["count"]) for d in deaths(section)] == [
        ("a", "expired", 1),
        ("a", "rejected", 2),
        ("b", "expired", 1),
    ]
    headers = dict(decode_headers(section))
    assert headers["x-first-death-reason"] == b"rejected"
    assert headers["x-last-death-reason"] == b"expired"


def test_a_cycle_without_a_rejection_is_known_and_a_rejection_breaks_it() -> None:
    first = bury(NO_HEADERS, "a", "expired", routing_key=None, exchange="", now_ms=NOW_MS)
    second = bury(first.section, "b", "expired", routing_key=None, exchange="", now_ms=NOW_MS)
    assert second.died_before_in == {"a", "b"}
    rejected = bury(second.section, "c", "rejected", routing_key=None, exchange="", now_ms=NOW_MS)
    assert rejected.died_before_in == frozenset()
    after = bury(rejected.section, "d", "maxlen", routing_key=None, exchange="", now_ms=NOW_MS)
    assert after.died_before_in == {"d"}


def test_copies_are_further_keys_until_a_queue_sets_the_key() -> None:
    section = encode_headers(
        [
            ("amqp.exchange", b"x"),
            ("amqp.routing-key", b"k"),
            ("CC", b'["c",5,"d"]'),
            ("amqp.bcc", b'["secret"]'),
            ("own", b"1"),
        ]
    )
    kept = bury(section, "q", "rejected", routing_key=None, exchange="dlx", now_ms=NOW_MS)
    assert kept.routing_keys == ("k", "c", "d", "secret")
    assert deaths(kept.section)[0]["routing-keys"] == ["k", "c", "d"]
    assert {"CC", "amqp.bcc"} <= dict(decode_headers(kept.section)).keys()
    changed = bury(kept.section, "p", "rejected", routing_key="other", exchange="dlx", now_ms=NOW_MS)
    assert changed.routing_keys == ("other",)
    assert deaths(changed.section)[0]["routing-keys"] == ["k", "c", "d"]
    assert {"CC", "amqp.bcc"}.isdisjoint(dict(decode_headers(changed.section)))


@pytest.mark.parametrize("value", [b"", b"nonsense", b'"c"', b'{"c":1}', b"[" * 100_000, None], ids=range(6))
def test_copies_that_cannot_be_read_are_none(value: bytes | None) -> None:
    section = encode_headers([("amqp.exchange", b""), ("amqp.routing-key", b"k"), ("CC", value), ("amqp.bcc", value)])
    assert bury(section, "q", "rejected", routing_key=None, exchange="", now_ms=NOW_MS).routing_keys == ("k",)


def test_another_protocols_headers_are_no_copies() -> None:
    letter = bury(encode_headers([("CC", b'["c"]')]), "q", "rejected", routing_key="k", exchange="", now_ms=NOW_MS)
    assert letter.routing_keys == ("k",)
    assert dict(decode_headers(letter.section))["CC"] == b'["c"]'


def test_a_claimed_first_death_counts_only_with_a_history() -> None:
    section = encode_headers([("x-first-death-queue", b"elsewhere")])
    first = bury(section, "q", "rejected", routing_key=None, exchange="", now_ms=NOW_MS)
    assert dict(decode_headers(first.section))["x-first-death-queue"] == b"q"
    second = bury(first.section, "p", "expired", routing_key=None, exchange="", now_ms=NOW_MS)
    assert dict(decode_headers(second.section))["x-first-death-queue"] == b"q"


def test_a_history_is_bounded_and_nonsense_in_its_place_is_replaced() -> None:
    section = encode_headers([(DEATHS_HEADER, b"nonsense")])
    for number in range(MAX_DEATHS + 5):
        section = bury(section, f"q{number}", "expired", routing_key=None, exchange="", now_ms=NOW_MS).section
    found = deaths(section)
    assert len(found) == MAX_DEATHS
    assert found[0]["queue"] == f"q{MAX_DEATHS + 4}"
