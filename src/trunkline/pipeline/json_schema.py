"""The schema of JSON records: guessed from examples, and the reason why a record does not fit one.

Guessing is for getting started; a declared schema is a promise. Each example widens what was seen before:

    nothing < boolean | BIGINT < DOUBLE | arrays of … | structs of …      and whatever cannot be reconciled is a STRING

A field that was null or an empty list in every example is taken for a STRING. Field order is that of first appearance.
Pure functions on Python values: no Spark. Limits: nesting of MAX_DEPTH, MAX_FIELDS fields; what is beyond is text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

MAX_DEPTH: Final = 20
MAX_FIELDS: Final = 2_000
_MAX_SHOWN_CHARS: Final = 60
_MAX_BIGINT: Final = 2**63

Kind: TypeAlias = "str | list[Kind] | dict[str, Kind]"
"""A type's name, [element], or fields; UNKNOWN until something is seen."""
UNKNOWN: Final = "?"
TEXT: Final = "STRING"

Columns: TypeAlias = Mapping[str, tuple[str, bool]]
"""Field -> Spark's simple name of its type, and whether it must be there."""


def infer(values: Iterable[bytes | None]) -> str | None:
    """Columns as in SQL; None if no value is a JSON object. Others are passed over: the pipeline will refuse them."""
    found: Kind = UNKNOWN
    for value in values:
        if value is None:
            continue
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            found = _merge(found, _kind(parsed, 0))
    if not isinstance(found, dict) or not found:
        return None
    return ", ".join(f"{_quoted(name)} {_sql(kind)}" for name, kind in list(found.items())[:MAX_FIELDS])


def _kind(value: object, depth: int) -> Kind:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -_MAX_BIGINT <= value < _MAX_BIGINT else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, str) or depth >= MAX_DEPTH:
        return TEXT
    if isinstance(value, list):
        element: Kind = UNKNOWN
        for item in value:
            element = _merge(element, _kind(item, depth + 1))
        return [element]
    assert isinstance(value, dict)
    # Spark's columns are not case-sensitive: of two fields that differ only in case, the first counts.
    fields: dict[str, Kind] = {}
    folded: set[str] = set()
    for name, item in value.items():
        if name.lower() not in folded and name:
            folded.add(name.lower())
            fields[name] = _kind(item, depth + 1)
    return fields or TEXT


def _merge(one: Kind, other: Kind) -> Kind:
    if one == UNKNOWN:
        return other
    if other in (UNKNOWN, one):
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        merged = dict(one)
        names = {name.lower(): name for name in one}
        for name, kind in other.items():
            known = names.get(name.lower())
            if known is not None:
                merged[known] = _merge(merged[known], kind)
            elif len(merged) < MAX_FIELDS:
                merged[name] = kind
        return merged
    if isinstance(one, list) and isinstance(other, list):
        return [_merge(one[0], other[0])]
    if {str(one), str(other)} == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return TEXT


def _sql(kind: Kind) -> str:
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{_quoted(name)}: {_sql(inner)}' for name, inner in kind.items())}>"
    if isinstance(kind, list):
        return f"ARRAY<{_sql(kind[0])}>"
    return TEXT if kind == UNKNOWN else kind


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
_WHOLE: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def explain(value: bytes | None, columns: Columns) -> str:
    """Why Spark did not take a record: for people, so that the first thing that is wrong is enough."""
    if value is None:
        return "the record has no value"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start} is 0x{value[error.start]:02x}"
    if not text.strip():
        return "the value is empty"
    try:
        parsed = json.loads(text)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(parsed, dict):
        return f"not a JSON object but {_name(parsed)}"
    folded = {name.lower(): item for name, item in parsed.items()}
    for name, (kind, required) in columns.items():
        found = folded.get(name.lower())
        if found is None:
            if required:
                return f"field {name} is missing" if name.lower() not in folded else f"field {name} is null"
        elif (problem := _mismatch(found, kind)) is not None:
            return f"field {name}: {problem}"
    return "does not fit the schema"


def _mismatch(found: object, kind: str) -> str | None:
    fits = True
    if kind in _NUMBERS or kind.startswith("decimal"):
        fits = isinstance(found, int | float) and not isinstance(found, bool)
        if fits and kind in _WHOLE:
            fits = isinstance(found, int) and -(2 ** _WHOLE[kind]) <= found < 2 ** _WHOLE[kind]
    elif kind == "boolean":
        fits = isinstance(found, bool)
    elif kind.startswith("array"):
        fits = isinstance(found, list)
    elif kind.startswith(("struct", "map")):
        fits = isinstance(found, dict)
    elif kind in {"date", "timestamp", "timestamp_ntz"}:
        return f"{_shown(found)} is no {kind}, or something after it does not fit"
    return None if fits else f"expected {kind}, found {_shown(found)}"


def _name(value: object) -> str:
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return kinds.get(type(value), "an object")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
