"""Groups: one sequence of views and messages for all members, against a server process."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.conftest import url_of
from tests.integration.api.scenario import FACES, eventually, now, play
from tests.integration.server import ServerProcess
from trunkline import Refused, Timeout, aio

Unique = Callable[[str], str]


class Replica:
    """A member whose state is the list of all that it was told."""

    def __init__(self, t: Any, name: str, **options: Any) -> None:
        self.state: list[Any] = []
        self.views: list[Any] = []
        self.group = t.group(name, **options)
        self.group.on_message(lambda _sender, value: self.state.append(value))
        self.group.on_view(self.views.append)
        self.group.state(give=lambda: list(self.state), take=self.install)

    def install(self, state: list[Any]) -> None:
        self.state[:] = state


@pytest.mark.parametrize("face", FACES)
def test_members_get_the_same_messages_in_one_order_and_joiners_the_state(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        name = unique("group")
        async with aio.connect(url, timeout=20) as other:
            one, two = Replica(t, name), Replica(other, name)
            await now(one.group.join())
            for number in range(5):
                await now(one.group.send(number))
            await two.group.join()
            assert two.state == [0, 1, 2, 3, 4]
            for number in range(10, 15):
                await asyncio.gather(now(one.group.send(number)), two.group.send(-number))
            await eventually(lambda: len(one.state) == len(two.state) == 15)
            assert one.state == two.state
            members = one.group.members if face == "sync" else await one.group.members()
            assert members == [one.group.me, two.group.me]
            await two.group.leave()
            await eventually(lambda: one.views[-1].left != ())
            assert [len(view.members) for view in one.views] == [1, 2, 1]
            await now(one.group.leave())

    play(face, url, scenario)


def test_a_member_that_dies_is_out_and_one_that_was_only_silent_comes_back(url: str, unique: Unique) -> None:
    async def scenario() -> None:
        name = unique("group")
        async with aio.connect(url, timeout=20) as first, aio.connect(url, timeout=20) as second:
            one, two = Replica(first, name, lease=0.5), Replica(second, name, lease=0.5)
            evicted: list[bool] = []
            two.group.on_evicted(lambda: evicted.append(True))
            await one.group.join()
            await two.group.join()
            before = two.group.me
            assert second.wire.current is not None
            # Nothing that it says arrives, as if its network were cut; and then it is back.
            ask, two.group._asking.ask = two.group._asking.ask, _silence
            await eventually(lambda: before in one.views[-1].left)
            await one.group.send("while it was away")
            two.group._asking.ask = ask
            await eventually(lambda: bool(evicted) and two.group.me in one.views[-1].members)
            await two.group.send("back")
            await eventually(lambda: one.state == two.state == ["while it was away", "back"])

    asyncio.run(scenario())


async def _silence(*_question: object, **_options: object) -> Any:
    await asyncio.sleep(0.05)
    raise Timeout("the network is cut")


def test_open_groups_take_messages_of_strangers_and_closed_ones_do_not(url: str, unique: Unique) -> None:
    async def scenario() -> None:
        async with aio.connect(url, timeout=20) as t:
            opened, closed = Replica(t, unique("open"), closed=False), Replica(t, unique("closed"))
            await opened.group.join()
            await closed.group.join()
            await t.group(opened.group.name).send("hello")
            await eventually(lambda: opened.state == ["hello"])
            with pytest.raises(Refused):
                await t.group(closed.group.name).send("hello")
            with pytest.raises(ValueError, match="order"):
                t.group("x", order="none")  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_a_group_goes_on_when_the_broker_was_killed(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with aio.connect(url_of(server), timeout=30) as first, aio.connect(url_of(server), timeout=30) as second:
            one, two = Replica(first, "g", lease=20.0), Replica(second, "g", lease=20.0)
            await one.group.join()
            await two.group.join()
            for number in range(5):
                await one.group.send(number)
            await asyncio.to_thread(server.kill)
            sending = [asyncio.create_task(each.group.send(number)) for number, each in enumerate((one, two), 5)]
            await asyncio.to_thread(server.start)
            await asyncio.gather(*sending)
            await eventually(lambda: len(one.state) == len(two.state) == 7)
            assert one.state == two.state
            assert sorted(one.state) == list(range(7))

    asyncio.run(scenario())


def test_the_lock_service_agrees_on_who_holds_a_lock(url: str) -> None:
    example = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "groups" / "lock_service.py"))
    told = asyncio.run(asyncio.wait_for(example["main"](url), 60))
    assert told[-1] == "three knows it, too"
