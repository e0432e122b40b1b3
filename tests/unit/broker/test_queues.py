"""The registry of queues: names, topics, what survives a restart, what is deleted and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores import as_chosen, below
from tests.unit.cursors.queue.harness import Consumer, LoopTurn, bodies, message, numbered, run
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.queue_record import QueueRecord
from trunkline.broker.messaging.queue_topics import topic_name
from trunkline.broker.messaging.queues import Queues
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.topology import Topology
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.clock import ManualClock
from trunkline.cursors.queue import (
    EXPIRED,
    Delivery,
    Overflow,
    QueueLimits,
    QueueSettings,
)
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import InvalidPartitionCount, LogError
from trunkline.log.names import RESERVED_TOPICS, check_topic_name
from trunkline.log.store import TopicPartition
from trunkline.log.ticket import Recorded

CLOCK = ManualClock()


class Nobody:
    """No groups that follow topics, and nowhere for dead letters to go: they are kept."""

    def __init__(self) -> None:
        self.dead: list[tuple[bytes, str]] = []

    def dead_letter(self, queue: Queue, delivery: Delivery, reason: str) -> None:
        self.dead.append((delivery.message.value, reason))

    def topics_changed(self) -> None: ...

    async def topic_deleted(self, topic: str) -> None: ...


@asynccontextmanager
async def opened(
    directory: Path,
    *,
    clock: ManualClock | None = None,
    limits: QueueLimits | None = None,
    nobody: Nobody | None = None,
) -> AsyncIterator[Queues]:
    clock = clock or ManualClock()
    nobody = nobody or Nobody()
    store = as_chosen(EmbeddedStore(directory, clock=clock))
    await store.start()
    topology = Topology(store, clock)
    queues = Queues(
        store, clock, topology=topology, turn=LoopTurn(), dead_letters=nobody, followers=nobody, limits=limits
    )
    await topology.start()
    await queues.start()
    try:
        yield queues
    finally:
        await queues.close()
        await store.close()


def host(queues: Queues, vhost: str) -> VirtualHost:
    topology = queues._topology
    if vhost not in topology.vhosts:
        topology.add_vhost(vhost)
    return topology.vhosts[vhost]


async def declare(
    queues: Queues,
    name: str,
    settings: QueueSettings | None = None,
    *,
    vhost: str = "/",
    durable: bool = True,
    auto_delete: bool = False,
    owner: object = None,
    arguments: dict[str, object] | None = None,
) -> Queue:
    wish = QueueDeclaration(
        name,
        settings or QueueSettings(),
        durable=durable,
        auto_delete=auto_delete,
        exclusive=owner is not None,
        arguments=arguments or {},
    )
    return await queues.declare(host(queues, vhost), wish, owner)


async def open_topic(queues: Queues, name: str) -> Queue:
    return await queues.open(host(queues, "/"), name)


def may_open(queues: Queues, topic: str, vhost: str = "/") -> bool:
    try:
        queues.check_openable(host(queues, vhost), topic)
    except Refused as refused:
        if refused.reason is not Reason.NOT_FOUND:
            raise
        return False
    return True


async def delete(
    queues: Queues, name: str, vhost: str = "/", *, if_unused: bool = False, if_empty: bool = False
) -> int:
    return await queues.delete(queues.require(name, vhost), if_unused=if_unused, if_empty=if_empty)


@contextmanager
def refused(reason: Reason, match: str | None = None) -> Iterator[None]:
    with pytest.raises(Refused, match=match) as caught:
        yield
    assert caught.value.reason is reason


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
            queue = await declare(queues, "q", settings, vhost="v", auto_delete=True, arguments={"x-max-length": 7})
            await queue.cursor.put(numbered(5))
            taken = queue.cursor.acquire(2)
            queue.cursor.acknowledge([taken[0].offset])
            assert (await declare(queues, "q", vhost="v", auto_delete=True, arguments={"x-max-length": 7})) is queue
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
            queue = await declare(queues, "q", durable=exclusive, owner=owner)
            await queue.cursor.put(numbered(5))
            assert bodies(queue.cursor.acquire(1)) == ["0"]
            assert queues._store.topics()["q"].ephemeral
        async with opened(tmp_path) as queues:
            assert list(queues) == []
            assert queues._store.topic("q") is None

    run(check())


def test_an_exclusive_queue_is_its_owners_and_goes_with_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            mine, other = object(), object()
            queue = await declare(queues, "q", owner=mine)
            assert await declare(queues, "q", owner=mine) is queue
            for owner in (other, None):
                with refused(Reason.RESOURCE_LOCKED):
                    await declare(queues, "q", owner=owner)
            await queues.drop_owner(other)
            assert queues.get("q") is queue
            await queues.drop_owner(mine)
            assert queues.get("q") is None
            assert queues._store.topic("q") is None

    run(check())


def test_deleting_is_refused_when_used_or_not_empty_and_else_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            gone: list[str] = []
            queue = await declare(queues, "q")
            forget = queues._topology.forget_queue

            def forgetting(vhost: VirtualHost, queue: Queue) -> Recorded:
                gone.append(queue.name)
                return forget(vhost, queue)

            monkeypatch.setattr(queues._topology, "forget_queue", forgetting)
            consumer = Consumer(prefetch=0)
            queue.cursor.add_consumer(consumer)
            await queue.cursor.put(numbered(3))
            with refused(Reason.PRECONDITION_FAILED, "in use"):
                await delete(queues, "q", if_unused=True)
            with refused(Reason.PRECONDITION_FAILED, "not empty"):
                await delete(queues, "q", if_empty=True)
            assert await delete(queues, "q") == 3
            assert consumer.reason is not None
            assert gone == ["q"]
            with refused(Reason.NOT_FOUND):
                await delete(queues, "q")
            again = await declare(queues, "q")
            await again.cursor.put(numbered(1, 50))
        async with opened(tmp_path) as queues:
            await queues.require("q").cursor.load()
            assert bodies(queues.require("q").cursor.acquire(9)) == ["50"]
            await delete(queues, "q")
        async with opened(tmp_path) as queues:
            assert list(queues) == []
            assert queues._store.topic("q") is None

    run(check())


def test_an_auto_delete_queue_goes_with_its_last_consumer(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            queue = await declare(queues, "q", auto_delete=True)
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
            queue = await declare(queues, "q", QueueSettings(expires_ms=1000))
            clock.advance(900)
            queues.runtime.expire()
            await declare(queues, "q")
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
            queue = await open_topic(queues, "events")
            assert await open_topic(queues, "events") is queue
            assert await queue.cursor.load()
            assert bodies(queue.cursor.acquire(5)) == ["one", "two"]
            queue.cursor.acknowledge([0, 1])
            await delete(queues, "events")
            assert store.bounds(TopicPartition("events", 0)).log_start_offset == 0
            again = await declare(queues, "events")
            assert again.adopted
            assert again.cursor.ready == 2

    run(check())


def test_what_cannot_be_a_queue_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path, limits=QueueLimits(max_queues=1)) as queues:
            await queues._store.create_topic("wide", 3)
            with refused(Reason.PRECONDITION_FAILED, "3 partitions"):
                await open_topic(queues, "wide")
            with refused(Reason.NOT_FOUND):
                await open_topic(queues, "absent")
            assert list(queues) == []
            await declare(queues, "one")
            with refused(Reason.RESOURCE_ERROR):
                await declare(queues, "two")

    run(check())


def test_a_queue_goes_when_a_kafka_client_deletes_its_topic(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            queue = await declare(queues, "q")
            consumer = Consumer()
            queue.cursor.add_consumer(consumer)
            await queues._store.delete_topic("q")
            await until_gone(queues, "q")
            assert consumer.reason is not None
            fresh = await declare(queues, "q")
            await fresh.cursor.put(numbered(1))
        async with opened(tmp_path) as queues:
            assert queues.require("q").cursor.ready == 1

    run(check())


def test_every_name_has_a_legal_topic_of_its_own(tmp_path: Path) -> None:
    names = [("/", "a.b"), ("/", "a_b"), ("/", "a b"), ("/", "a-b"), ("/", "v.q"), ("v", "q"), ("/", "__queue_state"),
             ("/", ""), ("/", "ü" * 300), ("/", "."), ("v/w", "x"), ("/", "nul\0")]  # fmt: skip

    async def check() -> None:
        async with opened(tmp_path) as queues:
            topics = [(await declare(queues, name, vhost=vhost)).topic for vhost, name in names]
            assert len(set(topics)) == len(topics)
            for topic in topics:
                check_topic_name(topic)
            assert topics[0] == "a.b"
            assert topics[4] == "v.q"
        async with opened(tmp_path) as queues:
            assert [queues.require(name, vhost).topic for vhost, name in names] == topics

    run(check())


VICTIM = ("secret", "pay")
TOPICS_OF_VICTIM = [topic_name(*VICTIM, attempt) for attempt in range(4)]


def test_no_other_name_leads_to_the_topic_of_a_queue(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            topics = {(await declare(queues, VICTIM[1], vhost=VICTIM[0])).topic, (await declare(queues, "a b")).topic}
            for topic in topics:
                assert not may_open(queues, topic)
                assert not may_open(queues, topic, "other")
                with refused(Reason.NOT_FOUND):
                    await open_topic(queues, topic)
                for vhost, name in [("/", topic), ("other", topic), ("", topic)]:
                    assert (await declare(queues, name, vhost=vhost)).topic not in topics

    run(check())


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_shares_no_topic_with_one_whose_name_was_chosen_to_be_its_topic(tmp_path: Path, durable: bool) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            waiting = [await declare(queues, topic, durable=durable) for topic in TOPICS_OF_VICTIM]
            victim = await declare(queues, VICTIM[1], vhost=VICTIM[0], durable=durable)
            assert victim.topic not in {queue.topic for queue in waiting}
            assert not victim.adopted

    run(check())


# Few names, so that they often meet: plain ones, and the topics that queues of such names could have.
VHOSTS = st.sampled_from(["/", "secret"])
PLAIN = st.sampled_from(["pay", "a b"])
NAMES = st.one_of(PLAIN, st.builds(topic_name, VHOSTS, PLAIN, st.integers(0, 2)))
STEPS = st.lists(
    st.tuples(st.sampled_from(["declare", "declare", "create", "open", "delete"]), VHOSTS, NAMES),
    min_size=20,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_topic_is_at_most_one_queues_whatever_the_names(steps: list[tuple[str, str, str]]) -> None:
    async def check(directory: Path) -> None:
        async with opened(directory) as queues:
            topics: dict[tuple[str, str], str] = {}
            for step, vhost, name in steps:
                with suppress(LogError, Refused):
                    if step == "declare":
                        await declare(queues, name, vhost=vhost, durable=len(name) % 2 == 0)
                    elif step == "create":
                        await queues._store.create_topic(name, 1 + len(name) % 2)
                    elif step == "open":
                        assert (await open_topic(queues, name)).name == name
                    else:
                        await delete(queues, name, vhost)
                held = {(queue.vhost, queue.name): queue.topic for queue in queues}
                assert len(set(held.values())) == len(held)
                assert not RESERVED_TOPICS & set(held.values())
                assert all(topics[place] == topic for place, topic in held.items() if place in topics)
                assert all(queue.topic == queue.name and queue.vhost == "/" for queue in queues if queue.adopted)
                topics = held

    with TemporaryDirectory(prefix="guard-") as directory:
        run(check(Path(directory)))


def test_a_queue_of_a_virtual_host_does_not_take_over_topics_that_were_there(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            for topic in TOPICS_OF_VICTIM:
                await queues._store.create_topic(topic, 1)
            victim = await declare(queues, VICTIM[1], vhost=VICTIM[0])
            assert victim.topic not in TOPICS_OF_VICTIM

    run(check())


def test_queues_declared_at_the_same_time_share_no_topic(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            store = queues._store
            victim, other, _ = await asyncio.gather(
                declare(queues, VICTIM[1], vhost=VICTIM[0]),
                declare(queues, "secret.pay"),
                store.create_topic(TOPICS_OF_VICTIM[1], 1),
            )
            assert len({victim.topic, other.topic, TOPICS_OF_VICTIM[1]}) == 3

    run(check())


def test_a_topic_that_a_kafka_client_makes_at_the_same_time_is_adopted(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            # To the store itself, so that a late one cannot let the queue be quicker.
            making = below(queues._store).create_topic("q", 1)
            made, queue = await asyncio.gather(making, declare(queues, "q"))
            assert (queue.topic, queue.adopted) == (made.name, True)
            await delete(queues, "q")
            assert queues._store.topic("q") is not None

    run(check())


def test_the_topic_of_a_queue_that_cannot_be_opened_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            await (await declare(queues, VICTIM[1], vhost=VICTIM[0])).cursor.put(numbered(3))
        with monkeypatch.context() as broken:
            broken.setattr(Queues, "_add", refuse)
            opening = opened(tmp_path)
            queues = await opening.__aenter__()
        assert queues.get(VICTIM[1], VICTIM[0]) is None
        assert not may_open(queues, "secret.pay")
        assert (await declare(queues, "secret.pay")).topic != "secret.pay"
        again = await declare(queues, VICTIM[1], vhost=VICTIM[0])
        assert (again.topic, again.adopted, again.cursor.ready) == ("secret.pay", False, 3)
        await opening.__aexit__(None, None, None)

    def refuse(*_: object, **__: object) -> None:
        raise Refused(Reason.PRECONDITION_FAILED, "not today")

    run(check())


def test_the_brokers_own_topics_are_no_queues(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            await queues._store.create_topic("__foo", 1)
            assert not may_open(queues, "__foo")
            for topic in sorted(RESERVED_TOPICS):
                assert not may_open(queues, topic, "other")
                with refused(Reason.ACCESS_REFUSED, "the broker's own"):
                    may_open(queues, topic)
                assert (await declare(queues, topic)).topic not in RESERVED_TOPICS

    run(check())


def test_a_queues_topic_is_not_grown_while_it_is_one(tmp_path: Path) -> None:
    async def check() -> None:
        core = BrokerCore(as_chosen(EmbeddedStore(tmp_path)))
        await core.start()
        queues = core.messaging.queues
        await declare(queues, "q")
        await core.create_topic("t", 1)
        with pytest.raises(InvalidPartitionCount, match="a queue"):
            await core.grow_topic("q", 3)
        declared, grown = await asyncio.gather(declare(queues, "t"), core.grow_topic("t", 3), return_exceptions=True)
        assert isinstance(grown, InvalidPartitionCount)
        assert not isinstance(declared, BaseException)
        await delete(queues, "t")
        grown, declared = await asyncio.gather(core.grow_topic("t", 3), declare(queues, "t"), return_exceptions=True)
        assert isinstance(declared, Refused)
        assert not isinstance(grown, BaseException)
        await core.close()

    run(check())


def test_a_queue_whose_topic_was_grown_is_its_first_partition(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            queue = await declare(queues, "q")
            await queue.cursor.put(numbered(2))
            await queues._store.grow_topic("q", 3)
        async with opened(tmp_path) as queues:
            queue = queues.require("q")
            assert "queue q of vhost / serves partition 0 of topic q only" in caplog.text
            assert await declare(queues, "q") is queue
            await queue.cursor.put(numbered(1))
            assert queue.cursor.ready == 3

    run(check())


def test_topic_names_do_not_change() -> None:
    assert topic_name("/", "orders") == "orders"
    assert topic_name("shop", "orders") == "shop.orders"
    assert topic_name("/", "new orders") == "new-orders.9d17848565c9"


def test_declaring_at_the_same_time_makes_one_queue(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            found = await asyncio.gather(*[declare(queues, "q") for _ in range(20)])
            assert len({id(queue) for queue in found}) == 1
            assert len(queues) == 1

    run(check())


def test_messages_that_expired_while_the_broker_was_down_are_dead_lettered_at_its_start(tmp_path: Path) -> None:
    async def check() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock=clock) as queues:
            queue = await declare(queues, "q", QueueSettings(dead_letter=("dead", None), message_ttl_ms=100))
            await queue.cursor.put([message("old")])
        clock.advance(1000)
        nobody = Nobody()
        async with opened(tmp_path, clock=clock, nobody=nobody) as queues:
            async with asyncio.timeout(10):
                while not nobody.dead:
                    await asyncio.sleep(0)
                    queues.runtime.expire()
            assert nobody.dead == [(b"old", EXPIRED)]

    run(check())


def test_a_queue_whose_topic_was_not_made_before_the_crash_gets_it_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            await declare(queues, "q")
            monkeypatch.setattr(queues, "gone", lambda queue: None)  # as if killed before it was noticed
            await queues._store.delete_topic("q")
        async with opened(tmp_path) as queues:
            assert queues._store.topic("q") is not None
            await queues.require("q").cursor.put(numbered(1))

    run(check())


def test_a_queue_outlives_the_record_of_its_virtual_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with opened(tmp_path) as queues:
            await (await declare(queues, "q", vhost="v")).cursor.put(numbered(2))
            await queues._store.append(TopicPartition("__topology", 0), build_batch([NewRecord(b"vhost:v", None)]))
        async with opened(tmp_path) as queues:
            assert queues.require("q", "v").cursor.ready == 2
            assert "virtual host v has no record" in caplog.text

    run(check())


def test_a_queue_is_recorded_as_it_always_was() -> None:
    value = (
        b'{"vhost":"v","name":"q","topic":"v.q","adopted":false,"auto_delete":true,'
        b'"settings":{"max_length":7,"dead_letter":["dlx",null]},"arguments":{"x-max-length":7,"raw":{"$bytes":"/w=="}}}'
    )
    record = QueueRecord.decode(value)
    assert record == QueueRecord(
        "v",
        "v.q",
        False,
        QueueDeclaration(
            "q",
            QueueSettings(max_length=7, dead_letter=("dlx", None)),
            auto_delete=True,
            arguments={"x-max-length": 7, "raw": b"\xff"},
        ),
    )
    assert record.encode() == value
    for broken in (b"[]", b"{}", b'{"vhost":"v"}', value.replace(b'"arguments":{', b'"arguments":5,"x":{')):
        with pytest.raises(ValueError, match="not a description of a queue"):
            QueueRecord.decode(broken)
