"""Ephemeral topics: as any other while the store is open, and nothing afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.stores import batch_of, opened, put, records_of, run, values
from trunkline.log.errors import TopicExists, UnknownTopicOrPartition
from trunkline.log.store import Durability, TopicPartition

TP = TopicPartition("reply", 0)


def test_an_ephemeral_topic_serves_what_was_appended_and_leaves_nothing(tmp_path: Path) -> None:
    async def live() -> None:
        async with opened(tmp_path) as store:
            info = await store.create_ephemeral_topic("reply", 1, {"segment.bytes": "200"})
            assert info.ephemeral
            with pytest.raises(TopicExists):
                await store.create_topic("reply", 1)
            for number in range(10):
                await put(store, b"%d" % number, tp=TP)
            assert values(await records_of(store, TP)) == [b"%d" % number for number in range(10)]
            assert await store.trim(TP, 7) == 7
            assert values(await records_of(store, TP)) == [b"7", b"8", b"9"]
            await store.run_cleaner_once()
        async with opened(tmp_path) as store:
            assert store.topic("reply") is None
        assert not (tmp_path / ".ephemeral").exists()

    run(live())


def test_a_killed_process_leaves_no_ephemeral_topic(tmp_path: Path) -> None:
    async def live() -> None:
        async with opened(tmp_path):
            pass
        leftover = tmp_path / ".ephemeral" / "reply-0"
        leftover.mkdir(parents=True)
        (leftover / "00000000000000000000.log").write_bytes(b"whatever the process was writing")
        async with opened(tmp_path) as store:
            assert store.topic("reply") is None
            assert not leftover.exists()

    run(live())


def test_an_ephemeral_topic_costs_no_file_before_its_first_record_and_no_fsync_after(tmp_path: Path) -> None:
    async def live() -> None:
        async with opened(tmp_path) as store:
            topology = store.bounds(TopicPartition("__topology", 0)).high_watermark
            await store.create_ephemeral_topic("reply", 1)
            assert store.bounds(TopicPartition("__topology", 0)).high_watermark == topology
            assert not (tmp_path / ".ephemeral").exists()
            assert store.append(TP, batch_of(b"x"), Durability.DISK).done(), "there is nothing to wait for"
            assert (tmp_path / ".ephemeral" / "reply-0").exists()

    run(live())


@pytest.mark.parametrize("written", [False, True])
def test_an_ephemeral_topic_can_be_deleted_and_made_again(tmp_path: Path, written: bool) -> None:
    async def live() -> None:
        async with opened(tmp_path) as store:
            for _ in range(3):
                await store.create_ephemeral_topic("reply", 1)
                if written:
                    await put(store, b"x", tp=TP)
                await store.delete_topic("reply")
                with pytest.raises(UnknownTopicOrPartition):
                    store.bounds(TP)

    run(live())


def test_an_ephemeral_topic_grows_and_is_configured_without_a_record(tmp_path: Path) -> None:
    async def live() -> None:
        async with opened(tmp_path) as store:
            await store.create_ephemeral_topic("reply", 1)
            topology = store.bounds(TopicPartition("__topology", 0)).high_watermark
            grown = await store.grow_topic("reply", 2)
            configured = await store.configure_topic("reply", {"retention.ms": "5"})
            assert grown.ephemeral
            assert configured.ephemeral
            assert configured.config.retention_ms == 5
            await put(store, b"x", tp=TopicPartition("reply", 1))
            assert store.bounds(TopicPartition("__topology", 0)).high_watermark == topology

    run(live())
