"""The reason why a line of CSV does not fit a schema. Pure functions: no Spark."""

from __future__ import annotations

import csv
from typing import Final

from trunkline.pipeline.json_schema import Columns

_MAX_SHOWN_CHARS: Final = 60
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_REAL: Final = frozenset({"float", "double"})


def explain(value: bytes | None, columns: Columns, separator: str = ",") -> str:
    """The first thing that is wrong."""
    if value is None:
        return "the record has no value"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start} is 0x{value[error.start]:02x}"
    try:
        cells = next(csv.reader([text], delimiter=separator), [])
    except (csv.Error, TypeError) as error:
        return f"not CSV: {error}"
    if len(cells) != len(columns):
        return f"expected {len(columns)} columns, found {len(cells)}"
    for (name, (kind, required)), cell in zip(columns.items(), cells, strict=True):
        if not cell:
            if required:
                return f"column {name} is empty"
        elif not _fits(cell, kind):
            shown = cell if len(cell) <= _MAX_SHOWN_CHARS else cell[: _MAX_SHOWN_CHARS - 1] + "…"
            return f"column {name}: expected {kind}, found {shown!r}"
    return "does not fit the schema"


def _fits(cell: str, kind: str) -> bool:
    try:
        if kind in _WHOLE:
            int(cell)
        elif kind in _REAL or kind.startswith("decimal"):
            float(cell)
    except ValueError:
        return False
    return kind != "boolean" or cell.lower() in {"true", "false"}
