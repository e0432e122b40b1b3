"""The syntax tree of a filter: conditions that are true, false or unknown, over values that may be null.

`filter_parser` builds it, `filter` compiles it, `content_index` takes it apart. What could be said in two ways is here in
one: `between` is two comparisons, `not in` and `not like` are negations, and chains of `and`, `or`, `+`, `*` are flat, so
that the depth of a tree is the depth of its parentheses and negations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trunkline.routing.fields import FieldPath, Scalar


class Order(Enum):
    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Constant:
    value: Scalar


@dataclass(frozen=True, slots=True)
class Field:
    path: FieldPath


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`first` with each (operator, operand) applied from left to right; operators of one rank: + and -, or * and /."""

    first: Value
    rest: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Negative:
    operand: Value


Value = Constant | Field | Arithmetic | Negative


@dataclass(frozen=True, slots=True)
class Truth:
    value: bool


@dataclass(frozen=True, slots=True)
class Flag:
    """A field that stands as a condition: true if it is the boolean true, unknown if it is no boolean."""

    field: Field


@dataclass(frozen=True, slots=True)
class Comparison:
    order: Order
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Membership:
    operand: Value
    choices: tuple[int | float | str, ...]


@dataclass(frozen=True, slots=True)
class Like:
    operand: Value
    pattern: str
    escape: str | None


@dataclass(frozen=True, slots=True)
class IsNull:
    field: Field


@dataclass(frozen=True, slots=True)
class Not:
    operand: Condition


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Condition, ...]


Condition = Truth | Flag | Comparison | Membership | Like | IsNull | Not | And | Or
