"""Record batches built and read fast, for the protocols that carry single messages.

The layout is the one drawn in `batch`, which stays the readable reference; this module gives the same bytes and accepts
and refuses the same batches, in a fraction of the time. What it leaves out is what such protocols do not need: a record's
headers are not taken apart but passed on as their encoded section, count first, so that who knows the section already
(the same properties on every message of a stream) need not look at it again.

Everything malformed raises `CorruptBatch`, and nothing else does. A section is checked to be well formed when it is read,
once for a run of records that share it; when it is written it is taken as it is.

A few kilobytes can hold millions of records, so nobody need take all records of a batch at once: `check_records` looks
at them without making anything of them, and an `OpenBatch` hands them out in portions.

This module is compiled where a C compiler is present. Varints are read into 64 bits and refused when they do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from librt.strings import BytesWriter
from mypy_extensions import i64

from trunkline.log import compression as codecs
from trunkline.log.batch import (
    HEADER_BYTES,
    MAX_RECORD_HEADERS,
    MAX_RECORDS,
    MIN_RECORD_BYTES,
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    BatchHeader,
    check_count,
    parse_header,
    seal_batch,
)
from trunkline.log.decoding import DEFAULT_MAX_DECOMPRESSED_BYTES
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import Buffer

NO_HEADERS: Final = b"\x00"
_FAR: Final = 0x4000_0000_0000_0000
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
    producer_epoch: int = NO_PRODUCER_EPOCH,
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
        producer_epoch=producer_epoch,
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

    def skip_bytes(self) -> i64:
        """Pass over a byte string; returns its length, -1 for null."""
        length = self.varint()
        if length < 0:
            if length != -1:
                raise CorruptBatch(f"length {length} in a record")
            return length
        if length > self.end - self.position:
            raise CorruptBatch(f"{length} bytes do not fit their record")
        self.position += length
        return length


def iter_light(
    batch: Buffer,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    max_records: int = MAX_RECORDS,
) -> list[LightRecord]:
    """The records of one batch. Does not check the CRC: what the log serves was checked when it was written."""
    header = parse_header(batch)
    data, position = unpacked(header, batch, max_decompressed_bytes, max_records)
    return OpenBatch(header, data, position).take(header.record_count)


def unpacked(
    header: BatchHeader, batch: Buffer, max_decompressed_bytes: int, max_records: int = MAX_RECORDS
) -> tuple[bytes, int]:
    """The bytes in which a batch's records lie, decompressed, and the position at which they begin."""
    if header.size_bytes > len(batch):
        raise CorruptBatch(f"batch of {header.size_bytes} bytes is cut off after {len(batch)}")
    check_count(header, max_records)
    if header.codec:
        body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
        return bytes(codecs.decompress(header.codec, body, max_decompressed_bytes)), 0
    return batch if isinstance(batch, bytes) else bytes(batch), HEADER_BYTES


def body_bytes(header: BatchHeader, data: bytes) -> int:
    """How many bytes of what `unpacked` gave are records."""
    return len(data) if header.codec else header.size_bytes - HEADER_BYTES


class OpenBatch:
    """A batch whose records are handed out in portions, each checked as it is made; `check` looks at all of them first."""

    def __init__(self, header: BatchHeader, data: bytes, position: int) -> None:
        """`data` and `position` are what `unpacked` gave."""
        self.header: BatchHeader = header
        self.left: i64 = header.record_count
        self._data: bytes = data
        self._start: int = position
        self._reader: _Reader = _Reader(data, position, position + body_bytes(header, data))
        self._previous: i64 = -1  # offset delta
        if self.left * MIN_RECORD_BYTES > self._reader.end - self._reader.position:
            raise CorruptBatch(f"{self.left} records do not fit {self._reader.end - self._reader.position} bytes")

    @property
    def size_bytes(self) -> int:
        """Of all its records, unpacked."""
        return body_bytes(self.header, self._data)

    def check(self) -> None:
        check_records(self.header, self._data, self._start)

    def skip_before(self, offset: int) -> None:
        """Pass over the records before this offset, in a batch that was checked."""
        reader = self._reader
        wanted: i64 = offset - self.header.base_offset
        while self.left > 0:
            start = reader.position
            length = reader.varint()
            end: i64 = reader.position + length
            reader.position += 1
            reader.varint()
            delta = reader.varint()
            if delta >= wanted:
                reader.position = start
                return
            reader.position = end
            self._previous = delta
            self.left -= 1

    def take(self, max_records: int) -> list[LightRecord]:
        """The next records; none when all were taken."""
        count: i64 = min(int(self.left), max_records)
        records = _take_records(self.header, self._reader, count, self._previous)
        self.left -= count
        if records:
            self._previous = records[-1][0] - self.header.base_offset
        if self.left == 0:
            _check_end(self._reader)
        return records


