"""Every transition of a transactional id, its refusals, and the producer's epochs."""

from __future__ import annotations

import asyncio

import pytest

from trunkline.broker.transactions.coordinator import ProducerIdentity, TransactionLimits
from trunkline.broker.transactions.errors import TransactionError
from trunkline.broker.transactions.log import TRANSACTION_STATE, TransactionLog
from trunkline.broker.transactions.state import LAST_CLIENT_EPOCH, Status, TransactionState
from trunkline.log.store import TopicPartition

from .transaction_bench import OFFSETS, P0, P1, TIMEOUT_MS, Bench, bench, refused, scenario

GONE = TopicPartition("orders", 7)


async def exhausted() -> tuple[Bench, ProducerIdentity]:
    """A bench whose transactional id `t` is at the last epoch that a client may hold."""
    b = await bench()
    first = await b.init()
    log = TransactionLog(b.store, b.clock)
    await log.write_state(
        "t",
        TransactionState(first.producer_id, LAST_CLIENT_EPOCH, TIMEOUT_MS, last_update_ms=b.clock.wall_ms()),
    )
    return await b.restarted(), ProducerIdentity(first.producer_id, LAST_CLIENT_EPOCH)


# -- producer ids --------------------------------------------------------------------------------------------------


@scenario
async def test_producer_ids_never_repeat_across_restarts() -> None:
    b = await bench(TransactionLimits(producer_id_block_size=3))
    taken: list[int] = []
    for _ in range(4):
        taken += [(await b.coordinator.init_producer_id(None, 0)).producer_id for _ in range(4)]
        b = await b.restarted()
    assert len(set(taken)) == len(taken) == 16


@scenario
async def test_concurrent_requests_get_different_producer_ids() -> None:
    b = await bench(TransactionLimits(producer_id_block_size=2))
    got = await asyncio.gather(*(b.coordinator.init_producer_id(None, 0) for _ in range(20)))
    assert len({identity.producer_id for identity in got}) == 20
    assert {identity.producer_epoch for identity in got} == {0}


@scenario
async def test_no_producer_id_is_given_before_its_block_is_durable() -> None:
    b = await bench()
    b.memory.failing.add(TRANSACTION_STATE)
    await refused("COORDINATOR_NOT_AVAILABLE", b.coordinator.init_producer_id(None, 0))
    await refused("COORDINATOR_NOT_AVAILABLE", b.init())
    b.memory.failing.clear()
    assert (await b.init()).producer_epoch == 0


# -- init ----------------------------------------------------------------------------------------------------------


@scenario
async def test_each_init_fences_the_producer_before() -> None:
    b = await bench()
    first = await b.init()
    second = await b.init()
    assert second == ProducerIdentity(first.producer_id, first.producer_epoch + 1)
    await refused("PRODUCER_FENCED", b.add(first))
    await refused("PRODUCER_FENCED", b.end(first))
    await b.add(second)
    assert b.state() == "Ongoing"


@scenario
async def test_init_checks_its_arguments() -> None:
    b = await bench()
    init = b.coordinator.init_producer_id
    await refused("INVALID_REQUEST", init("", TIMEOUT_MS))
    await refused("INVALID_REQUEST", init("x" * 40_000, TIMEOUT_MS))
    await refused("INVALID_REQUEST", init("t", TIMEOUT_MS, 5, -1))
    await refused("INVALID_REQUEST", init("t", TIMEOUT_MS, -1, 5))
    await refused("INVALID_TRANSACTION_TIMEOUT", init("t", 0))
    await refused("INVALID_TRANSACTION_TIMEOUT", init("t", 15 * 60_000 + 1))
    await init("t", 15 * 60_000)


@scenario
async def test_init_aborts_the_open_transaction_and_answers_in_the_same_call() -> None:
    b = await bench()
    old = await b.init()
    await b.add(old, P0)
    await b.produce(old, b"lost")
    new = await b.init()
    assert new.producer_epoch == old.producer_epoch + 2  # one for the abort, one for the new producer
    assert b.state() == "Empty"
    assert b.memory.markers(P0) == [(old.producer_id, old.producer_epoch + 1, False)]
    assert b.memory.committed(P0) == []
    await refused("PRODUCER_FENCED", b.end(old))


