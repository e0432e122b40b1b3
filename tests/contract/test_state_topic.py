"""A state topic over every store: what was put is replayed once and in order, and followed by whoever else reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.contract.conftest import MakeStore
from tests.contract.scenario import batch, run
from tests.undecodable import UNDECODABLE
from trunkline.clock import ManualClock
from trunkline.log.errors import LogError
from trunkline.log.records import LightRecord
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore, Slice

NAME = "__sessions"
SETTINGS = {"cleanup.policy": "compact", "max.message.bytes": str(2 << 20)}
LIMIT_S = 30


def topic_of(store: LogStore) -> StateTopic:
    return StateTopic(store, ManualClock(), NAME, SETTINGS)


async def opened(store: LogStore) -> StateTopic:
    topic = topic_of(store)
    await topic.open()
    return topic


async def put(topic: StateTopic, *values: bytes | None, key: bytes = b"k") -> int:
    return (await topic.put([state_record(key, value) for value in values], Durability.DISK)).base_offset


async def replayed(topic: StateTopic) -> list[bytes | None]:
    return [value async for records in topic.replay() for _, _, _, value, _ in records]


async def next_of(following: AsyncIterator[list[LightRecord]], count: int = 1) -> list[bytes | None]:
    """At least `count` values, in as many portions as the store gives them in."""
    found: list[bytes | None] = []
    while len(found) < count:
        records = await asyncio.wait_for(anext(following), LIMIT_S)
        found += [value for _, _, _, value, _ in records]
    return found


def test_it_is_made_with_its_settings_once(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await asyncio.gather(*(topic_of(store).open() for _ in range(3)))
        info = store.topic(NAME)
        assert info is not None
        assert info.partitions == 1
        assert dict(info.config.overrides) == SETTINGS
        await opened(store)
        assert store.topic(NAME) is info

    run(make_store, scenario)


def test_everything_is_replayed_in_order_and_given_once(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        expected: list[bytes | None] = [b"%d" % number for number in range(50)]
        for value in expected:
            await put(topic, value)
        await put(topic, b"x" * (1 << 20), None)  # larger than one read
        expected += [b"x" * (1 << 20), None]
        again = topic_of(store)
        assert await replayed(again) == expected
        assert await replayed(again) == []
        assert not again.incomplete
        await put(topic, b"more")
        assert await replayed(again) == [b"more"]
        assert again.following == store.bounds(again.tp).high_watermark

    run(make_store, scenario)


def test_records_of_transactions_count_when_they_are_committed(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        await topic.append(batch(b"never", producer=1, sequence=0, transactional=True), Durability.DISK)
        await store.append_marker(topic.tp, 1, 0, commit=False)
        await topic.append(batch(b"inside", producer=1, sequence=1, transactional=True), Durability.DISK)
        await put(topic, b"behind")
        again = topic_of(store)
        assert await replayed(again) == []
        await store.append_marker(topic.tp, 1, 0, commit=True)
        assert await replayed(again) == [b"inside", b"behind"]
        batches = [(h.control, h.transactional) async for h, _ in topic_of(store).replay_batches()]
        assert batches == [(False, True), (True, True), (False, True), (False, False), (True, True)]

    run(make_store, scenario)


def test_the_latest_value_of_a_key_is_its_value(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        for key, value in (
            (b"a", b"1"),
            (b"b", b"1"),
            (b"a", b"2"),
            (b"c", b"1"),
            (b"b", None),
            (b"c", None),
            (b"b", b"3"),
        ):
            await put(topic, value, key=key)
        assert await topic_of(store).latest() == {b"a": b"2", b"b": b"3"}

    run(make_store, scenario)


def test_one_record_is_read_by_its_offset(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        base = await put(topic, b"a", b"b", b"c")
        await topic.append(batch(b"open", producer=1, sequence=0, transactional=True), Durability.DISK)
        held_back = await put(topic, b"d")
        assert [await topic.value_at(base + index) for index in range(3)] == [b"a", b"b", b"c"]
        assert await topic.value_at(held_back) == b"d"

    run(make_store, scenario)


@pytest.mark.parametrize("form", UNDECODABLE)
def test_what_does_not_decode_is_passed_over_and_told(make_store: MakeStore, form: str) -> None:
    async def scenario(store: LogStore) -> None:
        await store.create_topic(NAME, 1)  # an intake that compacts would refuse them
        topic = topic_of(store)
        await put(topic, b"before")
        await topic.append(UNDECODABLE[form], Durability.DISK)
        await put(topic, b"behind")
        again = topic_of(store)
        assert await replayed(again) == [b"before", b"behind"]
        assert again.incomplete
        assert store.passed_over.batches == 1

    run(make_store, scenario)


def test_a_log_that_begins_later_is_incomplete(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        await put(topic, b"gone")
        await put(topic, b"there")
        await store.trim(topic.tp, 1)
        again = topic_of(store)
        assert await replayed(again) == [b"there"]
        assert again.incomplete

    run(make_store, scenario)


def test_what_another_writes_is_followed(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        mine, others = await opened(store), topic_of(store)
        await put(others, b"old")
        assert await replayed(mine) == [b"old"]
        following = mine.follow()
        await put(others, b"theirs")
        assert await next_of(following) == [b"theirs"]
        waiting = asyncio.create_task(next_of(following))
        await asyncio.sleep(0)
        await put(mine, b"mine")
        assert await waiting == [b"mine"]
        await others.append(batch(b"inside", producer=1, sequence=0, transactional=True), Durability.DISK)
        waiting = asyncio.create_task(next_of(following, 2))
        await put(others, b"behind")
        assert not waiting.done()
        await store.append_marker(mine.tp, 1, 0, commit=True)
        assert await waiting == [b"inside", b"behind"]
        await following.aclose()

    run(make_store, scenario)


def test_nothing_is_read_while_nothing_changes(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        following = topic.follow()
        reads = 0
        read = store.read

        async def counted(*args: object, **options: object) -> Slice:
            nonlocal reads
            reads += 1
            return await read(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "read", counted)
        waiting = asyncio.create_task(next_of(following))
        while not reads:
            await asyncio.sleep(0)
        before = reads
        for _ in range(100):
            await asyncio.sleep(0)
        assert reads == before
        await put(topic_of(store), b"woken")
        assert await waiting == [b"woken"]
        await following.aclose()

    run(make_store, scenario)


def test_following_again_goes_on_where_it_ended(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        await put(topic, b"1")
        following = topic.follow()
        assert await next_of(following) == [b"1"]
        await following.aclose()
        await put(topic, b"2")
        following = topic.follow()
        assert await next_of(following) == [b"2"]
        await following.aclose()

    run(make_store, scenario)


def test_following_ends_with_the_topic(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        topic = await opened(store)
        waiting = asyncio.create_task(next_of(topic.follow()))
        await asyncio.sleep(0)
        await store.delete_topic(NAME)
        with pytest.raises(LogError):
            await waiting

    run(make_store, scenario)
