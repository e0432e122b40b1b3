"""A partition: segments, producers' state, and the ends of the log.

On disk: the directory `<topic>-<partition>` with the files of its segments (see segment) and producer snapshots (see producers).

What always holds, on the event loop's thread, which is the only one that changes a partition:

- segments are sorted by base offset, the last is the active one, and every offset before `end_offset` was given once;
- `append` checks everything, then writes with one `pwritev`, then changes memory; a failed write is cut back, so file and
  memory agree and the partition can go on when there is room again; the log says so once, and once when it does;
- `dirty_files` are those with bytes that no commit has been asked for; a commit takes all of them, so a batch that is on disk
  has everything before it on disk;
- behind the last batch of the active segment there is nothing, or zeros that are overwritten as the log grows (see `_reserve`);
- what is found damaged is mended while the partition is served (see mending);
- once `fail` was called the partition refuses everything until the store is restarted.

A crash leaves a prefix of the batches, perhaps with a torn one at the end (see recovery).
"""

from __future__ import annotations

import logging
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress

from trunkline.clock import Clock
from trunkline.log.aborted import AbortedEntry
from trunkline.log.batch import PREFIX, BatchHeader, build_marker, iter_batches, read_marker
from trunkline.log.config import LONG_MAX, TopicConfig
from trunkline.log.embedded.ahead import ReadAhead
from trunkline.log.embedded.checkpoint import PartitionMark
from trunkline.log.embedded.files import FilePool, make_directory, write_atomically
from trunkline.log.embedded.segment import MAX_RELATIVE_OFFSET, LoadedIndexes, Segment, offset_name
from trunkline.log.errors import DamagedLog, LogError, StorageFailure
from trunkline.log.intake import Intake
from trunkline.log.limits import StoreLimits
from trunkline.log.passed_over import PassedOver
from trunkline.log.producers import ProducerTable
from trunkline.log.store import Bounds, Buffer, TopicPartition
from trunkline.log.ticket import Appended

_logger = logging.getLogger(__name__)
LEADER_EPOCH = 0
_MAX_WRITE_BUFFERS = 1000  # below IOV_MAX; two per batch
_KEPT_SNAPSHOTS = 2
_RESERVED_BYTES = 512 << 10
_MIN_RESERVED_BYTES = 64 << 10
_SMALL_WRITE_BYTES = 256 << 10
_ZEROS = memoryview(bytes(_RESERVED_BYTES))