@scenario
async def test_init_is_turned_away_while_a_failed_completion_waits_for_its_next_try() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0, P1)
    b.memory.failing.add(P1)
    await b.end(who)
    await b.coordinator.settle()
    await refused("CONCURRENT_TRANSACTIONS", b.init())
    await refused("CONCURRENT_TRANSACTIONS", b.add(who))
    await refused("CONCURRENT_TRANSACTIONS", b.end(who))
    await refused("INVALID_TXN_STATE", b.end(who, commit=False))
    await refused("CONCURRENT_TRANSACTIONS", b.coordinator.verify("t", who.producer_id, who.producer_epoch, [P0]))
    b.memory.failing.clear()
    await b.pass_time(b.coordinator.limits.retry_backoff_ms)
    assert (await b.init()).producer_epoch == who.producer_epoch + 1


@scenario
async def test_the_epoch_bump_that_a_producer_asks_for_can_be_retried() -> None:
    b = await bench()
    init = b.coordinator.init_producer_id
    held = await b.init()
    bumped = await init("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    assert bumped.producer_epoch == held.producer_epoch + 1
    assert await init("t", TIMEOUT_MS, held.producer_id, held.producer_epoch) == bumped
    b = await b.restarted()
    again = await b.coordinator.init_producer_id("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    assert again == bumped


@scenario
async def test_a_stale_producer_cannot_bump_its_epoch() -> None:
    b = await bench()
    init = b.coordinator.init_producer_id
    held = await b.init()
    await b.init()
    await refused("PRODUCER_FENCED", init("t", TIMEOUT_MS, held.producer_id, held.producer_epoch))
    await refused("PRODUCER_FENCED", init("t", TIMEOUT_MS, held.producer_id + 500, held.producer_epoch))


@scenario
async def test_a_stale_producer_cannot_abort_the_transaction_of_a_newer_one() -> None:
    b = await bench()
    held = await b.init()
    bumped = await b.coordinator.init_producer_id("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    await b.add(bumped)
    await refused(
        "PRODUCER_FENCED", b.coordinator.init_producer_id("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    )
    assert b.state() == "Ongoing"


@scenario
async def test_a_producer_that_bumps_inside_a_transaction_aborts_it_and_goes_on() -> None:
    b = await bench()
    held = await b.init()
    await b.add(held)
    await b.produce(held, b"lost")
    init = b.coordinator.init_producer_id
    bumped = await init("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    assert bumped == ProducerIdentity(held.producer_id, held.producer_epoch + 1)
    assert await init("t", TIMEOUT_MS, held.producer_id, held.producer_epoch) == bumped
    assert b.memory.committed(P0) == []
    await b.add(bumped)


@scenario
async def test_a_producer_unknown_after_expiry_gets_a_new_identity() -> None:
    b = await bench()
    got = await b.coordinator.init_producer_id("t", TIMEOUT_MS, 4711, 3)
    assert got.producer_epoch == 0


@scenario
async def test_exhausted_epochs_lead_to_a_new_producer_id() -> None:
    b, held = await exhausted()
    fresh = await b.init()
    assert fresh.producer_id != held.producer_id
    assert fresh.producer_epoch == 0
    await refused("INVALID_PRODUCER_ID_MAPPING", b.add(held))
    with pytest.raises(TransactionError, match="INVALID_PRODUCER_ID_MAPPING"):
        b.coordinator.check_append(held.producer_id, held.producer_epoch, P0)


@scenario
async def test_the_bump_to_a_new_producer_id_can_be_retried() -> None:
    b, held = await exhausted()
    fresh = await b.coordinator.init_producer_id("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    assert fresh.producer_id != held.producer_id
    again = await b.coordinator.init_producer_id("t", TIMEOUT_MS, held.producer_id, held.producer_epoch)
    assert again == fresh


@scenario
async def test_an_open_transaction_at_the_last_epoch_can_be_fenced() -> None:
    b, held = await exhausted()
    await b.add(held)
    fresh = await b.init()
    assert fresh.producer_epoch == 0
    assert b.memory.markers(P0) == [(held.producer_id, LAST_CLIENT_EPOCH + 1, False)]


@scenario
async def test_racing_inits_leave_one_producer_standing() -> None:
    b = await bench()
    got = await asyncio.gather(*(b.init() for _ in range(5)))
    assert len(set(got)) == 5
    newest = max(got, key=lambda identity: identity.producer_epoch)
    for identity in got:
        if identity == newest:
            await b.add(identity)
        else:
            await refused("PRODUCER_FENCED", b.add(identity))


@scenario
async def test_the_number_of_transactional_ids_is_bounded() -> None:
    b = await bench(TransactionLimits(max_transactional_ids=2))
    await b.init("a")
    await b.init("b")
    await refused("POLICY_VIOLATION", b.init("c"))
    await b.init("a")


# -- partitions ----------------------------------------------------------------------------------------------------


@scenario
async def test_one_unknown_partition_keeps_all_of_them_out() -> None:
    b = await bench()
    who = await b.init()
    errors = await b.coordinator.add_partitions("t", who.producer_id, who.producer_epoch, [P0, GONE])
    assert errors == {P0: "OPERATION_NOT_ATTEMPTED", GONE: "UNKNOWN_TOPIC_OR_PARTITION"}
    assert b.state() == "Empty"


@scenario
async def test_requests_for_an_unknown_transactional_id_or_producer_are_refused() -> None:
    b = await bench()
    who = await b.init()
    other = ProducerIdentity(who.producer_id + 1, who.producer_epoch)
    await refused("INVALID_PRODUCER_ID_MAPPING", b.add(who, transactional_id="nobody"))
    await refused("INVALID_PRODUCER_ID_MAPPING", b.add(other))
    await refused("INVALID_PRODUCER_ID_MAPPING", b.end(other))
    await refused("INVALID_PRODUCER_ID_MAPPING", b.end(other, bump=True))
    await refused("INVALID_PRODUCER_ID_MAPPING", b.coordinator.verify("nobody", 0, 0, [P0]))
    newer = ProducerIdentity(who.producer_id, who.producer_epoch + 1)
    await refused("PRODUCER_FENCED", b.add(newer))
    await refused("PRODUCER_FENCED", b.end(newer))


@scenario
async def test_adding_what_is_in_already_writes_nothing() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0, P1)
    before = b.memory.appends
    await b.add(who, P1)
    await b.coordinator.ensure_partition("t", who.producer_id, who.producer_epoch, P0)
    assert b.memory.appends == before


@scenario
async def test_the_partitions_of_a_transaction_are_bounded() -> None:
    b = await bench(TransactionLimits(max_partitions_per_transaction=1))
    who = await b.init()
    await b.add(who, P0)
    await refused("INVALID_REQUEST", b.add(who, P1))


@scenario
async def test_verify_tells_which_partitions_are_in_the_transaction() -> None:
    b = await bench()
    who = await b.init()
    assert await b.coordinator.verify("t", who.producer_id, who.producer_epoch, [P0]) == {P0: "TRANSACTION_ABORTABLE"}
    await b.add(who, P0)
    assert await b.coordinator.verify("t", who.producer_id, who.producer_epoch, [P0, P1]) == {
        P0: "NONE",
        P1: "TRANSACTION_ABORTABLE",
    }
    await refused("PRODUCER_FENCED", b.coordinator.verify("t", who.producer_id, who.producer_epoch + 1, [P0]))


@scenario
async def test_appends_are_allowed_only_within_the_transaction() -> None:
    b = await bench()
    who = await b.init()
    check, inside = b.coordinator.check_append, b.coordinator.in_transaction
    with pytest.raises(TransactionError, match="INVALID_TXN_STATE"):
        check(who.producer_id, who.producer_epoch, P0)
    await b.add(who, P0)
    check(who.producer_id, who.producer_epoch, P0)
    assert inside(who.producer_id, P0)
    assert not inside(who.producer_id, P1)
    assert not inside(999, P0)
    with pytest.raises(TransactionError, match="INVALID_PRODUCER_EPOCH"):
        check(who.producer_id, who.producer_epoch - 1, P0)
    await b.end(who)
    assert not inside(who.producer_id, P0)


@scenario
async def test_nothing_more_enters_a_transaction_once_its_end_is_being_written() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0)
    b.memory.held.add(TRANSACTION_STATE)
    ending = asyncio.ensure_future(b.end(who))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not b.coordinator.in_transaction(who.producer_id, P0)
    assert b.memory.markers(P0) == []  # and no marker before the outcome is durable
    b.memory.release(TRANSACTION_STATE)
    await ending
    assert b.memory.markers(P0) == [(who.producer_id, who.producer_epoch, True)]


@scenario
async def test_ensure_partition_begins_a_transaction() -> None:
    b = await bench()
    who = await b.init()
    await b.coordinator.ensure_partition("t", who.producer_id, who.producer_epoch, P1)
    await b.coordinator.ensure_partition("t", who.producer_id, who.producer_epoch, OFFSETS)
    assert b.coordinator.in_transaction(who.producer_id, P1)
    assert list(b.coordinator.describe("t").partitions) == [OFFSETS, P1]
    await refused(
        "UNKNOWN_TOPIC_OR_PARTITION",
        b.coordinator.ensure_partition("t", who.producer_id, who.producer_epoch, GONE),
    )


# -- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_marks_every_partition_and_tells_the_groups(commit: bool) -> None:
    @scenario
    async def run() -> None:
        b = await bench()
        who = await b.init()
        await b.add(who, P0, P1)
        await b.coordinator.add_offsets("t", who.producer_id, who.producer_epoch, "group")
        await b.produce(who, b"one")
        assert await b.end(who, commit) == who
        assert b.memory.committed(P0) == ([b"one"] if commit else [])
        assert b.groups.ends == [(who.producer_id, commit)]
        await b.coordinator.settle()
        assert b.state() == ("CompleteCommit" if commit else "CompleteAbort")
        for tp in (P0, P1, OFFSETS):
            assert b.memory.markers(tp) == [(who.producer_id, who.producer_epoch, commit)]

    run()


@pytest.mark.parametrize("commit", [True, False])
def test_a_retried_end_is_answered_as_the_first(commit: bool) -> None:
    @scenario
    async def run() -> None:
        b = await bench()
        who = await b.init()
        await refused("INVALID_TXN_STATE", b.end(who, commit))  # nothing was begun
        await b.add(who)
        await b.end(who, commit)
        assert await b.end(who, commit) == who
        await refused("INVALID_TXN_STATE", b.end(who, not commit))
        assert len(b.memory.markers(P0)) == 1

    run()


@scenario
async def test_the_next_transaction_waits_for_the_completion_of_the_last() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0)
    b.memory.held.add(P0)
    await b.end(who)
    assert b.state() == "PrepareCommit"
    adding = asyncio.ensure_future(b.add(who, P1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not adding.done()
    b.memory.release(P0)
    await adding
    assert b.state() == "Ongoing"
    assert list(b.coordinator.describe("t").partitions) == [P1]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_with_a_bump_hands_out_the_next_epoch(commit: bool) -> None:
    @scenario
    async def run() -> None:
        b = await bench()
        who = await b.init()
        await b.add(who)
        await b.produce(who, b"one")
        then = await b.end(who, commit, bump=True)
        assert then == ProducerIdentity(who.producer_id, who.producer_epoch + 1)
        assert b.memory.markers(P0) == [(who.producer_id, then.producer_epoch, commit)]
        assert await b.end(who, commit, bump=True) == then  # a retry
        await refused("INVALID_TXN_STATE", b.end(who, not commit, bump=True))
        await refused("PRODUCER_FENCED", b.add(who))
        await b.add(then)
        await refused("PRODUCER_FENCED", b.end(who, commit, bump=True))  # too late for a retry

    run()


@scenario
async def test_a_retried_bump_is_recognised_after_a_restart() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    then = await b.end(who, bump=True)
    b = await b.restarted()
    assert await b.end(who, bump=True) == then


@scenario
async def test_with_bumps_an_abort_of_nothing_succeeds_and_a_commit_of_nothing_does_not() -> None:
    b = await bench()
    who = await b.init()
    await refused("INVALID_TXN_STATE", b.end(who, True, bump=True))
    second = await b.end(who, False, bump=True)
    assert second.producer_epoch == who.producer_epoch + 1
    await refused("INVALID_TXN_STATE", b.end(second, True, bump=True))
    third = await b.end(second, False, bump=True)
    assert third.producer_epoch == second.producer_epoch + 1
    await b.add(third)
    fourth = await b.end(third, True, bump=True)
    assert (await b.end(fourth, False, bump=True)).producer_epoch == fourth.producer_epoch + 1


@scenario
async def test_a_bump_past_the_last_epoch_hands_out_a_new_producer_id() -> None:
    b, held = await exhausted()
    await b.add(held)
    b.memory.held.add(P0)
    fresh = await b.end(held, bump=True)
    assert fresh.producer_id != held.producer_id
    assert fresh.producer_epoch == 0
    b = await b.restarted()  # the completion was lost, the new id was not
    assert await b.end(held, bump=True) == fresh
    await b.add(fresh)
    with pytest.raises(TransactionError, match="INVALID_PRODUCER_ID_MAPPING"):
        b.coordinator.check_append(held.producer_id, held.producer_epoch, P0)


@scenario
async def test_a_bumping_retry_during_a_failed_completion_is_turned_away() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.memory.failing.add(P0)
    then = await b.end(who, bump=True)
    await b.coordinator.settle()
    await refused("CONCURRENT_TRANSACTIONS", b.end(who, bump=True))
    await refused("INVALID_TXN_STATE", b.end(who, False, bump=True))
    await refused("PRODUCER_FENCED", b.end(then, bump=True))


@scenario
async def test_a_request_whose_connection_closed_is_carried_through() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    b.memory.held.add(TRANSACTION_STATE)
    ending = asyncio.ensure_future(b.end(who))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    b.memory.release(TRANSACTION_STATE)
    await b.coordinator.settle()
    assert b.state() == "CompleteCommit"


@scenario
async def test_what_cannot_be_written_changes_nothing() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0)
    b.memory.failing.add(TRANSACTION_STATE)
    await refused("COORDINATOR_NOT_AVAILABLE", b.end(who))
    await refused("COORDINATOR_NOT_AVAILABLE", b.add(who, P1))
    await refused("COORDINATOR_NOT_AVAILABLE", b.init())
    assert b.state() == "Ongoing"
    b.memory.failing.clear()
    assert b.coordinator.in_transaction(who.producer_id, P0)
    await b.end(who)


# -- admin ---------------------------------------------------------------------------------------------------------


@scenario
async def test_describe_and_list_show_what_is_open() -> None:
    b = await bench()
    with pytest.raises(TransactionError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        b.coordinator.describe("nobody")
    idle = await b.init("idle")
    who = await b.init("busy")
    started_ms = b.clock.wall_ms()
    await b.add(who, P1, P0, transactional_id="busy")
    b.clock.advance(500)
    shown = b.coordinator.describe("busy")
    assert (shown.state, shown.start_ms, shown.timeout_ms) == ("Ongoing", started_ms, TIMEOUT_MS)
    assert (shown.producer_id, shown.producer_epoch) == (who.producer_id, who.producer_epoch)
    assert list(shown.partitions) == [P0, P1]
    assert b.coordinator.describe("idle").start_ms == -1

    def listed(**filters: object) -> list[str]:
        return [item.transactional_id for item in b.coordinator.list(**filters)]  # type: ignore[arg-type]

    assert listed() == ["idle", "busy"]
    assert listed(states=["Ongoing"]) == ["busy"]
    assert listed(states=["Empty", "Nonsense"]) == ["idle"]
    assert listed(states=["Nonsense"]) == []
    assert listed(producer_ids=[idle.producer_id]) == ["idle"]
    assert listed(duration_ms=499) == ["busy"]
    assert listed(duration_ms=500) == []


@scenario
async def test_a_closed_coordinator_refuses_and_leaves_nothing_under_way() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who)
    await b.end(who)
    await b.coordinator.close()
    assert b.state() == "CompleteCommit"
    await refused("COORDINATOR_NOT_AVAILABLE", b.init())
    await refused("COORDINATOR_NOT_AVAILABLE", b.add(who))


def test_status_labels_are_those_of_kafka() -> None:
    assert [status.label for status in Status] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
