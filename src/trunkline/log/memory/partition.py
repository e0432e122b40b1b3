"""A partition in memory: a list of batches, each with its place.

What always holds: `batches` are in the order of their offsets, which `last_offsets` repeats for bisection; every offset
before `end_offset` was given once; everything before `log_start_offset` is gone or about to be. Nothing survives the process.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from trunkline.clock import Clock
from trunkline.log.aborted import AbortedEntry
from trunkline.log.batch import PREFIX, BatchHeader, build_marker, iter_records, parse_header, read_marker
from trunkline.log.config import TopicConfig
from trunkline.log.decoding import DecodingLimits
from trunkline.log.errors import CorruptBatch, LogError, OffsetOutOfRange
from trunkline.log.intake import Intake
from trunkline.log.passed_over import PassedOver
from trunkline.log.producers import ProducerTable
from trunkline.log.store import AbortedTransaction, Bounds, Buffer, OffsetAndTimestamp, Slice, TopicPartition
from trunkline.log.ticket import Appended

_logger = logging.getLogger(__name__)
_LEADER_EPOCH = 0


class MemoryPartition:
    def __init__(
        self, tp: TopicPartition, config: TopicConfig, clock: Clock, decoding: DecodingLimits, passed_over: PassedOver
    ) -> None:
        self.tp = tp
        self.batches: list[bytes] = []
        self.last_offsets: list[int] = []
        self.aborted: list[AbortedEntry] = []
        self.producers = ProducerTable()
        self.log_start_offset = 0
        self.end_offset = 0
        self.failure: LogError | None = None
        self.watchers: dict[Callable[[], None], bool] = {}  # with whether it decodes records
        self._clock = clock
        self._decoding = decoding
        self._passed_over = passed_over
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._intake = Intake(config, self._decoding)

    def bounds(self) -> Bounds:
        if self.failure is not None:
            raise self.failure
        unstable = self.producers.first_unstable_offset
        stable = self.end_offset if unstable is None else unstable
        return Bounds(self.log_start_offset, self.end_offset, stable, _LEADER_EPOCH)

    def changed(self) -> None:
        for wake in tuple(self.watchers):
            try:
                wake()
            except Exception:
                _logger.exception("a watcher of %s failed", self.tp)

    # -- append ------------------------------------------------------------------------------------------------------

    def append(self, buffer: Buffer, *, foreign: bool = False) -> Appended:
        if self.failure is not None:
            raise self.failure
        now_ms = self._clock.wall_ms()
        batches = self._intake.admit(buffer, now_ms, foreign=foreign, decoded=any(self.watchers.values()))
        repeated = self.producers.drop_duplicates(batches, self.end_offset, now_ms)
        if not batches:
            return Appended(
                repeated[0].base_offset, repeated[-1].last_offset, -1, self.log_start_offset, duplicate=True
            )
        base_offset = self.end_offset
        for header, batch in batches:
            if header.producer_id >= 0:
                self.producers.apply(header, self.end_offset, now_ms)
            self._place(header, batch)
        self.changed()
        stamp = now_ms if self.config.log_append_time else -1
        return Appended(base_offset, self.end_offset - 1, stamp, self.log_start_offset)

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int) -> Appended:
        if self.failure is not None:
            raise self.failure
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now_ms = self._clock.wall_ms()
        batch = build_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms
        )
        marker = read_marker(batch)
        assert marker is not None
        offset = self.end_offset
        header = parse_header(batch)
        self._place(header, batch)
        aborted = self.producers.apply_marker(header, marker, offset, now_ms)
        if aborted is not None:
            self.aborted.append(aborted)
        self.changed()
        return Appended(offset, offset, -1, self.log_start_offset)

    def _place(self, header: BatchHeader, batch: Buffer) -> None:
        prefix = PREFIX.pack(self.end_offset, header.batch_length, _LEADER_EPOCH)
        self.batches.append(prefix + bytes(memoryview(batch)[PREFIX.size :]))
        self.end_offset += header.last_offset_delta + 1
        self.last_offsets.append(self.end_offset - 1)

    # -- read --------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool) -> Slice:
        bounds = self.bounds()
        if not bounds.log_start_offset <= offset <= bounds.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.tp} is outside {bounds.log_start_offset} to {bounds.high_watermark}"
            )
        limit = bounds.last_stable_offset if committed else bounds.high_watermark
        found: list[bytes] = []
        size, next_offset = 0, offset
        for number in range(bisect_left(self.last_offsets, offset), len(self.batches)):
            batch, last_offset = self.batches[number], self.last_offsets[number]
            size += len(batch)
            if last_offset >= limit or (size > max_bytes and (found or not at_least_one)):
                break
            found.append(batch)
            next_offset = last_offset + 1
        aborted = self._aborted(offset, next_offset) if committed else ()
        return Slice(b"".join(found), bounds, aborted)

    def _aborted(self, offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        return [
            AbortedTransaction(entry.producer_id, entry.first_offset)
            for entry in self.aborted
            if entry.last_offset >= offset and entry.first_offset < end_offset
        ]

    def first_record(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record that is at least this new."""
        for number in range(bisect_left(self.last_offsets, self.log_start_offset), len(self.batches)):
            batch = self.batches[number]
            header = parse_header(batch)
            if header.control or header.max_timestamp_ms < timestamp_ms:
                continue
            try:
                for record in list(iter_records(batch, *self._decoding)):  # as a whole, or not at all
                    if record.offset >= self.log_start_offset and record.timestamp_ms >= timestamp_ms:
                        return OffsetAndTimestamp(record.offset, record.timestamp_ms)
            except CorruptBatch as error:
                self._passed_over.note(self.tp, header, error)
        return None

    def newest_timestamp_ms(self) -> int | None:
        first = bisect_left(self.last_offsets, self.log_start_offset)
        headers = [parse_header(batch) for batch in self.batches[first:]]
        return max((header.max_timestamp_ms for header in headers if not header.control), default=None)

    # -- trim --------------------------------------------------------------------------------------------------------

    def trim(self, before_offset: int) -> int:
        bounds = self.bounds()
        offset = bounds.high_watermark if before_offset == -1 else before_offset
        if not 0 <= offset <= bounds.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} of {self.tp} is outside 0 to {bounds.high_watermark}")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            gone = bisect_right(self.last_offsets, offset - 1)
            del self.batches[:gone], self.last_offsets[:gone]
            self.aborted = [entry for entry in self.aborted if entry.last_offset >= offset]
            self.changed()
        return self.log_start_offset

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.batches))
