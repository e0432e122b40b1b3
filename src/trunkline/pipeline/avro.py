"""Avro records as columns: the schema translated to Spark's, the bytes decoded by `fastavro`.

Spark's own Avro functions are not in PySpark's package, so values are decoded in Python, an Arrow batch at a time.

    Avro                                   Spark
    boolean int long float double          BOOLEAN INT BIGINT FLOAT DOUBLE
    string, enum, uuid · bytes, fixed      STRING · BINARY
    record · array · map                   STRUCT · ARRAY · MAP<STRING, …>
    date · timestamp-millis, -micros       DATE · TIMESTAMP
    local-timestamp-… · decimal            TIMESTAMP_NTZ · DECIMAL
    ["null", T]                            T

Other unions are refused. A value that does not decode, or that has bytes left over, is malformed; the reason says which.
Values framed as Confluent's serializers frame them (a zero byte and four of a schema id) are recognised by their first
byte when the frame is asked for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Avro: TypeAlias = "str | Sequence[Avro] | Mapping[str, Avro]"

_PRIMITIVE: Final = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "string": "STRING", "bytes": "BINARY",
}  # fmt: skip
_LOGICAL: Final = {
    "date": "DATE", "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP", "uuid": "STRING",
    "local-timestamp-millis": "TIMESTAMP_NTZ", "local-timestamp-micros": "TIMESTAMP_NTZ",
}  # fmt: skip
_FRAME_BYTES: Final = 5


class AvroError(ValueError):
    """A schema that cannot be columns."""


def parse_schema(text: str) -> Mapping[str, Avro]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise AvroError(f"the Avro schema is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("type") != "record":
        raise AvroError("the Avro schema must be a record")
    return found


def columns(schema: Mapping[str, Avro]) -> str:
    """Columns as in SQL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in _fields(schema, {}))


def _fields(schema: Mapping[str, Avro], named: dict[str, str]) -> list[tuple[str, str]]:
    found = []
    fields = schema.get("fields")
    if not isinstance(fields, list) or not fields:
        raise AvroError(f"record {schema.get('name')!r} has no fields")
    for item in fields:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str) or "type" not in item:
            raise AvroError(f"record {schema.get('name')!r} has a field without a name or a type")
        try:
            found.append((item["name"], _sql(item["type"], named)))
        except AvroError as error:
            raise AvroError(f"{item['name']}: {error}") from None
    return found


def _sql(schema: Avro, named: dict[str, str]) -> str:
    if isinstance(schema, str):
        kind = _PRIMITIVE.get(schema) or named.get(schema)
        if kind is None:
            raise AvroError(f"there is no type {schema!r} (records cannot contain themselves)")
        return kind
    if isinstance(schema, Mapping):
        return _complex(schema, named)
    branches = [branch for branch in schema if branch != "null"]
    if len(branches) != 1:
        raise AvroError('a union must be ["null", T]')
    return _sql(branches[0], named)


def _complex(schema: Mapping[str, Avro], named: dict[str, str]) -> str:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if isinstance(logical, str) and logical in _LOGICAL:
        found = _LOGICAL[logical]
    elif logical == "decimal":
        found = f"DECIMAL({schema.get('precision')}, {schema.get('scale', 0)})"
    elif kind == "array":
        return f"ARRAY<{_sql(schema['items'], named)}>"
    elif kind == "map":
        return f"MAP<STRING, {_sql(schema['values'], named)}>"
    elif kind == "record":
        found = f"STRUCT<{', '.join(f'`{name}`: {inner}' for name, inner in _fields(schema, named))}>"
    elif kind == "enum":
        found = "STRING"
    elif kind == "fixed":
        found = "BINARY"
    else:
        return _sql(kind, named) if kind is not None else "STRING"
    name = schema.get("name")
    if isinstance(name, str):
        named[name] = found
    return found


class Decoder:
    """Values to rows; made anew in each Python worker, because a parsed schema is not worth sending."""

    def __init__(self, schema_text: str, *, framed: bool = False) -> None:
        from fastavro import parse_schema as compiled

        self._schema = compiled(json.loads(schema_text))
        self._framed = framed

    def decode(self, value: bytes | None) -> tuple[dict[str, object] | None, str | None]:
        """The row, or why there is none."""
        from fastavro import schemaless_reader

        if value is None:
            return None, "the record has no value"
        if self._framed and value[:1] == b"\x00" and len(value) >= _FRAME_BYTES:
            value = value[_FRAME_BYTES:]
        stream = io.BytesIO(value)
        try:
            row = schemaless_reader(stream, self._schema, None)
        except Exception as error:  # fastavro raises whatever the bytes lead it to
            return None, f"not Avro of this schema: {error or type(error).__name__}"
        left = len(value) - stream.tell()
        if left:
            return None, f"not Avro of this schema: {left} bytes are left over"
        assert isinstance(row, dict)
        return row, None
