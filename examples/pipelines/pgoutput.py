"""PostgreSQL's logical replication messages (plug-in `pgoutput`, protocol version 1) as changes.

The wire, big-endian, first byte the kind; names end with a zero byte:

    B  final lsn 8, time 8, xid 4                                   a transaction begins
    C  flags 1, commit lsn 8, end lsn 8, time 8                     it has been committed
    R  relation 4, namespace, name, identity 1, columns 2, then per column: flags 1, name, type 4, modifier 4
    I  relation 4, 'N', row                                         insert
    U  relation 4, ['K' | 'O', old row,] 'N', new row               update; K: old key (it changed), O: old row
    D  relation 4, 'K' | 'O', row                                   delete
    T  relations 4, options 1, relation 4 each                      truncate
    O, Y, M  origin, type, message: of no interest here

    row: columns 2, then per column: 'n' null | 'u' unchanged, too large to be sent | 't' length 4, text

`Decoder.feed` takes one message and returns the whole transaction when it was the commit. Relations are announced before
they are first used in a session and again when they change, so a decoder belongs to one session. Values are text as
PostgreSQL prints them. A transaction is held in memory until its commit: `MAX_CHANGES` is the limit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

MAX_CHANGES = 1_000_000
Row: TypeAlias = dict[str, str | None]

_COMMIT = struct.Struct(">BQQQ")
_IDLE_KINDS = frozenset(b"OYM")


class MalformedMessage(ValueError):
    """Not a message of pgoutput version 1, or one that this decoder's session should not have sent."""


@dataclass(frozen=True, slots=True)
class Relation:
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """`before` is the old row as far as the table's replica identity has it sent: with FULL, whole and always."""

    operation: str
    """insert, update, delete or truncate"""
    table: str
    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class Commit:
    end_lsn: int
    """Where the log goes on after this transaction: confirming it confirms the transaction."""
    changes: tuple[Change, ...]


@dataclass(slots=True)
class Decoder:
    _relations: dict[int, Relation] = field(default_factory=dict)
    _open: list[Change] | None = None

    def feed(self, message: bytes) -> Commit | None:
        reader = _Reader(message)
        kind = reader.kind()
        if kind == "B":
            self._open = []
        elif kind == "C":
            _, _, end_lsn, _ = _COMMIT.unpack(reader.take(_COMMIT.size))
            changes, self._open = self._changes(), None
            return Commit(end_lsn, tuple(changes))
        elif kind == "R":
            self._relations.update([_relation(reader)])
        elif kind in {"I", "U", "D"}:
            self._add(_row_change(kind, self._relation(reader.number(4)), reader))
        elif kind == "T":
            count, _ = reader.number(4), reader.number(1)
            for _ in range(count):
                relation = self._relation(reader.number(4))
                self._add(Change("truncate", relation.table, None, None))
        elif ord(kind) not in _IDLE_KINDS:
            raise MalformedMessage(f"a message of kind {kind!r}")
        return None

    def _changes(self) -> list[Change]:
        if self._open is None:
            raise MalformedMessage("a change or commit outside of a transaction")
        return self._open

    def _add(self, change: Change) -> None:
        changes = self._changes()
        if len(changes) >= MAX_CHANGES:
            raise MalformedMessage(f"a transaction of more than {MAX_CHANGES} changes")
        changes.append(change)

    def _relation(self, identifier: int) -> Relation:
        try:
            return self._relations[identifier]
        except KeyError:
            raise MalformedMessage(f"relation {identifier} was not announced") from None


class _Reader:
    """Takes fields off the front of one message."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def take(self, size: int) -> bytes:
        found = self._message[self._at : self._at + size]
        if len(found) != size:
            raise MalformedMessage("a message is cut off")
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def kind(self) -> str:
        return chr(self.number(1))

    def name(self) -> str:
        end = self._message.find(b"\0", self._at)
        if end < 0:
            raise MalformedMessage("a name has no end")
        found = self.text(end - self._at)
        self._at = end + 1
        return found

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise MalformedMessage("a text is not UTF-8") from None


def _relation(reader: _Reader) -> tuple[int, Relation]:
    identifier, namespace, name = reader.number(4), reader.name(), reader.name()
    reader.number(1)  # the replica identity: what `before` will hold
    columns: list[str] = []
    for _ in range(reader.number(2)):
        reader.number(1)  # whether it is part of the replica identity
        columns.append(reader.name())
        reader.take(8)  # the type and its modifier
    return identifier, Relation(f"{namespace}.{name}", tuple(columns))


def _row_change(kind: str, relation: Relation, reader: _Reader) -> Change:
    part = reader.kind()
    before: Row | None = None
    if part in {"K", "O"}:
        before = _row(reader, relation, {})
        part = reader.kind() if kind == "U" else ""
    if kind == "D":
        return Change("delete", relation.table, before, None)
    if part != "N":
        raise MalformedMessage(f"a row marked {part!r}")
    after = _row(reader, relation, before or {})
    return Change("insert" if kind == "I" else "update", relation.table, before, after)


def _row(reader: _Reader, relation: Relation, before: Mapping[str, str | None]) -> Row:
    """A large value that did not change is not sent again: it is taken from the old row."""
    row: Row = {}
    count = reader.number(2)
    if count != len(relation.columns):
        raise MalformedMessage(f"{count} values for the {len(relation.columns)} columns of {relation.table}")
    for column in relation.columns:
        kind = reader.kind()
        if kind == "t":
            row[column] = reader.text(reader.number(4))
        elif kind == "n":
            row[column] = None
        elif kind == "u":
            if column not in before:
                raise MalformedMessage(f"{relation.table}.{column} was not sent: the table needs REPLICA IDENTITY FULL")
            row[column] = before[column]
        else:
            raise MalformedMessage(f"a value of kind {kind!r}")
    return row
