"""Tables: the arguments of bindings and the headers of messages, as hashable values that are equal if AMQP says so.

Two values are equal if their types and values are: 1, 1.0, True and '1' are four values. The widths of AMQP's integers
are not told apart, since clients choose them behind their users' backs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from trunkline.routing.limits import MAX_TABLE_DEPTH

_SELF_EVIDENT: Final = frozenset({str, int, bytes})


def freeze(value: object, depth: int = 0) -> Hashable:
    """A hashable stand-in for the value. ValueError beyond MAX_TABLE_DEPTH levels, TypeError for what no table holds."""
    kind = value.__class__
    if kind in _SELF_EVIDENT:
        return value
    if depth > MAX_TABLE_DEPTH:
        raise ValueError(f"a table nests at most {MAX_TABLE_DEPTH} deep")
    if isinstance(value, Mapping):
        return "table", frozenset((name, freeze(inner, depth + 1)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return "array", tuple(freeze(inner, depth + 1) for inner in value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, float):
        return "float", value if value == value else "nan"  # noqa: PLR0124  # only NaN differs from itself
    if not isinstance(value, Hashable):
        raise TypeError(f"a table does not hold a {kind.__name__}")
    return kind.__name__, value
