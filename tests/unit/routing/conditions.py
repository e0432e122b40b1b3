"""Random conditions: their text, and their truth by an interpreter that is as plain as the definition."""

from __future__ import annotations

import re
from typing import TypeAlias

from hypothesis import strategies as st

Scalar: TypeAlias = bool | int | float | str
Event: TypeAlias = dict[str, Scalar | None]
# ("and" | "or", [node, ...]), ("not", node), ("compare", name, order, scalar), ("in", name, scalars), ("null", name),
# ("like", name, pattern), ("between", name, low, high), ("flag", name), ("fields", name, order, name)
Node: TypeAlias = tuple[object, ...]

NAMES = ["a", "b", "c.d", "c.e[0]"]
names = st.sampled_from(NAMES)
numbers = st.sampled_from([-1, 0, 1, 2, 1.5, 2.0, 7])
strings = st.sampled_from(["", "x", "xy", "it's", "1"])
scalars = st.one_of(numbers, strings, st.booleans())
orders = st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">="])

leaves: st.SearchStrategy[Node] = st.one_of(
    st.tuples(st.just("compare"), names, orders, scalars),
    st.tuples(st.just("compare"), names, st.just("="), scalars),
    st.tuples(st.just("in"), names, st.lists(st.one_of(numbers, strings), min_size=1, max_size=3)),
    st.tuples(st.just("null"), names),
    st.tuples(st.just("like"), names, st.text(alphabet="xy%_'", max_size=4)),
    st.tuples(st.just("between"), names, numbers, numbers),
    st.tuples(st.just("flag"), names),
    st.tuples(st.just("fields"), names, orders, names),
)
conditions: st.SearchStrategy[Node] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=8,
)
events: st.SearchStrategy[Event] = st.dictionaries(names, st.one_of(st.none(), scalars))


def body_of(event: Event) -> dict[str, object]:
    """The event as the JSON object whose paths are NAMES."""
    inner: dict[str, object] = {}
    body: dict[str, object] = {"c": inner}
    for name, value in event.items():
        if name == "c.d":
            inner["d"] = value
        elif name == "c.e[0]":
            inner["e"] = [value]
        else:
            body[name] = value
    return body


def literal(value: object) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "false"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def render(node: Node) -> str:
    match node:
        case ("and" | "or" as word, list(operands)):
            return f" {word} ".join(f"({render(each)})" for each in operands)
        case ("not", tuple(operand)):
            return f"NOT ({render(operand)})"
        case ("compare", name, order, value):
            return f"{name} {order} {literal(value)}"
        case ("in", name, list(choices)):
            return f"{name} in ({', '.join(literal(each) for each in choices)})"
        case ("null", name):
            return f"{name} IS NULL"
        case ("like", name, pattern):
            return f"{name} like {literal(pattern)}"
        case ("between", name, low, high):
            return f"{name} between {literal(low)} and {literal(high)}"
        case ("flag", name):
            return str(name)
        case ("fields", name, order, other):
            return f"{name} {order} {other}"
    raise AssertionError(node)


def compare(one: Scalar | None, order: object, other: Scalar | None) -> bool | None:
    if one is None or other is None:
        return None
    kinds = {"text" if isinstance(v, str) else "truth" if isinstance(v, bool) else "number" for v in (one, other)}
    if len(kinds) != 1 or (kinds == {"truth"} and order not in ("=", "<>")):
        return False
    sign = (one > other) - (one < other)  # type: ignore[operator]
    return {"=": sign == 0, "<>": sign != 0, "<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[str(order)]


def truth(node: Node, event: Event) -> bool | None:
    match node:
        case ("and", list(operands)):
            found = [truth(each, event) for each in operands]
            return False if False in found else None if None in found else True
        case ("or", list(operands)):
            found = [truth(each, event) for each in operands]
            return True if True in found else None if None in found else False
        case ("not", tuple(operand)):
            inner = truth(operand, event)
            return None if inner is None else not inner
        case ("compare", str(name), order, bool() | int() | float() | str() as value):
            return compare(event.get(name), order, value)
        case ("fields", str(name), order, str(other)):
            return compare(event.get(name), order, event.get(other))
        case ("in", str(name), list(choices)):
            found = [compare(event.get(name), "=", each) for each in choices]
            return True if True in found else None if None in found else False
        case ("null", str(name)):
            return event.get(name) is None
        case ("like", str(name), str(pattern)):
            text = event.get(name)
            if text is None:
                return None
            shape = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in pattern)
            return isinstance(text, str) and re.fullmatch(shape, text, re.DOTALL) is not None
        case ("between", str(name), int() | float() as low, int() | float() as high):
            return truth(("and", [("compare", name, ">=", low), ("compare", name, "<=", high)]), event)
        case ("flag", str(name)):
            flag = event.get(name)
            return flag if isinstance(flag, bool) else None
    raise AssertionError(node)
