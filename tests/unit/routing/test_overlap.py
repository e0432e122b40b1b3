"""Whether two filters can match one event: never no where an event shows that they do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.fields import Fields
from trunkline.routing.filter import Filter
from trunkline.routing.overlap import may_overlap


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a = 1", "a = 2", False),
        ("a = 1", "a = 1", True),
        ("a = 1", "b = 2", True),
        ("a < 5", "a > 5", False),
        ("a <= 5", "a >= 5", True),
        ("a = 7", "a < 5", False),
        ("a = 'x'", "a < 5", False),
        ("a = 1 or a = 3", "a in (2, 3)", True),
        ("a = 1 or b = 3", "a = 2 and b = 2", False),
        ("a = true", "a = false", False),
        ("a like 'x%'", "a like 'y%'", True),
        ("false", "true", False),
    ],
)
def test_known_pairs(one: str, other: str, expected: bool) -> None:
    assert may_overlap(Filter(one), Filter(other)) is expected
    assert may_overlap(Filter(other), Filter(one)) is expected


CONDITION = st.builds(
    lambda field, order, value: f"{field} {order} {value}",
    st.sampled_from("ab"),
    st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]),
    st.integers(0, 4),
)
FILTER = st.recursive(
    CONDITION,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)


@given(FILTER, FILTER)
def test_filters_that_some_event_matches_both_overlap(one: str, other: str) -> None:
    first, second = Filter(one), Filter(other)
    events = [Fields({"a": a / 2, "b": b / 2}) for a in range(-1, 10) for b in range(-1, 10)]
    if any(first.matches(fields) and second.matches(fields) for fields in events):
        assert may_overlap(first, second)
