"""Mapping rules: the first that matches decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.messaging.mapping import Mapped, Mapping, MappingRule, filter_matches
from trunkline.routing.dialect import MQTT
from trunkline.routing.topic_tree import TopicTree


def test_the_first_rule_that_matches_decides() -> None:
    mapping = Mapping(
        [
            MappingRule("a/secret/#", "off"),
            MappingRule("a/+/t", "readings", "{2}-{9}"),
            MappingRule("a/#", "rest", "x"),
        ]
    )
    assert mapping.resolve("a/secret/b") is None
    assert mapping.resolve("a/7/t") == Mapped("readings", b"7-")
    assert mapping.resolve("a") == Mapped("rest", b"x")
    assert mapping.resolve("b/c") == Mapped("mqtt", b"b/c")
    assert mapping.resolve("$SYS/x") is None
    assert mapping.topics() == ("readings", "rest", "mqtt")


def test_nothing_is_stored_by_default_when_the_default_is_off() -> None:
    mapping = Mapping([MappingRule("$x/#", "kept")], "off")
    assert mapping.resolve("a") is None
    assert mapping.resolve("$x/a") == Mapped("kept", b"$x/a")
    assert mapping.topics() == ("kept",)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (MappingRule("a/#/b", "t"), "must fill the last level"),
        (MappingRule("", "t"), "empty"),
        (MappingRule("a", "not a topic"), "not a topic"),
        (MappingRule("a", "__sessions"), "the broker's own"),
        (MappingRule("a", "t", "{0}"), "field"),
        (MappingRule("a", "t", "{name}"), "field"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(rule: MappingRule, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Mapping([rule])


def test_the_default_topic_is_checked_like_a_rules() -> None:
    for topic in ("__topology", "not a topic"):
        with pytest.raises(ValueError, match=topic):
            Mapping([], topic)


levels = st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), min_size=1, max_size=4)


@given(levels, st.booleans(), st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4))
def test_a_filter_matches_what_the_topic_tree_says(filter_levels: list[str], multi: bool, name: list[str]) -> None:
    pattern = "/".join([*filter_levels, "#"] if multi else filter_levels)
    topic = "/".join(name)
    if not pattern or not topic:
        return
    tree: TopicTree[int] = TopicTree(MQTT)
    tree.add(pattern, 1)
    assert filter_matches(pattern.split("/"), name) == (tree.match(topic) == (1,))
