"""The registry of queues: names, topics, what survives a restart, what is deleted and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.cursors.queue.harness import Consumer, bodies, message, numbered, run
from trunkline.broker.queues import Queues, topic_name
from trunkline.clock import ManualClock
from trunkline.cursors.queue import (
    EXPIRED,
    Overflow,
    QueueInUse,
    QueueLimits,
    QueueLocked,
    QueueNotEmpty,
    QueueSettings,
    QueueTopicRefused,
    TooManyQueues,
    UnknownQueue,
)
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import UnknownTopicOrPartition
from trunkline.log.names import check_topic_name
from trunkline.log.store import TopicPartition

CLOCK = ManualClock()


@asynccontextmanager
async def opened(
    directory: Path, *, clock: ManualClock | None = None, limits: QueueLimits | None = None
) -> AsyncIterator[Queues]:
    clock = clock or ManualClock()
    store = EmbeddedStore(directory, clock=clock)
    await store.start()
    queues = Queues(store, clock, limits)
    await queues.start()
    try:
        yield queues
    finally:
        await queues.close()
        await store.close()


async def until_gone(queues: Queues, name: str) -> None:
    async with asyncio.timeout(10):
        while queues.get(name) is not None:
            await asyncio.sleep(0)


def test_a_durable_queue_survives_a_restart_with_all_that_it_was_declared_with(tmp_path: Path) -> None:
    settings = QueueSettings(
        max_length=7, overflow=Overflow.REJECT_PUBLISH, dead_letter=("dlx", "key"), expires_ms=5000
    )

    async def check() -> None:
        async with opened(tmp_path) as queues:
            queue = await queues.declare("q", settings, vhost="v", auto_delete=True, arguments={"x-max-length": 7})
            await queue.cursor.put(numbered(5))
            taken = queue.cursor.acquire(2)
            queue.cursor.acknowledge([taken[0].offset])
            assert (await queues.declare("q", vhost="v")) is queue
        async with opened(tmp_path) as queues:
            found = queues.require("q", "v")
            assert found.settings == settings
            assert (found.auto_delete, found.durable, found.topic) == (True, True, "v.q")
            assert found.arguments == {"x-max-length": 7}
            assert found.cursor.ready == 4
            await found.cursor.load()
            assert [(d.offset, d.redelivered) for d in found.cursor.acquire(2)] == [(1, True), (2, False)]

    run(check())


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_queue_that_is_not_durable_or_exclusive_is_gone_after_a_restart(tmp_path: Path, exclusive: bool) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            owner = object() if exclusive else None
            queue = await queues.declare("q", durable=exclusive, exclusive_owner=owner)
            await queue.cursor.put(numbered(5))
            assert bodies(queue.cursor.acquire(1)) == ["0"]
            assert queues._store.topics()["q"].ephemeral
        async with opened(tmp_path) as queues:
            assert queues.list() == []
            assert queues._store.topic("q") is None

    run(check())


def test_an_exclusive_queue_is_its_owners_and_goes_with_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            mine, other = object(), object()
            queue = await queues.declare("q", exclusive_owner=mine)
            assert await queues.declare("q", exclusive_owner=mine) is queue
            for owner in (other, None):
                with pytest.raises(QueueLocked):
                    await queues.declare("q", exclusive_owner=owner)
            await queues.drop_owner(other)
            assert queues.get("q") is queue
            await queues.drop_owner(mine)
            assert queues.get("q") is None
            assert queues._store.topic("q") is None

    run(check())


def test_deleting_is_refused_when_used_or_not_empty_and_else_leaves_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            gone: list[str] = []
            queues.on_deleted = lambda queue: gone.append(queue.name)
            queue = await queues.declare("q")
            consumer = Consumer(prefetch=0)
            queue.cursor.add_consumer(consumer)
            await queue.cursor.put(numbered(3))
            with pytest.raises(QueueInUse):
                await queues.delete("q", if_unused=True)
            with pytest.raises(QueueNotEmpty):
                await queues.delete("q", if_empty=True)
            assert await queues.delete("q") == 3
            assert consumer.reason is not None
            assert gone == ["q"]
            with pytest.raises(UnknownQueue):
                await queues.delete("q")
            again = await queues.declare("q")
            await again.cursor.put(numbered(1, 50))
        async with opened(tmp_path) as queues:
            await queues.require("q").cursor.load()
            assert bodies(queues.require("q").cursor.acquire(9)) == ["50"]
            await queues.delete("q")
        async with opened(tmp_path) as queues:
            assert queues.list() == []
            assert queues._store.topic("q") is None

    run(check())


def test_an_auto_delete_queue_goes_with_its_last_consumer(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            queue = await queues.declare("q", auto_delete=True)
            first, second = Consumer(), Consumer()
            queue.cursor.add_consumer(first)
            queue.cursor.add_consumer(second)
            queue.cursor.remove_consumer(first)
            await asyncio.sleep(0.01)
            assert queues.get("q") is queue
            queue.cursor.remove_consumer(second)
            await until_gone(queues, "q")

    run(check())


def test_a_queue_expires_when_it_is_not_used(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock=clock) as queues:
            queue = await queues.declare("q", QueueSettings(expires_ms=1000))
            clock.advance(900)
            queues.runtime.expire()
            await queues.declare("q")
            clock.advance(900)
            queues.runtime.expire()
            assert queue.cursor.acquire(1) == []
            clock.advance(900)
            queues.runtime.expire()
            consumer = Consumer()
            queue.cursor.add_consumer(consumer)
            clock.advance(5000)
            queues.runtime.expire()
            await asyncio.sleep(0)
            assert queues.get("q") is queue
            queue.cursor.remove_consumer(consumer)
            clock.advance(999)
            queues.runtime.expire()
            await asyncio.sleep(0)
            assert queues.get("q") is queue
            clock.advance(1)
            queues.runtime.expire()
            await until_gone(queues, "q")

    run(check())


def test_a_topic_of_kafka_is_a_queue_by_name_and_stays_when_the_queue_goes(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            store = queues._store
            await store.create_topic("events", 1)
            batch = build_batch([NewRecord(None, b"one"), NewRecord(None, b"two")], timestamp_ms=CLOCK.wall_ms())
            await store.append(TopicPartition("events", 0), batch)
            queue = await queues.open_topic_as_queue("events")
            assert await queues.open_topic_as_queue("events") is queue
            assert await queue.cursor.load()
            assert bodies(queue.cursor.acquire(5)) == ["one", "two"]
            queue.cursor.acknowledge([0, 1])
            await queues.delete("events")
            assert store.bounds(TopicPartition("events", 0)).log_start_offset == 0
            again = await queues.declare("events")
            assert again.adopted
            assert again.cursor.ready == 2

    run(check())


def test_what_cannot_be_a_queue_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path, limits=QueueLimits(max_queues=1)) as queues:
            await queues._store.create_topic("wide", 3)
            with pytest.raises(QueueTopicRefused, match="3 partitions"):
                await queues.open_topic_as_queue("wide")
            with pytest.raises(UnknownTopicOrPartition):
                await queues.open_topic_as_queue("absent")
            assert queues.list() == []
            await queues.declare("one")
            with pytest.raises(TooManyQueues):
                await queues.declare("two")

    run(check())


def test_a_queue_goes_when_a_kafka_client_deletes_its_topic(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            queue = await queues.declare("q")
            consumer = Consumer()
            queue.cursor.add_consumer(consumer)
            await queues._store.delete_topic("q")
            await until_gone(queues, "q")
            assert consumer.reason is not None
            fresh = await queues.declare("q")
            await fresh.cursor.put(numbered(1))
        async with opened(tmp_path) as queues:
            assert queues.require("q").cursor.ready == 1

    run(check())


def test_every_name_has_a_legal_topic_of_its_own(tmp_path: Path) -> None:
    names = [("/", "a.b"), ("/", "a_b"), ("/", "a b"), ("/", "a-b"), ("/", "v.q"), ("v", "q"), ("/", "__queue_state"),
             ("/", ""), ("/", "ü" * 300), ("/", "."), ("v/w", "x"), ("/", "nul\0")]  # fmt: skip

    async def check() -> None:
        async with opened(tmp_path) as queues:
            topics = [(await queues.declare(name, vhost=vhost)).topic for vhost, name in names]
            assert len(set(topics)) == len(topics)
            for topic in topics:
                check_topic_name(topic)
            assert topics[0] == "a.b"
            assert topics[4] == "v.q"
        async with opened(tmp_path) as queues:
            assert [queues.require(name, vhost).topic for vhost, name in names] == topics

    run(check())


def test_topic_names_do_not_change() -> None:
    assert topic_name("/", "orders") == "orders"
    assert topic_name("shop", "orders") == "shop.orders"
    assert topic_name("/", "new orders") == "new-orders.9d17848565c9"


def test_declaring_at_the_same_time_makes_one_queue(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            found = await asyncio.gather(*[queues.declare("q") for _ in range(20)])
            assert len({id(queue) for queue in found}) == 1
            assert len(queues) == 1

    run(check())


def test_messages_that_expired_while_the_broker_was_down_are_dead_lettered_at_its_start(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock=clock) as queues:
            queue = await queues.declare("q", QueueSettings(dead_letter=("dead", None), message_ttl_ms=100))
            await queue.cursor.put([message("old")])
        clock.advance(1000)
        dead: list[tuple[bytes, str]] = []
        async with opened(tmp_path, clock=clock) as queues:
            queues.runtime.dead_letter = lambda _, delivery, reason: dead.append((delivery.message.value, reason))
            async with asyncio.timeout(10):
                while not dead:
                    await asyncio.sleep(0)
                    queues.runtime.expire()
            assert dead == [(b"old", EXPIRED)]

    run(check())


def test_a_queue_whose_topic_was_not_made_before_the_crash_gets_it_at_the_start(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            await queues.declare("q")
            queues.runtime.on_gone = None
            await queues._store.delete_topic("q")
        async with opened(tmp_path) as queues:
            assert queues._store.topic("q") is not None
            await queues.require("q").cursor.put(numbered(1))

    run(check())
