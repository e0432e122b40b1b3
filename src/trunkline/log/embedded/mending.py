"""Mending a segment while its partition is served (see damage).

Whoever reads a segment and finds something else than whole batches in their places raises DamagedLog. The store then has the
segment mended and tries again, so that a reader meets damage once, as a delay, and goes on behind it.

The file is examined and written anew in a thread; it does not change meanwhile, because an active segment is closed first. On the
event loop the new file takes the place of the old one, if that is still what it was made from. Reads that are under way go
on with the old file, which they have open. One file is mended at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trunkline.log.embedded.damage import (
    Examination,
    drop_indexes,
    examine,
    leave_place,
    set_aside,
    take_place,
    write_mended,
)
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.recovery import tell
from trunkline.log.embedded.segment import Segment
from trunkline.log.errors import DamagedLog, StorageFailure

T = TypeVar("T")
_MAX_ATTEMPTS = 4


class Mender:
    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def whole(self, partition: Partition, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is tried again after each mending."""
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return await work()
            except DamagedLog as damage:
                await self.mend(partition, damage)
        return await work()

    async def mend(self, partition: Partition, damage: DamagedLog) -> None:
        """Make the damaged segment whole; raises the damage again when that is not to be had."""
        before = partition.mendings
        async with self._one_at_a_time:
            if partition.mendings > before:
                return  # someone else met it, too
            found = [number for number, each in enumerate(partition.segments) if each.log_path == damage.path]
            if not found or partition.failure is not None:
                raise damage
            (number,) = found
            segment = partition.segments[number]
            if segment is partition.active:
                partition.roll()
            limit = partition.segments[number + 1].base_offset
            gaps = partition.may_have_gaps(segment)
            try:
                examination, aside = await asyncio.to_thread(_prepare, segment, limit, gaps)
                if not examination.damages:
                    raise damage
                if number >= len(partition.segments) or partition.segments[number] is not segment:
                    leave_place(segment.log_path)
                    return
                mended = Segment(
                    partition.directory,
                    segment.base_offset,
                    size=examination.size,
                    created_ms=segment.created_ms,
                    new=False,
                )
                take_place(segment.log_path)
                drop_indexes(segment.log_path)
            except OSError as error:
                raise StorageFailure(damage.path, f"{damage.cause}; it cannot be mended: {error.strerror}") from None
            partition.replace(number, mended)
            partition.mendings += 1
            partition.dirty_directory = True
            partition.sync()
            tell(partition.tp, segment.log_path, examination, aside)


def _prepare(segment: Segment, limit: int, gaps: bool) -> tuple[Examination, list[str]]:
    fd = os.open(segment.log_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        found = examine(fd, size, segment.base_offset, limit, gaps=gaps, aborted=segment.aborted, zeros=True)
        if not found.damages:
            return found, []
        aside = set_aside(segment.log_path, fd, found)
        write_mended(segment.log_path, fd, found)
        return found, aside
    finally:
        os.close(fd)
