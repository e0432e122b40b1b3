"""Filters compared with names and with each other, beside what follows from looking at every short name."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.security.filters import check_filter, covers, matches, overlap

_WORDS = ("a", "b", "$c", "other")  # `other` stands for every word that no filter names
_NAMES = [list(name) for depth in (1, 2, 3, 4) for name in product(_WORDS, repeat=depth)]


@st.composite
def filters(draw: st.DrawFn) -> list[str]:
    levels = draw(st.lists(st.sampled_from(["a", "b", "$c", "+"]), min_size=0, max_size=3))
    if not levels or draw(st.booleans()):
        levels = [*levels, "#"]
    return levels


def _reference(levels: list[str], name: list[str]) -> bool:
    if name[0].startswith("$") and levels[0] in "+#":
        return False
    if levels[-1] == "#":
        head = levels[:-1]
        return len(name) >= len(head) and all(f in ("+", n) for f, n in zip(head, name, strict=False))
    return len(levels) == len(name) and all(f in ("+", n) for f, n in zip(levels, name, strict=True))


@given(filters())
def test_a_filter_matches_what_the_specification_says(levels: list[str]) -> None:
    for name in _NAMES:
        assert matches(levels, name) is _reference(levels, name), name


@given(filters(), filters())
def test_covering_and_overlapping_follow_from_the_names(one: list[str], other: list[str]) -> None:
    both = [name for name in _NAMES if matches(one, name) and matches(other, name)]
    escaping = [name for name in _NAMES if matches(other, name) and not matches(one, name)]
    assert overlap(one, other) is bool(both)
    assert covers(one, other) is not bool(escaping)


@pytest.mark.parametrize("text", ["", "a/#/b", "a#", "+a", "a/b+", "a\0"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"filter|must fill"):
        check_filter(text)
