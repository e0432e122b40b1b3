"""Change data capture: a PostgreSQL table, followed into a compacted topic, applied to a table elsewhere.

    PostgreSQL  shop.customers  --(logical replication)-->  topic customers  --(Spark)-->  replica.customers

An application goes on writing while the snapshot is taken and while its changes stream. The sink applies each batch of
records in one transaction with the batch's number, so that a batch that Spark repeats is applied once. At the end both
tables are equal row by row, and the topic, read as a table by key, is equal to them.

The replica is in the same PostgreSQL here, for want of a second; nothing depends on that.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import psycopg2
from private_postgres import PrivatePostgres
from stage import PATIENCE_SECONDS, Stage, main
from table_capture import TableCapture, parse_lsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLES = """
    CREATE SCHEMA shop;
    CREATE SCHEMA replica;
    CREATE TABLE shop.customers (id integer PRIMARY KEY, name text NOT NULL, city text, balance numeric NOT NULL, note text);
    CREATE TABLE replica.customers (LIKE shop.customers INCLUDING ALL);
    CREATE TABLE replica.batches (query text PRIMARY KEY, batch bigint NOT NULL);
"""
UPSERT = """
    INSERT INTO replica.customers SELECT * FROM jsonb_populate_record(NULL::replica.customers, %(value)s::jsonb)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, city = excluded.city, balance = excluded.balance,
                                   note = excluded.note
