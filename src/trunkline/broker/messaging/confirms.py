"""Confirms of a publisher: in order, and told as few times as that allows.

A publisher's publications of one turn form a group. It is complete when every append that it took part in is stored, and
groups are told of in order, those that are complete together as one. A publication that a queue at its maximum rejected is
told of by itself; a group whose append failed is refused as a whole: the publisher must count on nothing in it.

Because groups are told of in order, a transient publication waits for the fsync of a persistent one before it.

What a protocol makes of it is its own: AMQP a `basic.ack` or `basic.nack`, STOMP the receipts of these publications.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Protocol

from trunkline.broker.messaging.publishing import append_failed
from trunkline.broker.messaging.queue import Queue
from trunkline.log.ticket import Appended


class Confirmed(Protocol):
    """Who is told. Publications are numbered from 1."""

    def tell_stored(self, last: int) -> None:
        """All up to and including this one that were not told of before are stored."""

    def tell_refused(self, first: int, last: int) -> None:
        """These are not."""

    def note_unconfirmed(self, more_bytes: int) -> None:
        """So many bytes more (or fewer) wait to be stored."""


class _Group:
    __slots__ = ("failed", "first", "last", "rejected", "size_bytes", "waiting")

    def __init__(self, first: int, last: int, rejected: list[int], size_bytes: int) -> None:
        self.first = first
        self.last = last
        self.rejected = rejected
        self.size_bytes = size_bytes
        self.waiting = 0
        self.failed = False


class Confirms:
    """`sequence` numbers publications."""

    __slots__ = ("_first", "_groups", "_open", "_rejected", "_told", "_turn_bytes", "queues", "sequence", "stored")

    def __init__(self, told: Confirmed) -> None:
        self._told = told
        self._open = True
        self.sequence = 0
        self.queues: dict[Queue, None] = {}  # that publications of this turn went to
        self.stored: list[asyncio.Future[Appended]] = []  # further appends that this turn's confirms wait for
        self._first = 1  # of this turn
        self._turn_bytes = 0
        self._rejected: list[int] = []
        self._groups: deque[_Group] = deque()

    def add(self, size_bytes: int) -> int:
        """Number the next publication."""
        self.sequence += 1
        self._turn_bytes += size_bytes
        return self.sequence

    def close(self) -> None:
        """The publisher is gone: it is told nothing more."""
        self._open = False

    def reject(self, sequence: int) -> None:
        self._rejected.append(sequence)

    def end_turn(self) -> None:
        """The turn's publications are appended: tell of them now or when they are stored."""
        if self.sequence < self._first:
            return
        group = _Group(self._first, self.sequence, self._rejected, self._turn_bytes)
        self._first = self.sequence + 1
        self._rejected = []
        self._turn_bytes = 0
        self._groups.append(group)
        self._told.note_unconfirmed(group.size_bytes)
        appends, self.stored = self.stored, []
        for queue in self.queues:
            group.failed = group.failed or queue.failed
            if queue.stored is not None:
                appends.append(queue.stored)
        self.queues.clear()
        for stored in appends:
            if stored.done():
                group.failed = group.failed or append_failed(stored)
            else:
                group.waiting += 1
                stored.add_done_callback(partial(self._stored, group))
        self._release()

    def _stored(self, group: _Group, stored: asyncio.Future[Appended]) -> None:
        group.waiting -= 1
        group.failed = group.failed or append_failed(stored)
        self._release()

    def _release(self) -> None:
        confirmed = 0
        while self._groups and self._groups[0].waiting == 0:
            group = self._groups.popleft()
            self._told.note_unconfirmed(-group.size_bytes)
            if not self._open:
                continue
            if not group.failed and not group.rejected:
                confirmed = group.last
                continue
            if confirmed:
                self._told.tell_stored(confirmed)
                confirmed = 0
            if group.failed:
                self._told.tell_refused(group.first, group.last)
            else:
                self._tell_each(group)
        if confirmed:
            self._told.tell_stored(confirmed)

    def _tell_each(self, group: _Group) -> None:
        start = group.first
        for sequence in sorted(set(group.rejected)):
            if sequence > start:
                self._told.tell_stored(sequence - 1)
            self._told.tell_refused(sequence, sequence)
            start = sequence + 1
        if start <= group.last:
            self._told.tell_stored(group.last)
