"""Streams: what Kafka's protocol is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.integration.api.scenario import FACES, now, play
from trunkline import Timeout

Unique = Callable[[str], str]
pytestmark = pytest.mark.parametrize("face", FACES)


@dataclass
class Order:
    number: int


async def taken(stream: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        some = await now(stream.next(20))
        found += some if isinstance(some, list) else [some]
    return found


def test_a_group_goes_on_behind_its_last_commit(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        topic, group = unique("orders"), unique("group")
        writing = t.stream(topic)
        for number in range(10):
            await now(writing.append(Order(number), key="k"))
        first = t.stream(topic, Order, group=group)
        records = await taken(first, 10)
        assert [(record.value, record.key, record.offset) for record in records] == [
            (Order(number), "k", number) for number in range(10)
        ]
        await now(records[5].commit())
        await now(first.close())
        second = t.stream(topic, Order, group=group)
        assert [record.value.number for record in await taken(second, 4)] == [6, 7, 8, 9]

    play(face, url, scenario)


def test_a_reader_without_a_group_starts_where_it_says(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        topic = unique("orders")
        writing = t.stream(topic)
        await now(writing.append("old"))
        late = t.stream(topic, start="latest")
        with pytest.raises(Timeout):
            await now(late.next(1.0))
        await now(writing.append("new"))
        assert [record.value for record in await taken(late, 1)] == ["new"]
        assert [record.value for record in await taken(t.stream(topic), 2)] == ["old", "new"]
        never = t.stream(topic, start=datetime(2100, 1, 1, tzinfo=UTC))
        with pytest.raises(Timeout):
            await now(never.next(0.5))

    play(face, url, scenario)
