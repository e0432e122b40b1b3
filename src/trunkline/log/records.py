"""Record batches built and read fast, for the protocols that carry single messages.

The layout is the one drawn in `batch`, which stays the readable reference; this module gives the same bytes and accepts
and refuses the same batches, in a fraction of the time. What it leaves out is what such protocols do not need: a record's
headers are not taken apart but passed on as their encoded section, count first, so that who knows the section already
(the same properties on every message of a stream) need not look at it again.

Everything malformed raises `CorruptBatch`, and nothing else does. A section is checked to be well formed when it is read,
once for a run of records that share it; when it is written it is taken as it is.

This module is compiled where a C compiler is present. Varints are read into 64 bits and refused when they do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from librt.strings import BytesWriter
from mypy_extensions import i64

from trunkline.log import compression as codecs
from trunkline.log.batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, parse_header, seal_batch
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import Buffer

NO_HEADERS: Final = b"\x00"
_LOGICAL_SHIFT_MASK: Final = 0x7FFF_FFFF_FFFF_FFFF

# key, value, header section, timestamp (-1 takes the batch's)
LightNewRecord: TypeAlias = tuple[bytes | None, bytes | None, bytes, int]
# offset, timestamp, key, value, header section
LightRecord: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes]


# -- building --------------------------------------------------------------------------------------------------------


def _varint_bytes(value: i64) -> i64:
    """How many bytes the zigzag varint of `value` takes."""
    folded: i64 = value if value >= 0 else -1 - value
    size: i64 = 1
    folded >>= 6
    while folded > 0:
        size += 1
        folded >>= 7
    return size


def _put_varint(out: BytesWriter, value: i64) -> None:
    if 0 <= value < 64:
        out.append(int(value << 1))
        return
    low: i64 = 1 if value < 0 else 0
    rest: i64 = value if value >= 0 else -1 - value
    # `rest` is the magnitude without the sign bit, so what is left after six of its bits never overflows.
    byte: i64 = ((rest & 0x3F) << 1) | low
    rest >>= 6
    while rest > 0:
        out.append(int(byte | 0x80))
        byte = rest & 0x7F
        rest >>= 7
    out.append(int(byte))


def _sized(data: bytes | None) -> i64:
    if data is None:
        return 1
    length: i64 = len(data)
    return _varint_bytes(length) + length


def _put_bytes(out: BytesWriter, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        _put_varint(out, len(data))
        out.write(data)


def encode_records(
    records: list[LightNewRecord],
    *,
    base_offset: int = 0,
    timestamp_ms: int = NO_TIMESTAMP,
    compression: str = "none",
) -> bytes:
    """One batch of these records. One without a timestamp of its own takes `timestamp_ms`."""
    if not records:
        raise ValueError("a batch has at least one record")
    out = BytesWriter()
    default: i64 = timestamp_ms
    base: i64 = records[0][3]
    if base == NO_TIMESTAMP:
        base = default
    newest: i64 = base
    delta: i64 = 0
    for key, value, headers, own_timestamp_ms in records:
        stamp: i64 = own_timestamp_ms
        if stamp == NO_TIMESTAMP:
            stamp = default
        newest = max(newest, stamp)
        stamp -= base
        key_bytes = _sized(key)
        value_bytes = _sized(value)
        _put_varint(out, 1 + _varint_bytes(stamp) + _varint_bytes(delta) + key_bytes + value_bytes + len(headers))
        out.append(0)
        _put_varint(out, stamp)
        _put_varint(out, delta)
        _put_bytes(out, key)
        _put_bytes(out, value)
        out.write(headers)
        delta += 1
    codec = codecs.CODEC_NUMBERS[compression]
    body = out.getvalue()
    return seal_batch(
        codecs.compress(codec, body) if codec else body,
        base_offset=base_offset,
        attributes=codec,
        last_offset_delta=delta - 1,
        base_timestamp_ms=base,
        max_timestamp_ms=newest,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=delta,
    )


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The header section: the count, then each name and value."""
    out = BytesWriter()
    _put_varint(out, len(headers))
    for name, value in headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, value)
    return out.getvalue()


