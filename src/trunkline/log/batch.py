"""The v2 record batch: the unit in which everything is sent, stored and read.

    offset  type    field                    in the CRC
    0       int64   base offset              no   set by the log
    8       int32   batch length             no   bytes after this field
    12      int32   partition leader epoch   no   set by the log
    16      int8    magic, 2                 no
    17      uint32  CRC-32C of bytes 21..    —
    21      int16   attributes               yes  bits 0-2 codec, 3 log append time, 4 transactional, 5 control,
                                                  6 base timestamp is the delete horizon (compacted batches)
    23      int32   last offset delta        yes
    27      int64   base timestamp           yes
    35      int64   max timestamp            yes
    43      int64   producer id              yes  -1 for none
    51      int16   producer epoch           yes
    53      int32   base sequence            yes
    57      int32   record count             yes
    61      records, compressed as one block when a codec is set

    record: varint length, int8 attributes (0), varint timestamp delta, varint offset delta,
            varint key length (-1 for null) key, varint value length (-1 for null) value,
            varint header count, then per header: varint key length, key, varint value length (-1 for null), value

Base offset and leader epoch lie outside the CRC so that the log can place a batch without touching what the producer
checksummed. Varints are zigzag, as in protocol buffers. A control batch holds one record whose key is
int16 version (0), int16 type (0 abort, 1 commit) and whose value is int16 version (0), int32 coordinator epoch.

Everything malformed raises `CorruptBatch`, and nothing else does. Record iteration is the slow path: the Kafka path never
takes it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trunkline.log import compression as codecs
from trunkline.log.buffer import Buffer
from trunkline.log.checksum import crc32c_of
from trunkline.log.decoding import DEFAULT_MAX_DECOMPRESSED_BYTES
from trunkline.log.errors import CorruptBatch

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12  # base offset and batch length; the length counts what follows
MIN_BATCH_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES
CRC_START = 21
MAGIC_POSITION = 16
_LENGTH = struct.Struct(">i")
MAX_BATCH_BYTES = 2**31 - 1
MAX_RECORDS = 2**31 - 1
MIN_RECORD_BYTES = 7  # length, attributes, two deltas, two lengths, header count
MAX_RECORD_HEADERS = 4_096  # where records are looked into: a few kilobytes can hold millions
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
# In a batch without a producer id: written by the broker itself, for a client of another protocol. Nobody else can write
# it, because the log refuses it in what Kafka clients send.
BROKER_EPOCH = -2
NO_SEQUENCE = -1
MAX_SEQUENCE = 2**31 - 1
ABORT, COMMIT = 0, 1

HEADER = struct.Struct(">qiibIhiqqqhii")
PREFIX = struct.Struct(">qii")  # base offset, batch length, leader epoch: what the log rewrites
_CRC_AND_REST = struct.Struct(">hiqqqhii")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_FILE_CHUNK_BYTES = 1 << 20


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LENGTH_PREFIX_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return advance_sequence(self.base_sequence, self.last_offset_delta) if self.base_sequence >= 0 else NO_SEQUENCE

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def compression(self) -> str:
        number = self.attributes & CODEC_MASK
        return codecs.CODEC_NAMES[number] if number < len(codecs.CODEC_NAMES) else f"unknown ({number})"

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def brokers_own(self) -> bool:
        return self.producer_id == NO_PRODUCER_ID and self.producer_epoch == BROKER_EPOCH

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    batch_attributes: int = 0

    @property
    def control(self) -> bool:
        return bool(self.batch_attributes & CONTROL)

    @property
    def transactional(self) -> bool:
        return bool(self.batch_attributes & TRANSACTIONAL)


class NewRecord(NamedTuple):
    """A record to be put in a batch. `timestamp_ms` -1 takes the batch's."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = NO_TIMESTAMP


class Marker(NamedTuple):
    """The content of a control batch that ends a transaction."""

    commit: bool
    coordinator_epoch: int


