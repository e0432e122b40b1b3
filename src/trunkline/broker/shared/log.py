"""SharedLog: a topic of one partition whose records all agree on, because one place decides what is appended.

A decision is made on the fold of everything that stands in the log, and what it appends is the next record: `decide` sees to
both, one at a time. So what is decided is linearizable, and since the log is all there is to it, a broker that was killed goes on
with the same fold. Others may append to the topic, too (a Kafka client to a map); the fold takes that over before the
next decision. That holds in one broker: several gateways over one cluster would need an owner for each topic.

Answers are given when the record is on disk. A read waits for what is on its way to the disk, so nobody sees what a power failure
could take back.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from trunkline.clock import Clock
from trunkline.log.portions import read_portion
from trunkline.log.records import LightNewRecord, LightRecord
from trunkline.log.state_topic import StateTopic
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Ticket

MAX_READ_BYTES = 1 << 20

T = TypeVar("T")


class SharedLog:
    def __init__(self, store: LogStore, clock: Clock, topic: str, settings: Mapping[str, str]) -> None:
        self._store = store
        self._topic = StateTopic(store, clock, topic, settings)
        self._deciding = asyncio.Lock()
        self._last: Ticket | None = None

    @abstractmethod
    def fold(self, record: LightRecord) -> None:
        """Take a record over; they come in order, each once."""

    @property
    def name(self) -> str:
        return self._topic.tp.topic

    async def open(self) -> None:
        await self._topic.open()
        await self._catch_up()

    async def _catch_up(self) -> None:
        while self._topic.following < self._store.bounds(self._topic.tp).last_stable_offset:
            before = self._topic.following
            async for records in self._topic.replay():
                for record in records:
                    self.fold(record)
            if self._topic.following == before:
                return

    async def decide(self, decision: Callable[[], tuple[T, list[LightNewRecord]]]) -> tuple[T, int]:
        """The decision's result, and the offset of the first record that it made (-1: none); those are on disk then."""
        async with self._deciding:
            await self._catch_up()
            result, records = decision()
            if records:
                ticket = self._last = self._topic.put(records, Durability.DISK)
                await ticket.until_placed()
                await self._catch_up()
        if not records:
            await self._stored()
            return result, -1
        return result, (await asyncio.shield(ticket)).base_offset

    async def current(self) -> None:
        """Wait until the fold has everything, and all of it is on disk."""
        async with self._deciding:
            await self._catch_up()
        await self._stored()

    async def _stored(self) -> None:
        if self._last is not None and not self._last.done():
            await asyncio.shield(self._last)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self._store.bounds(self._topic.tp).last_stable_offset

    async def read(self, offset: int, wait_s: float) -> tuple[list[LightRecord], int]:
        """Records from an offset on, and where to read on; waits for the first so long."""
        if offset >= self.end and wait_s > 0:
            appended = asyncio.Event()
            self._store.watch(self._topic.tp, appended.set, decodes=True)
            try:
                async with asyncio.timeout(wait_s):
                    while offset >= self.end:
                        appended.clear()
                        await appended.wait()
            except TimeoutError:
                pass
            finally:
                self._store.unwatch(self._topic.tp, appended.set)
        start = max(offset, self._store.bounds(self._topic.tp).log_start_offset)
        if start >= self.end:
            return [], start
        portion = await read_portion(self._store, self._topic.tp, start, MAX_READ_BYTES)
        await self._stored()
        return [record for record in portion.records if record[0] >= offset], portion.following
