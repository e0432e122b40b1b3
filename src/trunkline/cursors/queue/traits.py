"""Messages and record batches.

What a queue must know of a message to order and expire it is in its record headers, as decimal text, so that it is found
again when the message is read back from the log:

    amqp.priority        0 to 255
    amqp.expiration      how long it may wait, in milliseconds from the record's timestamp
    amqp.delivery-mode   1: need not survive a restart of the broker

Most messages of a queue have the same header section; what a section says is remembered by its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from trunkline.cursors.queue.message import Message
from trunkline.log.errors import CorruptBatch
from trunkline.log.records import LightRecord, decode_headers, encode_records

PRIORITY_HEADER = "amqp.priority"
EXPIRATION_HEADER = "amqp.expiration"
DELIVERY_MODE_HEADER = "amqp.delivery-mode"
_PREFIX = b"amqp."
_MAX_REMEMBERED = 4_096
_MAX_REMEMBERED_BYTES = 1_024
_MAX_EXPIRATION_MS = (1 << 53) - 1
_RECORD_OVERHEAD_BYTES = 32

_record_of = itemgetter(2, 0, 1, 3)


class Traits(NamedTuple):
    priority: int = 0
    expiration_ms: int | None = None
    persistent: bool = True


_PLAIN = Traits()


def traits_of(headers: bytes) -> Traits:
    if _PREFIX not in headers:
        return _PLAIN
    if len(headers) > _MAX_REMEMBERED_BYTES:
        return _read_traits(headers)
    return _remembered_traits(headers)


def _read_traits(headers: bytes) -> Traits:
    priority, expiration_ms, persistent = 0, None, True
    try:
        found = decode_headers(headers)
    except CorruptBatch:
        return _PLAIN
    for name, value in found:
        if value is None or not value.isdigit() or len(value) > 16:
            continue
        if name == PRIORITY_HEADER:
            priority = min(int(value), 255)
        elif name == EXPIRATION_HEADER:
            expiration_ms = min(int(value), _MAX_EXPIRATION_MS)
        elif name == DELIVERY_MODE_HEADER:
            persistent = int(value) != 1
    return Traits(priority, expiration_ms, persistent)


_remembered_traits = lru_cache(_MAX_REMEMBERED)(_read_traits)


def encode_messages(messages: Sequence[Message], size: int, timestamp_ms: int, batch_bytes: int) -> bytes:
    """Messages with `size` bytes of bodies as record batches of about `batch_bytes`, to be appended as one.

    `timestamp_ms` is for those without one of their own.
    """
    if size + _RECORD_OVERHEAD_BYTES * len(messages) <= batch_bytes:
        return encode_records(list(map(_record_of, messages)), timestamp_ms=timestamp_ms)
    batches: list[bytes] = []
    first = size = 0
    for number, message in enumerate(messages):
        own_bytes = len(message.value) + len(message.headers) + _RECORD_OVERHEAD_BYTES
        if size and size + own_bytes > batch_bytes:
            batches.append(encode_records(list(map(_record_of, messages[first:number])), timestamp_ms=timestamp_ms))
            first, size = number, 0
        size += own_bytes
    batches.append(encode_records(list(map(_record_of, messages[first:])), timestamp_ms=timestamp_ms))
    return batches[0] if len(batches) == 1 else b"".join(batches)


def messages_of(records: Sequence[LightRecord]) -> tuple[list[int], list[Message]]:
    """Records from the log as messages, and their offsets."""
    offsets: list[int] = []
    messages: list[Message] = []
    last_headers = b""
    priority, expiration_ms, persistent = _PLAIN
    for offset, timestamp_ms, key, value, headers in records:
        if headers != last_headers:
            last_headers = headers
            priority, expiration_ms, persistent = traits_of(headers)
        offsets.append(offset)
        messages.append(
            Message(
                b"" if value is None else value,
                headers,
                key,
                timestamp_ms,
                None if expiration_ms is None else timestamp_ms + expiration_ms,
                priority,
                persistent,
            )
        )
    return offsets, messages
