"""Conjunctions: a filter as alternatives, each a list of predicates that must all be true.

Negations are pushed down to the predicates and `and` is distributed over `or`. Both keep the truth of SQL's three-valued
logic, so a filter is true exactly if all predicates of one alternative are. A negated predicate stays as it is: `not a < 5`
is true for a string, `a >= 5` is not. `in` becomes one alternative per choice. Distribution can multiply: beyond
MAX_CONJUNCTIONS `in` is left whole, and if that is not enough, the filter is its own only predicate.
"""

from __future__ import annotations

from itertools import product

from trunkline.routing.expression import And, Comparison, Condition, Constant, Field, Membership, Not, Or, Order, Truth
from trunkline.routing.limits import MAX_CONJUNCTIONS

Conjunction = tuple[Condition, ...]


class _TooMany(Exception):
    pass


def conjunctions_of(condition: Condition) -> list[Conjunction]:
    """The alternatives of a condition, none twice; none at all if it can never be true."""
    for split_choices in (True, False):
        try:
            found = _alternatives(condition, negated=False, split_choices=split_choices)
        except _TooMany:
            continue
        return list(dict.fromkeys(found))
    return [(condition,)]


def _alternatives(condition: Condition, *, negated: bool, split_choices: bool) -> list[Conjunction]:
    match condition:
        case Truth(value):
            return [()] if value is not negated else []
        case Not(operand):
            return _alternatives(operand, negated=not negated, split_choices=split_choices)
        case And(operands) | Or(operands):
            parts = [_alternatives(each, negated=negated, split_choices=split_choices) for each in operands]
            if isinstance(condition, Or) is not negated:
                found = [conjunction for part in parts for conjunction in part]
            else:
                count = 1
                for part in parts:
                    count *= len(part)
                    if count > MAX_CONJUNCTIONS:
                        raise _TooMany
                found = [_joined(choice) for choice in product(*parts)]
            if len(found) > MAX_CONJUNCTIONS:
                raise _TooMany
            return found
        case Membership(Field() as field, choices) if split_choices and not negated:
            if len(choices) > MAX_CONJUNCTIONS:
                raise _TooMany
            return [(Comparison(Order.EQUAL, field, Constant(choice)),) for choice in choices]
    return [(Not(condition),)] if negated else [(condition,)]


def _joined(parts: tuple[Conjunction, ...]) -> Conjunction:
    return tuple(dict.fromkeys(predicate for part in parts for predicate in part))