class Partition:
    def __init__(
        self,
        tp: TopicPartition,
        directory: str,
        config: TopicConfig,
        *,
        pool: FilePool,
        ahead: ReadAhead,
        clock: Clock,
        limits: StoreLimits,
        passed_over: PassedOver,
        loaded: LoadedIndexes,
        request_sync: Callable[[Partition], None],
        topic_id: int = 0,
        ephemeral: bool = False,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.ephemeral = ephemeral  # its directory is made by the first append, and nothing is ever fsynced
        self.directory = directory
        self.pool = pool
        self.ahead = ahead
        self.clock = clock
        self.limits = limits
        self.passed_over = passed_over
        self._loaded = loaded
        self.segments: list[Segment] = []
        self.producers = ProducerTable()
        self.log_start_offset = 0
        self.end_offset = 0
        self.recovery_point = 0
        self.failure: LogError | None = None
        self._reported = ""
        self._refusing = ""
        self.dirty_files: set[str] = set()
        self.dirty_directory = False
        self.unsynced_records = 0
        self.sync_scheduled = False
        self.watchers: dict[Callable[[], None], bool] = {}  # with whether a client waits
        self.waiting_clients = 0
        self._decoders: set[Callable[[], None]] = set()  # the watchers that decode records
        self.positions: dict[int, tuple[Segment, int]] = {}
        self.snapshot_offset = -1  # where the newest producer snapshot stands
        self.mendings = 0
        self.cleaned_to = 0  # offsets before this one were compacted
        self._request_sync = request_sync
        self._bounds: Bounds | None = None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._intake = Intake(config, self.limits.decoding)
        self._roll_at_timestamp_ms: int | None = None

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def closed_size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments[:-1])

    def closed_before(self, offset: int) -> int:
        """The bytes in the segments that begin before this offset."""
        return sum(segment.size for segment in self.segments if segment.base_offset < offset)

    def may_have_gaps(self, segment: Segment) -> bool:
        """Whether compaction may have taken offsets out of a segment; it leaves the active one alone."""
        if segment.base_offset < self.cleaned_to:
            return True
        return self.config.compacted and segment is not self.segments[-1]

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        return self.end_offset if unstable is None else unstable

    def bounds(self) -> Bounds:
        if self.failure is not None:
            raise self.failure
        if self._bounds is None:
            self._bounds = Bounds(self.log_start_offset, self.end_offset, self.last_stable_offset, LEADER_EPOCH)
        return self._bounds

    def mark(self) -> PartitionMark:
        """What the checkpoint keeps. A size of -1 never matches: a failed partition is not to be trusted unscanned."""
        active = self.segments[-1]
        size = active.size if self.failure is None else -1
        return PartitionMark(
            self.log_start_offset, self.recovery_point, self.end_offset, active.base_offset, size, self.cleaned_to,
            self.closed_size_bytes, len(self.producers), self.topic_id,
        )  # fmt: skip

    def fail(self, failure: StorageFailure) -> None:
        """Refuse everything from now on."""
        if self.failure is None:
            self.failure = failure
            _logger.error("partition %s failed: %s", self.tp, failure)
        self.changed()

    def report(self, failure: StorageFailure) -> None:
        """Log what a read ran into: the rest of the partition stays readable. Said once, however often it is asked for."""
        if self.failure is None and str(failure) != self._reported:
            self._reported = str(failure)
            _logger.error("partition %s: %s", self.tp, failure)

    def refuse(self, failure: StorageFailure) -> None:
        """Say why nothing can be written; once, however many ask, until it can."""
        if self.failure is None and failure.cause != self._refusing:
            self._refusing = failure.cause
            _logger.error("partition %s takes no records: %s", self.tp, failure)

    def changed(self) -> None:
        """Forget derived state and wake everyone who waits for a change."""
        self._bounds = None
        if self.watchers:
            for wake in tuple(self.watchers):
                try:
                    wake()
                except Exception:
                    _logger.exception("a watcher of %s failed", self.tp)

    def watch(self, wake: Callable[[], None], *, client_waits: bool, decodes: bool) -> None:
        self.unwatch(wake)
        self.watchers[wake] = client_waits
        self.waiting_clients += client_waits
        if decodes:
            self._decoders.add(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        self.waiting_clients -= self.watchers.pop(wake, False)
        self._decoders.discard(wake)

    # -- append ------------------------------------------------------------------------------------------------------

    def append(self, buffer: Buffer, *, foreign: bool = False) -> Appended:
        """Check and write batches; `foreign` ones are a Kafka client's."""
        if self.failure is not None:
            raise self.failure
        now_ms = self.clock.wall_ms()
        batches = self._intake.admit(buffer, now_ms, foreign=foreign, decoded=bool(self._decoders))
        if len(batches) == 1:
            header = batches[0][0]
            if header.producer_id >= 0:
                duplicate = self.producers.check(header)
                if duplicate is not None:
                    return self._duplicate(duplicate.base_offset, duplicate.last_offset)
        elif any(header.producer_id >= 0 for header, _ in batches):
            repeated = self.producers.drop_duplicates(batches, self.end_offset, now_ms)
            if not batches:
                return self._duplicate(repeated[0].base_offset, repeated[-1].last_offset)
        base_offset = self.end_offset
        self._write(batches)
        for header, _ in batches:
            if header.producer_id >= 0:
                self.producers.apply(header, base_offset, now_ms)
            base_offset += header.last_offset_delta + 1
        return self._appended(base_offset, now_ms)

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int) -> Appended:
        """Write the control batch that ends a producer's transaction."""
        if self.failure is not None:
            raise self.failure
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now_ms = self.clock.wall_ms()
        batch = build_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms
        )
        batches = list(iter_batches(batch))
        marker = read_marker(batch)
        assert marker is not None
        offset = self.end_offset
        aborted = None if commit else self.producers.aborted_by(producer_id, offset)
        if aborted is None:
            self._write(batches)
        else:
            self._write_abort(batches, aborted)
        self.producers.apply_marker(batches[0][0], marker, offset, now_ms)
        return self._appended(offset + 1, now_ms)

    def _write_abort(self, batches: list[tuple[BatchHeader, memoryview]], aborted: AbortedEntry) -> None:
        """Write an abort marker and its entry in the aborted index, both or none.

        The entry comes first: a marker that stood without it would show readers the records that it aborts.
        """
        header, batch = batches[0]
        self._roll_if_due(len(batch), aborted.last_offset, header.max_timestamp_ms)
        segment = self.active
        path = segment.add_aborted(aborted)
        try:
            self._write(batches)
        except StorageFailure:
            try:
                segment.drop_last_aborted()
            except StorageFailure as failure:
                self.fail(failure)
            raise
        assert self.active is segment
        self.dirty_files.add(path)
        self.dirty_directory = True

    def _appended(self, end_offset: int, now_ms: int) -> Appended:
        base_offset = self.end_offset
        self.end_offset = end_offset
        if self._refusing:
            self._refusing = ""
            _logger.warning("partition %s takes records again", self.tp)
        if self.config.flush_messages != LONG_MAX:
            self.unsynced_records += end_offset - base_offset
            if self.unsynced_records >= self.config.flush_messages:
                self.sync()
        self.changed()
        stamp = now_ms if self.config.log_append_time else -1
        return Appended(base_offset, end_offset - 1, stamp, self.log_start_offset)

    def sync(self) -> None:
        self.unsynced_records = 0
        self._request_sync(self)

    def _duplicate(self, base_offset: int, last_offset: int) -> Appended:
        return Appended(base_offset, last_offset, -1, self.log_start_offset, duplicate=True)

    def _write(self, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Write batches at the end of the log, at the offsets that follow it, and index them."""
        size = 0
        offset = self.end_offset
        parts: list[Buffer] = []
        for header, batch in batches:
            parts.append(PREFIX.pack(offset, header.batch_length, LEADER_EPOCH))
            parts.append(batch[PREFIX.size :])
            size += len(batch)
            offset += header.last_offset_delta + 1
        self._roll_if_due(size, offset - 1, batches[-1][0].max_timestamp_ms)
        segment = self.segments[-1]
        fresh = segment.size == 0
        if fresh and self.ephemeral:
            self._make_directory()
        fd = self.pool.fd(segment.log_path, create=fresh)
        interval_bytes = self.config.index_interval_bytes
        if not segment.loaded:
            segment.load(fd, interval_bytes)
        if fresh:
            self.dirty_directory = True
        try:
            _write_at(fd, segment.log_path, parts, segment.size, size)
        except StorageFailure:
            segment.reserved_to = 0  # it was cut off with the failed write
            raise
        offset = self.end_offset
        for header, batch in batches:
            segment.note(header, offset, len(batch), interval_bytes)
            offset += header.last_offset_delta + 1
        if segment.log_path not in self.dirty_files:
            # So the batch before this one was committed, and this one may be.
            self.dirty_files.add(segment.log_path)
            if segment.size > segment.reserved_to and size <= _SMALL_WRITE_BYTES:
                self._reserve(segment, fd)

    def _indexed(self, segment: Segment) -> bool:
        """Have the segment's indexes in memory. False when it is damaged: nothing is appended to it then."""
        try:
            segment.load(self.pool.fd(segment.log_path), self.config.index_interval_bytes)
        except DamagedLog as damage:
            self.report(damage)
            return False
        return True

    def _reserve(self, segment: Segment, fd: int) -> None:
        """Write zeros behind the last batch, for the next ones to be written on.

        A commit of bytes that lie within the file is half as long as one that makes the file grow: the file system has its
        own journal to write then. Large writes gain nothing, and a log is never more than doubled.
        """
        room = min(_RESERVED_BYTES, segment.size, self.config.segment_bytes - segment.size)
        if room < _MIN_RESERVED_BYTES:
            return
        with suppress(OSError):  # as on a full disk: the next append will tell
            segment.reserved_to = segment.size + os.pwrite(fd, _ZEROS[:room], segment.size)

    def _trim(self, segment: Segment) -> None:
        """Cut off the zeros behind the last batch, because the segment will not grow any more."""
        if segment.reserved_to > segment.size:
            try:
                os.ftruncate(self.pool.fd(segment.log_path), segment.size)
            except OSError as error:
                raise StorageFailure(segment.log_path, error.strerror or "cannot be cut") from None
            self.dirty_files.add(segment.log_path)
        segment.reserved_to = 0

    def _make_directory(self) -> None:
        try:
            make_directory(self.directory)
        except OSError as error:
            raise StorageFailure(self.directory, f"cannot be made: {error.strerror}") from None

    # -- roll --------------------------------------------------------------------------------------------------------

    def _roll_if_due(self, size: int, last_offset: int, timestamp_ms: int) -> None:
        """Begin a new segment if what is about to be written belongs in one."""
        segment = self.segments[-1]
        if segment.size and (
            self._must_roll(segment, size, last_offset, timestamp_ms) or not (segment.loaded or self._indexed(segment))
        ):
            self.roll()

    def _must_roll(self, segment: Segment, size: int, last_offset: int, timestamp_ms: int) -> bool:
        config = self.config
        if segment.size + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self._roll_at_timestamp_ms is None:
            self._roll_at_timestamp_ms = self._age_limit(segment)
        if timestamp_ms > self._roll_at_timestamp_ms:
            return True
        return segment.index_full(config.segment_index_bytes)

    def _age_limit(self, segment: Segment) -> int:
        """The timestamp from which on a batch opens a new segment. Jitter spreads rolls; the path makes it repeatable."""
        config = self.config
        max_age_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacted else config.segment_ms
        jitter_ms = zlib.crc32(segment.log_path.encode()) % config.segment_jitter_ms if config.segment_jitter_ms else 0
        first_ms = segment.first_timestamp_ms(self.pool.fd(segment.log_path))
        return (first_ms if first_ms >= 0 else segment.created_ms) + max_age_ms - min(jitter_ms, max_age_ms)

    def roll(self) -> None:
        """Close the active segment and begin the next at the end of the log. One that is damaged gets no indexes yet."""
        old = self.segments[-1]
        assert self.end_offset > old.base_offset
        self._indexed(old)
        self._trim(old)
        written = old.write_indexes()
        written.append(self.write_snapshot())
        new = Segment(self.directory, self.end_offset, size=0, created_ms=self.clock.wall_ms(), new=True)
        self.pool.fd(new.log_path, create=True)
        self.segments.append(new)
        if old.loaded:
            self._loaded.touch(old)
        self.dirty_files.update(written)
        self.dirty_directory = True
        self._roll_at_timestamp_ms = None
        self._prune_snapshots()
        self._request_sync(self)

    def write_snapshot(self) -> str:
        """Save the producers' state as of the end of the log; returns the file written."""
        path = os.path.join(self.directory, offset_name(self.end_offset) + ".snapshot")
        try:
            write_atomically(path, self.producers.encode(), durable=False)
        except OSError as error:
            raise StorageFailure(path, error.strerror or "cannot be written") from None
        self.snapshot_offset = self.end_offset
        return path

    def _prune_snapshots(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self.directory) if name.endswith(".snapshot"))
            for name in names[:-_KEPT_SNAPSHOTS]:
                os.unlink(os.path.join(self.directory, name))
        except OSError as error:
            _logger.warning("old producer snapshots of %s stay: %s", self.tp, error)

    # -- segments by offset ------------------------------------------------------------------------------------------

    def segment_number(self, offset: int) -> int:
        """The number of the segment in which `offset` lies, or would lie."""
        return max(0, bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1)

    def open_segment(self, segment: Segment) -> int:
        """The segment's descriptor, with its indexes in memory."""
        fd = self.pool.fd(segment.log_path)
        segment.load(fd, self.config.index_interval_bytes)
        if segment is not self.segments[-1]:
            self._loaded.touch(segment)
        return fd

    def drop_before(self, offset: int) -> list[Segment]:
        """Take out the closed segments that lie wholly before `offset`; the caller removes their files."""
        count = 0
        while count + 1 < len(self.segments) and self.segments[count + 1].base_offset <= offset:
            count += 1
        dropped, self.segments = self.segments[:count], self.segments[count:]
        if dropped:
            self.positions.clear()
            for segment in dropped:
                self.forget(segment)
        return dropped

    def replace(self, number: int, new: Segment) -> None:
        """Put a segment in the place of one whose file was replaced."""
        self.forget(self.segments[number])
        self.segments[number] = new
        self.positions.clear()

    def forget(self, segment: Segment) -> None:
        """Let go of a segment that is about to be removed or replaced."""
        self.pool.forget(segment.log_path)
        self._loaded.forget(segment)

    def raise_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.changed()

    def close(self) -> None:
        """Write what a clean start relies on. The caller has fsynced the log."""
        if self.failure is not None or self.ephemeral:
            return
        active = self.segments[-1]
        self._trim(active)
        if active.loaded:
            self.dirty_files.update(active.write_indexes())
        # Without producers no snapshot is needed: a clean start takes a missing one for an empty one.
        if len(self.producers) and self.snapshot_offset != self.end_offset:
            self.dirty_files.add(self.write_snapshot())
            self.dirty_directory = True


def _write_at(fd: int, path: str, parts: list[Buffer], position: int, size: int) -> None:
    """Write all of `parts` at `position`, or nothing."""
    try:
        if len(parts) <= _MAX_WRITE_BUFFERS:
            written = os.pwritev(fd, parts, position)
            if written == size:
                return
        else:
            written = 0
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            count = os.pwrite(fd, rest, position + written)
            if count == 0:
                raise OSError(5, "the file takes no more bytes")
            rest = rest[count:]
            written += count
    except OSError as error:
        try:
            os.ftruncate(fd, position)
        except OSError as second:
            _logger.error("%s keeps bytes of a failed write past position %d: %s", path, position, second)
        raise StorageFailure(path, error.strerror or "cannot be written") from None
