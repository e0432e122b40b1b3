"""All share partitions over a log: where groups begin, what is written, what a restart finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from tests.faulty_log import FaultyLog
from tests.unit.cursors.harness import run
from trunkline.clock import ManualClock
from trunkline.cursors.share import Acknowledgement, SharePartitions
from trunkline.cursors.share.partition import SharePartition
from trunkline.cursors.stream import GroupLimits
from trunkline.cursors.stream.group_settings import GroupSettings
from trunkline.log.batch import NewRecord, build_batch, iter_batches
from trunkline.log.errors import LogError, StorageFailure, UnknownTopicOrPartition
from trunkline.log.names import SHARE_STATE_TOPIC
from trunkline.log.store import Durability, TopicPartition

T = TopicPartition("t", 0)
ACCEPT, RELEASE = 1, 2
LOCK_MS = 30_000


class Shares:
    def __init__(self, store: FaultyLog | None = None, reset: str = "earliest") -> None:
        self.clock = ManualClock()
        self.store = store or FaultyLog(clock=self.clock)
        self.settings = GroupSettings(GroupLimits())
        self.settings.put("g", {"share.auto.offset.reset": reset})
        self.shares = SharePartitions(self.store, self.clock, self.settings)

    async def start(self, *groups: str) -> Shares:
        await self.shares.start(groups or ("g",))
        return self

    async def restarted(self, *, power_loss: bool = False) -> Shares:
        copy = self.store.crash_copy() if power_loss else self.store.reborn()
        return await Shares(copy).start()

    def append(self, *sizes: int) -> None:
        for size in sizes:
            batch = build_batch([NewRecord(None, b"v%d" % n) for n in range(size)], timestamp_ms=self.clock.wall_ms())
            self.store.append(T, batch, Durability.DISK)

    @property
    def topic_id(self) -> UUID:
        info = self.store.topic("t")
        assert info is not None
        return info.id

    async def open(self, group: str = "g") -> SharePartition:
        return await self.shares.open(group, self.topic_id, 0)

    async def take(
        self, member: str = "anna", wanted: int = 500, max_bytes: int = 1 << 20
    ) -> Sequence[tuple[int, int, int]]:
        asked = self.shares.wanted("g", member, max_records=wanted, batch_records=500, strict=False)
        taken = await self.shares.take(await self.open(), asked._replace(max_bytes=max_bytes), at_least_one=True)
        self.shares.flush()
        offsets = [(header.base_offset, header.last_offset) for header, _ in iter_batches(taken.records)]
        for first, last, _ in taken.acquired:
            assert offsets[0][0] <= first
            assert last <= offsets[-1][1]
        return list(taken.acquired)

    async def say(self, kind: int, first: int, last: int, member: str = "anna") -> None:
        self.shares.acknowledge("g", self.topic_id, 0, member, [Acknowledgement(first, last, [kind])])
        written = self.shares.commit()
        if written is not None:
            await written


async def begun(reset: str = "earliest") -> Shares:
    made = Shares(reset=reset)
    made.store.add_topic("t", 1)
    return await made.start()


@pytest.mark.parametrize(
    ("reset", "start"), [("earliest", 0), ("latest", 20), ("by_duration:PT1M", 10), ("by_duration:PT0S", 20)]
)
def test_where_a_group_begins_is_its_setting(reset: str, start: int) -> None:
    async def scenario() -> None:
        shares = await begun(reset)
        shares.append(10)
        shares.clock.advance(100_000)
        shares.append(10)
        shares.clock.advance(1_000)
        assert (await shares.open()).head == start
        shares.append(10)
        assert (await (await shares.restarted()).open()).head == start  # and is kept, although nothing was taken

    run(scenario)


def test_what_was_accepted_stays_so_and_what_was_held_comes_again_with_its_count() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10, 10)
        assert await shares.take(wanted=10) == [(0, 9, 1)]
        assert await shares.take("ben") == [(10, 19, 1)]
        await shares.say(ACCEPT, 0, 4)
        await shares.say(RELEASE, 5, 9)
        shares = await shares.restarted()
        assert await shares.take() == [(5, 19, 2)]
        shares = await shares.restarted()
        assert await shares.take() == [(5, 19, 3)]

    run(scenario)


def test_what_was_acknowledged_is_on_disk() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10)
        await shares.take()
        shares.store.automatic_sync = False
        saying = asyncio.ensure_future(shares.say(ACCEPT, 0, 9))
        await asyncio.sleep(0.01)
        assert not saying.done()
        shares.store.sync()
        await saying
        after = await shares.restarted(power_loss=True)
        assert (await after.open()).head == 10

    run(scenario)


def test_an_acknowledgement_that_cannot_be_written_is_refused_and_written_later() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10)
        await shares.take()
        shares.store.failing.add(TopicPartition(SHARE_STATE_TOPIC, 0))
        with pytest.raises(LogError):
            await shares.say(ACCEPT, 0, 9)
        assert await shares.take("ben") == []
        shares.store.failing.clear()
        written = shares.shares.commit()
        assert written is not None
        await written
        assert (await (await shares.restarted()).open()).head == 10

    run(scenario)


def test_locks_end_by_the_clock() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10)
        await shares.take(wanted=1)
        shares.clock.advance(LOCK_MS - 1)
        shares.shares.expire()
        assert await shares.take("ben") == []
        woken: list[int] = []
        shares.shares.watch(await shares.open(), lambda: woken.append(1))
        assert shares.shares.next_deadline_ms() is not None
        shares.clock.advance(1)
        shares.shares.expire()
        assert woken
        assert await shares.take("ben") == [(0, 9, 2)]

    run(scenario)


def test_time_outs_happen_while_nobody_asks() -> None:
    async def scenario() -> None:
        shares = await begun()
        running = asyncio.create_task(shares.shares.run_timers())
        shares.append(1)
        await shares.take()
        partition = await shares.open()
        shares.clock.advance(LOCK_MS)
        shares.shares.watch(partition, lambda: None)
        shares.shares.expire()
        assert partition.in_flight.free == 1
        running.cancel()

    run(scenario)


def test_small_limits_still_give_one_batch() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10, 10)
        assert await shares.take(max_bytes=1) == [(0, 9, 1)]
        assert await shares.take("ben", max_bytes=1) == [(10, 19, 1)]

    run(scenario)


def test_a_trimmed_log_is_gone_on_with_where_it_begins() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10, 10)
        assert await shares.take(wanted=1) == [(0, 9, 1)]
        await shares.store.trim(T, 10)
        assert await shares.take("ben") == [(10, 19, 1)]
        assert shares.shares.offsets("g")[0][2:] == (10, 10)

    run(scenario)


def test_offsets_are_told_reset_and_deleted() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10, 10)
        await shares.take()
        await shares.say(ACCEPT, 5, 9)
        (place,) = shares.shares.offsets("g")
        assert (place.tp, place.start_offset, place.lag) == (T, 0, 15)
        await shares.shares.reset("g", [(shares.topic_id, 0, 12)])
        for at in (shares, await shares.restarted(power_loss=True)):
            assert at.shares.offsets("g")[0][2:] == (12, 8)
            assert await at.take() == [(12, 19, 1)]
        await shares.shares.reset("g", [(shares.topic_id, 0, 99)])  # behind the end is the end
        assert shares.shares.offsets("g")[0][2:] == (20, 0)
        assert await shares.shares.delete("g", shares.topic_id)
        assert not await shares.shares.delete("g")
        assert shares.shares.offsets("g") == (await shares.restarted(power_loss=True)).shares.offsets("g") == []

    run(scenario)


def test_state_of_groups_and_topics_that_are_gone_is_removed() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10)
        await shares.take()
        other = await Shares(shares.store.reborn()).start("another")
        assert other.shares.offsets("g") == []
        again = await other.restarted()
        assert again.shares.offsets("g") == []
        await shares.store.delete_topic("t")
        shares.shares.topic_deleted(next(iter(shares.shares._partitions))[1])
        assert shares.shares.offsets("g") == []
        with pytest.raises(UnknownTopicOrPartition):
            await shares.shares.open("g", UUID(int=9), 0)

    run(scenario)


def test_nothing_is_made_before_a_share_group_needs_it() -> None:
    async def scenario() -> None:
        shares = await begun()
        assert shares.store.topic(SHARE_STATE_TOPIC) is None
        assert shares.shares.commit() is None
        await shares.open()
        assert shares.store.topic(SHARE_STATE_TOPIC) is not None

    run(scenario)


def test_a_broken_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(1)
        await shares.take()
        shares.store.unsynced.add(TopicPartition(SHARE_STATE_TOPIC, 0))
        with pytest.raises(StorageFailure):
            await shares.say(ACCEPT, 0, 0)

    run(scenario)


def test_who_still_waits_on_a_view_that_was_reset_changes_nothing() -> None:
    async def scenario() -> None:
        shares = await begun()
        shares.append(10, 10)
        old = await shares.open()
        await shares.take(wanted=1)
        await shares.shares.reset("g", [(shares.topic_id, 0, 5)])
        asked = shares.shares.wanted("g", "ben", max_records=500, batch_records=500, strict=False)
        assert not shares.shares.may_give(old, asked)
        taken = await shares.shares.take(old, asked._replace(max_bytes=1 << 20), at_least_one=True)
        assert not taken.acquired
        shares.shares.flush()
        for at in (shares, await shares.restarted()):
            assert at.shares.offsets("g")[0][2:] == (5, 15)

    run(scenario)
