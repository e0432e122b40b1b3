"""A store that answers late, as a cluster across a network would: the proof that nobody relies on what only a file can do.

It stands before any other store and keeps every promise of `LogStore`, but nothing beyond:

- An append is sent, and arrives after a while, in the order of the calls on its partition. Its place and its completion are
  answered after another while, places in order too. Refusals come with the ticket. Answers of different partitions overtake
  one another.
- `bounds` is what has been seen: what the first look showed, then the places that were answered, what reads told, and news,
  which wake whoever watches. All of them come late, and the stable end comes with reads and news only.
- A read may return less than what is there, never nothing where there is something.
- With `faults`, a request now and then finds its partition out of reach, and so do the next ones for a while: they fail with
  StorageFailure. That is for suites which try again. A client of a protocol would be told of it, so the integration suites
  run without.

An ephemeral topic is this process's own memory: it goes straight to the store below.

Delays are real ones, of a few milliseconds at most, drawn from the random source that is handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from typing import TypeVar
from uuid import UUID

from trunkline.log.batch import iter_batches
from trunkline.log.capabilities import EphemeralTopics, LogDirectories
from trunkline.log.coordinated import CoordinatedStore
from trunkline.log.errors import LogError, StorageFailure
from trunkline.log.store import (
    Bounds,
    Buffer,
    Durability,
    LogStore,
    OffsetAndTimestamp,
    ProducerState,
    Slice,
    TopicInfo,
    TopicPartition,
)
from trunkline.log.ticket import Ticket

T = TypeVar("T")
_logger = logging.getLogger(__name__)

MAX_DELAY_MS = 5.0
OUTAGE_MS = 10.0


class LateLog(CoordinatedStore):
    def __init__(
        self, below: LogStore, chance: Random, *, max_delay_ms: float = MAX_DELAY_MS, faults: float = 0.0
    ) -> None:
        """`faults` is how probable it is that a request begins an outage of its partition."""
        self.below = below
        self.faults = faults
        self.decoding = below.decoding
        self.passed_over = below.passed_over
        self._chance = chance
        self._max_delay_ms = max_delay_ms
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._under_way = 0
        self._at_rest = asyncio.Event()

    # -- delays ------------------------------------------------------------------------------------------------------

    def later(self, work: Callable[[], None]) -> None:
        """Most answers come soon, some take long."""
        self._under_way += 1
        self._at_rest.clear()
        delay_s = self._max_delay_ms / 1000 * self._chance.random() ** 3
        asyncio.get_running_loop().call_later(delay_s, self._do, work)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._at_rest.set()

    async def _pause(self) -> None:
        passed = asyncio.Event()
        self.later(passed.set)
        await passed.wait()

    async def _there_and_back(self, request: Coroutine[None, None, T]) -> T:
        try:
            await self._pause()
        except BaseException:
            request.close()
            raise
        try:
            return await request
        finally:
            await self._pause()

    async def rest(self) -> bool:
        """Wait until everything that was sent has been answered; whether there was something."""
        waited = self._under_way > 0
        while self._under_way:
            await self._at_rest.wait()
        return waited

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.below.start()

    async def close(self) -> None:
        await self.rest()
        await self.below.close()
        await self.rest()

    # -- topics ------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        return self.below.topics()

    def topic(self, name: str) -> TopicInfo | None:
        return self.below.topic(name)

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return self.below.topic_by_id(topic_id)

    def colliding_topic(self, name: str) -> str | None:
        return self.below.colliding_topic(name)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> TopicInfo:
        return await self._there_and_back(self.below.create_topic(name, partitions, config, topic_id=topic_id))

    @property
    def ephemeral_topics(self) -> EphemeralTopics | None:
        return self.below.ephemeral_topics

    async def delete_topic(self, name: str) -> None:
        deletion = self.below.delete_topic(name)
        await (deletion if self._is_own(name) else self._there_and_back(deletion))

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        return await self._there_and_back(self.below.grow_topic(name, partitions))

    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        return await self._there_and_back(self.below.configure_topic(name, config))

    def _is_own(self, topic: str) -> bool:
        """Whether the topic is this process's own memory."""
        info = self.below.topic(topic)
        return info is not None and info.ephemeral

    def _partition(self, tp: TopicPartition) -> _Partition:
        info = self.below.topic(tp.topic)
        known = self._partitions.get(tp)
        if known is None or info is None or known.topic_id != info.id:
            bounds = self.below.bounds(tp)  # refuses what is not there
            assert info is not None
            known = self._partitions[tp] = _Partition(self, tp, info.id, bounds)
            self.below.watch(tp, known.changed)
        return known

    def _reach(self, partition: _Partition) -> None:
        """A request arrives. It fails as long as the partition is out of reach."""
        now_s = asyncio.get_running_loop().time()
        if self.faults and self._chance.random() < self.faults:
            partition.out_until_s = now_s + OUTAGE_MS / 1000
        if now_s < partition.out_until_s:
            raise StorageFailure(str(partition.tp), "out of reach for a moment")

    def heal(self) -> None:
        """No more faults, and the end of every outage."""
        self.faults = 0.0
        for partition in self._partitions.values():
            partition.out_until_s = 0.0

    # -- append ------------------------------------------------------------------------------------------------------

    def append(
        self, tp: TopicPartition, batches: Buffer, durability: Durability = Durability.OS, *, foreign: bool = False
    ) -> Ticket:
        if self._is_own(tp.topic):
            return self.below.append(tp, batches, durability, foreign=foreign)
        return self._send(tp, partial(self.below.append, tp, bytes(batches), durability, foreign=foreign))

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
        request = partial(
            self.below.append_marker,
            tp,
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            durability=durability,
        )
        return request() if self._is_own(tp.topic) else self._send(tp, request)

    def _send(self, tp: TopicPartition, request: Callable[[], Ticket]) -> Ticket:
        partition = self._partition(tp)
        ticket = Ticket(loop=asyncio.get_running_loop())
        partition.requests.later(partial(self._arrive, partition, request, ticket))
        return ticket

    def _arrive(self, partition: _Partition, request: Callable[[], Ticket], ticket: Ticket) -> None:
        try:
            self._reach(partition)
            stored = request()
        except LogError as error:
            partition.answers.later(partial(_refuse, ticket, error))
            return
        partition.unplaced.append((stored, ticket))
        if not stored.done() and self._chance.random() < 0.5:  # else the place comes with the completion
            partition.answers.later(partial(partition.tell_places, ticket))
        self._under_way += 1  # until it is stored
        stored.add_done_callback(lambda _: self._do(partial(partition.answers.later, answer)))
        answer = partial(_complete, partition, stored, ticket)

    # -- read --------------------------------------------------------------------------------------------------------

    def bounds(self, tp: TopicPartition) -> Bounds:
        return self.below.bounds(tp) if self._is_own(tp.topic) else self._partition(tp).bounds

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
        request = partial(
            self.below.read,
            tp,
            offset,
            max_bytes,
            committed=committed,
            at_least_one=at_least_one,
            verified=verified,
        )
        if self._is_own(tp.topic):
            return await request()
        partition = self._partition(tp)
        await self._pause()
        self._reach(partition)
        found = await request()
        await self._pause()
        partition.see(found.bounds)
        if self._chance.random() < 0.25:
            found.records = self._less(found.records)
        return found

    def _less(self, records: Buffer) -> Buffer:
        batches = [batch for _, batch in iter_batches(records)]
        return b"".join(batches[: self._chance.randint(1, len(batches))]) if batches else records

    async def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return await self._there_and_back(self.below.offset_for_time(tp, timestamp_ms))

    async def max_timestamp(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        return await self._there_and_back(self.below.max_timestamp(tp))

    async def producers(self, tp: TopicPartition) -> Sequence[ProducerState]:
        return await self._there_and_back(self.below.producers(tp))

    # -- wait --------------------------------------------------------------------------------------------------------

    def watch(self, tp: TopicPartition, wake: Callable[[], None], *, decodes: bool = False) -> None:
        if self._is_own(tp.topic):
            self.below.watch(tp, wake, decodes=decodes)
            return
        partition = self._partition(tp)
        unheard = partition.watchers.setdefault(wake, _Unheard())
        self.below.watch(tp, unheard, decodes=decodes)

    def unwatch(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        partition = self._partitions.get(tp)
        unheard = partition.watchers.pop(wake, None) if partition is not None else None
        self.below.unwatch(tp, unheard or wake)

    # -- trim --------------------------------------------------------------------------------------------------------

    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        if self._is_own(tp.topic):
            return await self.below.trim(tp, before_offset)
        partition = self._partition(tp)
        start = await self._there_and_back(self.below.trim(tp, before_offset))
        partition.see(partition.bounds._replace(log_start_offset=start))
        return start

    @property
    def log_directories(self) -> LogDirectories | None:
        return self.below.log_directories


class _Partition:
    """A partition as it is seen from here, and what is on its way there and back."""

    def __init__(self, log: LateLog, tp: TopicPartition, topic_id: UUID, bounds: Bounds) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.bounds = bounds
        self.out_until_s = 0.0
        self.requests = _Lane(log)
        self.answers = _Lane(log)
        self.unplaced: deque[tuple[Ticket, Ticket]] = deque()  # below and here, in the order of arrival
        self.watchers: dict[Callable[[], None], _Unheard] = {}
        self._log = log
        self._news_coming = False

    def see(self, bounds: Bounds) -> None:
        """What is known never goes back, in whatever order the answers come."""
        start, end, stable, epoch = map(max, self.bounds, bounds)
        self.bounds = Bounds(start, max(start, end), max(start, stable), epoch)

    def tell_places(self, last: Ticket) -> None:
        """Of every append up to this one: places are told in the order of the appends."""
        while self.unplaced and last.place is None:
            stored, ticket = self.unplaced.popleft()
            place = stored.place
            if place is not None:
                self.see(self.bounds._replace(high_watermark=max(place.last_offset + 1, self.bounds.high_watermark)))
                ticket.placed(place)

    def changed(self) -> None:
        if not self._news_coming:
            self._news_coming = True
            self._log.later(self._tell_news)

    def _tell_news(self) -> None:
        self._news_coming = False
        info = self._log.below.topic(self.tp.topic)
        if info is not None and info.id == self.topic_id:
            self.see(self._log.below.bounds(self.tp))
        for wake in tuple(self.watchers):
            try:
                wake()
            except Exception:
                _logger.exception("a watcher of %s failed", self.tp)


class _Lane:
    """Things done one after the other, each after a delay."""

    def __init__(self, log: LateLog) -> None:
        self._log = log
        self._work: deque[Callable[[], None]] = deque()

    def later(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._log.later(self._do_first)

    def _do_first(self) -> None:
        self._work.popleft()()


class _Unheard:
    """Watches in somebody's stead: the store below knows that there is somebody, who hears of it later."""

    def __call__(self) -> None:
        return None


def _refuse(ticket: Ticket, error: LogError) -> None:
    if not ticket.done():
        ticket.set_exception(error)


def _complete(partition: _Partition, stored: Ticket, ticket: Ticket) -> None:
    partition.tell_places(ticket)
    error = stored.exception()
    if ticket.done():
        return
    if error is None:
        ticket.set_result(stored.result())
    else:
        ticket.set_exception(error)
