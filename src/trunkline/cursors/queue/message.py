"""What goes into a queue and what comes out. Tuples: a turn makes thousands of them, and none is ever changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from trunkline.log.ticket import Appended

NO_HEADERS = b"\x00"  # an encoded header section with a count of zero


class Message(NamedTuple):
    """A record as a queue sees it. `headers` is the record's encoded header section, its count included."""

    value: bytes
    headers: bytes = NO_HEADERS
    key: bytes | None = None
    timestamp_ms: int = -1  # when the broker took it; -1: at the put
    expires_ms: int | None = None  # wall clock
    priority: int = 0
    persistent: bool = True


class Lessor(Protocol):
    """The queue that a delivery comes from, to which a consumer gives it back. QueueCursor says what each call does."""

    @property
    def name(self) -> str: ...

    @property
    def gone(self) -> bool: ...

    def held_by(self, consumer: object) -> list[int]: ...

    def acknowledge(self, offsets: Iterable[int]) -> int: ...

    def release(self, offsets: Iterable[int], *, redelivered: bool = True) -> int: ...

    def retry(self, offsets: Iterable[int], delay_ms: int | None = None) -> int: ...

    def reject(self, offsets: Iterable[int]) -> int: ...

    def holds(self, delivery: Delivery) -> bool: ...

    def keep(self, delivery: Delivery) -> bool: ...

    def committing(self, offsets: Sequence[int]) -> tuple[bytes, bytes | None] | None: ...

    def forget_committed(self, record: tuple[bytes, bytes | None]) -> None: ...

    def give_up(self, delivery: Delivery, why: object) -> None: ...

    def extend(self, offset: int, lease_ms: int) -> bool: ...

    def committed(self) -> asyncio.Future[Appended] | None: ...


class Delivery(NamedTuple):
    """A message in the hands of a consumer. It is leased until it is acknowledged, released or rejected."""

    offset: int
    message: Message
    redelivered: bool
    delivery_count: int  # 1 the first time
    queue: Lessor
    consumer: object


class QueueStats(NamedTuple):
    ready: int
    unacked: int
    delayed: int
    consumers: int
    ready_bytes: int  # after a restart an estimate until the backlog was read
    unacked_bytes: int
    buffered_bytes: int
    head_offset: int
    end_offset: int
    published: int  # since the start of the broker, as are the others below
    delivered: int
    redelivered: int
    acknowledged: int
    dead_lettered: int
