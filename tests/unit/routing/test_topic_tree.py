"""The topic tree against straightforward matchers, the standards' examples, and patterns made to hurt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.routing.reference import amqp_match, mqtt_match
from trunkline.routing.dialect import AMQP, MQTT, Dialect
from trunkline.routing.errors import InvalidPattern
from trunkline.routing.limits import MAX_AMQP_LEVELS, MAX_MQTT_LEVELS
from trunkline.routing.topic_tree import FEW, TopicTree

amqp_patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#", "a*"]), max_size=6).map(".".join)
amqp_names = st.lists(st.sampled_from(["a", "b", "c", "", "a*"]), max_size=7).map(".".join)
mqtt_levels = st.lists(st.sampled_from(["a", "b", "", "+", "$s"]), min_size=1, max_size=5)
mqtt_patterns = (
    st.tuples(mqtt_levels, st.booleans())
    .map(lambda pair: "/".join([*pair[0], "#"] if pair[1] else pair[0]))
    .filter(bool)
)
mqtt_names = st.lists(st.sampled_from(["a", "b", "c", "", "$s"]), min_size=1, max_size=6).map("/".join).filter(bool)


def check_against(
    matcher: Callable[[str, str], bool], tree: TopicTree[int], bound: set[tuple[str, int]], names: list[str]
) -> None:
    assert len(tree) == len(bound)
    assert sorted(tree.patterns()) == sorted(bound)
    for name in names:
        for _ in ("computed", "cached"):
            found = tree.match(name)
            assert len(found) == len(set(found))
            assert set(found) == {value for pattern, value in bound if matcher(pattern, name)}, name


def check_changes(
    dialect: Dialect,
    matcher: Callable[[str, str], bool],
    changes: list[tuple[bool, str, int]],
    names: list[str],
) -> None:
    tree: TopicTree[int] = TopicTree(dialect)
    bound: set[tuple[str, int]] = set()
    for add, pattern, value in changes:
        if add:
            assert tree.add(pattern, value) == ((pattern, value) not in bound)
            bound.add((pattern, value))
        else:
            assert tree.remove(pattern, value) == ((pattern, value) in bound)
            bound.discard((pattern, value))
        check_against(matcher, tree, bound, names[:1])
    check_against(matcher, tree, bound, names)
    for pattern, value in sorted(bound):
        assert tree.remove(pattern, value)
    assert len(tree) == 0
    assert tree._root.leads_nowhere(), "removing everything leaves no node behind"


@given(
    st.lists(st.tuples(st.booleans(), amqp_patterns, st.integers(0, 3)), max_size=20),
    st.lists(amqp_names, min_size=1, max_size=8),
)
def test_amqp_matches_are_those_of_the_definition(changes: list[tuple[bool, str, int]], names: list[str]) -> None:
    check_changes(AMQP, amqp_match, changes, names)


@given(
    st.lists(st.tuples(st.booleans(), mqtt_patterns, st.integers(0, 3)), max_size=20),
    st.lists(mqtt_names, min_size=1, max_size=8),
)
def test_mqtt_matches_are_those_of_the_definition(changes: list[tuple[bool, str, int]], names: list[str]) -> None:
    check_changes(MQTT, mqtt_match, changes, names)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        # AMQP 0-9-1, 3.1.3.3: the topic exchange type.
        ("*.stock.#", ["usd.stock", "eur.stock.db"], ["stock.nasdaq", "stock"]),
        ("#", ["", "a", "a.b.c", "..", "."], []),
        ("*", ["a"], ["", "a.b", "."]),
        ("*.*", [".", "a.b"], ["", "a", "a.b.c"]),
        ("", [""], ["a", "."]),
        ("#.#", ["", "a", "a.b"], []),
        ("#.*", ["a", "a.b"], [""]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("lazy.#", ["lazy", "lazy.orange.new.rabbit"], ["lazybones", "quick.lazy"]),
        ("a*", ["a*"], ["ab"]),
    ],
)
def test_amqp_examples(pattern: str, matching: list[str], others: list[str]) -> None:
    tree: TopicTree[str] = TopicTree(AMQP)
    tree.add(pattern, "bound")
    assert {name: tree.match(name) for name in matching} == dict.fromkeys(matching, ("bound",))
    assert {name: tree.match(name) for name in others} == dict.fromkeys(others, ())


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        # MQTT 5.0, 4.7.1 and 4.7.2.
        (
            "sport/tennis/player1/#",
            ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"],
            ["sport/tennis/player10", "sport/tennis"],
        ),
        ("sport/#", ["sport", "sport/", "sport/tennis"], ["sports"]),
        ("#", ["a", "/", "a/b/c"], ["$SYS/uptime", ""]),
        ("sport/tennis/+", ["sport/tennis/player1"], ["sport/tennis/player1/ranking", "sport/tennis"]),
        ("sport/+", ["sport/"], ["sport"]),
        ("+/+", ["/finance"], ["finance", "$SYS/x"]),
        ("/+", ["/finance"], ["finance", "/finance/x"]),
        ("+", ["finance"], ["/finance"]),
        ("+/monitor/Clients", ["a/monitor/Clients"], ["$SYS/monitor/Clients"]),
        ("$SYS/#", ["$SYS", "$SYS/monitor/Clients"], ["SYS"]),
        ("$SYS/monitor/+", ["$SYS/monitor/Clients"], []),
        ("ACCOUNTS", ["ACCOUNTS"], ["Accounts"]),
        ("a/+/$x", ["a/b/$x"], []),
    ],
)
def test_mqtt_examples(pattern: str, matching: list[str], others: list[str]) -> None:
    tree: TopicTree[str] = TopicTree(MQTT)
    tree.add(pattern, "bound")
    assert {name: tree.match(name) for name in matching} == dict.fromkeys(matching, ("bound",))
    assert {name: tree.match(name) for name in others} == dict.fromkeys(others, ())


@pytest.mark.parametrize("pattern", ["", "sport/tennis#", "sport/tennis/#/ranking", "sport+", "a/b+/c", "#/a", "a\0b"])
def test_mqtt_filters_that_the_standard_forbids_are_refused(pattern: str) -> None:
    tree: TopicTree[int] = TopicTree(MQTT)
    with pytest.raises(InvalidPattern):
        tree.add(pattern, 1)
    assert len(tree) == 0


@pytest.mark.parametrize(("dialect", "limit"), [(AMQP, MAX_AMQP_LEVELS), (MQTT, MAX_MQTT_LEVELS)])
def test_a_pattern_has_a_limited_number_of_levels(dialect: Dialect, limit: int) -> None:
    tree: TopicTree[int] = TopicTree(dialect)
    assert tree.add(dialect.separator.join(["a"] * limit), 1)
    with pytest.raises(InvalidPattern, match=str(limit)):
        tree.add(dialect.separator.join(["a"] * (limit + 1)), 1)


@pytest.mark.parametrize("pattern", [".".join(["#"] * 60), ".".join(["*", "#"] * 30), ".".join(["#", "a"] * 30)])
def test_work_for_an_adversarial_pattern_is_at_most_levels_times_nodes(pattern: str) -> None:
    tree: TopicTree[int] = TopicTree(AMQP)
    tree.add(pattern, 1)
    levels, nodes = 120, 61
    assert tree.match(".".join(["a"] * levels)) == (1,)
    assert tree.nodes_visited <= (levels + 1) * nodes


def test_work_does_not_depend_on_the_number_of_other_patterns() -> None:
    visits = []
    for others in (10, 10_000):
        tree: TopicTree[int] = TopicTree(MQTT)
        for number in range(others):
            tree.add(f"site/{number}/+/temperature", number)
            tree.add(f"site/{number}/#", -number)
        assert set(tree.match("site/7/hall/temperature")) == {7, -7}
        visits.append(tree.nodes_visited)
    assert visits[0] == visits[1] <= 10


def test_repeated_names_are_answered_without_visiting_until_something_changes() -> None:
    tree: TopicTree[int] = TopicTree(AMQP)
    tree.add("a.*", 1)
    assert tree.match("a.b") == (1,)
    visited = tree.nodes_visited
    assert tree.match("a.b") == (1,)
    assert tree.nodes_visited == visited
    tree.add("#", 2)
    assert set(tree.match("a.b")) == {1, 2}
    tree.remove("a.*", 1)
    assert tree.match("a.b") == (2,)


def test_many_values_of_one_pattern_come_and_go() -> None:
    tree: TopicTree[int] = TopicTree(AMQP)
    count = FEW * 4
    for value in range(count):
        assert tree.add("a.#", value)
        assert not tree.add("a.#", value)
    assert tree.match("a.b") == tuple(range(count))
    for value in range(count):
        assert tree.remove("a.#", value)
        assert not tree.remove("a.#", value)
        assert tree.match("a") == tuple(range(value + 1, count))
    assert not tree.remove("b", 1)
