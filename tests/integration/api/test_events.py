"""publish and subscribe, by each kind of filter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.integration.api.scenario import FACES, eventually, now, play
from trunkline import Channel, Content, Topic, Type

Unique = Callable[[str], str]
pytestmark = pytest.mark.parametrize("face", FACES)


@dataclass
class Event:
    at: int


@dataclass
class Quote(Event):
    company: str
    price: float


@dataclass
class Bond(Quote):
    years: int


@dataclass
class Weather(Event):
    degrees: float


def test_a_topic_subscription_gets_what_matches_in_order(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        root = unique("stocks")
        seen: list[tuple[str, int]] = []
        handle = await now(t.subscribe(Topic(f"{root}/+"), lambda event: seen.append((event.topic, event.value))))
        for number in range(50):
            await now(t.publish(number, topic=f"{root}/telco"))
            await now(t.publish(number, topic=f"{root}/deep/telco"))
        await eventually(lambda: len(seen) == 50)
        assert seen == [(f"{root}/telco", number) for number in range(50)]
        await now(handle.stop())
        await now(t.publish(-1, topic=f"{root}/telco"))
        assert len(seen) == 50

    play(face, url, scenario)


def test_a_channel_is_everything_below_its_name(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        name = unique("channel")
        seen: list[str] = []
        await now(t.subscribe(Channel(name), lambda event: seen.append(event.topic)))
        for topic in (name, f"{name}/a", f"{name}/a/b", f"{name}x"):
            await now(t.publish("event", topic=topic))
        await eventually(lambda: seen == [name, f"{name}/a", f"{name}/a/b"])

    play(face, url, scenario)


def test_a_content_subscription_gets_what_makes_its_expression_true(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        company = unique("Telco")
        seen: list[float] = []
        await now(
            t.subscribe(
                Content(f"company = '{company}' and price < 100"), lambda event: seen.append(event.value["price"])
            )
        )
        for price in (99.0, 100.0, 7.5):
            await now(t.publish(Quote(1, company, price)))
            await now(t.publish({"company": "other", "price": price}))
        await eventually(lambda: seen == [99.0, 7.5])

    play(face, url, scenario)


def test_a_type_subscription_gets_subtypes_as_what_the_function_asks_for(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        company = unique("Telco")
        seen: list[Quote] = []

        def quoted(quote: Quote) -> None:
            if quote.company == company:
                seen.append(quote)

        await now(t.subscribe(Type(Quote), quoted))
        await now(t.publish(Quote(1, company, 2.0)))
        await now(t.publish(Weather(2, 21.5)))
        await now(t.publish(Bond(3, company, 4.0, 10)))
        await eventually(lambda: seen == [Quote(1, company, 2.0), Quote(3, company, 4.0)])

    play(face, url, scenario)


def test_a_subscription_expires(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        topic = unique("topic")
        seen: list[int] = []
        handle = await now(t.subscribe(Topic(topic), lambda event: seen.append(event.value), expiry=0.3))
        await now(t.publish(1, topic=topic))
        await eventually(lambda: seen == [1] and handle.stopped)
        await now(t.publish(2, topic=topic))
        assert seen == [1]

    play(face, url, scenario)


def test_a_callback_that_raises_does_not_stop_the_rest(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        topic = unique("topic")
        seen: list[int] = []

        def callback(number: int) -> None:
            if number % 2:
                raise ValueError("odd")
            seen.append(number)

        handle = await now(t.subscribe(Topic(topic), callback))
        for number in range(6):
            await now(t.publish(number, topic=topic))
        await eventually(lambda: seen == [0, 2, 4] and handle.failed == 3)

    play(face, url, scenario)


def test_who_comes_late_gets_the_past_of_what_was_kept(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        topic = unique("kept")
        advertised = await now(t.advertise(Topic(f"{topic}/#"), keep=3600))
        assert await now(t.advertised(Topic(f"{topic}/a"))) == 1
        for number in range(5):
            await now(t.publish(number, topic=f"{topic}/a"))
        seen: list[int] = []
        await now(t.subscribe(Topic(f"{topic}/#"), lambda event: seen.append(event.value), since="earliest"))
        await eventually(lambda: seen == [0, 1, 2, 3, 4])
        await now(t.publish(5, topic=f"{topic}/b"))
        await eventually(lambda: seen == [0, 1, 2, 3, 4, 5])
        again: list[int] = []
        handle = await now(
            t.subscribe(Topic(f"{topic}/#"), lambda event: again.append(event.value), since=timedelta(hours=1))
        )
        await eventually(lambda: again == [0, 1, 2, 3, 4, 5])
        await now(handle.stop())
        await now(advertised.stop())
        assert await now(t.advertised(Topic(f"{topic}/a"))) == 0

    play(face, url, scenario)
