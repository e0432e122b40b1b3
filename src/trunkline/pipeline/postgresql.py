"""PostgreSQL tables: each batch in one transaction with its number, so exactly once.

    trunkline_batches (application text PRIMARY KEY, batch bigint)    the last batch of each checkpoint

The table is created where it is missing; its columns are those of the first batch. Lists and structs become jsonb. `append`
copies rows in, `complete` replaces them all, `upsert` copies to a temporary table and inserts from there on conflict update.
A batch must fit into the driver's memory, as in `lake`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from trunkline.pipeline.definition import COMPLETE, UPSERT, PostgresqlSink
from trunkline.pipeline.lake import last_of_each, missing_package

if TYPE_CHECKING:
    from psycopg import Cursor
    from psycopg.sql import Composable, Identifier

BATCHES: Final = "trunkline_batches"
_LOCK: Final = 0x7472756E6B  # one for all our sinks: two that create the table of batches at once would collide
_ROWS_AT_A_TIME: Final = 10_000


class PostgresqlWriter:
    def __init__(self, sink: PostgresqlSink, table: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise missing_package("psycopg", "postgresql", "postgresql") from None
        self._package = psycopg
        self._sink = sink
        self._table = table

    def write(self, rows: pa.Table, application: str, batch: int) -> None:
        from psycopg.sql import SQL

        with self._package.connect(self._sink.url.removeprefix("jdbc:")) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {BATCHES} (application text PRIMARY KEY, batch bigint NOT NULL)"
            )
            cursor.execute(f"SELECT batch FROM {BATCHES} WHERE application = %s", [application])
            done = cursor.fetchone()
            if done is not None and done[0] >= batch:
                return
            target = self._name(self._table)
            cursor.execute(SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(target, self._columns(rows.schema)))
            if self._sink.mode == COMPLETE:
                cursor.execute(SQL("DELETE FROM {}").format(target))
            if self._sink.mode == UPSERT:
                self._upsert(cursor, last_of_each(rows, self._sink.keys), target)
            else:
                self._copy(cursor, rows, target)
            cursor.execute(
                f"INSERT INTO {BATCHES} VALUES (%s, %s) ON CONFLICT (application) DO UPDATE SET batch = excluded.batch",
                [application, batch],
            )

    @staticmethod
    def _name(table: str) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier(*table.split("."))

    def _columns(self, schema: pa.Schema) -> Composable:
        from psycopg.sql import SQL, Identifier

        parts: list[Composable] = [SQL("{} " + column_type(item.type)).format(Identifier(item.name)) for item in schema]
        if self._sink.keys:
            keys = SQL(", ").join(Identifier(key) for key in self._sink.keys)
            parts.append(SQL("PRIMARY KEY ({})").format(keys))
        return SQL(", ").join(parts)

    def _upsert(self, cursor: Cursor[tuple[object, ...]], rows: pa.Table, target: Identifier) -> None:
        from psycopg.sql import SQL, Identifier

        staging = Identifier("trunkline_staging")
        cursor.execute(SQL("CREATE TEMPORARY TABLE {} (LIKE {}) ON COMMIT DROP").format(staging, target))
        self._copy(cursor, rows, staging)
        names = SQL(", ").join(Identifier(name) for name in rows.column_names)
        others = [Identifier(name) for name in rows.column_names if name not in self._sink.keys]
        action: Composable = SQL("NOTHING")
        if others:
            changes = SQL(", ").join(SQL("{0} = excluded.{0}").format(name) for name in others)
            action = SQL("UPDATE SET {}").format(changes)
        cursor.execute(
            SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}").format(
                target, names, names, staging, SQL(", ").join(Identifier(key) for key in self._sink.keys), action
            )
        )

    @staticmethod
    def _copy(cursor: Cursor[tuple[object, ...]], rows: pa.Table, target: Identifier) -> None:
        from psycopg.sql import SQL, Identifier

        names = SQL(", ").join(Identifier(name) for name in rows.column_names)
        with cursor.copy(SQL("COPY {} ({}) FROM STDIN").format(target, names)) as copy:
            for piece in rows.to_batches(max_chunksize=_ROWS_AT_A_TIME):
                columns = [[_cell(value) for value in column.to_pylist()] for column in piece.columns]
                for row in zip(*columns, strict=True):
                    copy.write_row(row)


def column_type(kind: pa.DataType) -> str:
    """PostgreSQL's type for a column of Spark's."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return "smallint"
    if pa.types.is_int32(kind):
        return "integer"
    if pa.types.is_integer(kind):
        return "bigint"
    if pa.types.is_float32(kind):
        return "real"
    if pa.types.is_floating(kind):
        return "double precision"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytea"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_nested(kind):
        return "jsonb"
    return "text"


def _cell(value: object) -> object:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else value
