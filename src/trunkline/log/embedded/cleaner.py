"""Retention: what is removed from a partition, and when.

Whole segments only, from the oldest on, never the active one. A segment goes when it lies before the log start offset
(`trim`), when its newest record is older than `retention.ms`, or when the partition is larger than `retention.bytes` without it.
An active segment that is past its time, or wholly trimmed, is rolled first, so that an idle partition empties too.

The order on disk: the log start offset is made durable, then files are removed, oldest first. A crash in between leaves
segments before the log start; the next pass removes them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from trunkline.clock import Clock
from trunkline.log.embedded.limits import StoreLimits
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.segment import Segment
from trunkline.log.errors import StorageFailure
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
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._limits = limits
        self._save_checkpoint = save_checkpoint
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trunkline-cleaner")
        self._pass = asyncio.Lock()

    async def stop(self) -> None:
        async with self._pass:
            await asyncio.to_thread(self._thread.shutdown)

    async def run_once(self) -> None:
        async with self._pass:
            for partition in list(self._partitions.values()):
                if partition.failure is not None:
                    continue
                try:
                    await self._clean(partition)
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
        newest_ms = segment.newest(partition.pool.fd(segment.log_path), partition.config.index_interval_bytes)
        return newest_ms if newest_ms >= 0 else segment.created_ms


def _remove(segments: list[Segment]) -> None:
    for segment in segments:
        for path in segment.paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                _logger.error("%s was not removed: %s", path, error.strerror)
