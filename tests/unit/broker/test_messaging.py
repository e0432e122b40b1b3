"""Topology and atomic publication over a real store, across restarts and crashes."""

from __future__ import annotations

import asyncio
import shutil
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contract.scenario import noticed
from tests.stores import as_chosen
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.topology import Topology, settled
from trunkline.broker.state.virtual_host import ExchangeInfo, VirtualHost
from trunkline.cursors.queue import Delivery, Message, Overflow, QueueSettings
from trunkline.log.batch import NewRecord, build_batch, iter_batches, iter_records
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import StorageFailure
from trunkline.log.store import Buffer, Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended
from trunkline.security.users import Permission, User, hash_password


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[BrokerCore]:
    core = BrokerCore(as_chosen(EmbeddedStore(directory)))
    await core.start()
    try:
        yield core
    finally:
        await core.close()


async def nothing_open(store: LogStore, tp: TopicPartition) -> None:
    await noticed(store, lambda: store.bounds(tp).last_stable_offset == store.bounds(tp).high_watermark, tp)


async def declare(core: BrokerCore, name: str, *, durable: bool = True, settings: QueueSettings | None = None) -> Queue:
    vhost = core.messaging.topology.vhosts["/"]
    wish = QueueDeclaration(name, settings or QueueSettings(), durable=durable)
    return await core.messaging.queues.declare(vhost, wish)


def of(core: BrokerCore) -> tuple[Topology, VirtualHost]:
    return core.messaging.topology, core.messaging.topology.vhosts["/"]


def test_queues_are_loaded_for_their_listeners_or_because_the_log_has_some(tmp_path: Path) -> None:
    async def without_listeners() -> tuple[bool, set[str]]:
        core = BrokerCore(as_chosen(EmbeddedStore(tmp_path)), with_messaging=False)
        await core.start()
        found = hasattr(core, "messaging"), set(core.store.topics())
        await core.close()
        return found

    async def test() -> None:
        assert await without_listeners() == (
            False,
            {"__topology", "__audit", "__consumer_offsets", "__transaction_state"},
        )
        async with opened(tmp_path) as core:
            await declare(core, "q")
        core = BrokerCore(as_chosen(EmbeddedStore(tmp_path)), with_messaging=False)
        await core.start()
        assert "q" in core.messaging.topology.vhosts["/"].queues
        await core.close()

    asyncio.run(test())


def test_a_topic_is_opened_once_by_who_name_it_at_the_same_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            _, vhost = of(core)
            await core.create_topic("events", 1)

            async def open_it() -> Queue:
                core.messaging.queues.check_openable(vhost, "events")
                return await core.messaging.queues.open(vhost, "events")

            first = asyncio.create_task(open_it())
            await asyncio.sleep(0)
            found = await asyncio.gather(first, open_it(), open_it())
            assert len({id(queue) for queue in found}) == 1
            assert found[0] is vhost.queues["events"]

    asyncio.run(test())


def test_what_is_durable_is_there_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            topology, vhost = of(core)
            await settled(
                topology.declare_exchange(
                    vhost, ExchangeInfo("kept", "topic", arguments={"alternate-exchange": "amq.fanout"})
                )
            )
            topology.declare_exchange(vhost, ExchangeInfo("lost", "fanout", durable=False))
            await declare(core, "q")
            await declare(core, "gone", durable=False)
            await settled(topology.bind(vhost, "kept", "q", "a.#", {"n": 1, "raw": b"\xff"}))
            await settled(topology.bind(vhost, "kept", "q", "b", {}))
            await settled(topology.unbind(vhost, "kept", "q", "b", {}))
            assert topology.bind(vhost, "lost", "q", "", {}) is None
            assert topology.bind(vhost, "kept", "gone", "a.#", {}) is None
            await settled(topology.bind(vhost, "kept", "amq.direct", "k", {}, to_exchange=True))
            await settled(topology.add_vhost("other"))
            await settled(core.users.put_user(User("worker", hash_password("w"), tags=("management",))))
            await settled(core.users.put_permission("worker", "other", Permission("^a", "^b", "^c")))
        async with opened(tmp_path) as core:
            topology, vhost = of(core)
            assert vhost.exchanges["kept"] == ExchangeInfo(
                "kept", "topic", arguments={"alternate-exchange": "amq.fanout"}
            )
            assert "lost" not in vhost.exchanges
            assert list(vhost.queues) == ["q"]
            routes = [(r.destination, r.routing_key, r.arguments) for r in vhost.router.bindings("kept")]
            assert sorted(routes, key=str) == sorted(
                [("q", "a.#", {"n": 1, "raw": b"\xff"}), ("amq.direct", "k", {})], key=str
            )
            assert [queue.name for queue in vhost.route("kept", "a.b")] == ["q"]
            assert core.accounts.users["worker"].accepts(b"w")
            assert core.accounts.permissions["worker", "other"] == Permission("^a", "^b", "^c")

    asyncio.run(test())