def check_records(
    header: BatchHeader, data: bytes, position: int, *, gapless: bool = False, max_headers: int = MAX_RECORDS
) -> bool:
    """Raise CorruptBatch unless the records are well formed, to the last byte; returns whether each has a key.

    `gapless` as a producer's batch is: its offsets follow each other. `max_headers` is for all records together.
    """
    reader = _Reader(data, position, position + body_bytes(header, data))
    count: i64 = header.record_count
    last_delta: i64 = header.last_offset_delta
    base_stamp: i64 = header.base_timestamp_ms
    previous: i64 = -1
    keyed = True
    if count * MIN_RECORD_BYTES > reader.end - reader.position:
        raise CorruptBatch(f"{count} records do not fit {reader.end - reader.position} bytes")
    known: bytes = NO_HEADERS
    known_headers: i64 = 0
    headers_left: i64 = max_headers
    try:
        while count > 0:
            count -= 1
            length = reader.varint()
            end: i64 = reader.position + length
            if length < 0 or length > reader.end - reader.position:
                raise CorruptBatch(f"record of {length} bytes does not fit its batch")
            reader.position += 1  # record attributes are unused
            _check_stamp(base_stamp, reader.varint())
            delta = reader.varint()
            if delta <= previous or delta > last_delta or (gapless and delta != previous + 1):
                raise CorruptBatch(
                    f"record has offset delta {delta} after {previous} in a batch whose last is {last_delta}"
                )
            previous = delta
            if reader.skip_bytes() < 0:
                keyed = False
            reader.skip_bytes()
            if reader.position >= end:
                raise CorruptBatch("record's length does not match its content")
            if end - reader.position > 1 or data[reader.position] != 0:
                headers = data[reader.position : end]
                if headers != known:
                    known_headers = check_headers(headers)
                    known = headers
                headers_left -= known_headers
                if headers_left < 0:
                    raise CorruptBatch(f"the batch's records have more than {max_headers} headers")
            reader.position = end
    except IndexError:
        raise CorruptBatch("batch ends in the middle of a record") from None
    _check_end(reader)
    return keyed


def _check_end(reader: _Reader) -> None:
    if reader.position != reader.end:
        raise CorruptBatch(f"{reader.end - reader.position} bytes are left over after the last record")


def _check_stamp(base_ms: i64, delta_ms: i64) -> None:
    stamp = base_ms + delta_ms
    if ((base_ms ^ stamp) & (delta_ms ^ stamp)) < 0:
        raise CorruptBatch(f"timestamp {base_ms} and {delta_ms} does not fit 64 bits")


def _near(stamp: i64) -> bool:
    """Whether a sum with another such number fits for certain."""
    return -_FAR < stamp < _FAR


def _take_records(header: BatchHeader, reader: _Reader, count: i64, previous: i64) -> list[LightRecord]:
    records: list[LightRecord] = []
    base_offset = header.base_offset
    base_timestamp_ms = header.base_timestamp_ms
    base_stamp: i64 = base_timestamp_ms
    near = _near(base_stamp)
    max_timestamp_ms = header.max_timestamp_ms
    log_append_time = header.log_append_time
    last_delta: i64 = header.last_offset_delta
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
            if not near or timestamp_delta >= _FAR or timestamp_delta <= -_FAR:
                _check_stamp(base_stamp, timestamp_delta)
            offset_delta = reader.varint()
            if offset_delta <= previous or offset_delta > last_delta:
                raise CorruptBatch(
                    f"record has offset delta {offset_delta} after {previous} in a batch whose last is {last_delta}"
                )
            previous = offset_delta
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
    return records


def check_headers(section: bytes) -> i64:
    """Raise CorruptBatch unless the section is well formed, to its end; returns how many headers it has."""
    reader = _Reader(section, 0, len(section))
    try:
        found = _header_count(reader)
        count = found
        while count > 0:
            count -= 1
            length = reader.skip_bytes()
            if length < 0:
                raise CorruptBatch("header without a name")
            if length > 0:
                _check_name(section[reader.position - length : reader.position])
            reader.skip_bytes()
    except IndexError:
        raise CorruptBatch("headers end in the middle of one") from None
    if reader.position != reader.end:
        raise CorruptBatch(f"{reader.end - reader.position} bytes are left over after the headers")
    return found


def _check_name(name: bytes) -> None:
    if not name.isascii():
        try:
            name.decode()
        except UnicodeDecodeError:
            raise CorruptBatch("header name is not UTF-8") from None


def _header_count(reader: _Reader) -> i64:
    count = reader.varint()
    if count < 0 or count > reader.end:
        raise CorruptBatch(f"record with {count} headers in {reader.end} bytes")
    if count > MAX_RECORD_HEADERS:
        raise CorruptBatch(f"record with {count} headers; at most {MAX_RECORD_HEADERS} are looked at")
    return count


def decode_headers(section: bytes) -> list[tuple[str, bytes | None]]:
    """The names and values of a header section."""
    reader = _Reader(section, 0, len(section))
    headers: list[tuple[str, bytes | None]] = []
    try:
        count = _header_count(reader)
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
