"""A queue's state as records of `__queue_state`. Latest value per key wins; a tombstone removes it.

    key:   kind (1 byte), int16 length of the queue's id, the id in UTF-8, and for chunks and scheduled messages an int64
    'h'    head: int8 version 1, topic id (16 bytes), int64 head offset, int64 delivered-to offset,
           int32 mean body size in bytes
    'c'    chunk <number> of 4,096 offsets: int8 version 1, int8 form (0: 512 bytes of bitmap, little endian; 1: int16 count
           of runs, then int16 start, int16 length - 1 of each), then int16 count of delivery counts, and of each
           int16 place in the chunk, int32 count
    's'    scheduled message <id>: int8 version 1, int64 due, int64 timestamp, int64 expiry (-1 none), int8 priority,
           int8 persistent, int32 key length (-1 null) key, int32 header section length, header section, body
    't'    what a transaction settled, <number>: int8 version 1, topic id (16 bytes), int64 offsets. It is written with the
           transaction's messages, all or none, and removed once the chunks say the same
    'z'    nothing: appended where only the wait for the disk is wanted

The topic's id says which topic the offsets are of: state that a deleted topic of the same name left is not used. Offsets before
`delivered_to` that are not settled were handed out before: after a restart they come as redelivered.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from trunkline.cursors.queue.message import Message
from trunkline.cursors.queue.settled import CHUNK_OFFSETS

HEAD, CHUNK, SCHEDULED, COMMITTED, SYNC = b"h", b"c", b"s", b"t", b"z"
_VERSION = 1
_BITMAP_BYTES = CHUNK_OFFSETS // 8
_LENGTH = struct.Struct(">H")
_NUMBER = struct.Struct(">q")
_HEAD = struct.Struct(">B16sqqI")
_RUN = struct.Struct(">HH")
_COUNT = struct.Struct(">HI")
_SCHEDULED = struct.Struct(">BqqqBBi")
_INT32 = struct.Struct(">i")
_BITMAP_FORM, _RUNS_FORM = 0, 1
_MAX_RUNS = _BITMAP_BYTES // _RUN.size


class Head(NamedTuple):
    topic_id: UUID
    head: int
    delivered_to: int
    mean_bytes: int


class Committed(NamedTuple):
    topic_id: UUID
    offsets: tuple[int, ...]


class Chunk(NamedTuple):
    bits: int
    counts: dict[int, int]  # place in the chunk -> deliveries so far, where there was more than one


def encode_key(kind: bytes, queue_id: str, number: int | None = None) -> bytes:
    name = queue_id.encode()
    suffix = b"" if number is None else _NUMBER.pack(number)
    return kind + _LENGTH.pack(len(name)) + name + suffix


def decode_key(key: bytes) -> tuple[bytes, str, int] | None:
    """Kind, queue id and number; None for a key of a kind that this version does not know."""
    kind = key[:1]
    if kind not in (HEAD, CHUNK, SCHEDULED, COMMITTED):
        return None
    try:
        (length,) = _LENGTH.unpack_from(key, 1)
        name = key[3 : 3 + length].decode()
        number = 0 if kind == HEAD else _NUMBER.unpack_from(key, 3 + length)[0]
    except (struct.error, UnicodeDecodeError):
        return None
    return kind, name, number


def encode_head(head: Head) -> bytes:
    return _HEAD.pack(_VERSION, head.topic_id.bytes, head.head, head.delivered_to, min(head.mean_bytes, 0xFFFFFFFF))


def decode_head(value: bytes) -> Head:
    """ValueError when the value cannot be understood; the same for the others."""
    try:
        version, topic_id, head, delivered_to, mean_bytes = _HEAD.unpack_from(value)
    except struct.error as error:
        raise ValueError(f"a queue's head record: {error}") from None
    _check_version(version)
    return Head(UUID(bytes=topic_id), head, delivered_to, mean_bytes)


def encode_chunk(chunk: Chunk) -> bytes:
    parts = [bytes((_VERSION,))]
    runs: list[tuple[int, int]] = []
    rest, place = chunk.bits, 0
    while rest and len(runs) <= _MAX_RUNS:
        skip = (rest & -rest).bit_length() - 1
        rest >>= skip
        place += skip
        length = (~rest & (rest + 1)).bit_length() - 1
        runs.append((place, length))
        rest >>= length
        place += length
    if len(runs) <= _MAX_RUNS:
        parts += (bytes((_RUNS_FORM,)), _LENGTH.pack(len(runs)))
        parts += [_RUN.pack(start, length - 1) for start, length in runs]
    else:
        parts += (bytes((_BITMAP_FORM,)), chunk.bits.to_bytes(_BITMAP_BYTES, "little"))
    parts.append(_LENGTH.pack(len(chunk.counts)))
    parts += [_COUNT.pack(place, min(count, 0xFFFFFFFF)) for place, count in chunk.counts.items()]
    return b"".join(parts)


def decode_chunk(value: bytes) -> Chunk:
    try:
        _check_version(value[0])
        position = 2
        bits = 0
        if value[1] == _BITMAP_FORM:
            bits = int.from_bytes(value[2 : 2 + _BITMAP_BYTES], "little")
            position += _BITMAP_BYTES
        else:
            (count,) = _LENGTH.unpack_from(value, position)
            position += _LENGTH.size
            for _ in range(count):
                start, length = _RUN.unpack_from(value, position)
                bits |= ((1 << (length + 1)) - 1) << start
                position += _RUN.size
        (count,) = _LENGTH.unpack_from(value, position)
        position += _LENGTH.size
        counts = dict(_COUNT.iter_unpack(value[position : position + count * _COUNT.size]))
        if len(counts) != count or bits >> CHUNK_OFFSETS:
            raise ValueError("a queue's chunk record is cut off")
    except (struct.error, IndexError) as error:
        raise ValueError(f"a queue's chunk record: {error}") from None
    return Chunk(bits, counts)


def encode_committed(committed: Committed) -> bytes:
    offsets = committed.offsets
    return bytes((_VERSION,)) + committed.topic_id.bytes + struct.pack(f">{len(offsets)}q", *offsets)


def decode_committed(value: bytes) -> Committed:
    try:
        _check_version(value[0])
        topic_id, offsets = UUID(bytes=value[1:17]), [number for (number,) in _NUMBER.iter_unpack(value[17:])]
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"a record of what a transaction settled: {error}") from None
    return Committed(topic_id, tuple(offsets))


def encode_scheduled(message: Message, due_ms: int) -> bytes:
    key = message.key
    fixed = _SCHEDULED.pack(
        _VERSION,
        due_ms,
        message.timestamp_ms,
        -1 if message.expires_ms is None else message.expires_ms,
        message.priority,
        message.persistent,
        -1 if key is None else len(key),
    )
    return b"".join((fixed, key or b"", _INT32.pack(len(message.headers)), message.headers, message.value))


def decode_due(value: bytes) -> int:
    """When a scheduled message is due, without decoding the message."""
    if len(value) < _SCHEDULED.size:
        raise ValueError("a scheduled message's record is cut off")
    _check_version(value[0])
    return int(_NUMBER.unpack_from(value, 1)[0])


def decode_scheduled(value: bytes) -> Message:
    try:
        version, _, timestamp_ms, expires_ms, priority, persistent, key_bytes = _SCHEDULED.unpack_from(value)
        _check_version(version)
        position = _SCHEDULED.size
        key = None if key_bytes < 0 else value[position : position + key_bytes]
        position += max(key_bytes, 0)
        (header_bytes,) = _INT32.unpack_from(value, position)
        position += _INT32.size
    except struct.error as error:
        raise ValueError(f"a scheduled message's record: {error}") from None
    headers = value[position : position + header_bytes]
    body = value[position + header_bytes :]
    return Message(body, headers, key, timestamp_ms, None if expires_ms < 0 else expires_ms, priority, bool(persistent))


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise ValueError(f"queue state of version {version}, which this release does not know")
