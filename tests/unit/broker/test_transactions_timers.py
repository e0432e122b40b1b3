"""What the coordinator does by itself: abort after a timeout, try again after a failure, forget what is idle."""

from __future__ import annotations

import asyncio

from tests.faulty_log import FaultyLog
from trunkline.broker.transactions.coordinator import TransactionCoordinator, TransactionLimits
from trunkline.broker.transactions.log import TRANSACTION_STATE
from trunkline.clock import SystemClock
from trunkline.log.store import TopicPartition

from .transaction_bench import OFFSETS, P0, P1, TIMEOUT_MS, Groups, bench, refused, scenario

LIMITS = TransactionLimits()


@scenario
async def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_producer_fenced() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    await b.produce(who, b"late")
    await b.pass_time(TIMEOUT_MS - 1)
    assert b.state() == "Ongoing"
    await b.pass_time(1)
    assert b.state() == "CompleteAbort"
    assert b.memory.markers(P0) == [(who.producer_id, who.producer_epoch + 1, False)]
    assert b.memory.committed(P0) == []
    for bump in (False, True):
        await refused("PRODUCER_FENCED", b.end(who, True, bump=bump))
        await refused("PRODUCER_FENCED", b.end(who, False, bump=bump))
    await refused("PRODUCER_FENCED", b.add(who))
    assert (await b.init()).producer_epoch == who.producer_epoch + 2


@scenario
async def test_each_transaction_has_its_full_timeout() -> None:
    b = await bench()
    who = await b.init()
    for _ in range(3):
        await b.add(who)
        await b.pass_time(TIMEOUT_MS - 1)
        await b.end(who)
    assert b.state() in ("PrepareCommit", "CompleteCommit")
    await b.add(who)
    await b.pass_time(TIMEOUT_MS)
    assert b.state() == "CompleteAbort"


@scenario
async def test_adding_a_partition_does_not_prolong_a_transaction() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0)
    await b.pass_time(TIMEOUT_MS - 1)
    await b.add(who, P1)
    await b.pass_time(1)
    assert b.state() == "CompleteAbort"


@scenario
async def test_a_shorter_timeout_is_noticed_though_a_longer_one_was_set_before() -> None:
    b = await bench()
    who = await b.init(timeout_ms=10 * TIMEOUT_MS)
    await b.add(who)
    await b.end(who)
    who = await b.init(timeout_ms=50)
    await b.add(who)
    deadline_ms = b.coordinator.next_deadline_ms()
    assert deadline_ms == b.clock.monotonic_ms() + 50
    await b.pass_time(50)
    assert b.state() == "CompleteAbort"


@scenario
async def test_a_restart_leaves_a_transaction_what_is_left_of_its_timeout() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.clock.advance(TIMEOUT_MS - 10)
    b = await b.restarted()
    assert b.coordinator.next_deadline_ms() == b.clock.monotonic_ms() + 10
    b.clock.advance(1_000_000)
    b = await b.restarted()
    await b.pass_time(0)
    assert b.state() == "CompleteAbort"


@scenario
async def test_a_timeout_does_not_touch_the_transaction_that_came_after() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.memory.held.add(TRANSACTION_STATE)
    ending = asyncio.ensure_future(b.end(who))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    adding = asyncio.ensure_future(b.add(who))
    await asyncio.sleep(0)
    b.clock.advance(TIMEOUT_MS)
    b.coordinator.expire()  # waits behind the commit that is being written and the transaction that follows it
    b.memory.release(TRANSACTION_STATE)
    await ending
    await adding
    await b.coordinator.settle()
    assert b.state() == "Ongoing"
    assert b.memory.markers(P0) == [(who.producer_id, who.producer_epoch, True)]


@scenario
async def test_an_abort_that_cannot_be_written_is_tried_again() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.memory.failing.add(TRANSACTION_STATE)
    await b.pass_time(TIMEOUT_MS)
    assert b.state() == "Ongoing"
    b.memory.failing.clear()
    await b.pass_time(LIMITS.retry_backoff_ms)
    assert b.state() == "CompleteAbort"


@scenario
async def test_a_failed_partition_holds_up_its_own_transaction_only() -> None:
    b = await bench()
    stuck, free = await b.init("stuck"), await b.init("free")
    await b.add(stuck, P0, P1, transactional_id="stuck")
    await b.produce(stuck, b"a", P0)
    await b.produce(stuck, b"b", P1)
    b.memory.failing.add(P1)
    await b.end(stuck, transactional_id="stuck")
    await b.add(free, P0, transactional_id="free")
    await b.end(free, transactional_id="free")
    await b.coordinator.settle()
    assert (b.state("stuck"), b.state("free")) == ("PrepareCommit", "CompleteCommit")
    assert b.memory.committed(P0) == [b"a"]
    delays = []
    for _ in range(9):
        deadline_ms = b.coordinator.next_deadline_ms()
        assert deadline_ms is not None
        delays.append(deadline_ms - b.clock.monotonic_ms())
        await b.pass_time(delays[-1])
    assert delays == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    b.memory.failing.clear()
    await b.pass_time(LIMITS.retry_backoff_max_ms)
    assert b.state("stuck") == "CompleteCommit"
    assert b.memory.committed(P1) == [b"b"]
    # The partition that took its marker at the first try did not get it again at each of the others.
    assert b.memory.markers(P0).count((stuck.producer_id, stuck.producer_epoch, True)) == 1


