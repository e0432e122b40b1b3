"""Predicates: a conjunction as the equalities and ranges that an index can find it by, and the rest that must be tested.

Bounds of one field are intersected. A range whose ends are one number is an equality; one without any number in it makes the
conjunction impossible. What is in neither form (`like`, `<>`, `is null`, arithmetic, a second equality of a field, ranges
beyond the second) stays a condition.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf, nextafter
from typing import Final, NamedTuple

from trunkline.routing.conjunctions import Conjunction
from trunkline.routing.expression import Comparison, Condition, Constant, Field, Flag, Order
from trunkline.routing.fields import FieldPath, Scalar
from trunkline.routing.interval_index import Interval, above, below

MAX_RANGES: Final = 2
# Above this a float does not tell an integer from its neighbour.
_EXACT_BELOW: Final = float(1 << 53)

_MIRRORED: Final = {
    Order.EQUAL: Order.EQUAL,
    Order.UNEQUAL: Order.UNEQUAL,
    Order.LESS: Order.GREATER,
    Order.AT_MOST: Order.AT_LEAST,
    Order.GREATER: Order.LESS,
    Order.AT_LEAST: Order.AT_MOST,
}


class Predicates(NamedTuple):
    # Paths and keys, in parallel; a boolean's key is a tuple of it, or True would be found as 1.
    paths: tuple[FieldPath, ...]
    keys: tuple[Hashable, ...]
    ranges: tuple[tuple[FieldPath, float, float], ...]
    text_range: tuple[FieldPath, Interval] | None
    rest: tuple[Condition, ...]


class _Range:
    __slots__ = ("exact", "high", "low", "predicates")

    def __init__(self) -> None:
        self.low = -inf
        self.high = inf
        self.exact = True
        self.predicates: list[Condition] = []

    def narrow(self, order: Order, value: int | float) -> None:
        try:
            bound = float(value)
        except OverflowError:
            bound = inf if value > 0 else -inf
        if abs(bound) >= _EXACT_BELOW:
            self.exact = False
        elif order is Order.LESS:
            bound = nextafter(bound, -inf)
        elif order is Order.GREATER:
            bound = nextafter(bound, inf)
        if order in (Order.LESS, Order.AT_MOST):
            self.high = min(self.high, bound)
        else:
            self.low = max(self.low, bound)


def predicates_of(conjunction: Conjunction) -> Predicates | None:
    """The conjunction's predicates; None if no publication can fulfil it."""
    equalities: dict[FieldPath, Hashable] = {}
    ranges: dict[FieldPath, _Range] = {}
    texts: dict[FieldPath, Interval] = {}
    rest: list[Condition] = []
    for predicate in conjunction:
        path, order, value = _simple(predicate)
        if path is None or value is None:
            rest.append(predicate)
        elif order is Order.EQUAL and path not in equalities:
            equalities[path] = (value,) if value.__class__ is bool else value
        elif order is Order.EQUAL or order is Order.UNEQUAL or isinstance(value, bool):
            rest.append(predicate)
        elif isinstance(value, str):
            interval = _interval(order, value)
            texts[path] = texts[path].intersection(interval) if path in texts else interval
            rest.append(predicate)
        else:
            span = ranges.get(path)
            if span is None:
                span = ranges[path] = _Range()
            span.narrow(order, value)
            span.predicates.append(predicate)
    spans: list[tuple[FieldPath, float, float]] = []
    for path, span in ranges.items():
        if span.low > span.high:
            return None
        if span.exact and span.low == span.high and path not in equalities:
            equalities[path] = span.low
            continue
        if len(spans) < MAX_RANGES:
            spans.append((path, span.low, span.high))
            if span.exact:
                continue
        rest.extend(span.predicates)
    text_range = next(iter(texts.items())) if texts else None
    return Predicates(tuple(equalities), tuple(equalities.values()), tuple(spans), text_range, tuple(rest))


def _simple(predicate: Condition) -> tuple[FieldPath | None, Order, Scalar | None]:
    """The predicate as field, order, constant; no field if it has another form."""
    if predicate.__class__ is Comparison:
        left, right = predicate.left, predicate.right
        if left.__class__ is Field and right.__class__ is Constant:
            return left.path, predicate.order, right.value
        if left.__class__ is Constant and right.__class__ is Field:
            return right.path, _MIRRORED[predicate.order], left.value
    elif predicate.__class__ is Flag:
        return predicate.field.path, Order.EQUAL, True
    return None, Order.EQUAL, None


def _interval(order: Order, value: str) -> Interval:
    closed = order in (Order.AT_LEAST, Order.AT_MOST)
    return above(value, closed=closed) if order in (Order.GREATER, Order.AT_LEAST) else below(value, closed=closed)
