"""Follow one PostgreSQL table into a topic: a snapshot, then every change after it, without a gap and without a repeat.

How it holds:

- Creating a logical replication slot exports a snapshot of the very point at which the slot's stream begins. The rows of
  that snapshot are read first, then the stream: what was committed before is in one, what is committed after in the other.
- The records and the place in PostgreSQL's log that they reach (`progress`, a compacted topic) are produced in one
  transaction. After a crash the capture asks for the stream from there and drops the transactions it already has, which
  PostgreSQL sends again when it had not yet heard that they are stored.
- A capture that dies before its snapshot is whole leaves an aborted transaction and no progress. The next one drops
  the slot and begins anew: an exported snapshot does not outlive its session.

A record's key is the row's primary key, its value the row, both JSON with values as PostgreSQL prints them; a deleted row
is a tombstone, so that a compacted topic keeps exactly the rows that exist. A row whose key changes is a tombstone and a
new record. Every record is the whole row, as a compacted topic needs it: for that the table's replica identity is set
to FULL, without which PostgreSQL leaves out large values that did not change. Header `op` says what happened, `lsn` where
in PostgreSQL's log.

Limits: one PostgreSQL transaction fits in memory (`pgoutput.MAX_CHANGES`); the snapshot is one transaction of the topic and
must be read within `SNAPSHOT_TIMEOUT_MS`; TRUNCATE is not followed.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psycopg2
import psycopg2.extras
from confluent_kafka import Producer
from pgoutput import Change, Commit, Decoder, Row
from psycopg2 import sql
from stage import PATIENCE_SECONDS, Message, Stage

SNAPSHOT_TIMEOUT_MS = 15 * 60 * 1000
SNAPSHOT_ROWS_AT_A_TIME = 2_000
MAX_CHANGES_TOGETHER = 5_000
"""Of commits that are already waiting; a single larger one is still one transaction."""
IDLE_SECONDS = 0.1


class CaptureStopped(RuntimeError):
    """The capture ended; the message says why."""


@dataclass
class TableCapture:
    stage: Stage
    dsn: str
    table: str
    """schema.name"""
    topic: str
    progress_topic: str
    slot: str

    def __post_init__(self) -> None:
        self.position = 0
        """Every transaction that ends at or before this place of PostgreSQL's log is in the topic."""
        self.failure: BaseException | None = None
        self._columns: tuple[str, ...] = ()
        self._key: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"capture {self.table}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after what is in hand; what is not yet in the topic comes with the next start."""
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        if self.failure is not None:
            raise CaptureStopped(f"following {self.table} failed: {self.failure}") from self.failure

    def wait_past(self, lsn: int) -> None:
        """Until a transaction that ended after this place is in the topic."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.position <= lsn:
            if not self._thread.is_alive():
                raise CaptureStopped(f"following {self.table} failed: {self.failure}") from self.failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.table}: still at {self.position} after {PATIENCE_SECONDS} seconds")
            time.sleep(0.02)

    def _guarded(self) -> None:
        try:
            self._follow()
        except Exception as error:
            self.failure = error

    def _follow(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.stage.bootstrap,
                "transactional.id": f"capture-{self.slot}",
                "transaction.timeout.ms": SNAPSHOT_TIMEOUT_MS,
            }
        )
        producer.init_transactions(PATIENCE_SECONDS)  # aborts what a capture before us left open
        reached = self._recorded_progress()
        self._prepare()
        connection = psycopg2.connect(self.dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
        try:
            with connection.cursor() as cursor:
                if reached is None:
                    reached = self._take_snapshot(cursor, producer)
                self.position = reached
                self._stream(cursor, producer)
        finally:
            connection.close()

    def _recorded_progress(self) -> int | None:
        recorded = [item.value for item in self.stage.messages(self.progress_topic) if item.key == self.slot]
        if not recorded or recorded[-1] is None:
            return None
        lsn: int = json.loads(recorded[-1])["lsn"]
        return lsn

    def _prepare(self) -> None:
        """What the stream needs: a publication, whole old rows, and to know the table's columns."""
        table, publication = sql.Identifier(*self.table.split(".")), sql.Identifier(self.slot)
        with closing(psycopg2.connect(self.dsn)) as database, database, database.cursor() as cursor:
            self._columns, self._key = _columns(cursor, self.table)
            cursor.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [self.slot])
            if cursor.fetchone() is None:
                cursor.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))
                cursor.execute(
                    sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert, update, delete')").format(
                        publication, table
                    )
                )

    def _take_snapshot(self, cursor: psycopg2.extras.ReplicationCursor, producer: Producer) -> int:
        with closing(psycopg2.connect(self.dsn)) as database, database, database.cursor() as other:
            other.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
            )
        cursor.execute(f"CREATE_REPLICATION_SLOT {self.slot} LOGICAL pgoutput EXPORT_SNAPSHOT")
        _, point, snapshot, _ = cursor.fetchone()
        lsn = parse_lsn(point)
        producer.begin_transaction()
        for message in self._snapshot_rows(snapshot, lsn):
            self._produce(producer, message)
        self._commit(producer, lsn)
        return lsn

    def _snapshot_rows(self, snapshot: str, lsn: int) -> Iterator[Message]:
        reading = psycopg2.connect(self.dsn)
        try:
            reading.set_session(isolation_level="REPEATABLE READ", readonly=True)
            with reading.cursor() as cursor:
                cursor.execute("SET TRANSACTION SNAPSHOT %s", [snapshot])
            with reading.cursor("snapshot") as cursor:
                cursor.itersize = SNAPSHOT_ROWS_AT_A_TIME
                chosen = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in self._columns)
                cursor.execute(
                    sql.SQL("SELECT {} FROM {}").format(chosen, sql.Identifier(*self.table.split("."))),
                )
                for values in cursor:
                    row: Row = dict(zip(self._columns, values, strict=True))
                    yield _message("read", self._key, row, row, lsn)
        finally:
            reading.close()

    def _stream(self, cursor: psycopg2.extras.ReplicationCursor, producer: Producer) -> None:
        cursor.start_replication(
            slot_name=self.slot,
            slot_type=psycopg2.extras.REPLICATION_LOGICAL,
            start_lsn=self.position,
            options={"proto_version": "1", "publication_names": self.slot},
            decode=False,
        )
        decoder = Decoder()
        waiting: list[Commit] = []
        while not self._stop.is_set():
            message = cursor.read_message()
            if message is not None:
                commit = decoder.feed(message.payload)
                if commit is not None and commit.end_lsn > self.position:
                    waiting.append(commit)
            if waiting and (message is None or sum(len(each.changes) for each in waiting) >= MAX_CHANGES_TOGETHER):
                self._store(producer, waiting)
                cursor.send_feedback(flush_lsn=self.position)
                waiting = []
            elif message is None:
                select.select([cursor], [], [], IDLE_SECONDS)

    def _store(self, producer: Producer, commits: list[Commit]) -> None:
        producer.begin_transaction()
        for commit in commits:
            for change in commit.changes:
                for message in change_messages(change, self._key, commit.end_lsn):
                    self._produce(producer, message)
        self._commit(producer, commits[-1].end_lsn)
        self.position = commits[-1].end_lsn

    def _produce(self, producer: Producer, message: Message) -> None:
        while True:
            try:
                producer.produce(self.topic, message.value, message.key, headers=dict(message.headers))
                return
            except BufferError:  # the client's queue is full: let it send
                producer.poll(0.1)

    def _commit(self, producer: Producer, lsn: int) -> None:
        producer.produce(self.progress_topic, json.dumps({"lsn": lsn}), self.slot)
        producer.commit_transaction(PATIENCE_SECONDS)


