"""Publisher confirms of one channel: in order, and as few frames as that allows.

A channel's publications of one turn form a group. It is complete when every append that it took part in is stored, and
groups leave in order, those that are complete together as one `basic.ack` with `multiple`. A publication that a queue at
its maximum rejected gets a `basic.nack` of its own; a group whose append failed is nacked as a whole: the publisher must
count on nothing in it.

Because groups leave in order, a transient publication waits for the fsync of a persistent one before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from trunkline.broker.messaging.publishing import append_failed
from trunkline.broker.messaging.queue import Queue
from trunkline.log.ticket import Appended
from trunkline.protocols.amqp.codec import encode_confirm


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
    """`sequence` numbers publications; `send` writes frames; `note` is told how many bytes more (or fewer) wait."""

    __slots__ = (
        "_channel",
        "_first",
        "_groups",
        "_note",
        "_open",
        "_rejected",
        "_send",
        "_turn_bytes",
        "queues",
        "sequence",
        "stored",
    )

    def __init__(self, channel: int, send: Callable[[bytes], None], note: Callable[[int], None]) -> None:
        self._channel = channel
        self._send = send
        self._note = note
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
        """The channel is gone: nothing more is sent on it."""
        self._open = False

    def reject(self, sequence: int) -> None:
        self._rejected.append(sequence)

    def end_turn(self) -> None:
        """The turn's publications are appended: confirm them now or when they are stored."""
        if self.sequence < self._first:
            return
        group = _Group(self._first, self.sequence, self._rejected, self._turn_bytes)
        self._first = self.sequence + 1
        self._rejected = []
        self._turn_bytes = 0
        self._groups.append(group)
        self._note(group.size_bytes)
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
        acked = 0
        while self._groups and self._groups[0].waiting == 0:
            group = self._groups.popleft()
            self._note(-group.size_bytes)
            if not self._open:
                continue
            if not group.failed and not group.rejected:
                acked = group.last
                continue
            if acked:
                self._send(encode_confirm(self._channel, acked, True))
                acked = 0
            if group.failed:
                self._send(encode_confirm(self._channel, group.last, group.last > group.first, nack=True))
            else:
                self._confirm_each(group)
        if acked:
            self._send(encode_confirm(self._channel, acked, True))

    def _confirm_each(self, group: _Group) -> None:
        start = group.first
        for sequence in sorted(set(group.rejected)):
            if sequence > start:
                self._send(encode_confirm(self._channel, sequence - 1, True))
            self._send(encode_confirm(self._channel, sequence, False, nack=True))
            start = sequence + 1
        if start <= group.last:
            self._send(encode_confirm(self._channel, group.last, True))
