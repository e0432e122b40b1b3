"""The content index: which filters are true for a publication, without asking each.

A filter is taken apart into conjunctions (`conjunctions`), and each is placed in a tree of equalities. A node stands for
a set of equalities `field = value`; below it, a dictionary per field leads by value to the next. A conjunction goes down
by its equalities in the order of their fields' names and stays at the last node: under an interval of one more field, if
it bounds one (bounds of one field are intersected), else in the node's plain list. What neither the path nor the interval
has settled (`like`, `<>`, `is null`, arithmetic, a second range) is a test, compiled, that runs when it is reached.

Matching starts at the root with the publication's fields and follows, at each node, the one value that each field has.
So the cost is: the fields that filters name at the nodes reached, O(log n) per interval index, the conjunctions found,
and the tests of those. Filters that ask for other values of the same fields cost nothing. The weak spots, on purpose: a
conjunction with no equality and no range on a field (only `a like '%x'`, `a <> 1`, `a is null`, `a + b > 5`) is tested
for every publication (`residual_count` says how many there are), and of several ranges on different fields only one is
used to find candidates.

add, remove: O(conjunctions x predicates), and the interval index's cost. Equal filters are held once, however many
values are bound to them. About 5 KB for each distinct filter of an equality that no other has and a range.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from trunkline.routing.conjunctions import Conjunction, conjunctions_of
from trunkline.routing.expression import Comparison, Condition, Constant, Field, Flag, Order
from trunkline.routing.fields import OPAQUE, FieldPath, Fields, Scalar
from trunkline.routing.filter import Filter, Test, compile_condition
from trunkline.routing.interval_index import Interval, IntervalIndex, above, below

T = TypeVar("T", bound=Hashable)

_MIRRORED = {
    Order.EQUAL: Order.EQUAL,
    Order.UNEQUAL: Order.UNEQUAL,
    Order.LESS: Order.GREATER,
    Order.AT_MOST: Order.AT_LEAST,
    Order.GREATER: Order.LESS,
    Order.AT_LEAST: Order.AT_MOST,
}


class _Entry(Generic[T]):
    """One distinct filter and the values bound to it."""

    __slots__ = ("filter", "values")

    def __init__(self, filter_: Filter) -> None:
        self.filter = filter_
        self.values: dict[T, None] = {}


class _Rule(Generic[T]):
    """One conjunction of an entry: what is left to test where it is placed."""

    __slots__ = ("entry", "tests")

    def __init__(self, entry: _Entry[T], tests: tuple[Test, ...]) -> None:
        self.entry = entry
        self.tests = tests


_RuleKey = tuple[str, Conjunction]


class _Ranges(Generic[T]):
    """The intervals of one field at one node, by the type of their ends."""

    __slots__ = ("numbers", "texts")

    def __init__(self) -> None:
        self.numbers: IntervalIndex[_Rule[T]] = IntervalIndex()
        self.texts: IntervalIndex[_Rule[T]] = IntervalIndex()

    def of(self, *, text: bool) -> IntervalIndex[_Rule[T]]:
        return self.texts if text else self.numbers


class _Node(Generic[T]):
    __slots__ = ("equalities", "ranges", "rules")

    def __init__(self) -> None:
        self.equalities: dict[FieldPath, dict[Hashable, _Node[T]]] = {}
        self.ranges: dict[FieldPath, _Ranges[T]] = {}
        self.rules: dict[_RuleKey, _Rule[T]] = {}

    def is_empty(self) -> bool:
        return not (self.equalities or self.ranges or self.rules)


class _Placement(NamedTuple):
    """Where a conjunction belongs. A function of the conjunction alone, so that removing finds it again."""

    equalities: tuple[tuple[FieldPath, Hashable], ...]
    range_path: FieldPath | None
    interval: Interval | None
    is_text: bool
    rest: Conjunction


class ContentIndex(Generic[T]):
    """Values bound to filters. `steps` counts nodes, candidates and interval steps of all matches so far."""

    __slots__ = ("_entries", "_root", "_size", "steps")

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}
        self._root: _Node[T] = _Node()
        self._size = 0
        self.steps = 0

    def __len__(self) -> int:
        """The number of (filter, value) pairs."""
        return self._size

    @property
    def residual_count(self) -> int:
        """Conjunctions that are tested for every publication."""
        return len(self._root.rules)

    def add(self, filter_: Filter, value: T) -> bool:
        """Bind the value; False if it was bound to this filter already."""
        entry = self._entries.get(filter_.text)
        if entry is None:
            entry = self._entries[filter_.text] = _Entry(filter_)
            for conjunction in conjunctions_of(filter_.condition):
                self._place(entry, conjunction)
        elif value in entry.values:
            return False
        entry.values[value] = None
        self._size += 1
        return True

    def remove(self, filter_: Filter, value: T) -> bool:
        """Unbind the value; False if it was not bound to this filter."""
        entry = self._entries.get(filter_.text)
        if entry is None or value not in entry.values:
            return False
        del entry.values[value]
        self._size -= 1
        if not entry.values:
            del self._entries[filter_.text]
            for conjunction in conjunctions_of(entry.filter.condition):
                self._displace(entry, conjunction)
        return True

    def filters(self) -> Iterator[tuple[Filter, T]]:
        """All (filter, value) pairs. The index must not change meanwhile."""
        for entry in self._entries.values():
            for value in entry.values:
                yield entry.filter, value

    def match(self, fields: Fields) -> tuple[T, ...]:
        """The values of all filters that are true for the fields, each once."""
        found: dict[T, None] = {}
        stack = [self._root]
        steps = 0
        while stack:
            node = stack.pop()
            steps += 1 + len(node.rules)
            for rule in node.rules.values():
                if all(test(fields) for test in rule.tests):
                    found.update(rule.entry.values)
            for path, children in node.equalities.items():
                value = fields.value(path)
                if value is not None and value is not OPAQUE:
                    child = children.get(_key(value))
                    if child is not None:
                        stack.append(child)
            for path, ranges in node.ranges.items():
                value = fields.value(path)
                if value is None or value is OPAQUE or isinstance(value, bool):
                    continue
                index = ranges.of(text=isinstance(value, str))
                before = index.steps
                for rule in index.containing(value):
                    steps += 1
                    if all(test(fields) for test in rule.tests):
                        found.update(rule.entry.values)
                steps += index.steps - before
        self.steps += steps
        return tuple(found)

    def _place(self, entry: _Entry[T], conjunction: Conjunction) -> None:
        placement = _placement(conjunction)
        node = self._root
        for path, key in placement.equalities:
            node = node.equalities.setdefault(path, {}).setdefault(key, _Node())
        rule = _Rule(entry, tuple(compile_condition(predicate) for predicate in placement.rest))
        rule_key = (entry.filter.text, conjunction)
        if placement.range_path is not None and placement.interval is not None:
            ranges = node.ranges.setdefault(placement.range_path, _Ranges())
            ranges.of(text=placement.is_text).add(rule_key, placement.interval, rule)
        else:
            node.rules[rule_key] = rule

    def _displace(self, entry: _Entry[T], conjunction: Conjunction) -> None:
        placement = _placement(conjunction)
        path_taken = [self._root]
        for path, key in placement.equalities:
            path_taken.append(path_taken[-1].equalities[path][key])
        node = path_taken[-1]
        rule_key = (entry.filter.text, conjunction)
        if placement.range_path is not None:
            ranges = node.ranges[placement.range_path]
            ranges.of(text=placement.is_text).remove(rule_key)
            if not ranges.numbers and not ranges.texts:
                del node.ranges[placement.range_path]
        else:
            del node.rules[rule_key]
        for (path, key), parent in zip(reversed(placement.equalities), reversed(path_taken[:-1]), strict=True):
            children = parent.equalities[path]
            if not children[key].is_empty():
                break
            del children[key]
            if not children:
                del parent.equalities[path]


def _key(value: Scalar) -> Hashable:
    # 1 and 1.0 are one key, as they are one value to the language; True would be too, and is not.
    return (value,) if value.__class__ is bool else value


def _placement(conjunction: Conjunction) -> _Placement:
    equalities: dict[FieldPath, Hashable] = {}
    rest: list[Condition] = []
    bounds: dict[tuple[FieldPath, bool], Interval] = {}
    bounding: dict[tuple[FieldPath, bool], list[Condition]] = {}
    for predicate in conjunction:
        path, order, constant = _simple(predicate)
        if path is None or constant is None:
            rest.append(predicate)
        elif order is Order.EQUAL and path not in equalities:
            equalities[path] = _key(constant)
        elif order in (Order.EQUAL, Order.UNEQUAL) or isinstance(constant, bool):
            rest.append(predicate)
        else:
            place = (path, isinstance(constant, str))
            interval = _interval(order, constant)
            bounds[place] = bounds[place].intersection(interval) if place in bounds else interval
            bounding.setdefault(place, []).append(predicate)
    chosen = min(
        (place for place in bounds if place[0] not in equalities),
        key=lambda place: (not bounds[place].bounded, place[0].text, len(place[0].steps), place[1]),
        default=None,
    )
    for place, predicates in bounding.items():
        if place != chosen:
            rest.extend(predicates)
    ordered = tuple(sorted(equalities.items(), key=lambda pair: (pair[0].text, len(pair[0].steps))))
    if chosen is None:
        return _Placement(ordered, None, None, False, tuple(rest))
    return _Placement(ordered, chosen[0], bounds[chosen], chosen[1], tuple(rest))


def _simple(predicate: Condition) -> tuple[FieldPath | None, Order, Scalar | None]:
    """The predicate as field, order, constant; no field if it has another form."""
    match predicate:
        case Comparison(order, Field(path), Constant(value)):
            return path, order, value
        case Comparison(order, Constant(value), Field(path)):
            return path, _MIRRORED[order], value
        case Flag(Field(path)):
            return path, Order.EQUAL, True
    return None, Order.EQUAL, None


def _interval(order: Order, value: int | float | str) -> Interval:
    closed = order in (Order.AT_LEAST, Order.AT_MOST)
    return above(value, closed=closed) if order in (Order.GREATER, Order.AT_LEAST) else below(value, closed=closed)
