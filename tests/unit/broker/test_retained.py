"""Retained messages: found by filter, folded from their topic, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.messaging.mapping import filter_matches
from trunkline.broker.state.retained import RetainedFull, RetainedMessages
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.records import NO_HEADERS
from trunkline.log.store import Durability

names = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.tuples(
    st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), min_size=1, max_size=4), st.booleans()
).map(lambda pair: "/".join([*pair[0], "#"] if pair[1] else pair[0])).filter(bool)  # fmt: skip


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


@given(st.lists(names, max_size=20), st.lists(names, max_size=10), st.lists(filters, min_size=1, max_size=5))
def test_a_filter_finds_exactly_the_names_that_it_matches(
    kept: list[str], cleared: list[str], asked: list[str]
) -> None:
    retained = RetainedMessages(EmbeddedStore("unused"), ManualClock())
    for name in kept:
        retained.put(name, b"x", NO_HEADERS)
    for name in cleared:
        assert retained.clear(name) == (name in kept)
        kept = [each for each in kept if each != name]
    for topic_filter in asked:
        found = list(retained.matching(topic_filter))
        levels = topic_filter.split("/")
        assert sorted(found) == sorted({name for name in kept if filter_matches(levels, name.split("/"))})
    for name in set(kept):
        retained.clear(name)
    assert retained.size_bytes == 0
    assert list(retained.matching("#")) == []


def test_what_was_flushed_is_there_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        store = EmbeddedStore(tmp_path, clock=clock)
        await store.start()
        retained = RetainedMessages(store, clock)
        await retained.start()
        retained.put("kept", b"1", NO_HEADERS)
        retained.put("kept", b"2", NO_HEADERS)
        retained.put("cleared", b"1", NO_HEADERS)
        retained.put("statistic", b"1", NO_HEADERS, volatile=True)
        await retained.flush(Durability.DISK)
        retained.clear("cleared")
        await retained.flush(Durability.OS)
        await store.close()
        store = EmbeddedStore(tmp_path, clock=clock)
        await store.start()
        again = RetainedMessages(store, clock)
        await again.start()
        assert list(again.matching("#")) == ["kept"]
        found = again.get("kept")
        assert found is not None
        assert found.payload == b"2"
        await store.close()

    run(work())


def test_limits_are_kept_and_named(tmp_path: Path) -> None:
    retained = RetainedMessages(EmbeddedStore(tmp_path), ManualClock(), max_messages=2, max_bytes=2_000)
    retained.put("a", b"x", NO_HEADERS)
    retained.put("b", b"x", NO_HEADERS)
    with pytest.raises(RetainedFull, match="max_retained_messages=2"):
        retained.put("c", b"x", NO_HEADERS)
    with pytest.raises(RetainedFull, match="max_retained_bytes=2000"):
        retained.put("a", b"x" * 2_000, NO_HEADERS)
    retained.put("a", b"y", NO_HEADERS)
    retained.put("volatile", b"x" * 5_000, NO_HEADERS, volatile=True)
    assert len(retained) == 2


def test_a_hundred_thousand_names_are_searched_without_looking_at_all_of_them(tmp_path: Path) -> None:
    retained = RetainedMessages(EmbeddedStore(tmp_path), ManualClock())
    for number in range(100_000):
        retained.put(f"site/{number // 100}/device/{number % 100}", b"x", NO_HEADERS)
    assert len(list(retained.matching("site/7/device/+"))) == 100
    assert len(list(retained.matching("site/+/device/7"))) == 1000
    assert len(list(retained.matching("#"))) == 100_000