def test_an_exchange_that_deletes_itself_goes_with_its_last_binding(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            topology, vhost = of(core)
            await settled(topology.declare_exchange(vhost, ExchangeInfo("x", "fanout", auto_delete=True)))
            queue = await declare(core, "q")
            await settled(topology.bind(vhost, "x", "q", "", {}))
            await core.messaging.queues.delete(queue)
            assert "x" not in vhost.exchanges
        async with opened(tmp_path) as core:
            assert "x" not in of(core)[1].exchanges

    asyncio.run(test())


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (ExchangeInfo("x", "direct"), "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'direct' but current is 'topic'"),
        (ExchangeInfo("x", "topic", durable=False), "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'"),
        (ExchangeInfo("x", "topic", arguments={"alternate-exchange": "y"}), "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received the value 'y' of type 'longstr' but current is none"),
    ],
)  # fmt: skip
def test_declaring_an_exchange_another_way_is_refused(tmp_path: Path, other: ExchangeInfo, text: str) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            topology, vhost = of(core)
            await settled(topology.declare_exchange(vhost, ExchangeInfo("x", "topic")))
            with pytest.raises(Refused) as caught:
                topology.declare_exchange(vhost, other)
            assert (caught.value.reason, caught.value.text) == (Reason.PRECONDITION_FAILED, text)

    asyncio.run(test())


