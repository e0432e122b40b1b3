"""What the queue cursor's tests share: a queue on an embedded store in a temporary directory, consumers, crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from tests.late_log import LateLog
from tests.stores import as_chosen, late
from trunkline.clock import ManualClock
from trunkline.cursors.queue import (
    Delivery,
    Message,
    QueueCursor,
    QueueLimits,
    QueueRuntime,
    QueueSettings,
    restore_queues,
)
from trunkline.cursors.queue.traits import DELIVERY_MODE_HEADER, EXPIRATION_HEADER, PRIORITY_HEADER
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.records import encode_headers
from trunkline.log.store import LogStore, TopicPartition

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
QUEUE = "work"
TP = TopicPartition(QUEUE, 0)
# So small that a handful of messages is a backlog.
TIGHT = QueueLimits(buffer_messages=4, read_bytes=150, turn_messages=3)


def run(coroutine: Coroutine[None, None, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, 120)

    return asyncio.run(bounded())


class LoopTurn:
    """A turn for queues alone: each pass of the loop is one, and nothing comes after it."""

    def ask_to_deal(self, deal: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(deal)

    def put_off(self, work: Callable[[], None]) -> bool:
        return False


class Owner:
    """Keeps the dead letters of a queue; what else becomes of it, tests see for themselves."""

    def __init__(self) -> None:
        self.dead: list[tuple[Delivery, str]] = []

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        self.dead.append((delivery, reason))

    def unused(self) -> None: ...

    def expired(self) -> None: ...

    def gone(self) -> None: ...


class Bench:
    """One queue on one store. `crash` leaves everything behind and opens what a killed process would have left."""

    def __init__(
        self, settings: QueueSettings, limits: QueueLimits | None, *, durable: bool, config: dict[str, str], late: bool
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.durable = durable
        self.config = config
        self.late = late
        self.clock = ManualClock(NOW_MS)
        self.owner = Owner()
        self.dead = self.owner.dead
        self.directory = Path(tempfile.mkdtemp(prefix="trunkline-queue-"))

    async def open(self) -> None:
        embedded = EmbeddedStore(self.directory, clock=self.clock)
        self.store: LogStore = late(embedded) if self.late else as_chosen(embedded)
        await self.store.start()
        self.runtime = QueueRuntime(self.store, self.clock, LoopTurn(), self.limits)
        await self.runtime.journal.open()
        restored = await restore_queues(self.runtime.journal)
        info = self.store.topic(QUEUE)
        if info is None:
            if self.durable:
                info = await self.store.create_topic(QUEUE, 1, self.config)
            else:
                able = self.store.ephemeral_topics
                assert able is not None
                info = await able.create_ephemeral_topic(QUEUE, 1, self.config)
        self.queue = QueueCursor(
            QUEUE,
            QUEUE,
            info,
            self.settings,
            self.runtime,
            self.owner,
            durable=self.durable,
            restored=restored.get(QUEUE),
        )

    async def close(self) -> None:
        await self.runtime.close()
        self.queue.close()
        await self.store.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def crash(self) -> None:
        """What kill -9 leaves is what the operating system was given: the files as they are now."""
        await self.answered()
        copy = Path(tempfile.mkdtemp(prefix="trunkline-queue-"))
        shutil.copytree(self.directory, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        await self.close()
        shutil.rmtree(self.directory)
        self.directory = copy
        await self.open()

    def turn(self) -> None:
        self.runtime.run_turn()

    async def advance(self, ms: float) -> None:
        self.clock.advance(ms)
        self.runtime.expire()
        await self.settle()

    async def settle(self) -> None:
        """Let turns and reads come to rest."""
        while True:
            for _ in range(50):
                self.turn()
                await asyncio.sleep(0)
            if not await self.answered():
                return

    async def answered(self) -> bool:
        """Wait for what a late store has yet to answer; whether there was something."""
        return isinstance(self.store, LateLog) and await self.store.rest()

    async def take(self, count: int, consumer: object = None, lease_ms: int | None = None) -> list[Delivery]:
        """Acquire so many, reading the backlog as needed."""
        found: list[Delivery] = []
        while len(found) < count:
            got = self.queue.acquire(count - len(found), consumer=consumer, lease_ms=lease_ms)
            found += got
            if not got and not await self.queue.load():
                break
        return found

    async def produce(self, *values: bytes, key: bytes | None = None) -> None:
        """As a Kafka producer does."""
        batch = build_batch([NewRecord(key, value) for value in values], timestamp_ms=self.clock.wall_ms())
        await self.store.append(TP, batch)
        await self.answered()


@asynccontextmanager
async def opened(
    settings: QueueSettings | None = None,
    limits: QueueLimits | None = None,
    *,
    durable: bool = True,
    config: dict[str, str] | None = None,
    late: bool = False,
) -> AsyncIterator[Bench]:
    """`late`: over a store that answers late, whatever `--store` says."""
    bench = Bench(settings or QueueSettings(), limits, durable=durable, config=config or {}, late=late)
    await bench.open()
    try:
        yield bench
    finally:
        await bench.close()
        shutil.rmtree(bench.directory, ignore_errors=True)


def message(
    value: bytes | str | int, *, key: bytes | None = None, priority: int = 0, ttl_ms: int | None = None
) -> Message:
    """A message with the record headers that make it the same when it is read back."""
    body = value if isinstance(value, bytes) else str(value).encode()
    headers: list[tuple[str, bytes | None]] = [(DELIVERY_MODE_HEADER, b"2")]
    if priority:
        headers.append((PRIORITY_HEADER, str(priority).encode()))
    if ttl_ms is not None:
        headers.append((EXPIRATION_HEADER, str(ttl_ms).encode()))
    return Message(body, encode_headers(headers), key, -1, None, priority)


def numbered(count: int, start: int = 0) -> list[Message]:
    return [message(number) for number in range(start, start + count)]


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.value.decode() for delivery in deliveries]


def offsets(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.offset for delivery in deliveries]


class Pool:
    """Credit for several consumers together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Consumer:
    """Takes up to `prefetch` messages that it has not settled."""

    def __init__(self, prefetch: int = 1 << 30, priority: int = 0, pool: Pool | None = None) -> None:
        self.prefetch = prefetch
        self.priority = priority
        self.pool = pool
        self.got: list[Delivery] = []
        self.unsettled = 0
        self.reason: str | None = None

    def credit(self) -> int:
        left = self.prefetch - self.unsettled
        return left if self.pool is None else min(left, self.pool.left)

    def deliver(self, deliveries: list[Delivery]) -> None:
        assert len(deliveries) <= self.credit(), "more than it has credit for"
        self.got += deliveries
        self.unsettled += len(deliveries)
        if self.pool is not None:
            self.pool.left -= len(deliveries)

    def cancelled(self, reason: str) -> None:
        self.reason = reason

    def acknowledge(self, count: int = 1 << 30) -> None:
        """Settle the oldest of what it holds."""
        if self.got:
            queue = self.got[0].queue
            leased = set(queue.held_by(self))
            held = [delivery for delivery in self.got if delivery.offset in leased][:count]
            self.unsettled -= queue.acknowledge(offsets(held))
