"""Kill the process at every append of a transaction's life, and once more while the next process recovers."""

from __future__ import annotations

import asyncio

import pytest

from .transaction_bench import OFFSETS, P0, P1, TIMEOUT_MS, Bench, bench, scenario

MAX_TURNS = 1_000


async def live(b: Bench, commit: bool, bump: bool, progress: list[str]) -> None:
    who = await b.init()
    await b.add(who, P0)
    await b.add(who, P1)
    await b.coordinator.add_offsets("t", who.producer_id, who.producer_epoch, "group")
    await b.produce(who, b"zero", P0)
    await b.produce(who, b"one", P1)
    progress.append("ending")
    await b.end(who, commit, bump=bump)
    progress.append("ended")
    await b.coordinator.settle()


async def until_killed_or_done(b: Bench, work: asyncio.Future[None]) -> None:
    for _ in range(MAX_TURNS):
        if work.done():
            return work.result()
        if b.memory.killed:
            break
        await asyncio.sleep(0)
    for _ in range(20):  # let everything that does not depend on the log run out
        await asyncio.sleep(0)
    assert b.memory.killed


async def appends_of_a_life(commit: bool, bump: bool) -> int:
    b = await bench()
    before = b.memory.appends
    await live(b, commit, bump, [])
    return b.memory.appends - before


async def check_whole(b: Bench, commit: bool, progress: list[str]) -> None:
    """Whatever happened, the transaction is over, and it is in every partition or in none."""
    await b.pass_time(TIMEOUT_MS)
    seen = (b.memory.committed(P0), b.memory.committed(P1))
    assert seen in (([b"zero"], [b"one"]), ([], []))
    for tp in (P0, P1, OFFSETS):
        bounds = b.store.bounds(tp)
        assert bounds.last_stable_offset == bounds.high_watermark
    if "ended" in progress:
        assert (seen[0] == [b"zero"]) == commit
    elif "ending" not in progress or not commit:
        assert seen == ([], [])
    outcomes = {end for tp in (P0, P1, OFFSETS) for _, _, end in b.memory.markers(tp)}
    assert len(outcomes) <= 1
    if outcomes:
        assert {end for _, end in b.groups.ends} <= outcomes


@pytest.mark.parametrize("bump", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_a_kill_at_any_append_leaves_a_transaction_that_the_next_start_ends(commit: bool, bump: bool) -> None:
    @scenario
    async def run() -> None:
        total = await appends_of_a_life(commit, bump)
        assert total >= 12
        for survived in range(total + 1):
            b = await bench()
            b.memory.kill_after(survived)
            progress: list[str] = []
            await until_killed_or_done(b, asyncio.ensure_future(live(b, commit, bump, progress)))
            again = await b.restarted()
            assert all(item.state not in ("PrepareCommit", "PrepareAbort") for item in again.coordinator.list())
            await check_whole(again, commit, progress)
            who = await again.init()
            await again.add(who)
            await again.produce(who, b"next")
            await again.end(who)
            assert again.memory.committed(P0)[-1] == b"next"

    run()


@pytest.mark.parametrize("commit", [True, False])
def test_a_kill_during_recovery_is_recovered_from(commit: bool) -> None:
    @scenario
    async def run() -> None:
        total = await appends_of_a_life(commit, False)
        for survived in range(total - 4, total):  # Prepare, then none to all but one of the three markers
            for survived_again in range(5):
                b = await bench()
                b.memory.kill_after(survived)
                progress: list[str] = []
                await until_killed_or_done(b, asyncio.ensure_future(live(b, commit, False, progress)))
                assert "ending" in progress
                second = Bench(b.memory.reborn(), b.clock)
                second.memory.kill_after(survived_again)
                await until_killed_or_done(second, asyncio.ensure_future(_start(second)))
                third = await Bench(second.memory.reborn(), b.clock).start()
                assert third.state() == ("CompleteCommit" if commit else "CompleteAbort")
                await check_whole(third, commit, progress)

    run()


async def _start(b: Bench) -> None:
    await b.start()


@scenario
async def test_recovery_tells_the_groups_how_the_transaction_ended() -> None:
    b = await bench()
    who = await b.init()
    await b.coordinator.add_offsets("t", who.producer_id, who.producer_epoch, "group")
    b.memory.held.add(OFFSETS)
    await b.end(who)
    again = await b.restarted()
    assert again.groups.ends == [(who.producer_id, True)]


@scenario
async def test_a_start_does_not_wait_for_a_partition_that_fails() -> None:
    b = await bench()
    who = await b.init()
    await b.add(who, P0, P1)
    b.memory.failing |= {P0}
    await b.end(who)
    await b.coordinator.settle()
    again = Bench(b.memory.reborn(), b.clock)
    again.memory.failing |= {P0}
    await again.start()
    assert again.state() == "PrepareCommit"
    again.memory.failing.clear()
    await again.pass_time(100)
    assert again.state() == "CompleteCommit"
