"""Templates: which tuples and entries they match, as filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.api import templates
from trunkline.api.errors import BodyRefused
from trunkline.routing.fields import Fields
from trunkline.routing.filter import Filter

VALUES = st.one_of(
    st.text(max_size=8),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)


def matches(template: object, entry: object) -> bool:
    return Filter(templates.filter_of(template)).matches(Fields(None, templates.encoded(entry)))


@given(st.lists(VALUES, max_size=5), st.data())
def test_a_tuple_matches_itself_with_any_places_opened(values: list[Any], data: st.DataObject) -> None:
    entry = tuple(values)
    opened = tuple(
        data.draw(st.sampled_from([value, ..., object, type(value) if value is not None else None])) for value in entry
    )
    assert matches(opened, entry)
    assert templates.decoded(templates.encoded(entry), opened) == entry


@given(st.lists(VALUES, min_size=1, max_size=4), VALUES, st.integers(0, 3))
def test_a_tuple_does_not_match_one_with_another_value(values: list[Any], other: Any, place: int) -> None:
    entry = tuple(values)
    place %= len(entry)
    changed = (*entry[:place], other, *entry[place + 1 :])
    same = other == entry[place] and type(other) is type(entry[place])
    assert matches(entry, changed) is same
    assert not matches((*entry, ...), entry)


@dataclass
class Named:
    name: str | None = None


@dataclass
class Sized(Named):
    size: float | None = None


def test_an_entry_matches_templates_of_its_base_and_with_open_fields() -> None:
    assert matches(Named, Sized("a", 1.5))
    assert matches(Named("a"), Sized("a", 1.5))
    assert matches(Sized(size=1.5), Sized("it's", 1.5))
    assert matches(Sized(name="it's"), Sized("it's", 1.5))
    assert not matches(Sized, Named("a"))
    assert not matches(Named("b"), Sized("a", 1.5))
    assert not matches(Named, ("a",))


@pytest.mark.parametrize("entry", [17, "text", [1], {"a": 1}, (object(),), (float("nan"),), (b"raw",), Named])
def test_what_is_neither_tuple_nor_entry_is_refused(entry: object) -> None:
    with pytest.raises(BodyRefused):
        templates.encoded(entry)


@pytest.mark.parametrize("template", [17, "text", ([1],), (set,), Sized(size=[1])])  # type: ignore[arg-type]
def test_what_cannot_be_matched_is_refused(template: object) -> None:
    with pytest.raises(BodyRefused):
        templates.filter_of(template)
