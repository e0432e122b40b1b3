"""Topics: names, settings, growth, deletion, and what a crash leaves of each."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from tests.unit.log.stores import TP, opened, put, records_of, run, values
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import (
    InvalidConfig,
    InvalidPartitionCount,
    InvalidTopicName,
    StorageFailure,
    TopicExists,
    UnknownTopicOrPartition,
)
from trunkline.log.limits import StoreLimits
from trunkline.log.store import Durability, TopicPartition

TOPOLOGY = TopicPartition("__topology", 0)


def test_topics_survive_a_restart_with_id_and_settings(tmp_path: Path) -> None:
    async def main() -> None:
        topic_id = uuid4()
        async with opened(tmp_path) as store:
            made = await store.create_topic("a.b-c", 3, {"retention.ms": "5"}, topic_id=topic_id)
            assert made.id == topic_id
            assert store.topic_by_id(topic_id) == made
            assert set(store.topics()) == {"__topology", "a.b-c"}
            assert store.topics()["__topology"].internal
        for _ in range(2):
            async with opened(tmp_path, defaults={"retention.bytes": "77"}) as store:
                found = store.topic("a.b-c")
                assert found is not None
                assert (found.id, found.partitions) == (topic_id, 3)
                assert (found.config.retention_ms, found.config.retention_bytes) == (5, 77)
                assert store.bounds(TopicPartition("a.b-c", 2)).high_watermark == 0

    run(main())


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "ä", "a/b", "a\0", "x:y"])
def test_names_that_kafka_refuses_are_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            with pytest.raises(InvalidTopicName):
                await store.create_topic(name, 1)

    run(main())


def test_names_that_differ_in_dots_and_underscores_only_collide(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("a.b", 1)
            with pytest.raises(InvalidTopicName, match="collides"):
                await store.create_topic("a_b", 1)
            with pytest.raises(TopicExists):
                await store.create_topic("a.b", 1)
            await store.create_topic("a" * 249, 1)

    run(main())


def test_bad_settings_and_partition_counts_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, limits=StoreLimits(max_partitions=10)) as store:
            with pytest.raises(InvalidConfig):
                await store.create_topic("t", 1, {"retention.ms": "soon"})
            with pytest.raises(InvalidConfig):
                await store.create_topic("t", 1, {"no.such": "1"})
            for count in (0, -1, 10):
                with pytest.raises(InvalidPartitionCount):
                    await store.create_topic("t", count)
            assert store.topic("t") is None
            await store.create_topic("t", 2)
            with pytest.raises(InvalidConfig):
                await store.configure_topic("t", {"segment.bytes": "1"})
            for count in (1, 2, 11):
                with pytest.raises(InvalidPartitionCount):
                    await store.grow_topic("t", count)
            for call in (store.grow_topic("u", 3), store.configure_topic("u", {}), store.delete_topic("u")):
                with pytest.raises(UnknownTopicOrPartition):
                    await call
            with pytest.raises(InvalidTopicName):
                await store.delete_topic("__topology")

    run(main())


def test_a_topic_grows(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 1)
            await put(store, b"a")
            assert (await store.grow_topic("t", 3)).partitions == 3
            await put(store, b"b", tp=TopicPartition("t", 2))
        async with opened(tmp_path) as store:
            assert values(await records_of(store, TopicPartition("t", 2))) == [b"b"]
            assert values(await records_of(store)) == [b"a"]

    run(main())


def test_a_deleted_topic_is_gone_with_its_files_and_can_be_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            old = await store.create_topic("t", 2)
            await put(store, b"old")
            waiting = store.append(TP, build_batch([NewRecord(b"k", b"v")]), Durability.DISK)
            await store.delete_topic("t")
            assert (await waiting).base_offset == 1
            with pytest.raises(UnknownTopicOrPartition):
                store.bounds(TP)
            assert store.topic_by_id(old.id) is None
            new = await store.create_topic("t", 1)
            assert new.id != old.id
            assert store.bounds(TP).high_watermark == 0
            await store.delete_topic("t")
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["__topology-0"]
        async with opened(tmp_path) as store:
            assert store.topic("t") is None

    run(main())


def test_a_topic_with_the_longest_name_can_be_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        name = "n" * 249
        async with opened(tmp_path) as store:
            await store.create_topic(name, 1)
            await put(store, b"v", tp=TopicPartition(name, 0))
            await store.delete_topic(name)
            assert not (tmp_path / f"{name}-0").exists()

    run(main())


def test_a_deletion_that_a_crash_interrupts_is_finished_on_start(tmp_path: Path) -> None:
    async def main() -> None:
        live = tmp_path / "live"
        async with opened(live) as store:
            await store.create_topic("t", 2)
            await put(store, b"old")
            shutil.copytree(live / "t-0", tmp_path / "t-0")
            shutil.copytree(live / "t-0", tmp_path / "t-1")
            await store.delete_topic("t")
        # As if the process had died after the tombstone, before and after the first rename.
        shutil.copytree(tmp_path / "t-0", live / "t-0")
        shutil.copytree(tmp_path / "t-1", live / f"t-1.{uuid4().hex}-delete")
        async with opened(live) as store:
            assert store.topic("t") is None
            await store.create_topic("t", 2)
            assert await records_of(store) == []
        assert not list(live.glob("*-delete"))

    run(main())


def test_files_that_a_deletion_could_not_move_do_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 1)
            await put(store, b"old")
            with monkeypatch.context() as patched:
                patched.setattr(os, "rename", refuse)
                await store.delete_topic("t")
            assert (tmp_path / "t-0").exists()
            await store.create_topic("t", 1)
            assert await records_of(store) == []

    run(main())


def test_a_directory_that_nobody_deleted_is_set_aside_and_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 1)
            await put(store, b"precious")
        shutil.copytree(tmp_path / "t-0", tmp_path / "u-0")
        async with opened(tmp_path) as store:
            assert store.topic("u") is None
        (stray,) = tmp_path.glob("u-0.*-stray")
        assert (stray / "00000000000000000000.log").stat().st_size > 0

    run(main())


def test_partitions_without_a_topology_are_not_taken_for_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 1)
            await put(store, b"precious")
        shutil.move(tmp_path / "__topology-0", tmp_path / "elsewhere")
        with pytest.raises(StorageFailure, match="__topology-0"):
            async with opened(tmp_path):
                pass
        shutil.move(tmp_path / "elsewhere", tmp_path / "__topology-0")
        async with opened(tmp_path) as store:
            assert values(await records_of(store)) == [b"precious"]

    run(main())


def test_directories_that_a_crash_kept_from_being_made_are_made_on_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 2)
        shutil.rmtree(tmp_path / "t-0")
        shutil.rmtree(tmp_path / "t-1")
        async with opened(tmp_path) as store:
            assert (await put(store, b"a")).base_offset == 0

    run(main())


def test_other_layers_records_in_the_topology_are_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.append(TOPOLOGY, build_batch([NewRecord(b"exchange:x", b"\xff not json")], timestamp_ms=0))
            await store.create_topic("t", 1)
        async with opened(tmp_path) as store:
            assert store.topic("t") is not None
            assert (await records_of(store, TOPOLOGY))[0].key == b"exchange:x"

    run(main())


def test_the_topology_is_compacted_like_any_other_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("t", 1)
            await store.configure_topic("__topology", {"cleanup.policy": "compact", "segment.bytes": "500"})
            for number in range(20):
                await store.configure_topic("t", {"retention.ms": str(number)})
            before = len(await records_of(store, TOPOLOGY))
            await store.run_cleaner_once()
            assert len(await records_of(store, TOPOLOGY)) < before
        async with opened(tmp_path) as store:
            found = store.topic("t")
            assert found is not None
            assert found.config.retention_ms == 19

    run(main())


def test_topics_are_made_and_deleted_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await asyncio.gather(*(store.create_topic(f"n{n}", 1) for n in range(30)))
            results = await asyncio.gather(*(store.create_topic("one", 1) for _ in range(5)), return_exceptions=True)
            assert sum(isinstance(result, TopicExists) for result in results) == 4
            await asyncio.gather(*(store.delete_topic(f"n{n}") for n in range(0, 30, 2)))
            assert len(store.topics()) == 17

    run(main())
