"""Covering says exactly what looking at all short names says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.reference import amqp_match, mqtt_match
from trunkline.routing.covering import covers
from trunkline.routing.dialect import AMQP, MQTT

amqp_patterns = st.lists(st.sampled_from(["a", "*", "#"]), max_size=4).map(".".join)
mqtt_patterns = st.tuples(
    st.lists(st.sampled_from(["a", "$s", "+"]), min_size=1, max_size=3), st.sampled_from([[], ["#"]])
).map(lambda pair: "/".join(pair[0] + pair[1])) | st.just("#")


def names(separator: str, levels: list[str], most: int) -> list[str]:
    return [separator.join(name) for size in range(most + 1) for name in product(levels, repeat=size)]


AMQP_NAMES = names(".", ["a", "z"], 8)
MQTT_NAMES = [name for name in names("/", ["a", "z", "$s", "$z"], 5) if name]


def by_names(matches: Callable[[str, str], bool], all_names: list[str], wide: str, narrow: str) -> bool:
    return all(matches(wide, name) for name in all_names if matches(narrow, name))


@settings(deadline=None)
@given(amqp_patterns, amqp_patterns)
def test_amqp_patterns(wide: str, narrow: str) -> None:
    assert covers(AMQP, wide, narrow) == by_names(amqp_match, AMQP_NAMES, wide, narrow)


@settings(deadline=None)
@given(mqtt_patterns, mqtt_patterns)
def test_mqtt_filters(wide: str, narrow: str) -> None:
    assert covers(MQTT, wide, narrow) == by_names(mqtt_match, MQTT_NAMES, wide, narrow)


@pytest.mark.parametrize(
    ("wide", "narrow", "answer"),
    [
        ("#", "a.*.b", True),
        ("a.#", "a", True),
        ("a.*", "a.#", False),
        ("*.#", "#.*", True),
        ("#.a.#", "b.a.a.*", True),
        ("#.a.#", "#.b.#", False),
    ],
)
def test_examples(wide: str, narrow: str, answer: bool) -> None:
    assert covers(AMQP, wide, narrow) is answer


def test_leading_wildcards_do_not_cover_hidden_names() -> None:
    assert not covers(MQTT, "#", "$SYS/uptime")
    assert covers(MQTT, "$SYS/#", "$SYS/uptime")
    assert covers(MQTT, "+/#", "#"), "there is no empty MQTT name"


def test_patterns_made_to_hurt_are_answered_within_the_limit() -> None:
    assert covers(AMQP, ".".join(["*", "#"] * 60), ".".join(["#", "*"] * 60))
    assert not covers(AMQP, ".".join(["#", "a", "*"] * 40), ".".join(["#", "*", "a"] * 30))
