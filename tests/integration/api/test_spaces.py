"""Spaces: tuples and entries written, read and taken by templates, against a server process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import trunkline
from tests.integration.api.conftest import url_of
from tests.integration.api.scenario import FACES, eventually, now, play
from tests.integration.server import ServerProcess
from trunkline import Timeout, aio

Unique = Callable[[str], str]
each_face = pytest.mark.parametrize("face", FACES)


@dataclass
class Task:
    state: str | None = None
    number: int | None = None


@dataclass
class UrgentTask(Task):
    reason: str | None = None


@each_face
def test_tuples_are_found_by_value_type_and_wildcard(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        s = t.space(unique("space"))
        written = [("job", 1), ("job", 2.5), ("job", "two"), ("job", True), ("o'hara", None), ("job", 1, [1, 2])]
        for entry in written:
            await now(s.write(entry))
        for template, expected in [
            (("job", int), ("job", 1)),
            (("job", float), ("job", 2.5)),
            (("job", bool), ("job", True)),
            ((str, "two"), ("job", "two")),
            ((..., None), ("o'hara", None)),
            (("o'hara", ...), ("o'hara", None)),
            ((str, int, list), ("job", 1, [1, 2])),
            ((..., ...), ("job", 1)),
        ]:
            assert await now(s.read(template)) == expected
        for template in [("job", 2), ("job",), (int, ...), ("job", 1, dict), ("job", -1)]:
            assert await now(s.read(template, timeout=0)) is None
            assert await now(s.take(template, timeout=0)) is None
        assert await now(s.take(("job", ...))) == ("job", 1)
        assert await now(s.take(("job", ...))) == ("job", 2.5)
        with pytest.raises(Timeout):
            await now(s.take(("job", int), timeout=0.05))

    play(face, url, scenario)


@each_face
def test_entries_are_found_by_class_and_fields(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        s = t.space(unique("space"))
        await now(s.write(Task("done", 1)))
        await now(s.write(UrgentTask("new", 2, "fire")))
        await now(s.write(Task("new", 3)))
        assert await now(s.read(UrgentTask)) == UrgentTask("new", 2, "fire")
        assert await now(s.take(Task(state="new"))) == Task("new", 2)
        assert await now(s.take(Task(state="new"))) == Task("new", 3)
        assert await now(s.take(Task(state="new"), timeout=0)) is None
        assert await now(s.take(Task)) == Task("done", 1)

    play(face, url, scenario)


@each_face
def test_take_and_read_wait_for_what_is_written_later(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        name = unique("space")
        s = t.space(name)
        loop = asyncio.get_running_loop()

        def wait_for(call: Callable[..., Any], template: Any) -> Any:
            if face == "async":
                return loop.create_task(call(template, 20))
            return loop.run_in_executor(None, call, template, 20)

        reading, taking = wait_for(s.read, ("late", int)), wait_for(s.take, ("late", int))
        await now(s.write(("early", 1)))
        async with aio.connect(url, timeout=20) as other:
            # Whether the reader looks first or the taker takes first is theirs to race: so there is one for each.
            await other.space(name).write(("late", 1))
            assert await asyncio.wait_for(taking, 20) == ("late", 1)
            await other.space(name).write(("late", 2))
            assert (await asyncio.wait_for(reading, 20))[0] == "late"
        assert await now(s.take(("late", 2))) == ("late", 2)

    play(face, url, scenario)


@each_face
def test_a_lease_ends(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        s = t.space(unique("space"))
        await now(s.write(("forever", 1)))
        await now(s.write(("brief", 1), lease=0.05))
        await asyncio.sleep(0.1)
        assert await now(s.read(("brief", int), timeout=0)) is None
        assert await now(s.take(("brief", int), timeout=0)) is None
        assert await now(s.take(("forever", int), timeout=0)) == ("forever", 1)

    play(face, url, scenario)


@each_face
def test_notify_tells_of_what_is_written_and_matches(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        s = t.space(unique("space"))
        await now(s.write(("n", 0)))
        seen: list[Any] = []
        handle = await now(s.notify(("n", int), seen.append))
        for number in range(1, 4):
            await now(s.write(("n", number)))
            await now(s.write(("other", number)))
        await eventually(lambda: len(seen) >= 3)
        assert seen == [("n", 1), ("n", 2), ("n", 3)]
        await now(handle.stop())

    play(face, url, scenario)


def test_a_transaction_takes_and_writes_as_one(url: str, unique: Unique) -> None:
    with trunkline.connect(url, timeout=20) as t:
        s = t.space(unique("space"))
        s.write(("account", "a", 10))

        def fail() -> None:
            with s.transaction() as x:
                assert x.take(("account", "a", int)) == ("account", "a", 10)
                x.write(("account", "a", 7))
                assert s.take(("account", "a", int), timeout=0) is None, "it is hidden from others"
                raise RuntimeError("not today")

        with pytest.raises(RuntimeError):
            fail()
        assert s.read(("account", "a", int)) == ("account", "a", 10)
        with s.transaction() as x:
            amount = x.take(("account", "a", int))[2]
            x.write(("account", "a", amount - 3))
        assert s.take(("account", "a", int)) == ("account", "a", 7)
        assert s.take(("account", "a", int), timeout=0) is None


def test_many_takers_get_each_tuple_once(url: str, unique: Unique) -> None:
    name, count = unique("space"), 200
    got: list[int] = []

    def work() -> None:
        with trunkline.connect(url, timeout=20) as t:
            s = t.space(name)
            while (found := s.take(("n", int), timeout=2 if len(got) < count else 0)) is not None:
                got.append(found[1])
                if len(got) >= count:
                    return

    def quietly() -> None:
        try:
            work()
        except Timeout:
            pass

    workers = [threading.Thread(target=quietly) for _ in range(4)]
    for worker in workers:
        worker.start()
    with trunkline.connect(url, timeout=20) as t:
        for number in range(count):
            t.space(name).write(("n", number))
    for worker in workers:
        worker.join(60)
    assert sorted(got) == list(range(count))


def test_a_space_outlives_a_killed_broker(server: ServerProcess) -> None:
    with trunkline.connect(url_of(server), timeout=30) as t:
        s = t.space("s")
        for number in range(10):
            s.write(("n", number))
        assert s.take(("n", 4)) == ("n", 4)
        server.kill()
        server.start()
        assert s.take(("n", 4), timeout=0) is None
        assert sorted(s.take(("n", int), timeout=0)[1] for _ in range(9)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert s.take(("n", int), timeout=0) is None
