"""Subscriptions and the retained publications that came before them."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.mqtt.front_door import front_door
from trunkline.protocols.mqtt.packets import V5, V311, Publish, SubAck, Subscribe, Subscription
from trunkline.protocols.mqtt.under_way import UnderWay


class Waiter:
    def __init__(self) -> None:
        self._times = 0

    def go_on(self) -> None:
        self._times += 1

    def went_on(self) -> int:
        return self._times


def land(under_way: UnderWay, *names: str) -> None:
    for name in names:
        under_way.landed(name)
    under_way.let_go()


def test_who_waits_goes_on_when_all_that_came_before_has_landed_whatever_comes_later() -> None:
    under_way, waiter = UnderWay(), Waiter()
    for name in ("a", "b", "a", "c"):
        under_way.come(name)
    assert under_way.wait(["a", "+"], waiter.go_on)
    under_way.come("a")
    land(under_way, "a", "b", "a")
    assert not waiter.went_on()
    under_way.come("b")
    land(under_way, "c")
    assert waiter.went_on() == 1
    land(under_way, "a", "b")
    assert waiter.went_on() == 1


def test_nobody_waits_for_what_no_filter_matches() -> None:
    under_way, waiter = UnderWay(), Waiter()
    assert not under_way.wait(["#"], waiter.go_on)
    under_way.come("a/b")
    under_way.come("$SYS/x")
    assert not under_way.wait([], waiter.go_on)
    assert not under_way.wait(["a", "a/+/c", "+"], waiter.go_on)
    assert under_way.wait(["#"], waiter.go_on)
    land(under_way, "a/b")
    assert waiter.went_on() == 1, "# is not about $SYS"


def test_many_filters_over_many_names_are_not_compared_one_by_one() -> None:
    under_way, waiter = UnderWay(), Waiter()
    names = [f"a/{number}" for number in range(1_000)]
    for name in names:
        under_way.come(name)
    assert under_way.wait([f"b/{number}/#" for number in range(1_000)], waiter.go_on)
    land(under_way, *names)
    assert waiter.went_on() == 1


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("before", [b"old", b""])
def test_a_retained_message_of_the_same_read_comes_once_and_as_a_retained_message(version: int, before: bytes) -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.connect("client", version)
            await client.publish("t", before, qos=1, retain=True)
            client.send(Publish("t", b"new", 0, True), Subscribe(7, [Subscription("t", 0)]), Publish("t", b"end", 0))
            await client.receive(SubAck)
            await client.until(lambda: any(isinstance(each, Publish) and each.payload == b"end" for each in client.got))
            found = [(each.payload, each.retain) for each in client.got if isinstance(each, Publish)]
            assert sorted(found) == [(b"end", False), (b"new", True)]

    asyncio.run(work())
