"""Overlap: whether there could be an event that two filters both match. It answers "does anyone publish this?" by what was advertised.

Saying yes where no was right costs a subscriber its wait; saying no would make it give up on events that come. So yes is the answer
wherever it is not certain: what a conjunction says beyond equalities and ranges of one field each is not looked at.
"""

from __future__ import annotations

from collections.abc import Hashable

from trunkline.routing.conjunctions import Conjunction, conjunctions_of
from trunkline.routing.expression import And, Comparison, Constant, Field, Order
from trunkline.routing.fields import FieldPath
from trunkline.routing.filter import Filter
from trunkline.routing.predicates import predicates_of


def may_overlap(one: Filter, other: Filter) -> bool:
    return any(_is_possible(each) for each in conjunctions_of(And((one.condition, other.condition))))


def _is_possible(conjunction: Conjunction) -> bool:
    predicates = predicates_of(conjunction)
    if predicates is None:
        return False
    equal: dict[FieldPath, Hashable] = dict(zip(predicates.paths, predicates.keys, strict=True))
    for condition in predicates.rest:
        if isinstance(condition, Comparison) and condition.order is Order.EQUAL:
            field, constant = condition.left, condition.right
            if isinstance(field, Field) and isinstance(constant, Constant) and field.path in equal:
                value = (constant.value,) if isinstance(constant.value, bool) else constant.value
                if equal[field.path] != value:
                    return False
    for path, low, high in predicates.ranges:
        held = equal.get(path)
        if held is not None and not (isinstance(held, int | float) and low <= held <= high):
            return False
    return True
