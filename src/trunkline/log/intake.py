"""What a client's batches must be before they may enter a partition.

Everything is checked before anything is written, so an append of several batches is taken or refused as a whole.

Records are looked into only where somebody will decode them: compaction, which also wants a key in each, and whoever watches
the partition for that (a queue, MQTT); and where the topic wants another codec than the producer's. Nothing is made of
them. Elsewhere the header has to be believable: a batch cannot hold more records than fit its bytes, whatever the codec,
nor more than `max_batch_records`, because any topic may become a queue.
"""

from __future__ import annotations

from trunkline.log import batch as layout
from trunkline.log import compression as codecs
from trunkline.log.batch import (
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAX_RECORDS,
    MIN_RECORD_BYTES,
    BatchHeader,
)
from trunkline.log.checksum import crc32c_of
from trunkline.log.config import LONG_MAX, TopicConfig
from trunkline.log.decoding import DecodingLimits
from trunkline.log.errors import BatchTooLarge, CorruptBatch, InvalidRecord, InvalidTimestamp, UnsupportedFormat
from trunkline.log.records import check_records, unpacked
from trunkline.log.store import Buffer

_MIN_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES


class Intake:
    """The checks of one topic; made anew when its settings change."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_codec",
        "_config",
        "_limits",
        "_max_message_bytes",
        "_plain",
    )

    def __init__(self, config: TopicConfig, limits: DecodingLimits) -> None:
        self._config = config
        self._limits = limits
        self._max_message_bytes = config.max_message_bytes
        self._codec = None if config.compression_type == "producer" else codecs.CODEC_NUMBERS[config.compression_type]
        self._plain = not (config.log_append_time or self._codec is not None)
        self._after_ms = config.timestamp_after_max_ms
        self._before_ms = config.timestamp_before_max_ms

    def admit(
        self, buffer: Buffer, now_ms: int, *, foreign: bool = True, decoded: bool = False
    ) -> list[tuple[BatchHeader, memoryview]]:
        """Check every batch in the buffer; returns them as they shall be written.

        `foreign`: they are a Kafka client's. `decoded`: somebody waits for them to decode them.
        """
        view = memoryview(buffer)
        if view.itemsize != 1 or view.ndim != 1:
            view = view.cast("B")
        size = len(view)
        admitted: list[tuple[BatchHeader, memoryview]] = []
        position = 0
        while True:
            left = size - position
            if left < HEADER_BYTES:
                raise _too_short(view, position)
            header = BatchHeader._make(HEADER.unpack_from(view, position))
            length = header.batch_length + LENGTH_PREFIX_BYTES
            if header.magic != 2:
                raise _wrong_magic(header.magic)
            if length > left or length < HEADER_BYTES:
                raise CorruptBatch(f"batch claims {length} bytes where {left} are left")
            if length > self._max_message_bytes:
                raise BatchTooLarge(
                    f"the batch has {length} bytes; max.message.bytes of the topic is {self._max_message_bytes}"
                )
            batch = view if left == size == length else view[position : position + length]
            if crc32c_of(batch[21:]) != header.crc:
                raise CorruptBatch("the batch does not match its checksum")
            self._check(header, now_ms)
            if foreign:
                self._check_foreign(header, batch, decoded=decoded)
            elif self._config.compacted:
                self._check_records(header, batch, MAX_RECORDS)
            if not self._plain:
                header, batch = self._transform(header, batch, now_ms)
            admitted.append((header, batch))
            position += length
            if position == size:
                return admitted

    def _check(self, header: BatchHeader, now_ms: int) -> None:
        count = header.record_count
        if count <= 0 or header.last_offset_delta != count - 1:
            raise InvalidRecord(f"batch of {count} records with last offset delta {header.last_offset_delta}")
        attributes = header.attributes
        if attributes & layout.CONTROL:
            raise InvalidRecord("clients may not write control batches")
        if attributes & layout.CODEC_MASK >= len(codecs.CODEC_NAMES):
            raise CorruptBatch(f"unknown compression codec {attributes & layout.CODEC_MASK}")
        if header.producer_id >= 0:
            # Offsets committed in a transaction carry no sequence, in Kafka too: the groups write them, not the producer.
            unnumbered = header.base_sequence < 0 and not attributes & layout.TRANSACTIONAL
            if header.producer_epoch < 0 or unnumbered:
                raise InvalidRecord(
                    f"batch of producer {header.producer_id} has epoch {header.producer_epoch}, sequence {header.base_sequence}"
                )
        elif attributes & layout.TRANSACTIONAL:
            raise InvalidRecord("transactional batch without a producer id")
        if not self._config.log_append_time:
            if attributes & layout.LOG_APPEND_TIME:
                raise InvalidTimestamp("the batch claims the broker's timestamps and the topic keeps the producer's")
            newest = header.max_timestamp_ms
            if newest - now_ms > self._after_ms or (
                self._before_ms != LONG_MAX and newest >= 0 and now_ms - header.base_timestamp_ms > self._before_ms
            ):
                raise InvalidTimestamp(
                    f"timestamps {header.base_timestamp_ms} to {newest} lie too far from the broker's time {now_ms}"
                )

    def _check_foreign(self, header: BatchHeader, batch: memoryview, *, decoded: bool) -> None:
        body_bytes = len(batch) - HEADER_BYTES
        if not codecs.could_hold(header.codec, body_bytes, header.record_count * MIN_RECORD_BYTES):
            raise InvalidRecord(f"{header.record_count} records do not fit {body_bytes} bytes")
        if header.record_count > self._limits.max_batch_records:
            raise InvalidRecord(
                f"the batch has {header.record_count} records; max_batch_records is {self._limits.max_batch_records}"
            )
        if header.producer_epoch == layout.BROKER_EPOCH:
            raise InvalidRecord(f"producer epoch {header.producer_epoch} is the broker's own")
        if decoded or self._config.compacted:
            self._check_records(header, batch, self._limits.max_batch_records)

    def _check_records(self, header: BatchHeader, batch: memoryview, max_headers: int) -> Buffer:
        """The records' bytes, unpacked. InvalidRecord unless they parse and, in a compacted topic, each has a key."""
        try:
            data, position = unpacked(header, batch, self._limits.max_decompressed_bytes)
            keyed = check_records(header, data, position, gapless=True, max_headers=max_headers)
        except CorruptBatch as error:
            raise InvalidRecord(f"the batch's records cannot be decoded: {error}") from None
        if self._config.compacted and not keyed:
            raise InvalidRecord("a record without a key cannot be stored in a compacted topic")
        return memoryview(data)[position:]

    def _transform(self, header: BatchHeader, batch: memoryview, now_ms: int) -> tuple[BatchHeader, memoryview]:
        codec, body = header.codec, batch[HEADER_BYTES:]
        if self._codec is not None and self._codec != codec:
            codec = self._codec
            body = memoryview(codecs.compress(codec, self._check_records(header, batch, MAX_RECORDS)))
            if len(body) + HEADER_BYTES > self._max_message_bytes:
                raise BatchTooLarge(
                    f"the batch has {len(body) + HEADER_BYTES} bytes as {self._config.compression_type}; "
                    f"max.message.bytes of the topic is {self._max_message_bytes}"
                )
        elif not self._config.log_append_time:
            return header, batch
        return _sealed(header, body, codec, now_ms if self._config.log_append_time else None)


def _sealed(header: BatchHeader, body: Buffer, codec: int, now_ms: int | None) -> tuple[BatchHeader, memoryview]:
    """The batch with this body. With the broker's time, one timestamp in the header stands for every record."""
    attributes = (header.attributes & ~layout.CODEC_MASK) | codec
    built = layout.seal_batch(
        body,
        base_offset=header.base_offset,
        attributes=attributes if now_ms is None else attributes | layout.LOG_APPEND_TIME,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms if now_ms is None else now_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )
    return layout.parse_header(built), memoryview(built)


def _too_short(view: memoryview, position: int) -> Exception:
    if len(view) - position > layout.MAGIC_POSITION and view[position + layout.MAGIC_POSITION] in (0, 1):
        return _wrong_magic(view[position + layout.MAGIC_POSITION])
    return CorruptBatch(f"{len(view) - position} bytes are too few for a record batch")


def _wrong_magic(magic: int) -> Exception:
    if magic in (0, 1):
        return UnsupportedFormat(f"message format v{magic} is not stored; send v2 record batches (Kafka 0.11 or later)")
    return CorruptBatch(f"batch has magic {magic}, not 2")