def advance_sequence(sequence: int, by: int) -> int:
    """Sequence numbers count through 0..2^31-1 and start over."""
    return (sequence + by) & MAX_SEQUENCE


# -- batches in a buffer -----------------------------------------------------------------------------------------


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != 2:
        raise CorruptBatch(f"batch has magic {header.magic}, not 2")
    if header.batch_length < MIN_BATCH_LENGTH:
        raise CorruptBatch(f"batch length {header.batch_length} is less than its header")
    return header


def iter_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each whole batch with its header, without copying. Bytes that are left over are a CorruptBatch."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        header = parse_header(view, position)
        end = position + header.size_bytes
        if end > len(view):
            raise CorruptBatch(
                f"batch of {header.size_bytes} bytes at {position} is cut off after {len(view) - position}"
            )
        yield header, view[position:end]
        position = end


def whole_batches(records: memoryview | bytes | bytearray | None) -> Iterator[memoryview]:
    """Each complete batch. A broker may cut the last one off where the fetch's limit fell; the rest comes next time."""
    view = memoryview(records or b"")
    at = 0
    while len(view) - at > MAGIC_POSITION:
        if view[at + MAGIC_POSITION] < 2:
            raise CorruptBatch("records are in a format older than Kafka 0.11, which we do not read")
        (length,) = _LENGTH.unpack_from(view, at + 8)
        end = at + 12 + length
        if length < 0:
            raise CorruptBatch(f"batch of length {length}")
        if end > len(view):
            return
        yield view[at:end]
        at = end


def iter_file(path: str | os.PathLike[str]) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, batch) for a segment file, one batch in memory at a time; without the zeros at its end."""
    with open(path, "rb", buffering=_FILE_CHUNK_BYTES) as file:
        left = os.fstat(file.fileno()).st_size
        position = 0
        while left > 0:
            head = file.read(min(left, HEADER_BYTES))
            try:
                header = parse_header(head)
            except CorruptBatch as error:
                if only_zeros(file.fileno(), position, position + left):
                    return
                raise CorruptBatch(f"{os.fspath(path)} at {position}: {error}") from None
            if header.size_bytes > left:
                raise CorruptBatch(
                    f"{os.fspath(path)} at {position}: batch of {header.size_bytes} bytes is cut off after {left}"
                )
            yield position, header, memoryview(head + file.read(header.size_bytes - HEADER_BYTES))
            position += header.size_bytes
            left -= header.size_bytes


def only_zeros(fd: int, position: int, end: int) -> bool:
    """Whether a file holds nothing but zeros there, as it does where a broker has yet to write."""
    while position < end:
        window = os.pread(fd, min(_FILE_CHUNK_BYTES, end - position), position)
        if not window or window.count(0) != len(window):
            return False
        position += len(window)
    return True


def check_crc(batch: Buffer) -> None:
    """Raise CorruptBatch unless the batch's bytes match its checksum."""
    (stored,) = _UINT32.unpack_from(batch, 17)
    computed = crc32c_of(memoryview(batch)[CRC_START:])
    if computed != stored:
        raise CorruptBatch(f"batch checksum is {computed:08x}, its header says {stored:08x}")


def rebase(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int = 0) -> int:
    """Give the batches in `buffer` consecutive offsets from `base_offset`, in place; returns the next offset.

    Touches bytes 0-7 and 12-15 of each batch only, which the CRC does not cover.
    """
    position = 0
    while position < len(buffer):
        header = parse_header(buffer, position)
        PREFIX.pack_into(buffer, position, base_offset, header.batch_length, leader_epoch)
        base_offset += header.last_offset_delta + 1
        position += header.size_bytes
    return base_offset


# -- building ----------------------------------------------------------------------------------------------------


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        _put_varint(out, len(data))
        out += data


