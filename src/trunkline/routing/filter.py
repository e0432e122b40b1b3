"""Filters: conditions over the fields of a publication, in the manner of the JMS and SQL-92 selector.

    company = 'Telco' and (price < 100 or order.items[0].rush) and region not in ('EU', 'UK')

A filter is compiled to closures once and then evaluated per publication. A condition is true, false or unknown (None);
only true matches. As in SQL, what concerns a null field is unknown, `not` keeps unknown, `and` is false if any operand is,
`or` is true if any operand is. As in JMS:

- values of unlike types compare as false, with `<>` too; int and float are alike, a boolean is not a number;
- `like` of something that is not a string is false.

Where JMS says less, we chose: strings are in order of code points (JMS: only = and <>), booleans are in no order, `/` is
the true quotient, and arithmetic on what is not a number, a division by zero, an overflow or an integer of more
than MAX_ARITHMETIC_BITS gives null.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import isfinite
from typing import Final

from trunkline.routing.expression import (
    And,
    Arithmetic,
    Comparison,
    Condition,
    Constant,
    Field,
    Flag,
    IsNull,
    Like,
    Membership,
    Negative,
    Not,
    Or,
    Order,
    Truth,
    Value,
)
from trunkline.routing.fields import OPAQUE, Fields, FieldValue, Scalar
from trunkline.routing.filter_parser import parse_filter
from trunkline.routing.like import compile_like
from trunkline.routing.limits import MAX_ARITHMETIC_BITS

Test = Callable[[Fields], bool | None]
Reading = Callable[[Fields], FieldValue]
_Relation = Callable[[Scalar, Scalar], bool]

_RELATIONS: Final[dict[Order, _Relation]] = {
    Order.EQUAL: operator.eq,
    Order.UNEQUAL: operator.ne,
    Order.LESS: operator.lt,
    Order.AT_MOST: operator.le,
    Order.GREATER: operator.gt,
    Order.AT_LEAST: operator.ge,
}


class Filter:
    """A compiled filter. Equal texts are equal filters. InvalidFilter if the text does not parse."""

    __slots__ = ("_test", "condition", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.condition: Condition = parse_filter(text)
        self._test: Test | None = None

    @property
    def evaluate(self) -> Test:
        """Compiled at the first use: a filter in an index is only taken apart."""
        if self._test is None:
            self._test = compile_condition(self.condition)
        return self._test

    def matches(self, fields: Fields) -> bool:
        return self.evaluate(fields) is True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


def compile_condition(condition: Condition) -> Test:
    match condition:
        case Truth(value):
            return lambda fields: value
        case Flag(Field(path)):

            def flag(fields: Fields) -> bool | None:
                found = fields.value(path)
                return found if isinstance(found, bool) else None

            return flag
        case Comparison(order, left, right):
            return _comparison(order, left, right)
        case Membership(operand, choices):
            return _membership(_reading(operand), choices)
        case Like(operand, pattern, escape):
            return _like(_reading(operand), compile_like(pattern, escape))
        case IsNull(Field(path)):
            return lambda fields: fields.value(path) is None
        case Not(operand):
            return _negation(compile_condition(operand))
        case And(operands):
            return _all([compile_condition(each) for each in operands])
        case Or(operands):
            return _any([compile_condition(each) for each in operands])


def _negation(test: Test) -> Test:
    def negated(fields: Fields) -> bool | None:
        truth = test(fields)
        return None if truth is None else not truth

    return negated


def _all(tests: list[Test]) -> Test:
    def all_of(fields: Fields) -> bool | None:
        result: bool | None = True
        for test in tests:
            truth = test(fields)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return all_of


def _any(tests: list[Test]) -> Test:
    def any_of(fields: Fields) -> bool | None:
        result: bool | None = False
        for test in tests:
            truth = test(fields)
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return any_of


def _comparison(order: Order, left: Value, right: Value) -> Test:
    relation = _RELATIONS[order]
    ordered = order not in (Order.EQUAL, Order.UNEQUAL)
    read_left, read_right = _reading(left), _reading(right)

    def compare(fields: Fields) -> bool | None:
        one, other = read_left(fields), read_right(fields)
        if one is None or other is None:
            return None
        if one is OPAQUE or other is OPAQUE or not alike(one, other):
            return False
        if ordered and one.__class__ is bool:
            return False
        return relation(one, other)

    return compare


def alike(one: Scalar, other: Scalar) -> bool:
    """Whether two values are of one type to the language. Their classes are exact: `Fields.value` sees to it."""
    first, second = one.__class__, other.__class__
    return first is second or (first in (int, float) and second in (int, float))


def _membership(read: Reading, choices: tuple[int | float | str, ...]) -> Test:
    chosen = frozenset(choices)

    def contains(fields: Fields) -> bool | None:
        found = read(fields)
        if found is None:
            return None
        # True would be found as 1.
        return found.__class__ is not bool and found in chosen

    return contains


def _like(read: Reading, matches: Callable[[str], bool]) -> Test:
    def like(fields: Fields) -> bool | None:
        found = read(fields)
        if found is None:
            return None
        return isinstance(found, str) and matches(found)

    return like


def _reading(value: Value) -> Reading:
    match value:
        case Constant(constant):
            return lambda fields: constant
        case Field(path):
            return lambda fields: fields.value(path)
        case Negative(operand):
            read = _reading(operand)

            def negative(fields: Fields) -> FieldValue:
                number = _number(read(fields))
                return None if number is None else -number

            return negative
        case Arithmetic(first, rest):
            return _arithmetic(_reading(first), [(sign, _reading(each)) for sign, each in rest])


def _arithmetic(first: Reading, rest: list[tuple[str, Reading]]) -> Reading:
    def compute(fields: Fields) -> FieldValue:
        total = _number(first(fields))
        for sign, read in rest:
            operand = _number(read(fields))
            if total is None or operand is None:
                return None
            try:
                if sign == "+":
                    total += operand
                elif sign == "-":
                    total -= operand
                elif sign == "*":
                    total *= operand
                else:
                    total /= operand
            except (ZeroDivisionError, OverflowError):
                return None
            total = _number(total)
        return total

    return compute


def _number(value: FieldValue) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        # Products of what a publisher sends may not grow until computing them holds up the broker.
        return value if value.bit_length() <= MAX_ARITHMETIC_BITS else None
    return value if isinstance(value, float) and isfinite(value) else None
