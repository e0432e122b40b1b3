"""Shared maps: changes that the broker decides, watches, and what outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import trunkline
from tests.integration.api.conftest import url_of
from tests.integration.api.scenario import FACES, eventually, now, play
from tests.integration.server import ServerProcess
from trunkline import Refused

Unique = Callable[[str], str]
each_face = pytest.mark.parametrize("face", FACES)


@each_face
def test_values_are_put_read_compared_and_removed(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        d = t.shared_map(unique("map"))
        assert await now(d.get("k")) is None
        assert await now(d.get("k", "nothing")) == "nothing"
        assert await now(d.compare_and_set("k", 1, 0))
        assert not await now(d.compare_and_set("k", 2, 0))
        value, version = await now(d.entry("k"))
        assert value == 1
        assert await now(d.compare_and_set("k", {"n": [2]}, version))
        assert not await now(d.compare_and_set("k", 3, version))
        await now(d.put("b", b"\x00\xff"))
        await now(d.put("t", "text"))
        assert await now(d.items()) == {"k": {"n": [2]}, "b": b"\x00\xff", "t": "text"}
        assert not await now(d.remove("k", version))
        assert await now(d.remove("k"))
        assert (await now(d.entry("k"))).version == 0
        assert await now(d.compare_and_set("k", 4, 0))

    play(face, url, scenario)


@each_face
def test_a_watch_tells_every_change_in_order(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        d = t.shared_map(unique("map"))
        await now(d.put("before", 0))
        seen: list[Any] = []
        watch = await now(d.watch(lambda key, value: seen.append((key, value))))
        for number in range(5):
            await now(d.put("k", number))
        await now(d.remove("k"))
        await eventually(lambda: len(seen) >= 6)
        assert seen == [*(("k", number) for number in range(5)), ("k", None)]
        await now(watch.stop())
        again: list[Any] = []
        await now(d.watch(lambda key, value: again.append((key, value)), after=0))
        await eventually(lambda: ("k", None) in again)
        assert again[0] == ("before", 0)

    play(face, url, scenario)


def test_it_is_a_mapping_to_code_that_is_not_asynchronous(url: str, unique: Unique) -> None:
    with trunkline.connect(url, timeout=20) as t:
        d = t.shared_map(unique("map"), int)
        d["a"] = 1
        d["b"] = 2
        assert (d["a"], "a" in d, len(d), sorted(d)) == (1, True, 2, ["a", "b"])
        del d["a"]
        with pytest.raises(KeyError):
            d["a"]
        with pytest.raises(Refused):
            d["x" * 2000] = 1


def test_concurrent_counting_by_compare_and_set_loses_nothing(url: str, unique: Unique) -> None:
    name = unique("map")

    def count() -> None:
        with trunkline.connect(url, timeout=20) as t:
            d = t.shared_map(name)
            for _ in range(50):
                while True:
                    value, version = d.entry("n")
                    if d.compare_and_set("n", (value or 0) + 1, version):
                        break

    workers = [threading.Thread(target=count) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    with trunkline.connect(url, timeout=20) as t:
        assert t.shared_map(name)["n"] == 200


def test_a_map_outlives_a_killed_broker_and_watches_go_on(server: ServerProcess) -> None:
    with trunkline.connect(url_of(server), timeout=30) as t:
        d = t.shared_map("config")
        seen: list[Any] = []
        d.watch(lambda key, value: seen.append((key, value)))
        d["k"] = 1
        version = d.entry("k").version
        server.kill()
        server.start()
        assert d.entry("k") == (1, version)
        assert d.compare_and_set("k", 2, version)
        changed = threading.Event()
        d.watch(lambda key, value: changed.set())
        d["k"] = 3
        assert changed.wait(20)
        assert d["k"] == 3
        deadline = threading.Event()
        while ("k", 3) not in seen and not deadline.wait(0.05):
            pass
        assert seen == [("k", 1), ("k", 2), ("k", 3)]