def _put_record(out: bytearray, offset_delta: int, timestamp_delta: int, record: NewRecord | Record) -> None:
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    _put_varint(body, len(record.headers))
    for name, value in record.headers:
        _put_bytes(body, name.encode())
        _put_bytes(body, value)
    _put_varint(out, len(body))
    out += body


def seal_batch(
    body: Buffer,
    *,
    base_offset: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    leader_epoch: int = 0,
) -> bytes:
    """Put a header in front of encoded (and, if so, compressed) records and checksum the whole."""
    checked = _CRC_AND_REST.pack(
        attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence, record_count
    )  # fmt: skip
    crc = crc32c_of(body, crc32c_of(checked))
    length = MIN_BATCH_LENGTH + len(body)
    return b"".join((PREFIX.pack(base_offset, length, leader_epoch), b"\x02", _UINT32.pack(crc), checked, body))


def build_batch(
    records: Iterable[NewRecord | Record],
    *,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    compression: str = "none",
    timestamp_ms: int = NO_TIMESTAMP,
) -> bytes:
    """Encode records as one batch. A `NewRecord` without a timestamp of its own takes `timestamp_ms`."""
    items = list(records)
    if not items:
        raise ValueError("a batch has at least one record")
    stamps = [item.timestamp_ms if item.timestamp_ms != NO_TIMESTAMP else timestamp_ms for item in items]
    body = bytearray()
    for delta, item in enumerate(items):
        _put_record(body, delta, stamps[delta] - stamps[0], item)
    codec = codecs.CODEC_NUMBERS[compression]
    return seal_batch(
        codecs.compress(codec, body) if codec else body,
        base_offset=base_offset,
        attributes=codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0),
        last_offset_delta=len(items) - 1,
        base_timestamp_ms=stamps[0],
        max_timestamp_ms=max(stamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(items),
    )


def refill_batch(header: BatchHeader, records: Iterable[Record], *, delete_horizon_ms: int | None = None) -> bytes:
    """The batch of `header` with only these of its records, at the offsets they had.

    A delete horizon, when given, is noted in the batch: the time from which on its tombstones may go.
    """
    base_timestamp_ms = header.base_timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
    body = bytearray()
    count = newest = 0
    for record in records:
        stamp = base_timestamp_ms if header.log_append_time else record.timestamp_ms
        _put_record(body, record.offset - header.base_offset, stamp - base_timestamp_ms, record)
        newest = record.timestamp_ms if not count else max(newest, record.timestamp_ms)
        count += 1
    return seal_batch(
        codecs.compress(header.codec, body) if header.codec and count else body,
        base_offset=header.base_offset,
        attributes=(header.attributes if count else header.attributes & ~CODEC_MASK)
        | (DELETE_HORIZON if delete_horizon_ms is not None else 0),
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms if header.log_append_time or not count else newest,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=count,
        leader_epoch=header.leader_epoch,
    )


