"""Batches with a right checksum whose records do not parse, or are more than anyone should take."""

from __future__ import annotations

from trunkline.log import compression
from trunkline.log.batch import HEADER_BYTES, NewRecord, build_batch, seal_batch


def sealed(body: bytes, count: int, *, codec: str = "none", packed: bool = False, producer_epoch: int = -1) -> bytes:
    """A batch that claims to hold `count` records in these bytes, which are compressed here unless they are `packed`."""
    number = compression.CODEC_NUMBERS[codec]
    return seal_batch(
        compression.compress(number, body) if number and not packed else body,
        base_offset=0,
        attributes=number,
        last_offset_delta=count - 1,
        base_timestamp_ms=1_700_000_000_000,
        max_timestamp_ms=1_700_000_000_000,
        producer_id=-1,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=count,
    )


def body_of(*records: NewRecord) -> bytes:
    return build_batch(records, timestamp_ms=1_700_000_000_000)[HEADER_BYTES:]


_GOOD = body_of(NewRecord(b"k", b"value", (("name", b"x"),)))

UNDECODABLE = {
    "a header name that is not UTF-8": sealed(_GOOD.replace(b"name", b"na\xffe"), 1),
    "bytes left over": sealed(_GOOD + b"\x00" * 7, 1),
    "cut off": sealed(_GOOD[:-1], 1),
    "a key longer than its record": sealed(_GOOD.replace(b"\x02k", b"\x7ek"), 1),
    "offsets that go back": sealed(_GOOD + _GOOD, 2),
    "zeros": sealed(bytes(70), 2),
    "no zstd": sealed(b"this is no zstd frame", 1, codec="zstd", packed=True),
    "a flood of headers": sealed(
        body_of(NewRecord(b"k", b"", tuple(("", None) for _ in range(5_000)))), 1, codec="zstd"
    ),
}


def flood(count: int, codec: str = "zstd") -> bytes:
    """A small batch of very many records, all well formed, each with a key."""
    body = bytearray()
    for number in range(count):
        delta = _varint(number)
        body += _varint(6 + len(delta)) + b"\x00\x00" + delta + b"\x02k\x01\x00"
    return sealed(bytes(body), count, codec=codec)


def _varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