"""
DELETE = "DELETE FROM replica.customers WHERE id = (%(key)s::jsonb ->> 'id')::integer"
QUERY = "customers"
MAX_RECORDS_PER_BATCH = 10_000
CUSTOMERS_BEFORE = 200
CHANGES = 60
PAUSE_SECONDS = 0.004
LARGE_NOTE = "".join(f"{number:07x}" for number in range(3_000))  # large enough to be stored apart from its row

Rows: TypeAlias = list[tuple[object, ...]]


@dataclass(frozen=True)
class Captured:
    source: Rows
    replica: Rows
    topic: dict[str, dict[str, str | None]]
    """The topic read as a table: the last record of each key, without what was deleted."""
    operations: dict[str, int]
    """How many records of each kind are in the topic."""
    tombstones: int


def run(stage: Stage) -> Captured:
    with contextlib.ExitStack() as stack:
        dsn = stage.postgres or stack.enter_context(PrivatePostgres()).dsn
        database = stack.enter_context(contextlib.closing(psycopg2.connect(dsn)))
        with database, database.cursor() as cursor:
            cursor.execute(TABLES)
            for number in range(CUSTOMERS_BEFORE):
                cursor.execute(
                    "INSERT INTO shop.customers VALUES (%s, %s, %s, %s, %s)",
                    [number, f"customer {number}", ("Oslo", "Rome", None)[number % 3], number * 10, LARGE_NOTE],
                )
        topic = stage.topic("customers", compacted=True)
        progress = stage.topic("customers.progress", 1, compacted=True)

        def new_capture() -> TableCapture:
            return TableCapture(stage, dsn, "shop.customers", topic, progress, "customers_capture")

        capture = new_capture()
        application = Application(dsn)
        application.start()
        application.wait_for_changes(CHANGES)  # some of its changes will be in the snapshot, others in the stream
        capture.start()
        capture.wait_past(0)
        application.wait_for_changes(CHANGES)
        application.stop()
        capture.wait_past(_mark(database))
        capture.stop()
        stage.say(
            f"followed {CUSTOMERS_BEFORE} rows, and {application.changes} changes made before, during and after the snapshot"
        )
        _replicate(stage, topic, dsn)

        application = Application(dsn, application.changes)  # while nobody follows: PostgreSQL keeps it for the slot
        application.start()
        application.wait_for_changes(CHANGES)
        application.stop()
        capture = new_capture()
        capture.start()
        capture.wait_past(_mark(database))
        capture.stop()
        _replicate(stage, topic, dsn)
        captured = _compare(stage, database, topic)
    stage.show(
        "shop.customers and replica.customers",
        ["id", "name", "city", "balance", "same in the replica"],
        [(*row[:4], "yes" if row in captured.replica else "NO") for row in captured.source[:8]],
    )
    stage.say(
        f"{len(captured.source)} rows, {len(captured.replica)} in the replica, {len(captured.topic)} live keys in the topic; "
        f"records by kind: {captured.operations}, tombstones: {captured.tombstones}"
    )
    return captured


class Application:
    """Goes on changing the table, in transactions of different sizes, until it is told to stop."""

    def __init__(self, dsn: str, first: int = 0) -> None:
        self.changes = first
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="application", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)

    def wait_for_changes(self, count: int) -> None:
        goal, deadline = self.changes + count, time.monotonic() + PATIENCE_SECONDS
        while self.changes < goal:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise TimeoutError(f"the application made {self.changes} changes, not {goal}")
            time.sleep(0.01)

    def _work(self) -> None:
        with contextlib.closing(psycopg2.connect(self._dsn)) as database:
            while not self._stop.wait(PAUSE_SECONDS):
                with database, database.cursor() as cursor:
                    _change(cursor, self.changes)
                self.changes += 1


def _change(cursor: psycopg2.extensions.cursor, number: int) -> None:
    customer = number * 7 % CUSTOMERS_BEFORE
    kind = number % 6
    if kind == 0:
        cursor.execute("INSERT INTO shop.customers VALUES (%s, %s, 'Bonn', 5, NULL)", [1_000 + number, f"new {number}"])
    elif kind == 1:
        cursor.execute("DELETE FROM shop.customers WHERE id = %s", [customer])
    elif kind == 2:
        cursor.execute("UPDATE shop.customers SET id = id + 500000 WHERE id = %s", [customer])
    else:  # the large note stays as it is and is not sent again
        cursor.execute(
            "UPDATE shop.customers SET balance = balance + 1, city = 'Kyiv' WHERE id BETWEEN %s AND %s",
            [customer, customer + 3],
        )


def _mark(database: psycopg2.extensions.connection) -> int:
    """A place in the log before one last change: once that is captured, so is all that was committed before."""
    with database, database.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        (place,) = cursor.fetchone()
    with database, database.cursor() as cursor:
        cursor.execute(
            "UPDATE shop.customers SET balance = balance + 1 WHERE id = (SELECT max(id) FROM shop.customers)"
        )
    return parse_lsn(place)


def _replicate(stage: Stage, topic: str, dsn: str) -> None:
    changes = stage.stream(topic, maxOffsetsPerTrigger=str(MAX_RECORDS_PER_BATCH))
    stage.catch_up(changes.writeStream.foreachBatch(applier(dsn)), QUERY)


def applier(dsn: str) -> Callable[[DataFrame, int], None]:
    """Applies a batch of records to the replica: in order, and once however often Spark asks."""

    def apply(batch: DataFrame, number: int) -> None:
        records = batch.selectExpr(
            "cast(key AS string) AS key", "cast(value AS string) AS value", "partition", "offset"
        )
        ordered = records.orderBy("partition", "offset").drop("partition", "offset").toArrow().to_pylist()
        with contextlib.closing(psycopg2.connect(dsn)) as database, database, database.cursor() as cursor:
            cursor.execute("SELECT batch FROM replica.batches WHERE query = %s", [QUERY])
            last = cursor.fetchone()
            if last is not None and last[0] >= number:
                return
            for record in ordered:
                cursor.execute(DELETE if record["value"] is None else UPSERT, record)
            cursor.execute(
                "INSERT INTO replica.batches VALUES (%s, %s) ON CONFLICT (query) DO UPDATE SET batch = excluded.batch",
                [QUERY, number],
            )

    return apply


def _compare(stage: Stage, database: psycopg2.extensions.connection, topic: str) -> Captured:
    with database, database.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.customers ORDER BY id")
        source = cursor.fetchall()
        cursor.execute("SELECT * FROM replica.customers ORDER BY id")
        replica = cursor.fetchall()
    live: dict[str, dict[str, str | None]] = {}
    operations: dict[str, int] = {}
    tombstones = 0
    for message in stage.messages(topic):
        kind = message.headers["op"].decode()
        operations[kind] = operations.get(kind, 0) + 1
        assert message.key is not None
        if message.value is None:
            tombstones += 1
            live.pop(message.key, None)
        else:
            live[message.key] = json.loads(message.value)
    return Captured(source, replica, live, operations, tombstones)


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
