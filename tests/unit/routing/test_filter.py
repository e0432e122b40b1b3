"""Filters: three-valued logic as defined, JMS's examples, errors that show the place, and expressions made to hurt."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.routing.conditions import Event, Node, body_of, conditions, events, render, truth
from trunkline.routing.errors import InvalidFilter
from trunkline.routing.fields import Fields
from trunkline.routing.filter import Filter
from trunkline.routing.like import compile_like
from trunkline.routing.limits import MAX_FILTER_CHARS, MAX_FILTER_DEPTH, MAX_PARSED_BODY_BYTES


@given(conditions, events)
def test_truth_is_that_of_the_definition(node: Node, event: Event) -> None:
    compiled = Filter(render(node))
    assert compiled.evaluate(Fields(event)) is truth(node, event)
    assert compiled.evaluate(Fields({}, json.dumps(body_of(event)).encode())) is truth(node, event)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("JMSType = 'car' AND color = 'blue' AND weight > 2500", True),
        ("age BETWEEN 15 and 19", True),
        ("age NOT BETWEEN 15 AND 19", False),
        ("age BETWEEN 20 AND 30", False),
        ("Country IN ('UK', 'US', 'France')", True),
        ("Country NOT IN ('UK', 'US')", True),
        ("phone LIKE '12%3'", True),
        ("word LIKE 'l_se'", True),
        (r"underscored LIKE '\_%' ESCAPE '\'", True),
        ("phone NOT LIKE '12%3'", False),
        ("prop_name IS NULL", True),
        ("age is not null", True),
        ("quote = 'it''s'", True),
        ("missing > 5", None),
        ("not missing > 5", None),
        ("missing > 5 or age = 17", True),
        ("missing > 5 and age = 18", False),
        ("missing in ('x')", None),
        ("missing like '%'", None),
        ("age = '17'", False),
        ("age <> '17'", False),
        ("not age = '17'", True),
        ("age = 17.0 and age < 1.8E1 and age > .5", True),
        ("flag and not other", True),
        ("flag = TRUE and other <> true", True),
        ("flag < other", False),
        ("age", None),
        ("TRUE", True),
        ("false or flag", True),
        ("1 + 2 * 3 = 7 and (1 + 2) * 3 = 9", True),
        ("10 - 3 - 2 = 5 and 16 / 4 / 2 = 2", True),
        ("-age + 18 = +1 and - -age = 17", True),
        ("age / 2 = 8.5", True),
        ("age / 0 = 1", None),
        ("color + 1 = 1", None),
        ("flag + 1 = 2", None),
        ("1e308 * 10 * age > 0", None),
        ("order.items[1].price >= 2 and order.id = 'A'", True),
        ("order.items[9].price is null and order.id.x is null and age.x is null", True),
        ("order is not null and order.items is not null", True),
        ("order = 'A' or order <> 'A' or order > 1", False),
        ("\"content-type\" = 'text/plain'", True),
        ("dotted.header = 1", True),
        ("amount = 1.5 and text = 'bytes' and raw is not null and raw <> 'x'", False),
        ("amount = 1.5 and text = 'bytes' and raw is not null", True),
        ("größe >= 4 AND $dollar = 1", True),
    ],
)
def test_examples(text: str, truth: bool | None) -> None:
    headers: dict[str, object] = {
        "JMSType": "car",
        "color": "blue",
        "weight": 3000,
        "age": 17,
        "Country": "France",
        "phone": "12993",
        "word": "lose",
        "underscored": "_foo",
        "quote": "it's",
        "flag": True,
        "other": False,
        "content-type": "text/plain",
        "dotted.header": 1,
        "amount": Decimal("1.5"),
        "text": b"bytes",
        "raw": b"\xff",
        "größe": 4,
        "$dollar": 1,
    }
    body = json.dumps({"order": {"id": "A", "items": [{"price": 1}, {"price": 2}]}, "age": 99}).encode()
    assert Filter(text).evaluate(Fields(headers, body)) is truth


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "an expression is expected"),
        ("   ", 3, "an expression is expected"),
        ("price < ", 8, "is expected"),
        ("price < 5 and", 13, "is expected"),
        ("price << 5", 7, "is expected"),
        ("price == 5", 6, "write '='"),
        ("price != 5", 6, "write '<>'"),
        ("a = 'open", 4, "not closed"),
        ("a = 5 b", 6, "'b' is not expected"),
        ("(a = 5", 6, "')' is expected"),
        ("a = 5)", 5, "')' is not expected"),
        ("a between 1 or 2", 12, "'AND' is expected"),
        ("a in ()", 6, "a string or a number"),
        ("a in (b)", 6, "a string or a number"),
        ("a like 5", 7, "pattern"),
        ("a like 'x' escape 'ab'", 18, "one character"),
        ("a like 'x!' escape '!'", 7, "escape character"),
        ("a is 5", 5, "'NULL' is expected"),
        ("5 is null", 0, "only a field"),
        ("a not 5", 6, "'BETWEEN', 'IN' or 'LIKE'"),
        ("price + 1", 0, "a condition is expected"),
        ("a = 1 and 'x'", 10, "a condition is expected"),
        ("(a = 1) + 2 = 3", 0, "a value is expected"),
        ("'x' + 2 = 3", 0, "a number is expected"),
        ("a ; drop", 2, "';' is not expected"),
        ("a > 1e999", 4, "too large"),
        ("a > " + "9" * 5000, 4, "too many digits"),
    ],
)
def test_errors_say_where_and_what(text: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidFilter, match=re.escape(reason)) as caught:
        Filter(text)
    assert caught.value.position == position
    line, caret = str(caught.value).splitlines()[-2:]
    assert caret.index("^") <= len(line)


def test_the_caret_stands_under_the_place() -> None:
    with pytest.raises(InvalidFilter) as caught:
        Filter("company = 'Telco' and price == 100")
    line, caret = str(caught.value).splitlines()[-2:]
    assert line[caret.index("^") :].startswith("== 100")


def test_length_and_depth_are_limited() -> None:
    with pytest.raises(InvalidFilter, match="characters"):
        Filter("a = '" + "x" * MAX_FILTER_CHARS + "'")
    for opening in ("(", "not ", "- "):
        with pytest.raises(InvalidFilter, match="deep"):
            Filter(opening * (MAX_FILTER_DEPTH + 1) + "a")
    assert Filter("(" * MAX_FILTER_DEPTH + "a" + ")" * MAX_FILTER_DEPTH).matches(Fields({"a": True}))


def test_long_chains_neither_recurse_nor_grow_numbers_without_end() -> None:
    assert Filter(" or ".join(["a=1"] * 1_000)).matches(Fields({"a": 1}))
    assert Filter("+".join(["a"] * 4_000) + "=4000").matches(Fields({"a": 1}))
    assert Filter("*".join(["a"] * 4_000) + ">0").evaluate(Fields({"a": 10**300})) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b"{", b"[1]", b"\xff\xfe", b'{"a":NaN}', b'{"a":' * 100_000, b'{"a":' + b"9" * 5_000 + b"}"],
)
def test_bodies_that_are_not_json_objects_have_no_fields(body: bytes) -> None:
    assert Filter("a is null").matches(Fields({}, body))


def test_a_huge_body_is_not_parsed() -> None:
    body = b'{"a":1,"b":"' + b"x" * MAX_PARSED_BODY_BYTES + b'"}'
    assert Filter("a is null").matches(Fields({}, body))


@given(
    st.text(alphabet="ab%_", max_size=8),
    st.text(alphabet="ab%_\n", max_size=10),
)
def test_like_agrees_with_a_regular_expression(pattern: str, text: str) -> None:
    shape = "".join({"%": ".*", "_": "."}.get(char, char) for char in pattern)
    assert compile_like(pattern, None)(text) == (re.fullmatch(shape, text, re.DOTALL) is not None)


def test_like_finds_no_exponential_work() -> None:
    assert not compile_like("%a" * 200 + "%b", None)("a" * 5_000)
    assert compile_like("%a_" * 50 + "%", None)("a" * 5_000)


@given(st.text(alphabet="ab01.'\"()<>=+-*/,% \tnotandr[]", max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        compiled = Filter(text)
    except InvalidFilter as error:
        position = error.position
    else:
        position = 0
        assert compiled.evaluate(Fields({"a": 1, "b": "x"})) in (True, False, None)
    assert 0 <= position <= len(text)
