"""Each exchange kind: what it matches, and what a binding is."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.errors import InvalidBinding, UnknownExchangeKind
from trunkline.routing.exchange import Exchange
from trunkline.routing.exchanges import HeadersExchange, create_exchange
from trunkline.routing.fields import Fields
from trunkline.routing.limits import MAX_TABLE_DEPTH

KINDS = ["direct", "fanout", "topic", "headers", "content", "type"]


def exchange_of(kind: str) -> Exchange[str]:
    return create_exchange(kind)


def arguments_for(kind: str) -> dict[str, object]:
    return {"x-filter": "a = 1"} if kind == "content" else {"a": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_binding_twice_is_one_and_other_arguments_make_another(kind: str) -> None:
    exchange = exchange_of(kind)
    arguments = arguments_for(kind)
    other = arguments | {"x-note": "other"}
    fields = Fields({"a": 1})
    assert exchange.bind("q", "key", arguments)
    assert not exchange.bind("q", "key", dict(arguments))
    assert exchange.bind("q", "key", other)
    assert exchange.bind("p", "key", arguments)
    assert len(exchange) == 3
    assert [(b.destination, b.routing_key, b.arguments) for b in exchange.bindings()] == [
        ("q", "key", arguments),
        ("q", "key", other),
        ("p", "key", arguments),
    ]
    assert sorted(exchange.route("key", fields)) == ["p", "q"]
    assert exchange.unbind("q", "key", arguments)
    assert not exchange.unbind("q", "key", arguments)
    assert not exchange.unbind("q", "other", other)
    assert sorted(exchange.route("key", fields)) == ["p", "q"]
    assert exchange.unbind("q", "key", other)
    assert exchange.route("key", fields) == ("p",)
    assert exchange.unbind("p", "key", arguments)
    assert exchange.route("key", fields) == ()
    assert len(exchange) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_destination_bound_by_two_keys_comes_once(kind: str) -> None:
    exchange = exchange_of(kind)
    for key in ("a", "a.b"):
        exchange.bind("q", key, arguments_for(kind))
    assert exchange.route("a.b", Fields({"a": 1})) == ("q",)
    exchange.unbind("q", "a", arguments_for(kind))
    assert exchange.route("a.b", Fields({"a": 1})) == ("q",)


def test_a_binding_keeps_the_arguments_it_was_made_with() -> None:
    exchange = exchange_of("headers")
    arguments: dict[str, object] = {"a": 1}
    exchange.bind("q", "", arguments)
    arguments["a"] = 2
    assert exchange.route("", Fields({"a": 1})) == ("q",)
    assert exchange.unbind("q", "", {"a": 1})


def test_direct_fanout_topic_and_type_decide_by_key() -> None:
    exchanges = {kind: exchange_of(kind) for kind in ("direct", "fanout", "topic", "type")}
    for exchange in exchanges.values():
        for key in ("order", "order.*", "invoice"):
            exchange.bind(key, key)
    answers = {kind: set(exchange.route("order.created")) for kind, exchange in exchanges.items()}
    assert answers == {
        "direct": set(),
        "fanout": {"order", "order.*", "invoice"},
        "topic": {"order.*"},
        "type": {"order"},
    }
    assert all(exchange.by_key_alone for exchange in exchanges.values())


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": 2}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": Decimal("1.0")}, {"a": Decimal("1.0")}, True),
        ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "c"}]}, True),
        ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "d"}]}, False),
        ({"a": 1, "x-b": 2}, {"a": 1}, True),
        ({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1}, False),
        ({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1, "x-b": 2}, True),
        ({"x-match": "any", "x-b": 2}, {"x-b": 2}, False),
        ({"x-match": "any-with-x", "x-b": 2}, {"x-b": 2}, True),
        ({"x-match": b"any", "a": 1, "b": 1}, {"a": 1}, True),
    ],
)
def test_headers_examples(arguments: dict[str, object], headers: dict[str, object], matches: bool) -> None:
    exchange = exchange_of("headers")
    exchange.bind("q", "ignored", arguments)
    assert (exchange.route("whatever", Fields(headers)) == ("q",)) is matches


values = st.sampled_from([0, 1, True, 1.0, "1", "x", None])
tables = st.dictionaries(st.sampled_from(["a", "b", "x-c"]), values)
modes = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


@given(st.lists(st.tuples(st.integers(0, 3), modes, tables)), st.lists(st.integers(0, 9)), tables)
def test_headers_matches_are_those_of_the_definition(
    bindings: list[tuple[int, str, dict[str, object]]], removals: list[int], headers: dict[str, object]
) -> None:
    exchange: HeadersExchange[int] = HeadersExchange()
    bound = []
    for destination, mode, wanted in bindings:
        if exchange.bind(destination, "", {"x-match": mode, **wanted}):
            bound.append((destination, mode, wanted))
    for number in removals:
        if number < len(bound):
            destination, mode, wanted = bound.pop(number)
            assert exchange.unbind(destination, "", {"x-match": mode, **wanted})
    expected = set()
    for destination, mode, wanted in bound:
        checks = [
            name in headers and (value is None or (type(value) is type(headers[name]) and value == headers[name]))
            for name, value in wanted.items()
            if mode.endswith("x") or not name.startswith("x-")
        ]
        if all(checks) if mode.startswith("all") else any(checks):
            expected.add(destination)
    found = exchange.route("", Fields(headers))
    assert len(found) == len(set(found))
    assert set(found) == expected
    for destination, mode, wanted in bound:
        assert exchange.unbind(destination, "", {"x-match": mode, **wanted})
    assert not exchange._index._by_name
    assert not exchange._index._always


def test_headers_rules_for_other_values_are_not_met() -> None:
    exchange: HeadersExchange[int] = HeadersExchange()
    for number in range(1_000):
        exchange.bind(number, "", {"tenant": number, "region": "eu"})
    assert exchange.route("", Fields({"tenant": 7, "region": "eu"})) == (7,)
    assert exchange._index.rules_met <= 2


def test_a_message_value_that_nests_without_end_equals_nothing() -> None:
    deep: object = 1
    for _ in range(MAX_TABLE_DEPTH + 2):
        deep = [deep]
    exchange = exchange_of("headers")
    exchange.bind("q", "", {"a": 1})
    exchange.bind("p", "", {"a": None})
    assert exchange.route("", Fields({"a": deep})) == ("p",)
    with pytest.raises(InvalidBinding, match="deep"):
        exchange.bind("q", "", {"a": deep})


def test_content_bindings_match_by_their_filter() -> None:
    exchange = exchange_of("content")
    exchange.bind("cheap", "", {"x-filter": "company = 'Telco' and price < 100"})
    exchange.bind("rush", "", {"x-filter": b"order.rush"})
    both = Fields({"company": "Telco"}, b'{"price": 99, "order": {"rush": true}}')
    assert set(exchange.route("", both)) == {"cheap", "rush"}
    assert exchange.route("", Fields({"company": "Telco", "price": 100})) == ()
    assert not exchange.by_key_alone


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        ("headers", {"x-match": "some"}, "x-match is 'some'"),
        ("headers", {"x-match": 1}, "x-match is 1"),
        ("content", {}, "x-filter"),
        ("content", {"x-filter": 5}, "x-filter"),
        ("content", {"x-filter": "price <"}, "position 7"),
    ],
)
def test_bindings_that_a_kind_cannot_take_change_nothing(kind: str, arguments: dict[str, object], reason: str) -> None:
    exchange = exchange_of(kind)
    with pytest.raises(InvalidBinding, match=reason):
        exchange.bind("q", "", arguments)
    assert len(exchange) == 0
    assert exchange.route("", Fields({"price": 1})) == ()


def test_unknown_kinds_are_refused_with_the_list() -> None:
    with pytest.raises(UnknownExchangeKind, match="direct, fanout"):
        exchange_of("x-consistent-hash")
