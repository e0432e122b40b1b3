"""Patterns over names agree with `re.fullmatch` where both know the syntax, and never take long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.pattern import CostlyPattern, InvalidPattern, NamePattern

NAMES = ["", "a", "ab", "abc", "a.b", "a-b", "A", "orders", "orders.eu", "orders_us", "__x", "aaa", "b1", "1", "a1b2c3"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a.b",
        r"a\.b",
        "a|ab|abc",
        "orders.*",
        "orders[._](eu|us)",
        "(?:a|b)*",
        "[a-c]+",
        "[^a]*",
        "[^a-c.]+",
        "a?b?c?",
        "a{3}",
        "a{1,2}",
        "a{2,}",
        "(a|b|c|[0-9])+",
        r"\w+",
        r"\D*",
        r"[\d.]+",
        r"\W*",
        "^orders$",
        "(^a)|(b1$)",
        ".*?",
        "a+?b*?",
        "()",
        "(|a)b?",
        "(?i)ORDERS",
        "(?i)[A-Z]+",
        "(?P<x>a)b",
        "[]a]",
        "[a-]b?",
        "a^b",
        "$a",
        "__.*",
        r"[\w-]+",
    ],
)
def test_it_agrees_with_re(text: str) -> None:
    pattern, expected = NamePattern(text), re.compile(text)
    assert {n for n in NAMES if pattern.matches(n)} == {n for n in NAMES if expected.fullmatch(n)}


PIECES = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\.", "ab"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(PIECES, st.lists(st.text("ab.", max_size=6), max_size=8))
def test_random_patterns_agree_with_re(text: str, names: list[str]) -> None:
    pattern, expected = NamePattern(text), re.compile(text)
    for name in names:
        assert pattern.matches(name) == bool(expected.fullmatch(name)), name


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_an_invalid_one(text: str) -> None:
    try:
        NamePattern(text).matches("orders.eu")
    except InvalidPattern:
        pass


@pytest.mark.parametrize(
    "text", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)(.*)(.*)(.*)b", "(a?){100}a{100}b", "((a{9}){9}){9}b"]
)
def test_patterns_that_make_a_backtracking_matcher_hang_take_no_time(text: str) -> None:
    began = time.perf_counter()
    assert not NamePattern(text).matches("a" * 249)
    assert time.perf_counter() - began < 2.0  # re would take longer than the universe has


@pytest.mark.parametrize(
    "text",
    ["(", ")", "[", "[a", "a**", "*", "(?=a)", "(?<=a)b", r"(a)\1", "a{2000}", "a{3,2}", "\\", r"\q", "[z-a]", "[[:alpha:]]",
     "(" * 60 + ")" * 60, "((((){1000}){1000}){1000}){1000}", "((a{100}){100}){100}", "^*", "x" * 1_001],
)  # fmt: skip
def test_what_is_not_supported_is_refused(text: str) -> None:
    with pytest.raises(InvalidPattern):
        NamePattern(text)


def test_a_quotation_is_literal() -> None:
    assert NamePattern(r"\Qa.b\E.*").matches("a.bc")
    assert not NamePattern(r"\Qa.b\E.*").matches("axbc")


def test_a_brace_that_is_no_repeat_is_literal_as_in_re2() -> None:
    assert NamePattern("a{,2}").matches("a{,2}")
    assert not NamePattern("a{,2}").matches("aa")


def test_what_is_remembered_is_bounded() -> None:
    pattern = NamePattern(".*(a|b|c).{8}")
    for number in range(3_000):
        pattern.matches(f"topic-{number:x}-{number * 7919:b}")
    assert len(pattern._steps) <= 10_000


@settings(deadline=None)
@given(PIECES, st.lists(st.text("ab.", max_size=6), max_size=8))
def test_anywhere_agrees_with_search(text: str, names: list[str]) -> None:
    pattern, expected = NamePattern(text, anywhere=True), re.compile(text)
    for name in names:
        assert pattern.matches(name) == bool(expected.search(name)), name


@pytest.mark.parametrize(("text", "name"), [("^a", "ba"), ("^a", "ab"), ("a$", "ba"), ("a$", "ab"), ("^a|b$", "xb")])
def test_anywhere_keeps_anchors(text: str, name: str) -> None:
    assert NamePattern(text, anywhere=True).matches(name) == bool(re.search(text, name))


def test_a_pattern_that_needs_too_many_states_is_given_up_in_time() -> None:
    pattern = NamePattern(".*a.{900}")
    names = [f"{'ab' * 100}{number:048b}".replace("0", "b").replace("1", "a") for number in range(10_000)]
    began = time.perf_counter()
    with pytest.raises(CostlyPattern):
        pattern.select(names)
    assert time.perf_counter() - began < 10.0  # to the end it would take a minute
    assert pattern.select(["b"]) == frozenset()  # what was given up spoils nothing


def test_an_ordinary_pattern_takes_any_number_of_names() -> None:
    pattern = NamePattern(r"(orders|payments)\.[a-z]+-\d{1,6}(\.eu|\.us)?")
    names = [f"orders.shop-{number}.eu" for number in range(50_000)]
    assert len(pattern.select(names)) == 50_000
