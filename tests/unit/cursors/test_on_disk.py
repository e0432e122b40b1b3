"""The coordinator on the embedded store: what is in real segment files after a shutdown, a kill and a compaction."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from trunkline.clock import ManualClock
from trunkline.cursors.stream import (
    OFFSETS_PARTITION,
    OFFSETS_TOPIC,
    GroupCoordinator,
    GroupError,
    GroupErrorName,
    HeartbeatRequest,
    HeartbeatResult,
    OffsetEntry,
)
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import TopicPartition

T0 = TopicPartition("t", 0)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[EmbeddedStore, GroupCoordinator]]:
    store = EmbeddedStore(directory)
    await store.start()
    groups = GroupCoordinator(store, ManualClock())
    await groups.start()
    try:
        yield store, groups
    finally:
        await groups.close()
        await store.close()


async def heartbeat(groups: GroupCoordinator, member_id: str, epoch: int) -> HeartbeatResult:
    joining = epoch == 0
    request = HeartbeatRequest(
        "new",
        member_id,
        epoch,
        rebalance_timeout_ms=30_000 if joining else -1,
        subscribed_topic_names=("t",) if joining else None,
        topic_partitions=frozenset() if joining else None,
    )
    return await groups.consumer_heartbeat(request)


async def fill(store: EmbeddedStore, groups: GroupCoordinator) -> None:
    await store.create_topic("t", 3)
    joined = await groups.join(
        "old",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        protocol_type="consumer",
        protocols=[("range", b"meta")],
        require_known_member_id=False,
    )
    await groups.sync("old", generation=1, member_id=joined.member_id, assignments={joined.member_id: b"mine"})
    await heartbeat(groups, "m", 0)
    for offset in range(50):
        await groups.commit("simple", "", -1, None, [OffsetEntry("t", 0, offset, 0, "note")])
    await groups.txn_commit("simple", 7, 0, [OffsetEntry("t", 1, 100)])
    await store.append_marker(OFFSETS_PARTITION, 7, 0, commit=True)
    await groups.txn_end(7, True)
    await groups.txn_commit("simple", 8, 0, [OffsetEntry("t", 2, 200)])
    await store.append_marker(OFFSETS_PARTITION, 8, 0, commit=False)
    await groups.txn_end(8, False)
    await groups.txn_commit("simple", 9, 0, [OffsetEntry("t", 0, 300)])


def picture(groups: GroupCoordinator) -> list[object]:
    offsets = groups.fetch("simple", None, require_stable=True)
    return [*(groups.describe(group_id) for group_id in ("old", "new", "simple")), offsets, groups.list_groups()]


@pytest.mark.parametrize("end", ["clean", "kill"])
def test_groups_and_offsets_are_the_same_after_the_broker_comes_back(tmp_path: Path, end: str) -> None:
    async def scenario() -> None:
        left = tmp_path / "left"
        async with opened(tmp_path / "data") as (store, groups):
            await fill(store, groups)
            before = picture(groups)
            if end == "kill":
                shutil.copytree(tmp_path / "data", left)
        if end == "clean":
            left = tmp_path / "data"
        async with opened(left) as (store, groups):
            after = picture(groups)
            assert sorted(map(repr, after[:3])) == sorted(map(repr, before[:3]))
            assert after[3] == before[3]
            assert groups.fetch("simple", [T0])[T0].offset == 49
            unstable = groups.fetch("simple", [T0], require_stable=True)
            assert unstable[T0].error is GroupErrorName.UNSTABLE_OFFSET_COMMIT
            assert groups.fetch("simple", [TopicPartition("t", 1)])[TopicPartition("t", 1)].offset == 100
            assert groups.fetch("simple", [TopicPartition("t", 2)])[TopicPartition("t", 2)].offset == -1
            await store.append_marker(OFFSETS_PARTITION, 9, 0, commit=True)
            await groups.txn_end(9, True)
            assert groups.fetch("simple", [T0], require_stable=True)[T0].offset == 300
            result = await heartbeat(groups, "m", 1)
            assert result.member_epoch == 1

    asyncio.run(scenario())


def test_groups_survive_the_compaction_of_their_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (store, groups):
            await fill(store, groups)
            await store.append_marker(OFFSETS_PARTITION, 9, 0, commit=False)
            await groups.txn_end(9, False)
            await store.configure_topic(
                OFFSETS_TOPIC,
                {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0"},
            )
            note = "x" * 4_000
            for offset in range(600):
                await groups.commit("busy", "", -1, None, [OffsetEntry("t", 0, offset, 0, note)])
            await groups.delete_group("busy")
            before = picture(groups)
            await store.run_cleaner_once()
            size_bytes = sum(path.stat().st_size for path in (tmp_path / str(OFFSETS_PARTITION)).glob("*.log"))
            assert size_bytes < 2_000_000, "compaction did not happen, so nothing was tested"
        async with opened(tmp_path) as (_, groups):
            after = picture(groups)
            assert sorted(map(repr, after[:3])) == sorted(map(repr, before[:3]))
            assert after[3] == before[3]
            with pytest.raises(GroupError):
                groups.describe("busy")

    asyncio.run(scenario())


def test_a_fenced_producers_offsets_are_refused_by_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (store, groups):
            await store.create_topic("t", 1)
            await groups.txn_commit("g", 7, 3, [OffsetEntry("t", 0, 1)])
            with pytest.raises(GroupError) as caught:
                await groups.txn_commit("g", 7, 2, [OffsetEntry("t", 0, 2)])
            assert caught.value.name is GroupErrorName.INVALID_PRODUCER_EPOCH

    asyncio.run(scenario())


def test_commits_at_the_same_time_share_fsyncs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (store, groups):
            await store.create_topic("t", 100)
            before = store.bounds(OFFSETS_PARTITION).high_watermark
            await asyncio.gather(
                *(groups.commit("g", "", -1, None, [OffsetEntry("t", number, number)]) for number in range(100))
            )
            assert store.bounds(OFFSETS_PARTITION).high_watermark == before + 100
            assert len(groups.fetch("g", None)) == 100

    asyncio.run(scenario())


def test_timers_run_by_themselves(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = EmbeddedStore(tmp_path)
        await store.start()
        await store.create_topic("t", 1)
        groups = GroupCoordinator(store, clock)
        await groups.start()
        await heartbeat(groups, "m", 0)
        clock.advance(45_000)  # the session is over before the task first looks
        task = asyncio.ensure_future(groups.run_timers())
        async with asyncio.timeout(10):
            while groups.describe("new").members:
                await asyncio.sleep(0)
        task.cancel()
        await groups.close()
        await store.close()

    asyncio.run(scenario())