def test_a_dead_letter_is_dropped_when_it_would_go_round_in_a_circle(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            queue = await declare(
                core, "q", settings=QueueSettings(max_length=1, overflow=Overflow.DROP_HEAD, dead_letter=("", "q"))
            )
            core.messaging.publishing.add(queue, Message(b"1"))
            core.messaging.publishing.add(queue, Message(b"2"))
            core.messaging.turn.run()
            assert queue.cursor.ready == 1
            assert [d.message.value for d in await queue.cursor.peek(None, 5)] == [b"2"]

    asyncio.run(test())


# -- queues that are not durable ----------------------------------------------------------------------------------------


class Watcher:
    """A consumer that looks at the log when it gets something."""

    priority = 0
    pool = None

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.got: list[tuple[int, bytes]] = []
        self.ends_seen: list[int] = []
        self.told: list[str] = []

    def credit(self) -> int:
        return 100

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.got += [(delivery.offset, delivery.message.value) for delivery in deliveries]
        self.ends_seen.append(self._core.store.bounds(TopicPartition("quick", 0)).high_watermark)

    def cancelled(self, reason: str) -> None:
        self.told.append(reason)


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


def test_who_waits_at_a_queue_that_is_not_durable_is_served_before_the_log_is_written(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            queue = await declare(core, "quick", durable=False)
            watcher = Watcher(core)
            queue.cursor.add_consumer(watcher, no_ack=True)
            for expected in (2, 4, 6):
                for value in (b"a", b"b"):
                    core.messaging.publishing.add(queue, Message(value))
                await wait_until(lambda expected=expected: len(watcher.got) == expected)  # type: ignore[misc]
            assert watcher.got == [(number, b"ab"[number % 2 :][:1]) for number in range(6)]
            assert watcher.ends_seen == [0, 2, 4]
            tp = TopicPartition("quick", 0)
            assert core.store.bounds(tp).high_watermark == 6
            part = await core.store.read(tp, 0, 10_000)
            assert [record.value for _, batch in iter_batches(part.records) for record in iter_records(batch)] == [
                b"a",
                b"b",
            ] * 3

    asyncio.run(test())


def test_a_queue_that_is_not_durable_keeps_the_order_of_the_log_when_others_append_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            queue = await declare(core, "quick", durable=False)
            watcher = Watcher(core)
            queue.cursor.add_consumer(watcher, no_ack=True)
            tp = TopicPartition("quick", 0)
            for number in range(3):
                core.messaging.publishing.add(queue, Message(b"ours %d" % number))
                theirs = NewRecord(None, b"theirs %d" % number)
                await core.store.append(tp, build_batch([theirs], timestamp_ms=core.clock.wall_ms()))
                core.messaging.publishing.add(queue, Message(b"ours again %d" % number))
            await wait_until(lambda: len(watcher.got) == 9)
            part = await core.store.read(tp, 0, 10_000)
            stored = [record.value for _, batch in iter_batches(part.records) for record in iter_records(batch)]
            assert watcher.got == list(enumerate(stored))
            assert set(stored) == {
                b"%s %d" % (who, number) for who in (b"ours", b"theirs", b"ours again") for number in range(3)
            }

    asyncio.run(test())


def test_a_queue_that_is_not_durable_ends_when_its_messages_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            queue = await declare(core, "quick", durable=False)
            watcher = Watcher(core)
            queue.cursor.add_consumer(watcher)
            append = core.store.append

            def fail(tp: TopicPartition, batches: Buffer, durability: Durability = Durability.OS) -> Future[Appended]:
                if tp.topic == "quick":
                    raise StorageFailure("quick-0", "no space left on device")
                return append(tp, batches, durability)

            monkeypatch.setattr(core.store, "append", fail)
            core.messaging.publishing.add(queue, Message(b"a"))
            await wait_until(lambda: bool(watcher.told))
            assert watcher.told == ["its messages cannot be written"]
            assert "quick" not in of(core)[1].queues
            await wait_until(lambda: core.store.topic("quick") is None)
            monkeypatch.undo()
            again = await declare(core, "quick", durable=False)
            assert again.cursor.ready == 0

    asyncio.run(test())


# -- atomic publication ------------------------------------------------------------------------------------------------


def _ready(core: BrokerCore, name: str) -> int:
    return of(core)[1].queues[name].cursor.ready


def test_messages_for_several_queues_are_stored_together(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            a, b, c = await declare(core, "a"), await declare(core, "b"), await declare(core, "c", durable=False)
            for _ in range(3):
                await core.messaging.publish_atomically([(q, Message(b"x" * 10)) for q in (a, b, c, a)])
            assert [_ready(core, name) for name in "abc"] == [6, 3, 3]
        async with opened(tmp_path) as core:
            found = await of(core)[1].queues["a"].cursor.peek(None, 100)
            assert len(found) == 6

    asyncio.run(test())


@pytest.mark.parametrize("left", [("a",), ("a", "c"), ("t",), ()], ids=str)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_queue_that_is_deleted_before_the_decision_leaves_the_others_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], when: str
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            vhost = of(core)[1]
            queues = [await declare(core, name) for name in "abc"] + [await declare(core, "t", durable=False)]
            transact = core.store.transact

            async def delete() -> None:
                for queue in queues:
                    if queue.name not in left and queue.name in vhost.queues:
                        await core.messaging.queues.delete(queue)

            async def delete_first(parts: Mapping[TopicPartition, Sequence[NewRecord]]) -> object:
                await delete()
                return await transact(parts)

            monkeypatch.setattr(core.store, "transact", delete_first)
            if when == "before":
                await delete()
            await core.messaging.publish_atomically([(queue, Message(b"x")) for queue in queues])
            assert {name: queue.cursor.ready for name, queue in vhost.queues.items()} == dict.fromkeys(left, 1)
            for name in left:
                await nothing_open(core.store, TopicPartition(name, 0))

    asyncio.run(test())


def test_a_large_transaction_is_cut_into_batches_and_still_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            queue = await declare(core, "a")
            messages = [(queue, Message(bytes([n]) * 200_000)) for n in range(20)]
            await core.messaging.publish_atomically(messages)
            found = await queue.cursor.peek(None, 100)
            assert [d.message.value[0] for d in found] == list(range(20))

    asyncio.run(test())


@pytest.mark.parametrize("decided", [False, True])
def test_a_crash_leaves_a_transaction_whole_or_absent(tmp_path: Path, decided: bool) -> None:
    """The files as a crash leaves them: with the batches of a transaction, and without or with the decision."""
    crashed = tmp_path / "crashed"

    async def test() -> None:
        async with opened(tmp_path / "running") as core:
            a, b = await declare(core, "a"), await declare(core, "b")
            transactions = core.transactions
            end = transactions.end

            async def snapshot_then_end(*args: object, **kwargs: object) -> object:
                if decided:
                    result = await end(*args, **kwargs)  # type: ignore[arg-type]
                    shutil.copytree(tmp_path / "running", crashed)
                    return result
                shutil.copytree(tmp_path / "running", crashed)
                return await end(*args, **kwargs)  # type: ignore[arg-type]

            transactions.end = snapshot_then_end  # type: ignore[method-assign,assignment]
            await core.messaging.publish_atomically([(a, Message(b"1")), (b, Message(b"2"))])
            transactions.end = end  # type: ignore[method-assign]
        (crashed / ".lock").unlink(missing_ok=True)
        async with opened(crashed) as core:
            vhost = of(core)[1]
            for name in "ab":
                assert len(await vhost.queues[name].cursor.peek(None, 10)) == int(decided)
                # Nothing is held back by what was left open.
                await vhost.queues[name].cursor.put([Message(b"next")], Durability.OS)
                await nothing_open(core.store, TopicPartition(name, 0))

    asyncio.run(test())


def test_a_transaction_for_a_full_queue_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            full = await declare(core, "full", settings=QueueSettings(max_length=1, overflow=Overflow.REJECT_PUBLISH))
            other = await declare(core, "other")
            with pytest.raises(Refused):
                await core.messaging.publish_atomically(
                    [(other, Message(b"")), (full, Message(b"")), (full, Message(b""))]
                )
            assert (_ready(core, "full"), _ready(core, "other")) == (0, 0)

    asyncio.run(test())
