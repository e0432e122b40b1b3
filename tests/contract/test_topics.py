"""Topics: what is created is there, and every refusal is a LogError that says why."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.contract.conftest import MakeStore
from tests.contract.scenario import TP, batch, noticed, put, run, seen, values
from trunkline.log.errors import (
    InvalidConfig,
    InvalidPartitionCount,
    InvalidTopicName,
    TopicExists,
    UnknownTopicOrPartition,
)
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended


def test_a_created_topic_is_found_by_name_and_by_id(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        made = await store.create_topic("orders", 3, {"retention.ms": "1000"})
        assert (made.name, made.partitions, made.ephemeral) == ("orders", 3, False)
        assert made.config.retention_ms == 1000
        assert store.topic("orders") == store.topic_by_id(made.id) == store.topics()["orders"] == made
        assert store.bounds(TopicPartition("orders", 2)).high_watermark == 0

    run(make_store, scenario)


def test_a_topic_takes_the_id_that_it_is_given(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic_id = uuid4()
        assert (await store.create_topic("orders", 1, topic_id=topic_id)).id == topic_id

    run(make_store, scenario)


def test_what_cannot_be_a_topic_is_refused_and_leaves_nothing(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        before = set(store.topics())
        for name in ("", ".", "..", "a b", "a/b", "ä", "x" * 250):
            with pytest.raises(InvalidTopicName):
                await store.create_topic(name, 1)
        for count in (0, -1):
            with pytest.raises(InvalidPartitionCount):
                await store.create_topic("orders", count)
        for config in ({"no.such.setting": "1"}, {"retention.ms": "soon"}):
            with pytest.raises(InvalidConfig):
                await store.create_topic("orders", 1, config)
        with pytest.raises(TopicExists):
            await store.create_topic("t", 1)
        assert set(store.topics()) == before

    run(make_store, scenario)


def test_names_that_differ_only_in_dot_and_underscore_collide(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.create_topic("a.b", 1)
        assert store.colliding_topic("a_b") == "a.b"
        assert store.colliding_topic("a.b") is None
        assert store.colliding_topic("a-b") is None
        with pytest.raises(InvalidTopicName):
            await store.create_topic("a_b", 1)

    run(make_store, scenario)


def test_a_topic_grows_and_keeps_its_records(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await put(store, b"old")
        assert (await store.grow_topic("t", 4)).partitions == 4
        await put(store, b"new", tp=TopicPartition("t", 3))
        assert values(await seen(store)) == [b"old"]
        assert values(await seen(store, TopicPartition("t", 3))) == [b"new"]
        for count in (4, 3, 0):
            with pytest.raises(InvalidPartitionCount):
                await store.grow_topic("t", count)
        with pytest.raises(UnknownTopicOrPartition):
            await store.grow_topic("nowhere", 2)

    run(make_store, scenario)


def test_configuring_replaces_the_settings(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.configure_topic("t", {"retention.ms": "1000"})
        info = await store.configure_topic("t", {"retention.bytes": "5000"})
        assert dict(info.config.overrides) == {"retention.bytes": "5000"}
        assert store.topic("t") == info
        with pytest.raises(InvalidConfig):
            await store.configure_topic("t", {"retention.bytes": "much"})
        assert store.topic("t") == info
        with pytest.raises(UnknownTopicOrPartition):
            await store.configure_topic("nowhere", {})

    run(make_store, scenario)


def test_a_deleted_topic_is_gone_and_its_name_is_free(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        old = store.topic("t")
        assert old is not None
        await put(store, b"old")
        await noticed(store, lambda: store.bounds(TP).last_stable_offset == 1)
        woken = asyncio.Event()
        store.watch(TP, woken.set)
        await store.delete_topic("t")
        await asyncio.wait_for(woken.wait(), 10)
        assert store.topic("t") is None
        assert store.topic_by_id(old.id) is None
        with pytest.raises(UnknownTopicOrPartition):
            store.bounds(TP)
        with pytest.raises(UnknownTopicOrPartition):
            await put(store, b"late")
        with pytest.raises(UnknownTopicOrPartition):
            await store.read(TP, 0, 1000)
        with pytest.raises(UnknownTopicOrPartition):
            await store.delete_topic("t")
        store.unwatch(TP, lambda: None)  # letting go of what is gone is no mistake
        assert (await store.create_topic("t", 1)).id != old.id
        assert await seen(store) == []

    run(make_store, scenario)


def test_an_append_whose_topic_is_deleted_is_stored_or_finds_no_topic(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        waiting = [store.append(TP, batch(b"late"), Durability.DISK) for _ in range(20)]
        await store.delete_topic("t")
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, Appended | UnknownTopicOrPartition)

    run(make_store, scenario)


def test_an_ephemeral_topic_serves_like_another(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        able = store.ephemeral_topics
        if able is None:
            pytest.skip("it has none")
        assert (await able.create_ephemeral_topic("reply", 1)).ephemeral
        reply = TopicPartition("reply", 0)
        assert (await put(store, b"a", b"b", tp=reply)).base_offset == 0
        assert values(await seen(store, reply)) == [b"a", b"b"]
        await store.delete_topic("reply")
        assert store.topic("reply") is None

    run(make_store, scenario)