# -- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads varints and byte strings up to `end`. Indexing past the data raises IndexError, which callers translate."""

    def __init__(self, data: bytes, position: i64, end: i64) -> None:
        self.data: bytes = data
        self.position: i64 = position
        self.end: i64 = end

    def varint(self) -> i64:
        data = self.data
        position = self.position
        if position >= self.end:
            raise IndexError
        byte: i64 = data[position]
        position += 1
        value: i64 = byte & 0x7F
        shift: i64 = 7
        while byte & 0x80:
            if position >= self.end:
                raise IndexError
            byte = data[position]
            position += 1
            if shift == 63 and byte > 1:
                raise CorruptBatch("varint does not fit 64 bits")
            value |= (byte & 0x7F) << shift
            shift += 7
        self.position = position
        return ((value >> 1) & _LOGICAL_SHIFT_MASK) ^ -(value & 1)

    def bytes_or_null(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            if length != -1:
                raise CorruptBatch(f"length {length} in a record")
            return None
        start = self.position
        if length > self.end - start:
            raise CorruptBatch(f"{length} bytes do not fit their record")
        self.position = start + length
        return self.data[start : start + length]


def iter_light(batch: Buffer, max_decompressed_bytes: int = codecs.DEFAULT_MAX_DECOMPRESSED_BYTES) -> list[LightRecord]:
    """The records of one batch. Does not check the CRC: what the log serves was checked when it was written."""
    header = parse_header(batch)
    if header.size_bytes > len(batch):
        raise CorruptBatch(f"batch of {header.size_bytes} bytes is cut off after {len(batch)}")
    if header.record_count < 0:
        raise CorruptBatch(f"batch with {header.record_count} records")
    if header.codec:
        body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
        data = bytes(codecs.decompress(header.codec, body, max_decompressed_bytes))
        return _read_records(header, _Reader(data, 0, len(data)))
    data = batch if isinstance(batch, bytes) else bytes(batch)
    return _read_records(header, _Reader(data, HEADER_BYTES, header.size_bytes))


def _read_records(header: BatchHeader, reader: _Reader) -> list[LightRecord]:
    records: list[LightRecord] = []
    base_offset = header.base_offset
    base_timestamp_ms = header.base_timestamp_ms
    max_timestamp_ms = header.max_timestamp_ms
    log_append_time = header.log_append_time
    last_delta: i64 = header.last_offset_delta
    count: i64 = header.record_count
    known: bytes = NO_HEADERS
    try:
        while count > 0:
            count -= 1
            length = reader.varint()
            end: i64 = reader.position + length
            if length < 0 or length > reader.end - reader.position:
                raise CorruptBatch(f"record of {length} bytes does not fit its batch")
            reader.position += 1  # record attributes are unused
            timestamp_delta = reader.varint()
            offset_delta = reader.varint()
            if offset_delta < 0 or offset_delta > last_delta:
                raise CorruptBatch(f"record has offset delta {offset_delta} in a batch whose last is {last_delta}")
            key = reader.bytes_or_null()
            value = reader.bytes_or_null()
            if reader.position >= end:
                raise CorruptBatch("record's length does not match its content")
            headers = reader.data[reader.position : end]
            if headers != known:
                check_headers(headers)
                known = headers
            reader.position = end
            stamp = max_timestamp_ms if log_append_time else base_timestamp_ms + int(timestamp_delta)
            records.append((base_offset + int(offset_delta), stamp, key, value, headers))
    except IndexError:
        raise CorruptBatch("batch ends in the middle of a record") from None
    if reader.position != reader.end:
        raise CorruptBatch(f"{reader.end - reader.position} bytes are left over after the last record")
    return records


def check_headers(section: bytes) -> None:
    """Raise CorruptBatch unless the section is well formed, to its end."""
    decode_headers(section)


def decode_headers(section: bytes) -> list[tuple[str, bytes | None]]:
    """The names and values of a header section."""
    reader = _Reader(section, 0, len(section))
    headers: list[tuple[str, bytes | None]] = []
    try:
        count = reader.varint()
        if count < 0 or count > len(section):
            raise CorruptBatch(f"record with {count} headers in {len(section)} bytes")
        while count > 0:
            count -= 1
            name = reader.bytes_or_null()
            if name is None:
                raise CorruptBatch("header without a name")
            headers.append((name.decode(), reader.bytes_or_null()))
    except IndexError:
        raise CorruptBatch("headers end in the middle of one") from None
    except UnicodeDecodeError:
        raise CorruptBatch("header name is not UTF-8") from None
    if reader.position != reader.end:
        raise CorruptBatch(f"{reader.end - reader.position} bytes are left over after the headers")
    return headers
