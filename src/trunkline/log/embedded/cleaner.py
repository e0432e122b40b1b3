"""Cleaning: what is removed from a partition, and when.

Retention removes whole segments, from the oldest on, never the active one. A segment goes when it lies before the log start
offset (`trim`), when its newest record is older than `retention.ms`, or when the partition is larger than `retention.bytes` without it.
An active segment that is past its time, or wholly trimmed, is rolled first, so that an idle partition empties too.

The order on disk: the log start offset is made durable, then files are removed, oldest first. A crash in between leaves
segments before the log start; the next pass removes them.

A compacted topic's closed segments below the last stable offset, and older than `min.compaction.lag.ms`, are compacted (see
compaction) when the part that was not yet is `min.cleanable.dirty.ratio` of the whole, or older than `max.compaction.lag.ms`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

from trunkline.clock import Clock
from trunkline.log.embedded.compaction import Abandoned, Plan, Rewritten, Source, map_keys, rewrite
from trunkline.log.embedded.mending import Mender
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.segment import MAX_RELATIVE_OFFSET, Segment
from trunkline.log.errors import StorageFailure
from trunkline.log.limits import StoreLimits
from trunkline.log.store import TopicPartition

_logger = logging.getLogger(__name__)


class Cleaner:
    """One thread for the slow parts; what changes a partition happens on the event loop."""

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        clock: Clock,
        limits: StoreLimits,
        save_checkpoint: Callable[[], Awaitable[None]],
        mender: Mender,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._limits = limits
        self._save_checkpoint = save_checkpoint
        self._mender = mender
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trunkline-cleaner")
        self._pass = asyncio.Lock()
        self._stopping = False

    async def stop(self) -> None:
        self._stopping = True
        async with self._pass:
            await asyncio.to_thread(self._thread.shutdown)

    async def run_once(self) -> None:
        async with self._pass:
            for partition in list(self._partitions.values()):
                if self._stopping:
                    return
                if partition.failure is not None:
                    continue
                try:
                    await self._mender.whole(partition, partial(self._clean, partition))
                except Abandoned:
                    continue
                except StorageFailure as failure:
                    _logger.error("%s was not cleaned: %s", partition.tp, failure)
                await asyncio.sleep(0)

    async def _clean(self, partition: Partition) -> None:
        partition.producers.expire(self._clock.wall_ms() - self._limits.producer_expiry_ms)
        start_offset = self._retained_from(partition)
        if start_offset > partition.log_start_offset:
            partition.raise_log_start(start_offset)
            await self._save_checkpoint()
        await self.drop_trimmed(partition)
        if partition.config.compacted and partition.failure is None:
            await self._compact(partition)

    # -- retention ---------------------------------------------------------------------------------------------------

    async def drop_trimmed(self, partition: Partition) -> None:
        """Remove the segments that lie wholly before the log start offset."""
        if partition.failure is not None:
            return
        active = partition.active
        if active.size and partition.log_start_offset >= partition.end_offset:
            partition.roll()
        dropped = partition.drop_before(partition.log_start_offset)
        if dropped:
            await asyncio.get_running_loop().run_in_executor(self._thread, _remove, dropped)

    def _retained_from(self, partition: Partition) -> int:
        """The log start offset that retention asks for."""
        config = partition.config
        keep_from = partition.log_start_offset
        if not config.deleted:
            return keep_from
        segments = partition.segments
        if config.retention_ms >= 0:
            horizon_ms = self._clock.wall_ms() - config.retention_ms
            for number, segment in enumerate(segments):
                if not segment.size or self._newest(partition, segment) >= horizon_ms:
                    break
                last = number + 1 == len(segments)
                keep_from = max(keep_from, partition.end_offset if last else segments[number + 1].base_offset)
        if config.retention_bytes >= 0:
            excess = partition.size_bytes - config.retention_bytes
            for number, segment in enumerate(segments[:-1]):
                excess -= segment.size
                if excess < 0:
                    break
                keep_from = max(keep_from, segments[number + 1].base_offset)
        return min(keep_from, partition.last_stable_offset)

    @staticmethod
    def _newest(partition: Partition, segment: Segment) -> int:
        if segment.max_timestamp_ms < 0:
            partition.open_segment(segment)
        return segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.created_ms

    # -- compaction --------------------------------------------------------------------------------------------------

    async def _compact(self, partition: Partition) -> None:
        plan = self._plan(partition)
        if plan is None:
            return
        loop = asyncio.get_running_loop()
        latest, covered = await loop.run_in_executor(self._thread, map_keys, plan)
        reached = [source for source in plan.sources if source.base_offset < covered]
        groups = rewrite(plan, _group(reached, partition.config.segment_bytes), latest)
        while (rewritten := await loop.run_in_executor(self._thread, next, groups, None)) is not None:
            if not self._swap(partition, rewritten):
                await loop.run_in_executor(self._thread, _unlink, [rewritten.swap_path])
                return
            await loop.run_in_executor(self._thread, _finish_swap, rewritten)
        partition.cleaned_to = max(partition.cleaned_to, covered)
        await self._save_checkpoint()

    def _plan(self, partition: Partition) -> Plan | None:
        """What a pass would work on; None when none is due."""
        config = partition.config
        now_ms = self._clock.wall_ms()
        self._roll_overdue(partition, now_ms)
        segments = partition.segments
        sources: list[Segment] = []
        dirty_bytes = 0
        oldest_dirty_ms = now_ms
        for segment, following in pairwise(segments):
            if following.base_offset > partition.last_stable_offset:
                break
            if (
                config.min_compaction_lag_ms
                and self._newest(partition, segment) > now_ms - config.min_compaction_lag_ms
            ):
                break
            sources.append(segment)
            if following.base_offset > partition.cleaned_to and segment.size:
                dirty_bytes += segment.size
                oldest_dirty_ms = min(oldest_dirty_ms, self._oldest(partition, segment))
        if not dirty_bytes:
            return None
        ratio = dirty_bytes / sum(segment.size for segment in sources)
        if ratio < config.min_cleanable_dirty_ratio and now_ms - oldest_dirty_ms <= config.max_compaction_lag_ms:
            return None
        return Plan(
            directory=partition.directory,
            sources=[Source(s.base_offset, s.log_path, s.size, s.created_ms, tuple(s.aborted)) for s in sources],
            interval_bytes=config.index_interval_bytes,
            dirty_from=partition.cleaned_to,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            kept_offsets=frozenset(partition.producers.last_kept_offsets()),
            key_map_bytes=self._limits.cleaner_key_map_bytes,
            max_decompressed_bytes=self._limits.decoding.max_decompressed_bytes,
            passed_over=partial(partition.passed_over.note, partition.tp),
            abandoned=lambda: self._stopping or partition.failure is not None,
        )

    def _roll_overdue(self, partition: Partition, now_ms: int) -> None:
        active = partition.active
        if active.size and now_ms - self._oldest(partition, active) > partition.config.max_compaction_lag_ms:
            partition.roll()

    @staticmethod
    def _oldest(partition: Partition, segment: Segment) -> int:
        first_ms = segment.first_timestamp_ms(partition.pool.fd(segment.log_path))
        return first_ms if first_ms >= 0 else segment.created_ms

    def _swap(self, partition: Partition, rewritten: Rewritten) -> bool:
        """Let the rewritten segment take its place. False when the old ones are no longer what it was made from."""
        bases = [source.base_offset for source in rewritten.sources]
        first = partition.segment_number(bases[0])
        old = partition.segments[first : first + len(bases)]
        if partition.failure is not None or [segment.base_offset for segment in old] != bases:
            return False
        new = rewritten.segment
        try:
            new.replace_aborted(rewritten.aborted)
            for segment in old:
                partition.forget(segment)
                os.rename(segment.log_path, segment.log_path + ".deleted")
                _unlink(path for path in segment.paths if path not in (segment.log_path, new.stem + ".txnindex"))
            os.rename(rewritten.swap_path, new.log_path)
        except OSError as error:
            # The next start finishes the swap; until then the files and what memory knows of them disagree.
            partition.fail(StorageFailure(rewritten.swap_path, error.strerror or "cannot be renamed"))
            return False
        partition.segments[first : first + len(bases)] = [new]
        partition.positions.clear()
        return True


def _group(sources: Sequence[Source], max_bytes: int) -> list[list[Source]]:
    """Neighbours that together fit one segment, in bytes and in the range of its offsets."""
    groups: list[list[Source]] = []
    size = 0
    for number, source in enumerate(sources):
        end_offset = sources[number + 1].base_offset if number + 1 < len(sources) else source.base_offset
        fits = bool(groups) and size + source.size <= max_bytes
        if fits and end_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
            groups[-1].append(source)
            size += source.size
        else:
            groups.append([source])
            size = source.size
    return groups


def _finish_swap(rewritten: Rewritten) -> None:
    rewritten.segment.write_indexes()
    _unlink(source.log_path + ".deleted" for source in rewritten.sources)


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def _remove(segments: list[Segment]) -> None:
    for segment in segments:
        for path in segment.paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                _logger.error("%s was not removed: %s", path, error.strerror)
