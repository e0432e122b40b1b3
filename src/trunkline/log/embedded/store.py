"""The embedded store: topics in a directory of this machine.

On disk, in the data directory:

    .lock, .clean_shutdown, checkpoint.json    see lock, checkpoint
    __topology-0/                              what topics there are (see topology); opened and folded before all others
    <topic>-<partition>/                       see data_directory, partition
    .ephemeral/                                partitions of ephemeral topics: removed as a whole at start and at close

Every method is called on one event loop's thread. Appends write to the page cache right there; fsyncs are
the committer's, cleaning and the removal of files happen in a thread. One partition's trouble is its own: it refuses what
concerns it with a StorageFailure and the others go on serving.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from uuid import UUID, uuid4

from trunkline.clock import Clock, SystemClock
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.capabilities import LogDirectory
from trunkline.log.config import LONG_MAX, TOPOLOGY_CONFIG, TopicConfig
from trunkline.log.coordinated import CoordinatedStore
from trunkline.log.embedded import reader
from trunkline.log.embedded.adoption import adopted_topics
from trunkline.log.embedded.ahead import ReadAhead
from trunkline.log.embedded.checkpoint import NO_MARK, Checkpoint, PartitionMark
from trunkline.log.embedded.cleaner import Cleaner
from trunkline.log.embedded.committer import new_committer
from trunkline.log.embedded.data_directory import find_partitions, keep_aside, put_away, remove
from trunkline.log.embedded.files import (
    DIRECTORY_MODE,
    FilePool,
    fsync_directory,
    is_private,
    make_durable_directory,
    tighten,
)
from trunkline.log.embedded.lock import DirectoryLock
from trunkline.log.embedded.mending import Mender
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.recovery import open_partition
from trunkline.log.embedded.segment import LoadedIndexes, Segment
from trunkline.log.embedded.topology import (
    TOPOLOGY_ID,
    TopicEntry,
    Topology,
    encode_tombstone,
    encode_topic,
    read_topology,
)
from trunkline.log.errors import (
    DamagedLog,
    InvalidTopicName,
    LogError,
    OffsetOutOfRange,
    StorageFailure,
    UnknownTopicOrPartition,
)
from trunkline.log.limits import StoreLimits
from trunkline.log.names import TOPOLOGY_TOPIC, folded
from trunkline.log.store import (
    Bounds,
    Buffer,
    Durability,
    OffsetAndTimestamp,
    ProducerState,
    Slice,
    TopicInfo,
    TopicPartition,
)
from trunkline.log.ticket import Appended, Ticket
from trunkline.log.topic_rules import TopicRules

_logger = logging.getLogger(__name__)
_TOPOLOGY = TopicPartition(TOPOLOGY_TOPIC, 0)
_EPHEMERAL = ".ephemeral"


class EmbeddedStore(CoordinatedStore):
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        defaults: Mapping[str, str] | None = None,
        limits: StoreLimits | None = None,
        thorough: Callable[[Partition], None] | None = None,
    ) -> None:
        """With `thorough` a start checks and mends everything, and calls this with each partition when it is open."""
        self.directory = os.path.abspath(os.fspath(directory))
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._defaults = dict(defaults or {})
        TopicConfig({}, self._defaults)  # refuses bad defaults now, not at the first topic
        self._limits = limits if limits is not None else StoreLimits()
        self.decoding = self._limits.decoding
        self._lock = DirectoryLock(self.directory)
        self._checkpoint = Checkpoint(self.directory)
        self._pool = FilePool(self._limits.max_open_files)
        self._ahead = ReadAhead(self._pool, self._limits.max_read_ahead_bytes)
        self._loaded = LoadedIndexes(self._limits.max_loaded_indexes)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._rules = TopicRules(self, self._limits.max_partitions)
        self._topics: dict[str, TopicInfo] = {}
        self._topics_by_id: dict[UUID, TopicInfo] = {}
        self._folded_names: dict[str, str] = {}
        self._topics_view = MappingProxyType(self._topics)
        self._topology_lock = asyncio.Lock()
        self._checkpoint_lock = asyncio.Lock()
        self._checkpoint_requests = 0
        self._mender = Mender()
        self._cleaner = Cleaner(self._partitions, self._clock, self._limits, self.save_checkpoint, self._mender)
        self._thorough = thorough
        self._background: list[asyncio.Task[None]] = []
        self._file_work: set[asyncio.Future[None]] = set()
        self._open = False

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            make_durable_directory(self.directory, DIRECTORY_MODE)
        except OSError as error:
            raise StorageFailure(self.directory, f"cannot be made: {error.strerror}") from None
        self._lock.acquire()
        private = is_private(self.directory)
        try:
            if not private:
                await asyncio.to_thread(tighten, self.directory)
            await asyncio.to_thread(self._open_all)
        except BaseException:
            self._pool.close()
            self._lock.release()
            raise
        self._committer = new_committer(self._loop, io_uring=self._limits.io_uring)
        self._committer.start()
        self._open = True
        if private:  # nobody else can enter the directory: whether all that is in it is private too can wait
            self._do_later(lambda: tighten(self.directory))
        self._background = [
            self._loop.create_task(self._clean_periodically()),
            self._loop.create_task(self._checkpoint_periodically()),
        ]

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._cleaner.stop()
        for partition in self._partitions.values():
            try:
                partition.close()
            except StorageFailure as failure:
                partition.fail(failure)
            if not partition.ephemeral and (partition.dirty_files or partition.dirty_directory):
                self._committer.submit(partition)
        await self._committer.stop()
        await asyncio.sleep(0)  # the committer's last completion was scheduled before its thread ended
        if self._file_work:
            await asyncio.gather(*self._file_work, return_exceptions=True)
        marks = self._marks()
        for partition in self._partitions.values():
            partition.changed()
        await asyncio.to_thread(self._save_and_mark_clean, marks)
        self._ahead.close()
        self._pool.close()
        self._lock.release()

    def _save_and_mark_clean(self, marks: Mapping[str, PartitionMark]) -> None:
        self._checkpoint.save(marks)
        self._checkpoint.put_clean_mark()
        shutil.rmtree(os.path.join(self.directory, _EPHEMERAL), ignore_errors=True)

    def _open_all(self) -> None:
        """Open `__topology`, fold it, open the rest. Runs in a thread while nothing else uses the store."""
        marks = self._checkpoint.load()
        clean = self._checkpoint.take_clean_mark()
        shutil.rmtree(os.path.join(self.directory, _EPHEMERAL), ignore_errors=True)
        names = find_partitions(self.directory)
        if str(_TOPOLOGY) not in names and names and self._thorough is None:
            raise StorageFailure(
                os.path.join(self.directory, str(_TOPOLOGY)),
                f"is missing, but {len(names)} partitions are there; restore it, or have `trunkline log repair` do without it",
            )
        self._add_topic(TopicEntry(TOPOLOGY_TOPIC, TOPOLOGY_ID, 1, TOPOLOGY_CONFIG))
        topology_partition = self._open_partition(_TOPOLOGY, marks.get(str(_TOPOLOGY), NO_MARK), clean=clean)
        if topology_partition.failure is not None:
            raise topology_partition.failure
        fsync_directory(self.directory)
        try:
            topology = read_topology(topology_partition.segments, self._pool)
        except DamagedLog as damage:
            topology_partition.report(damage)
            topology_partition = self._open_partition(_TOPOLOGY, marks.get(str(_TOPOLOGY), NO_MARK), mend=True)
            if topology_partition.failure is not None:
                raise topology_partition.failure from None
            topology = read_topology(topology_partition.segments, self._pool)
        if topology.incomplete or (self._thorough is not None and not topology.topics):
            for entry in adopted_topics(names, marks, topology):
                topology_partition.append(build_batch([encode_topic(entry)], timestamp_ms=self._clock.wall_ms()))
                topology.topics[entry.name] = entry
        for entry in topology.topics.values():
            self._add_topic(entry)
        self._set_aside(names, topology)
        for entry in topology.topics.values():
            for number in range(entry.partitions):
                tp = TopicPartition(entry.name, number)
                self._open_partition(tp, marks.get(str(tp), NO_MARK), clean=clean)

    def _set_aside(self, names: Mapping[str, TopicPartition], topology: Topology) -> None:
        """Finish deletions; keep, under another name, what no topic claims and nobody deleted."""
        for name, tp in names.items():
            info = self._topics.get(tp.topic)
            if info is not None and tp.partition < info.partitions:
                continue
            path = os.path.join(self.directory, name)
            if tp.topic in topology.deleted:
                remove(put_away(path))
            else:
                keep_aside(path)

    def _open_partition(
        self, tp: TopicPartition, mark: PartitionMark, *, clean: bool = False, mend: bool = False
    ) -> Partition:
        partition = Partition(
            tp,
            os.path.join(self.directory, str(tp)),
            self._topics[tp.topic].config,
            pool=self._pool,
            ahead=self._ahead,
            clock=self._clock,
            limits=self._limits,
            passed_over=self.passed_over,
            loaded=self._loaded,
            request_sync=self._request_sync,
            topic_id=self._topics[tp.topic].id.int,
        )
        open_partition(partition, mark, clean=clean, thorough=mend or self._thorough is not None)
        self._partitions[tp] = partition
        if self._thorough is not None:
            self._thorough(partition)
        return partition

    def _add_ephemeral(self, tp: TopicPartition) -> None:
        partition = Partition(
            tp,
            os.path.join(self.directory, _EPHEMERAL, str(tp)),
            self._topics[tp.topic].config,
            pool=self._pool,
            ahead=self._ahead,
            clock=self._clock,
            limits=self._limits,
            passed_over=self.passed_over,
            loaded=self._loaded,
            request_sync=self._request_sync,
            ephemeral=True,
        )
        created_ms = self._clock.wall_ms()
        partition.segments.append(Segment(partition.directory, 0, size=0, created_ms=created_ms, new=True))
        self._partitions[tp] = partition

    def _request_sync(self, partition: Partition) -> None:
        if partition.ephemeral:
            partition.dirty_files.clear()
        else:
            self._committer.submit(partition)

    # -- background --------------------------------------------------------------------------------------------------

    async def run_cleaner_once(self) -> None:
        """Apply retention and compaction to every partition that is due, now."""
        await self._cleaner.run_once()

    async def _clean_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._limits.cleanup_interval_ms / 1000)
            try:
                await self._cleaner.run_once()
            except LogError as error:
                _logger.error("cleaning stopped early: %s", error)

    async def _checkpoint_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._limits.checkpoint_interval_ms / 1000)
            try:
                await self.save_checkpoint()
            except LogError as error:
                _logger.error("no checkpoint was written: %s", error)

    async def save_checkpoint(self) -> None:
        """Make log start offsets and recovery points durable. Callers that come together share one write."""
        self._checkpoint_requests += 1
        request = self._checkpoint_requests
        async with self._checkpoint_lock:
            if request <= self._checkpoint_served:
                return
            served = self._checkpoint_requests
            await asyncio.to_thread(self._checkpoint.save, self._marks())
            self._checkpoint_served = served

    _checkpoint_served = 0

    def _marks(self) -> dict[str, PartitionMark]:
        return {str(tp): partition.mark() for tp, partition in self._partitions.items() if not partition.ephemeral}

    def _do_later(self, work: Callable[[], None]) -> None:
        """Remove or look at files in a thread; `close` waits for it."""
        future = self._loop.run_in_executor(None, work)
        self._file_work.add(future)
        future.add_done_callback(self._file_work.discard)

    # -- topics ------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics_view

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def colliding_topic(self, name: str) -> str | None:
        found = self._folded_names.get(folded(name))
        return None if found == name else found

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return self._topics_by_id.get(topic_id)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> TopicInfo:
        async with self._topology_lock:
            self._rules.check_creation(name, partitions, len(self._partitions))
            entry = TopicEntry(name, topic_id or uuid4(), partitions, dict(config or {}))
            TopicConfig(entry.config, self._defaults)
            await self._write_topology(encode_topic(entry))
            await self._make_directories([TopicPartition(name, number) for number in range(partitions)])
            info = self._add_topic(entry)
            for number in range(partitions):
                self._open_partition(TopicPartition(name, number), NO_MARK, clean=True)
            return info

    @property
    def ephemeral_topics(self) -> EmbeddedStore:
        return self

    async def create_ephemeral_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicInfo:
        async with self._topology_lock:
            self._rules.check_creation(name, partitions, len(self._partitions), ephemeral=True)
            info = self._add_topic(TopicEntry(name, uuid4(), partitions, dict(config or {})), ephemeral=True)
            for number in range(partitions):
                self._add_ephemeral(TopicPartition(name, number))
            return info

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        async with self._topology_lock:
            old = self._rules.require(name)
            self._rules.check_growth(old, partitions, len(self._partitions))
            entry = TopicEntry(name, old.id, partitions, old.config.overrides)
            if old.ephemeral:
                info = self._add_topic(entry, ephemeral=True)
                for number in range(old.partitions, partitions):
                    self._add_ephemeral(TopicPartition(name, number))
                return info
            await self._write_topology(encode_topic(entry))
            added = [TopicPartition(name, number) for number in range(old.partitions, partitions)]
            await self._make_directories(added)
            info = self._add_topic(entry)
            for tp in added:
                self._open_partition(tp, NO_MARK, clean=True)
            return info

    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        async with self._topology_lock:
            old = self._rules.require(name)
            entry = TopicEntry(name, old.id, old.partitions, dict(config))
            TopicConfig(entry.config, self._defaults)
            if not old.ephemeral:
                await self._write_topology(encode_topic(entry))
            info = self._add_topic(entry, ephemeral=old.ephemeral)
            for number in range(info.partitions):
                self._partitions[TopicPartition(name, number)].configure(info.config)
            return info

    async def delete_topic(self, name: str) -> None:
        async with self._topology_lock:
            info = self._rules.require(name)
            if name == TOPOLOGY_TOPIC:
                raise InvalidTopicName(f"{name} is the store's own and cannot be deleted")
            if not info.ephemeral:
                await self._write_topology(encode_tombstone(name))
            del self._topics[name]
            self._topics_by_id.pop(info.id, None)
            if self._folded_names.get(folded(name)) == name:
                del self._folded_names[folded(name)]
            for number in range(info.partitions):
                self._remove_partition(self._partitions.pop(TopicPartition(name, number)))
            if info.ephemeral:
                return
            # Before the name may be used again: else power loss could give the old files to a new topic.
            await self._in_thread(lambda: fsync_directory(self.directory))

    def _remove_partition(self, partition: Partition) -> None:
        for segment in partition.segments:
            partition.forget(segment)
        partition.failure = UnknownTopicOrPartition(f"topic {partition.tp.topic!r} was deleted")
        if partition.ephemeral and not partition.end_offset:
            partition.changed()
            return  # it was never written to: there is no directory
        try:
            away = put_away(partition.directory)
        except OSError as error:
            _logger.error("%s stays until the next start: %s", partition.directory, error.strerror)
        else:
            self._do_later(lambda: remove(away))
        partition.changed()

    async def _write_topology(self, record: NewRecord) -> None:
        batch = build_batch([record], timestamp_ms=self._clock.wall_ms())
        await self.append(_TOPOLOGY, batch, Durability.DISK)

    async def _make_directories(self, tps: Sequence[TopicPartition]) -> None:
        def make() -> None:
            for tp in tps:
                path = os.path.join(self.directory, str(tp))
                if os.path.exists(path):  # of a deletion whose rename failed
                    remove(put_away(path))
                os.mkdir(path, DIRECTORY_MODE)
            fsync_directory(self.directory)

        await self._in_thread(make)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise StorageFailure(self.directory, error.strerror or "cannot be written") from None

    def _add_topic(self, entry: TopicEntry, *, ephemeral: bool = False) -> TopicInfo:
        config = TopicConfig(entry.config, self._defaults)
        info = TopicInfo(entry.name, entry.id, entry.partitions, config, ephemeral)
        self._topics[entry.name] = info
        self._topics_by_id[entry.id] = info
        self._folded_names.setdefault(folded(entry.name), entry.name)
        return info

    # -- append ------------------------------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        batches: Buffer,
        durability: Durability = Durability.OS,
        *,
        foreign: bool = False,
    ) -> Ticket:
        partition = self._partition(tp)
        try:
            appended = partition.append(batches, foreign=foreign)
        except StorageFailure as failure:
            partition.refuse(failure)
            raise
        return self._acknowledge(partition, appended, durability)

    def append_marker(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        durability: Durability = Durability.DISK,
    ) -> Ticket:
        partition = self._partition(tp)
        try:
            appended = partition.append_marker(
                producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
            )
        except StorageFailure as failure:
            partition.refuse(failure)
            raise
        return self._acknowledge(partition, appended, durability)

    def _acknowledge(self, partition: Partition, appended: Appended, durability: Durability) -> Ticket:
        ticket = Ticket(loop=self._loop)
        ticket.place = appended
        config = partition.config
        flush = config.flush
        if partition.ephemeral:
            ticket.set_result(appended)
            return ticket
        if flush == "commit" or (durability is Durability.DISK and flush == "acks"):
            if appended.last_offset >= partition.recovery_point:
                self._committer.submit(partition, ticket, appended)
                return ticket
        elif config.flush_ms != LONG_MAX:
            self._sync_within(partition, config.flush_ms)
        ticket.set_result(appended)
        return ticket

    def _sync_within(self, partition: Partition, flush_ms: int) -> None:
        if not partition.sync_scheduled:
            partition.sync_scheduled = True
            self._loop.call_later(flush_ms / 1000, self._sync_now, partition)

    def _sync_now(self, partition: Partition) -> None:
        partition.sync_scheduled = False
        if self._open:
            partition.sync()

    # -- read --------------------------------------------------------------------------------------------------------

    def _partition(self, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        if partition is None:
            raise UnknownTopicOrPartition(f"there is no partition {tp.partition} of topic {tp.topic!r}")
        return partition

    def bounds(self, tp: TopicPartition) -> Bounds:
        return self._partition(tp).bounds()

    async def read(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        committed: bool = False,
        at_least_one: bool = True,
        verified: bool = False,
    ) -> Slice:
        partition = self._partition(tp)
        read = partial(
            reader.read, partition, offset, max_bytes, committed=committed, at_least_one=at_least_one, verified=verified
        )
        try:
            try:
                return await read()
            except DamagedLog as damage:
                await self._mender.mend(partition, damage)
                return await self._mender.whole(partition, read)
        except StorageFailure as failure:
            partition.report(failure)
            raise

    async def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> OffsetAndTimestamp | None:
        partition = self._partition(tp)
        return await self._mender.whole(partition, partial(reader.offset_for_time, partition, timestamp_ms))

    async def max_timestamp(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        partition = self._partition(tp)
        return await self._mender.whole(partition, partial(reader.max_timestamp, partition))

    async def producers(self, tp: TopicPartition) -> Sequence[ProducerState]:
        return self._partition(tp).producers.describe()

    # -- wait --------------------------------------------------------------------------------------------------------

    def watch(self, tp: TopicPartition, wake: Callable[[], None], *, decodes: bool = False) -> None:
        self._partition(tp).watch(wake, client_waits=False, decodes=decodes)

    @property
    def client_watches(self) -> EmbeddedStore:
        return self

    def watch_for_client(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        self._partition(tp).watch(wake, client_waits=True, decodes=False)

    def unwatch(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        partition = self._partitions.get(tp)
        if partition is not None:
            partition.unwatch(wake)

    # -- trim --------------------------------------------------------------------------------------------------------

    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        partition = self._partition(tp)
        bounds = partition.bounds()
        offset = bounds.high_watermark if before_offset == -1 else before_offset
        if not 0 <= offset <= bounds.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} of {tp} is outside 0 to {bounds.high_watermark}")
        partition.raise_log_start(offset)
        if not partition.ephemeral:
            await self.save_checkpoint()
        await self._cleaner.drop_trimmed(partition)
        return partition.log_start_offset

    @property
    def log_directories(self) -> EmbeddedStore:
        return self

    async def directories(self) -> Sequence[LogDirectory]:
        usage = await asyncio.to_thread(shutil.disk_usage, self.directory)
        return [
            LogDirectory(
                path=self.directory,
                total_bytes=usage.total,
                usable_bytes=usage.free,
                sizes={tp: partition.size_bytes for tp, partition in self._partitions.items()},
                failed={tp: str(p.failure) for tp, p in self._partitions.items() if p.failure is not None},
            )
        ]