def change_messages(change: Change, key: tuple[str, ...], lsn: int) -> Iterator[Message]:
    """The records of one change: one, or two when the row's key has changed."""
    before, after = change.before, change.after
    if before is not None and (after is None or any(before[name] != after.get(name) for name in key)):
        yield _message("delete", key, before, None, lsn)
    if after is not None:
        yield _message(change.operation, key, after, after, lsn)


def _message(operation: str, key: tuple[str, ...], identity: Row, row: Row | None, lsn: int) -> Message:
    name = json.dumps({column: identity[column] for column in key}, separators=(",", ":"))
    value = json.dumps(row).encode() if row is not None else None
    return Message(name, value, {"op": operation.encode(), "lsn": str(lsn).encode()})


def _columns(cursor: psycopg2.extensions.cursor, table: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All columns of the table, and those of its primary key."""
    cursor.execute(
        """SELECT attname, coalesce(attnum = ANY (indkey), false) FROM pg_attribute
           LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
           WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum""",
        [table],
    )
    found = cursor.fetchall()
    key = tuple(name for name, is_key in found if is_key)
    if not key:
        raise CaptureStopped(f"table {table} has no primary key, so its records would have no key")
    return tuple(name for name, _ in found), key


def parse_lsn(text: str) -> int:
    """A place in PostgreSQL's log as it prints it: two hexadecimal numbers with a slash."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
