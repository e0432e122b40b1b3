"""StateTopic: an internal compacted topic, the memory of one part of the broker.

The newest record of a key is its value, a tombstone removes it. This is the one place that opens, replays, writes and
follows such a topic:

- `open` creates it, with its settings, if it is not there.
- `replay` gives every record that was not given yet, oldest first: before anything is put, that is all of them.
- `put` appends records as one batch, which is whole or absent after a crash. Grouping what changes in a turn of the event
  loop is its user's matter.
- `follow` goes on where the replay ended and gives what is appended from then on, by whoever: this process or another one.

What counts is what a reader of committed records sees: markers and records of aborted transactions are left out, and an
open transaction holds back what lies behind its first record. Who folds transactions himself takes `replay_batches`.

Damaged batches are left out by the store, which says so; batches that do not decode are passed over and noted (see
`portions`). `incomplete` tells that some records were lost in one of these ways, or with the beginning of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

from trunkline.clock import Clock
from trunkline.log.batch import BatchHeader, iter_batches
from trunkline.log.errors import TopicExists
from trunkline.log.portions import read_portion
from trunkline.log.records import NO_HEADERS, LightNewRecord, LightRecord, encode_records, iter_light
from trunkline.log.store import Buffer, Durability, LogStore, TopicPartition
from trunkline.log.ticket import Ticket

_READ_BYTES = 1 << 20


class StateTopic:
    def __init__(self, store: LogStore, clock: Clock, name: str, settings: Mapping[str, str] | None = None) -> None:
        self.tp = TopicPartition(name, 0)
        self.incomplete = False
        self.following = 0  # the offset behind everything that was given
        self._store = store
        self._clock = clock
        self._settings = settings

    async def open(self) -> None:
        """Create the topic if it is not there."""
        if self._store.topic(self.tp.topic) is None:
            try:
                await self._store.create_topic(self.tp.topic, 1, self._settings)
            except TopicExists:
                pass  # another was quicker

    # -- reading -----------------------------------------------------------------------------------------------------

    async def replay(self) -> AsyncIterator[list[LightRecord]]:
        """Every record that was not given yet, in order, a portion at a time."""
        self._begin()
        passed_over = self._store.passed_over.batches
        while True:
            portion = await read_portion(self._store, self.tp, self.following, _READ_BYTES, self._look)
            if portion.following == self.following:
                break
            self.following = portion.following
            if portion.records:
                yield portion.records
        self.incomplete |= self._store.passed_over.batches != passed_over

    async def replay_batches(self) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Every batch that was not given yet, markers and those of open and aborted transactions included."""
        self._begin()
        while True:
            part = await self._store.read(self.tp, self.following, _READ_BYTES, verified=True)
            before = self.following
            for header, batch in iter_batches(part.records):
                self._look(header)
                self.following = max(self.following, header.last_offset + 1)
                yield header, batch
            if self.following == before:
                return

    async def latest(self) -> dict[bytes, bytes]:
        """Replay: the latest value of every key that was not removed, in the order in which the keys came."""
        found: dict[bytes, bytes] = {}
        async for records in self.replay():
            for _, _, key, value, _ in records:
                if key is None:
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return found

    async def follow(self) -> AsyncGenerator[list[LightRecord], None]:
        """Records as they are appended, without end. A LogError ends it; another call goes on where this one was."""
        changed = asyncio.Event()
        wake = changed.set
        self._store.watch(self.tp, wake, decodes=True)
        try:
            while True:
                changed.clear()
                async for records in self.replay():
                    yield records
                await changed.wait()
        finally:
            self._store.unwatch(self.tp, wake)

    async def value_at(self, offset: int) -> bytes | None:
        """The value of one record, by its offset; None when it is gone."""
        part = await self._store.read(self.tp, offset, 1, verified=True)
        for _, batch in iter_batches(part.records):
            for found, _, _, value, _ in iter_light(batch):
                if found == offset:
                    return value
        return None

    def _begin(self) -> None:
        start = self._store.bounds(self.tp).log_start_offset
        if start > self.following:
            self.following = start
            self.incomplete = True  # compaction keeps the newest record of a key: nothing else removes the beginning

    def _look(self, header: BatchHeader) -> bool:
        self.incomplete |= is_gap(header)
        return True

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(self, records: list[LightNewRecord], durability: Durability) -> Ticket:
        """Append records, together or not at all."""
        return self.append(encode_records(records, timestamp_ms=self._clock.wall_ms()), durability)

    def append(self, batch: Buffer, durability: Durability) -> Ticket:
        """Append a batch that the caller has built: one of a transaction."""
        return self._store.append(self.tp, batch, durability)


def is_gap(header: BatchHeader) -> bool:
    """Whether the batch stands for records that were lost: mending a damaged file leaves an empty one in their place."""
    return not header.record_count


def state_record(key: bytes, value: bytes | None) -> LightNewRecord:
    """A value for the key, or with None its tombstone."""
    return key, value, NO_HEADERS, -1
