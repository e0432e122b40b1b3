"""A follower: someone who is to get everything that the sources hold, from some place on, in the order of each source.

It is either live or behind. Live: each turn offers it what was just appended, from memory (see `feed`), and its place in every
source is the source's `delivered_to`. Behind: its places are its own, and it reads the log until they have caught up, at
which moment, without a pause in between, it is live again. So nothing is missed and nothing comes twice.

A follower that cannot take a message (its window is full, its socket is) falls behind at that message; it holds no queue,
only what it has read last from the log (`catch_up_read_bytes`). `wake` lets it go on.

Places are remembered by partition for as long as the follower exists; a source that it has no place in was made after it,
and it reads that one from the start.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from trunkline.log.errors import LogError
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.source import Source

logger = logging.getLogger(__name__)


class Follower(ABC):
    __slots__ = ("_following", "_places", "_read", "_read_from", "_task", "commons", "live")

    def __init__(self, commons: Commons) -> None:
        self.commons = commons
        self.live = False
        self._places: dict[TopicPartition, int] = {}  # meaningful while behind
        self._read: list[Run] = []  # read from the log and not yet taken, all of one source
        self._read_from: Source | None = None
        self._following = 0  # the offset behind all that was read
        self._task: asyncio.Task[None] | None = None

    # -- what a kind of follower must say ------------------------------------------------------------------------------

    @abstractmethod
    def blocked(self) -> bool:
        """Whether nothing can be taken now: there is nobody to give it to, or they have their hands full."""

    @abstractmethod
    def take(self, run: Run) -> int:
        """Deal with messages read from the log, in order; returns how many, fewer than all when blocked meanwhile."""

    @abstractmethod
    def wants(self, topic: str) -> bool:
        """Whether a publication of this topic may be for this follower."""

    @abstractmethod
    def filters(self) -> Sequence[Sequence[str]]:
        """The filters, as their levels, that decide about that."""

    async def prepare(self) -> bool:
        """What comes before the log; False when blocked meanwhile."""
        return True

    # -- places --------------------------------------------------------------------------------------------------------

    def places(self) -> dict[TopicPartition, int]:
        """Up to where everything was dealt with, by partition."""
        if self.live:
            return {source.tp: source.delivered_to for source in self.commons.sources.all}
        return self._places

    def restore(self, places: dict[TopicPartition, int]) -> None:
        self._places = places
        self.live = False

    def start_here(self) -> None:
        """Take only what comes from now on."""
        self._places = {source.tp: source.delivered_to for source in self.commons.sources.all}
        self._forget_read()

    def fall_behind(self, partition: TopicPartition | None = None, offset: int = 0) -> None:
        """Called while live: from now on read the log, this partition from this offset."""
        self._places = {each.tp: each.delivered_to for each in self.commons.sources.all}
        if partition is not None:
            self._places[partition] = offset
        self.live = False

    def stop(self) -> None:
        """Nobody is there to take anything."""
        if self.live:
            self.fall_behind()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._forget_read()

    def _unread(self) -> None:
        """A place is in front of what was read but not taken."""
        if self._read and self._read_from is not None:
            self._places[self._read_from.tp] = self._read[0].offset

    def forget_source(self, tp: TopicPartition) -> None:
        """The partition is gone; if one of this name comes back, it is another."""
        self._places.pop(tp, None)
        if self._read_from is not None and self._read_from.tp == tp:
            self._forget_read()

    def _forget_read(self) -> None:
        self._read = []
        self._read_from = None

    # -- catching up ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may have changed that let the follower wait."""
        if not self.live and self._task is None and not self.blocked():
            if self._caught_up_at_once():
                return
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    def _caught_up_at_once(self) -> bool:
        """The common case of a new follower: there is nothing to read."""
        if self._read or self.must_prepare():
            return False
        places = self._places
        if any(places.get(source.tp, 0) < source.delivered_to for source in self.commons.sources.all):
            return False
        self.live = True
        self.went_live()
        return True

    def must_prepare(self) -> bool:
        return False

    def went_live(self) -> None:
        """Called when the follower has caught up."""
        self._forget_read()

    async def _catch_up(self) -> None:
        try:
            while not self.live:
                if self.blocked() or not await self.prepare():
                    return
                if not await self._read_all():
                    return
                self._caught_up_at_once()
        except LogError as error:
            logger.warning("a session cannot read its messages: %s", error)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _read_all(self) -> bool:
        """Read and take what every source has; False when blocked meanwhile."""
        for source in self.commons.sources.all:
            if self._read and self._read_from is not source:
                continue
            while self._read or self._places.get(source.tp, 0) < source.delivered_to:
                if self.blocked():
                    return False
                if not self._read:
                    await self._read_more(source)
                if self._read and not self._take_read(source):
                    return False
                # Others want the loop too, and what was sent is written at the end of this turn.
                await asyncio.sleep(0)
        return not self._read

    async def _read_more(self, source: Source) -> None:
        offset = self._places.get(source.tp, 0)
        if source.nothing_since(offset, self.filters()):
            self._places[source.tp] = source.delivered_to
            return
        runs, following = await source.read(offset, self.commons.limits.catch_up_read_bytes, self.wants)
        if following == offset:
            following = source.delivered_to  # compaction left nothing here
        limit = source.delivered_to
        if following > limit:
            # What lies behind is offered live to others in this very moment: it is read when they have it.
            runs = [run for run in runs if run.offset < limit]
            if runs and runs[-1].offset + len(runs[-1]) > limit:
                runs[-1] = runs[-1].first(limit - runs[-1].offset)
            following = limit
        self._read = runs
        self._read_from = source
        self._following = following
        if not runs:
            self._places[source.tp] = following

    def _take_read(self, source: Source) -> bool:
        """Give what was read; False if some of it is left."""
        for index, run in enumerate(self._read):
            taken = self.take(run)
            if taken < len(run):
                self._read = [run.behind(taken) if taken else run, *self._read[index + 1 :]]
                self._unread()
                return False
        self._places[source.tp] = self._following
        self._forget_read()
        return True
