"""The content index finds exactly the filters that are true, and does not look at the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.conditions import Event, Node, conditions, events, numbers, render, truth
from trunkline.routing.conjunctions import conjunctions_of
from trunkline.routing.content_index import ContentIndex
from trunkline.routing.fields import FieldPath, Fields, FieldValue
from trunkline.routing.filter import Filter
from trunkline.routing.interval_index import NO_HIGH, NO_LOW, Interval, IntervalIndex, above, below
from trunkline.routing.limits import MAX_CONJUNCTIONS


@settings(deadline=None)
@given(
    st.lists(st.tuples(conditions, st.integers(0, 3)), max_size=12),
    st.lists(st.integers(0, 11), max_size=6),
    st.lists(events, min_size=1, max_size=6),
)
def test_the_filters_found_are_exactly_those_that_are_true(
    bindings: list[tuple[Node, int]], removals: list[int], publications: list[Event]
) -> None:
    index: ContentIndex[int] = ContentIndex()
    bound: dict[tuple[str, int], Node] = {}
    for node, value in bindings:
        text = render(node)
        assert index.add(Filter(text), value) == ((text, value) not in bound)
        bound[text, value] = node
    for number in removals:
        if number < len(bindings):
            node, value = bindings[number]
            text = render(node)
            assert index.remove(Filter(text), value) == ((text, value) in bound)
            bound.pop((text, value), None)
    assert len(index) == len(bound)
    assert {(filter_.text, value) for filter_, value in index.filters()} == set(bound)
    for event in publications:
        found = index.match(Fields(event))
        assert len(found) == len(set(found))
        assert set(found) == {value for (_, value), node in bound.items() if truth(node, event) is True}
    for text, value in list(bound):
        assert index.remove(Filter(text), value)
    assert len(index) == 0
    assert index.is_empty(), "removing everything leaves nothing behind"


# Values that lie close together, far apart, on both sides of what a float tells apart, and of other types.
_bounds = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([0.5, -0.0, 1e-300, 1e300, 2**53, 2**53 + 1, -(2**53) - 1, 10**400, -(10**400), 5e-324]),
)
_values = st.one_of(_bounds, st.sampled_from([True, "a", "ab", float("nan"), float("inf"), float("-inf")]))
_predicates = st.one_of(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), _bounds),
    st.tuples(st.sampled_from("abc"), st.sampled_from(["<", ">=", "="]), st.sampled_from(["a", "aa", "b"])),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(_predicates, min_size=1, max_size=4), min_size=20, max_size=120),
    st.sets(st.integers(0, 119)),
    st.lists(st.dictionaries(st.sampled_from("abc"), _values), min_size=1, max_size=8),
)
def test_a_split_tree_finds_what_asking_every_filter_finds(
    conjunctions: list[list[tuple[str, str, object]]], removals: set[int], publications: list[dict[str, object]]
) -> None:
    index: ContentIndex[int] = ContentIndex()
    filters = {
        number: Filter(" and ".join(f"{field} {order} {value!r}" for field, order, value in predicates))
        for number, predicates in enumerate(conjunctions)
    }
    for number, filter_ in filters.items():
        assert index.add(filter_, number)
    for number in removals & filters.keys():
        assert index.remove(filters.pop(number), number)
    for publication in publications:
        fields = Fields(publication)
        found = index.match(fields)
        assert len(found) == len(set(found))
        assert set(found) == {number for number, filter_ in filters.items() if filter_.matches(fields)}
    for number, filter_ in filters.items():
        assert index.remove(filter_, number)
    assert index.is_empty(), "removing everything leaves nothing behind"


def test_lengths_of_every_magnitude_are_found_and_cost_a_bounded_number_of_looks() -> None:
    index: ContentIndex[int] = ContentIndex()
    for exponent in range(-300, 300):
        index.add(Filter(f"a >= 1 and a <= {1 + 10.0**exponent!r}"), exponent)
    before = index.steps
    assert len(index.match(Fields({"a": 1}))) == 600
    assert index.match(Fields({"a": 0.5})) == ()
    assert index.steps - before < 3_000


def test_a_publication_pays_for_its_own_fields_not_for_all_that_filters_name() -> None:
    index: ContentIndex[int] = ContentIndex()
    for number in range(2_000):
        index.add(Filter(f"f{number} = 1"), number)
        index.add(Filter(f"g{number}.x > 5 and g{number}.x < 9"), -number)
    asked: list[str] = []

    class Asking(Fields):
        def value(self, path: FieldPath) -> FieldValue:
            asked.append(path.text)
            return super().value(path)

    assert set(index.match(Asking({"f7": 1}, {"g5": {"x": 6}, "other": 1}))) == {7, -5}
    assert sorted(asked) == ["f7", "g5.x"]


def test_one_range_for_all_filters_costs_what_it_matches() -> None:
    index: ContentIndex[int] = ContentIndex()
    for number in range(2_000):
        index.add(Filter(f"a >= 10 and a < 11 and b = {number}"), number)
    before = index.steps
    assert index.match(Fields({"a": 10.5, "b": 77})) == (77,)
    assert index.match(Fields({"a": 12, "b": 77})) == ()
    assert index.steps - before < 100


@given(
    st.lists(st.tuples(st.one_of(st.none(), numbers), st.booleans(), st.one_of(st.none(), numbers), st.booleans())),
    st.sets(st.integers(0, 30)),
    numbers,
)
def test_intervals_found_are_exactly_those_that_contain_the_value(
    ends: list[tuple[float | None, bool, float | None, bool]], removals: set[int], value: float
) -> None:
    index: IntervalIndex[int] = IntervalIndex()
    expected = set()
    for key, (low, low_closed, high, high_closed) in enumerate(ends):
        interval = Interval(NO_LOW, NO_HIGH)
        if low is not None:
            interval = interval.intersection(above(low, closed=low_closed))
        if high is not None:
            interval = interval.intersection(below(high, closed=high_closed))
        index.add(key, interval, key)
        begun = low is None or low < value or (low_closed and low == value)
        if begun and (high is None or value < high or (high_closed and high == value)):
            expected.add(key)
    for key in removals:
        if key < len(ends):
            index.remove(key)
            expected.discard(key)
    found = index.containing(value)
    assert sorted(found) == sorted(expected)
    assert index.containing(float("nan")) == []


def test_work_does_not_depend_on_filters_for_other_values() -> None:
    steps = []
    for others in (100, 5_000):
        index: ContentIndex[int] = ContentIndex()
        for number in range(others):
            index.add(Filter(f"company = 'C{number}' and price < 100"), number)
        assert index.match(Fields({"company": "C7", "price": 50})) == (7,)
        steps.append(index.steps)
    assert steps[0] == steps[1] < 20


@pytest.mark.parametrize("shape", ["price < {0}", "price >= {0}", "price between {0} and {0} + 0", "price = {0}"])
def test_work_for_ranges_grows_with_the_matches(shape: str) -> None:
    count = 4_096
    index: ContentIndex[int] = ContentIndex()
    for number in range(count):
        index.add(Filter(shape.format(number).replace(" + 0", "")), number)
    assert index.residual_count == 0
    for price in (0, 3, count - 2):
        before = index.steps
        found = index.match(Fields({"price": price}))
        assert index.steps - before <= 3 + 13 + (len(found) + 1) * 3 * 13


def test_narrow_intervals_are_found_among_many() -> None:
    index: ContentIndex[int] = ContentIndex()
    for number in range(4_096):
        index.add(Filter(f"price > {number} and price <= {number + 2} and qty > 0"), number)
    assert set(index.match(Fields({"price": 1_000, "qty": 1}))) == {998, 999}
    assert index.steps < 200


def test_filters_without_an_indexable_predicate_are_counted_and_still_found() -> None:
    index: ContentIndex[str] = ContentIndex()
    for text in ("a like '%x'", "a <> 1", "b is null", "a + 1 > 5"):
        index.add(Filter(text), text)
    assert index.residual_count == 4
    assert index.match(Fields({"a": "xx"})) == ("a like '%x'", "b is null")


def test_decomposition_is_bounded() -> None:
    product = Filter(" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(20)))
    assert conjunctions_of(product.condition) == [(product.condition,)]
    many = Filter(f"a in ({','.join(str(n) for n in range(MAX_CONJUNCTIONS + 1))}) and b > 1")
    assert len(conjunctions_of(many.condition)) == 1
    index: ContentIndex[int] = ContentIndex()
    index.add(product, 1)
    index.add(many, 2)
    assert index.match(Fields({f"a{n}": 1 for n in range(20)} | {"a": 3, "b": 2})) == (1, 2)
    assert index.remove(product, 1)
    assert index.remove(many, 2)
    assert index.match(Fields({f"a{n}": 1 for n in range(20)} | {"a": 3, "b": 2})) == ()


def test_what_can_never_be_true_is_nowhere() -> None:
    index: ContentIndex[int] = ContentIndex()
    index.add(Filter("false and a = 1"), 1)
    index.add(Filter("not true"), 2)
    assert index.match(Fields({"a": 1})) == ()
    assert index.remove(Filter("not true"), 2)
    assert len(index) == 1


def test_a_path_and_a_quoted_name_of_the_same_text_are_two_fields() -> None:
    index: ContentIndex[int] = ContentIndex()
    index.add(Filter('a.b > 1 and "a.b" > 1'), 1)
    index.add(Filter('a.b = 2 and "a.b" = 3'), 2)
    assert set(index.match(Fields({}, {"a": {"b": 2}, "a.b": 3}))) == {1, 2}
    assert index.match(Fields({}, {"a": {"b": 2}})) == ()