@scenario
async def test_a_marker_that_did_not_reach_the_disk_is_written_again() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.memory.unsynced.add(P0)
    await b.end(who)
    await b.coordinator.settle()
    assert b.state() == "PrepareCommit"
    b.memory.unsynced.clear()
    await b.pass_time(LIMITS.retry_backoff_ms)
    assert b.state() == "CompleteCommit"
    assert len(b.memory.markers(P0)) == 2


@scenario
async def test_a_fault_of_the_groups_leaves_the_transaction_to_be_tried_again() -> None:
    b = await bench()
    who = await b.init()
    await b.coordinator.add_offsets("t", who.producer_id, who.producer_epoch, "group")
    b.groups.broken = True
    await b.end(who)
    await b.coordinator.settle()
    assert b.state() == "PrepareCommit"
    b.groups.broken = False
    await b.pass_time(LIMITS.retry_backoff_ms)
    assert b.state() == "CompleteCommit"
    assert b.groups.ends == [(who.producer_id, True)]


@scenario
async def test_a_topic_deleted_in_the_middle_of_a_transaction_is_skipped() -> None:
    b = await bench()
    await b.store.create_topic("brief", 1)
    who = await b.init()
    await b.add(who, P0, TopicPartition("brief", 0))
    await b.store.delete_topic("brief")
    await b.store.delete_topic("__consumer_offsets")
    await b.coordinator.ensure_partition("t", who.producer_id, who.producer_epoch, OFFSETS)
    await b.end(who)
    await b.coordinator.settle()
    assert b.state() == "CompleteCommit"


@scenario
async def test_a_complete_record_that_cannot_be_written_is_tried_again() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.memory.held.add(P0)
    await b.end(who)
    b.memory.failing.add(TRANSACTION_STATE)
    b.memory.release(P0)
    await b.coordinator.settle()
    assert b.state() == "PrepareCommit"
    b.memory.failing.clear()
    await b.pass_time(LIMITS.retry_backoff_ms)
    assert b.state() == "CompleteCommit"


@scenario
async def test_idle_transactional_ids_are_forgotten_after_a_week() -> None:
    b = await bench()
    idle = await b.init("idle")
    busy = await b.init("busy", 15 * 60_000)
    await b.pass_time(LIMITS.transactional_id_expiration_ms - 10_000)
    await b.add(busy, transactional_id="busy")
    await b.pass_time(LIMITS.expiration_interval_ms)
    assert [item.transactional_id for item in b.coordinator.list()] == ["busy"]
    await refused("INVALID_PRODUCER_ID_MAPPING", b.add(idle, transactional_id="idle"))
    b = await b.restarted()
    assert [item.transactional_id for item in b.coordinator.list()] == ["busy"]
    assert (await b.init("idle")).producer_id not in (idle.producer_id, busy.producer_id)


@scenario
async def test_an_init_that_meets_the_forgetting_of_its_id_gets_a_fresh_identity() -> None:
    b = await bench()
    old = await b.init()
    b.memory.held.add(TRANSACTION_STATE)
    b.clock.advance(LIMITS.transactional_id_expiration_ms)
    b.coordinator.expire()
    await asyncio.sleep(0)
    adding, asking = asyncio.ensure_future(b.add(old)), asyncio.ensure_future(b.init())
    await asyncio.sleep(0)
    b.memory.release(TRANSACTION_STATE)
    fresh = await asking
    assert fresh.producer_id != old.producer_id
    await refused("INVALID_PRODUCER_ID_MAPPING", _result(adding))
    await b.add(fresh)


async def _result(task: asyncio.Future[None]) -> None:
    await task


@scenario
async def test_run_timers_wakes_for_a_deadline_that_appears_while_it_sleeps() -> None:
    store = FaultyLog()
    await store.create_topic("orders", 1)
    coordinator = TransactionCoordinator(store, Groups(), SystemClock())
    await coordinator.start()
    timers = asyncio.ensure_future(coordinator.run_timers())
    who = await coordinator.init_producer_id("t", 20)
    await coordinator.add_partitions("t", who.producer_id, who.producer_epoch, [P0])
    while coordinator.describe("t").state != "CompleteAbort":  # the scenario's deadline ends this if it never comes
        await asyncio.sleep(0.005)
    timers.cancel()
