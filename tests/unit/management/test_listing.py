"""Lists by pages: every item once, whatever is asked."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.protocols.http.message import HttpError, Request
from trunkline.protocols.management.codec import Listing


def asked(**given: object) -> Listing:
    return Listing.asked(Request("GET", "/", urlencode(given), {}))


@given(st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=40), st.integers(1, 12), st.booleans())
def test_the_pages_together_are_the_list(names: list[str], size: int, reverse: bool) -> None:
    found: list[str] = []
    page = 1
    while True:
        listing = asked(page=page, page_size=size, sort="name", sort_reverse=str(reverse).lower())
        body = json.loads(listing.respond(names, str, lambda name: {"name": name}).body)
        found += [each["name"] for each in body["items"]]
        if page >= body["page_count"]:
            break
        page += 1
    assert found == sorted(names, reverse=reverse)


def test_sorting_by_another_column_mixes_numbers_words_and_nothing() -> None:
    rows: list[dict[str, object]] = [
        {"name": "a", "n": {"x": 2}},
        {"name": "b"},
        {"name": "c", "n": {"x": 1}},
        {"name": "d", "n": {"x": "t"}},
    ]
    body = json.loads(asked(sort="n.x").respond(rows, lambda row: str(row["name"]), lambda row: row).body)
    assert [each["name"] for each in body] == ["b", "c", "a", "d"]


@pytest.mark.parametrize(
    "wrong", [{"page": 0}, {"page": "x"}, {"page": 1, "page_size": 501}, {"page": 1, "name": "(", "use_regex": "true"}]
)
def test_what_makes_no_sense_is_a_bad_request(wrong: dict[str, object]) -> None:
    with pytest.raises(HttpError) as error:
        asked(**wrong).respond(["a"], str, lambda name: {"name": name})
    assert error.value.status == 400
