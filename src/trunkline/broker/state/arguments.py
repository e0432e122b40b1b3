"""Arguments of exchanges, queues and bindings as JSON, for the records of the topology, and back, type by type.

JSON has no bytes, moments or decimals: they are objects with one member, {"$bytes": base64}, {"$time": ISO 8601},
{"$decimal": text}.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

Arguments = Mapping[str, object]


def to_json(value: object) -> object:
    """TypeError for what no table holds."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$time": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    raise TypeError(f"a table does not hold a {type(value).__name__}")


def from_json(value: object) -> object:
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name == "$bytes":
                return base64.b64decode(str(inner))
            if name == "$time":
                return datetime.fromisoformat(str(inner))
            if name == "$decimal":
                return Decimal(str(inner))
        return {name: from_json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [from_json(inner) for inner in value]
    return value


def table_from_json(value: object) -> dict[str, object]:
    read = from_json(value)
    return read if isinstance(read, dict) else {}
