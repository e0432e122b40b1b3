"""What goes into a queue and what comes out. Tuples: a turn makes thousands of them, and none is ever changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trunkline.cursors.queue.cursor import QueueCursor

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


class Delivery(NamedTuple):
    """A message in the hands of a consumer. It is leased until it is acknowledged, released or rejected."""

    offset: int
    message: Message
    redelivered: bool
    delivery_count: int  # 1 the first time
    queue: QueueCursor
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
