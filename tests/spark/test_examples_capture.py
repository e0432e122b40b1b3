"""Following a PostgreSQL table: what a capture that dies leaves behind, and what its protocol decoder refuses."""

from __future__ import annotations

import contextlib
import json
import struct
from collections import Counter

import psycopg2
import pytest
from pgoutput import MAX_CHANGES, Change, Commit, Decoder, MalformedMessage, Row
from private_postgres import PrivatePostgres
from stage import PATIENCE_SECONDS, Stage
from table_capture import CaptureStopped, TableCapture, change_messages, parse_lsn

ROWS = 20


class Died(Exception):
    """Stands for a process that was killed at this point."""


class DiesBeforeItsCommit(TableCapture):
    def _commit(self, producer: object, lsn: int) -> None:
        raise Died


class DiesBeforeItsFeedback(TableCapture):
    """Stores, and does not come to tell PostgreSQL."""

    def _store(self, producer: object, commits: list[Commit]) -> None:
        super()._store(producer, commits)
        raise Died


@pytest.fixture
def table(postgres: PrivatePostgres, stage: Stage) -> str:
    """A table of the test's own, with rows."""
    name = "t" + stage.prefix.replace("-", "")
    execute(postgres, f"CREATE TABLE public.{name} (id integer PRIMARY KEY, word text)")
    execute(postgres, f"INSERT INTO public.{name} SELECT n, 'word ' || n FROM generate_series(1, {ROWS}) n")
    return name


def execute(postgres: PrivatePostgres, statement: str) -> int:
    """Run it in a transaction of its own; where PostgreSQL's log was before."""
    with contextlib.closing(psycopg2.connect(postgres.dsn)) as database:
        with database, database.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_insert_lsn()")
            (place,) = cursor.fetchone()
        with database, database.cursor() as cursor:
            cursor.execute(statement)
    return parse_lsn(place)


def captures(stage: Stage, postgres: PrivatePostgres, table: str, *kinds: type[TableCapture]) -> list[TableCapture]:
    topic, progress = stage.topic("rows", compacted=True), stage.topic("progress", 1, compacted=True)
    return [kind(stage, postgres.dsn, f"public.{table}", topic, progress, f"{table}_slot") for kind in kinds]


def dies(capture: TableCapture) -> None:
    capture.start()
    capture._thread.join(PATIENCE_SECONDS)
    with pytest.raises(CaptureStopped):
        capture.stop()
    assert isinstance(capture.failure, Died)


def kinds(stage: Stage, topic: str) -> Counter[str]:
    return Counter(message.headers["op"].decode() for message in stage.messages(topic))


def test_a_capture_that_dies_in_its_snapshot_leaves_nothing(
    stage: Stage, postgres: PrivatePostgres, table: str
) -> None:
    dying, next_one = captures(stage, postgres, table, DiesBeforeItsCommit, TableCapture)
    dies(dying)
    next_one.start()
    next_one.wait_past(0)
    next_one.wait_past(execute(postgres, f"DELETE FROM public.{table} WHERE id = 1"))
    next_one.stop()
    assert kinds(stage, next_one.topic) == {"read": ROWS, "delete": 1}
    (deleted,) = [message for message in stage.messages(next_one.topic) if message.value is None]
    assert deleted.key == json.dumps({"id": "1"}, separators=(",", ":"))


def test_changes_stored_but_not_confirmed_are_not_repeated(stage: Stage, postgres: PrivatePostgres, table: str) -> None:
    first, dying, last = captures(stage, postgres, table, TableCapture, DiesBeforeItsFeedback, TableCapture)
    first.start()
    first.wait_past(0)
    first.stop()
    execute(postgres, f"UPDATE public.{table} SET word = 'new' WHERE id <= 5")
    dies(dying)
    last.start()
    last.wait_past(execute(postgres, f"INSERT INTO public.{table} VALUES (100, 'last')"))
    last.stop()
    assert kinds(stage, last.topic) == {"read": ROWS, "update": 5, "insert": 1}


def test_a_table_without_a_primary_key_is_refused(stage: Stage, postgres: PrivatePostgres) -> None:
    name = "k" + stage.prefix.replace("-", "")
    execute(postgres, f"CREATE TABLE public.{name} (word text)")
    (capture,) = captures(stage, postgres, name, TableCapture)
    capture.start()
    with pytest.raises(CaptureStopped, match="no primary key"):
        capture.wait_past(0)


def text(value: str) -> bytes:
    return b"t" + struct.pack(">i", len(value)) + value.encode()


RELATION = b"R" + struct.pack(">I", 7) + b"shop\0items\0f" + struct.pack(">H", 2)
RELATION += b"\x01id\0" + bytes(8) + b"\x00note\0" + bytes(8)
BEGIN = b"B" + bytes(20)
COMMIT = b"C\0" + struct.pack(">QQQ", 90, 100, 0)
INSERT = b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 2) + text("1") + b"n"
OLD = struct.pack(">H", 2) + text("1") + text("large")
UPDATE = b"U" + struct.pack(">I", 7) + b"O" + OLD + b"N" + struct.pack(">H", 2) + text("2") + b"u"
DELETE = b"D" + struct.pack(">I", 7) + b"O" + OLD
SESSION = (BEGIN, RELATION, INSERT, UPDATE, DELETE, COMMIT)


def test_a_transaction_is_decoded_with_values_that_were_not_sent_again() -> None:
    decoder = Decoder()
    answers = [decoder.feed(message) for message in SESSION]
    assert answers[:-1] == [None] * 5
    before: Row = {"id": "1", "note": "large"}
    assert answers[-1] == Commit(
        100,
        (
            Change("insert", "shop.items", None, {"id": "1", "note": None}),
            Change("update", "shop.items", before, {"id": "2", "note": "large"}),
            Change("delete", "shop.items", before, None),
        ),
    )


def test_a_changed_key_is_a_tombstone_and_a_new_record() -> None:
    change = Change("update", "shop.items", {"id": "1", "note": "a"}, {"id": "2", "note": "a"})
    old, new = change_messages(change, ("id",), 5)
    assert (old.key, old.value, old.headers["op"]) == ('{"id":"1"}', None, b"delete")
    assert (new.key, json.loads(new.value or b"")) == ('{"id":"2"}', {"id": "2", "note": "a"})


@pytest.mark.parametrize("message", SESSION, ids=lambda message: chr(message[0]))
def test_a_message_that_is_cut_off_is_refused(message: bytes) -> None:
    for size in range(len(message)):
        if size and message[:1] == b"B":
            continue  # nothing in a begin is of interest
        decoder = Decoder()
        for earlier in SESSION[: SESSION.index(message)]:
            decoder.feed(earlier)
        with pytest.raises(MalformedMessage):
            decoder.feed(message[:size])


def test_a_change_outside_of_a_transaction_or_of_an_unknown_table_is_refused() -> None:
    decoder = Decoder()
    decoder.feed(RELATION)
    with pytest.raises(MalformedMessage, match="outside"):
        decoder.feed(INSERT)
    with pytest.raises(MalformedMessage, match="not announced"):
        Decoder().feed(DELETE)


def test_a_transaction_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_CHANGES > 1
    monkeypatch.setattr("pgoutput.MAX_CHANGES", 1)
    decoder = Decoder()
    for message in (RELATION, BEGIN, INSERT):
        decoder.feed(message)
    with pytest.raises(MalformedMessage, match="more than 1"):
        decoder.feed(INSERT)
