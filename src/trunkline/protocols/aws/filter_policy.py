"""Filter policies: which notifications a subscription gets, by their attributes or by their body.

    {"event": ["placed", {"prefix": "re"}], "price": [{"numeric": [">", 10, "<=", 100]}], "store": [{"exists": false}]}

All keys must match, and of each key one of the conditions; `$or` has policies of which one must match. Of an array, one element is
enough. In a body keys are nested as its objects are, and an array of objects is looked through.

Conditions: a value itself; prefix, suffix, equals-ignore-case, anything-but (values, prefix, suffix, equals-ignore-case), numeric, exists,
cidr. A policy is checked and compiled once. Nothing that a publisher sends raises: what has no such field, or another type, does
not match. `hint` says what the content index can find a policy by.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from trunkline.protocols.aws.message_attributes import MessageAttribute

MAX_KEYS: Final = 5
MAX_COMBINATIONS: Final = 150
_MAX_LEVELS: Final = 10
_MISSING: Final = object()

Check = Callable[[object], bool]  # of one value that is there
Match = Callable[[Mapping[str, object]], bool]


class InvalidPolicy(ValueError):
    """A policy that means nothing; the text says why."""


class FilterPolicy:
    def __init__(self, text: str, *, in_body: bool) -> None:
        self.text = text
        self.in_body = in_body
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidPolicy("failed to parse JSON") from None
        if not isinstance(document, dict):
            raise InvalidPolicy("Filter policy must be an object")
        combinations, keys = _counted(document)
        if keys > MAX_KEYS:
            raise InvalidPolicy("Filter policy can not have more than 5 keys")
        if combinations > MAX_COMBINATIONS:
            raise InvalidPolicy("Filter policy is too complex")
        self._match = _compiled(document, in_body=in_body)
        self.hint: dict[
            str, tuple[str, ...]
        ] = {}  # of policies over attributes: keys that must be one of these strings
        if not in_body:
            for key, conditions in document.items():
                if isinstance(conditions, list) and conditions and all(isinstance(each, str) for each in conditions):
                    self.hint[key] = tuple(conditions)

    def matches(self, fields: Mapping[str, object] | None) -> bool:
        """`fields` are those of the attributes, or of the body; None: the body is no JSON object."""
        return fields is not None and self._match(fields)


def attribute_fields(attributes: Iterable[MessageAttribute]) -> dict[str, object]:
    """Attributes as policies see them."""
    fields: dict[str, object] = {}
    for attribute in attributes:
        kind = attribute.data_type.partition(".")[0]
        text = attribute.value.decode("utf-8", "replace")
        if attribute.data_type == "String.Array":
            try:
                listed = json.loads(text)
            except (ValueError, RecursionError):
                continue
            fields[attribute.name] = listed if isinstance(listed, list) else [listed]
        elif kind == "Number":
            try:
                fields[attribute.name] = float(text)
            except ValueError:
                continue
        elif kind == "String":
            fields[attribute.name] = text
    return fields


def body_fields(body: str) -> dict[str, object] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


# -- compilation -------------------------------------------------------------------------------------------------------


def _counted(policy: object, levels: int = 0) -> tuple[int, int]:
    """How many combinations of conditions there are, and how many keys."""
    if levels > _MAX_LEVELS:
        raise InvalidPolicy("Filter policy is nested too deep")
    if not isinstance(policy, dict):
        return (max(len(policy), 1), 1) if isinstance(policy, list) else (1, 1)
    combinations, keys = 1, 0
    for name, inner in policy.items():
        if name == "$or" and isinstance(inner, list):
            parts = [_counted(each, levels + 1) for each in inner]
            combinations *= max(sum(part[0] for part in parts), 1)
            keys += max((part[1] for part in parts), default=0)
            continue
        inner_combinations, inner_keys = _counted(inner, levels + 1)
        combinations *= inner_combinations
        keys += inner_keys
    return combinations, keys


def _compiled(policy: dict[str, object], *, in_body: bool) -> Match:
    tests: list[Match] = []
    for name, inner in policy.items():
        if (
            name == "$or"
            and isinstance(inner, list)
            and len(inner) >= 2
            and all(isinstance(each, dict) for each in inner)
        ):
            tests.append(_any([_compiled(each, in_body=in_body) for each in inner if isinstance(each, dict)]))
        elif isinstance(inner, dict) and in_body:
            tests.append(_nested(name, _compiled(inner, in_body=True)))
        elif isinstance(inner, list):
            if not inner:
                raise InvalidPolicy("Empty arrays are not allowed")
            tests.append(_field(name, inner))
        else:
            raise InvalidPolicy(f'"{name[:80]}" must be an object or an array')
    return lambda fields: all(test(fields) for test in tests)


def _any(tests: list[Match]) -> Match:
    return lambda fields: any(test(fields) for test in tests)


def _nested(name: str, test: Match) -> Match:
    def match(fields: Mapping[str, object]) -> bool:
        inner = fields.get(name)
        if isinstance(inner, list):
            return any(test(each) for each in inner if isinstance(each, dict))
        return test(inner if isinstance(inner, dict) else {})

    return match


def _field(name: str, conditions: list[object]) -> Match:
    checks: list[Check] = []
    wants_absent = wants_present = False
    for condition in conditions:
        if isinstance(condition, dict) and "exists" in condition:
            if len(condition) != 1 or not isinstance(condition["exists"], bool):
                raise InvalidPolicy("exists match pattern must be either true or false.")
            wants_present |= condition["exists"]
            wants_absent |= not condition["exists"]
        else:
            checks.append(_check(condition))

    def match(fields: Mapping[str, object]) -> bool:
        value = fields.get(name, _MISSING)
        if value is _MISSING:
            return wants_absent
        if wants_present:
            return True
        values = (
            chain(*[each if isinstance(each, list) else [each] for each in value])
            if isinstance(value, list)
            else (value,)
        )
        return any(check(each) for each in values for check in checks)

    return match


def _check(condition: object) -> Check:
    if isinstance(condition, dict):
        if len(condition) != 1:
            raise InvalidPolicy("Only one key allowed in match expression")
        ((operator, operand),) = condition.items()
        made = _OPERATORS.get(operator)
        if made is None:
            raise InvalidPolicy(f"Unrecognized match type {operator[:80]}")
        return made(operand)
    if isinstance(condition, list):
        raise InvalidPolicy("Match value must be String, number, true, false, or null")
    return lambda value: _same(value, condition)


def _same(value: object, wanted: object) -> bool:
    """Booleans are no numbers."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return value == wanted