def build_marker(
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
) -> bytes:
    """The control batch that ends a transaction."""
    key = _MARKER_KEY.pack(0, COMMIT if commit else ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [NewRecord(key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        timestamp_ms=timestamp_ms,
    )


# -- records in a batch ------------------------------------------------------------------------------------------


class _RecordReader:
    """Reads varints and byte strings from decompressed records. Every read is checked against the end."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def varint(self) -> int:
        data, position = self.data, self.position
        byte = data[position]
        position += 1
        value = byte & 0x7F
        shift = 7
        while byte & 0x80:
            if shift > 63:
                raise CorruptBatch("varint is longer than 10 bytes")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        if value >> 64:
            raise CorruptBatch("varint does not fit 64 bits")
        self.position = position
        return (value >> 1) ^ -(value & 1)

    def bytes_or_null(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            if length != -1:
                raise CorruptBatch(f"length {length} in a record")
            return None
        start = self.position
        end = start + length
        if end > len(self.data):
            raise CorruptBatch(f"{length} bytes do not fit their record")
        self.position = end
        return self.data[start:end]


def check_count(header: BatchHeader, max_records: int) -> None:
    """Raise CorruptBatch for a number of records that cannot be, or that is more than is looked at."""
    count = header.record_count
    if count < 0:
        raise CorruptBatch(f"batch with {count} records")
    if count > max_records:
        raise CorruptBatch(f"batch with {count} records; at most {max_records} are looked at")


def iter_records(
    batch: Buffer,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    max_records: int = MAX_RECORDS,
) -> Iterator[Record]:
    """Decode the records of one batch. Does not check the CRC: what the log serves was checked when it was written."""
    header = parse_header(batch)
    if header.size_bytes > len(batch):
        raise CorruptBatch(f"batch of {header.size_bytes} bytes is cut off after {len(batch)}")
    check_count(header, max_records)
    body = codecs.decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size_bytes], max_decompressed_bytes)
    reader = _RecordReader(bytes(body))
    if header.record_count * MIN_RECORD_BYTES > len(reader.data):
        raise CorruptBatch(f"{header.record_count} records do not fit {len(reader.data)} bytes")
    offset = header.base_offset - 1
    try:
        for _ in range(header.record_count):
            record = _read_record(reader, header, offset)
            offset = record.offset
            yield record
    except IndexError:
        raise CorruptBatch("batch ends in the middle of a record") from None
    except UnicodeDecodeError:
        raise CorruptBatch("header name is not UTF-8") from None
    if reader.position != len(reader.data):
        raise CorruptBatch(f"{len(reader.data) - reader.position} bytes are left over after the last record")


def _read_record(reader: _RecordReader, header: BatchHeader, previous_offset: int) -> Record:
    length = reader.varint()
    end = reader.position + length
    if length < 0 or end > len(reader.data):
        raise CorruptBatch(f"record of {length} bytes does not fit its batch")
    reader.position += 1  # record attributes are unused
    timestamp_delta = reader.varint()
    offset_delta = reader.varint()
    previous = previous_offset - header.base_offset
    if not previous < offset_delta <= header.last_offset_delta:
        raise CorruptBatch(
            f"record has offset delta {offset_delta} after {previous} in a batch whose last is {header.last_offset_delta}"
        )
    if not _INT64_MIN <= header.base_timestamp_ms + timestamp_delta <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {header.base_timestamp_ms} and {timestamp_delta} does not fit 64 bits")
    key = reader.bytes_or_null()
    value = reader.bytes_or_null()
    count = reader.varint()
    if not 0 <= count <= length:
        raise CorruptBatch(f"record with {count} headers in {length} bytes")
    if count > MAX_RECORD_HEADERS:
        raise CorruptBatch(f"record with {count} headers; at most {MAX_RECORD_HEADERS} are looked at")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name = reader.bytes_or_null()
        if name is None:
            raise CorruptBatch("header without a name")
        headers.append((name.decode(), reader.bytes_or_null()))
    if reader.position != end:
        raise CorruptBatch("record's length does not match its content")
    stamp = header.max_timestamp_ms if header.log_append_time else header.base_timestamp_ms + timestamp_delta
    return Record(header.base_offset + offset_delta, stamp, key, value, headers, header.attributes)


def read_marker(batch: Buffer) -> Marker | None:
    """What a control batch says; None for a control record of a type that does not end a transaction."""
    for record in iter_records(batch):
        if record.key is None or len(record.key) < _MARKER_KEY.size:
            raise CorruptBatch("control record without a type")
        _, kind = _MARKER_KEY.unpack_from(record.key)
        if kind not in (ABORT, COMMIT):
            return None
        if record.value is None or len(record.value) < _MARKER_VALUE.size:
            raise CorruptBatch("transaction marker without a coordinator epoch")
        return Marker(kind == COMMIT, _MARKER_VALUE.unpack_from(record.value)[1])
    return None