def _text(operator: str, operand: object) -> str:
    if not isinstance(operand, str) or not operand:
        raise InvalidPolicy(f"{operator} match pattern must be a string")
    return operand


def _prefix(operand: object) -> Check:
    if isinstance(operand, dict) and set(operand) == {"equals-ignore-case"}:
        folded = _text("prefix", operand["equals-ignore-case"]).casefold()
        return lambda value: isinstance(value, str) and value.casefold().startswith(folded)
    text = _text("prefix", operand)
    return lambda value: isinstance(value, str) and value.startswith(text)


def _suffix(operand: object) -> Check:
    text = _text("suffix", operand)
    return lambda value: isinstance(value, str) and value.endswith(text)


def _ignore_case(operand: object) -> Check:
    folded = _text("equals-ignore-case", operand).casefold()
    return lambda value: isinstance(value, str) and value.casefold() == folded


def _anything_but(operand: object) -> Check:
    if isinstance(operand, dict):
        if len(operand) != 1:
            raise InvalidPolicy("anything-but has one match expression")
        ((operator, inner),) = operand.items()
        made = _OPERATORS.get(operator)
        if operator not in ("prefix", "suffix", "equals-ignore-case") or made is None:
            raise InvalidPolicy(f"Unsupported anything-but pattern: {operator[:80]}")
        checks = [made(each) for each in (inner if isinstance(inner, list) else [inner])]
        return lambda value: isinstance(value, str) and not any(check(value) for check in checks)
    unwanted = operand if isinstance(operand, list) else [operand]
    if not unwanted or not all(isinstance(each, str | int | float) for each in unwanted):
        raise InvalidPolicy("Value of anything-but must be an array or single string/number value.")
    return lambda value: not any(_same(value, each) for each in unwanted)


_RELATIONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def _numeric(operand: object) -> Check:
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise InvalidPolicy("Value of numeric must be an array of an operator and a number, once or twice")
    bounds: list[tuple[Callable[[float, float], bool], float]] = []
    for operator, number in zip(operand[::2], operand[1::2], strict=True):
        relation = _RELATIONS.get(operator) if isinstance(operator, str) else None
        if relation is None:
            raise InvalidPolicy(f"Unrecognized numeric range operator: {str(operator)[:80]}")
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidPolicy(f"Value of {operator} must be numeric")
        bounds.append((relation, number))
    if len(bounds) == 2 and not (str(operand[0]).startswith(">") and str(operand[2]).startswith("<")):
        raise InvalidPolicy("A numeric range has a lower bound and then an upper one")

    def check(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return all(relation(value, number) for relation, number in bounds)

    return check


def _cidr(operand: object) -> Check:
    try:
        network = ipaddress.ip_network(_text("cidr", operand), strict=False)
    except ValueError:
        raise InvalidPolicy("Malformed CIDR") from None

    def check(value: object) -> bool:
        try:
            return isinstance(value, str) and ipaddress.ip_address(value) in network
        except ValueError:
            return False

    return check


_OPERATORS: Final[dict[str, Callable[[object], Check]]] = {
    "prefix": _prefix,
    "suffix": _suffix,
    "equals-ignore-case": _ignore_case,
    "anything-but": _anything_but,
    "numeric": _numeric,
    "cidr": _cidr,
}
