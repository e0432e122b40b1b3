"""`take` and compare-and-set are linearizable, also while brokers are killed and connections are cut: by histories.

A short run by default; TRUNKLINE_HISTORY_OPERATIONS=20000 makes it long.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.histories.checker import History, Model, bag, register
from tests.histories.proxy import Proxy
from tests.integration.server import ServerProcess
from trunkline import aio
from trunkline.api.errors import ConnectionLost, Timeout
from trunkline.broker.shared.shared_map import SharedMap
from trunkline.cursors.queue import QueueCursor

OPERATIONS = int(os.environ.get("TRUNKLINE_HISTORY_OPERATIONS", "1500"))
CLIENTS = 6
PARTS = 12  # keys, or kinds of tuples: few enough that clients get into each other's way

Client = Callable[[Any, History, random.Random, int], Awaitable[None]]


async def use_map(t: Any, history: History, chance: random.Random, number: int) -> None:
    d = t.shared_map("m")
    key = f"k{chance.randrange(PARTS)}"
    value = f"{number}"
    what = chance.choice(["get", "set", "swap", "swap"])
    if what == "get":
        asked = history.begin(key, "get")
        history.end(asked, await d.get(key))
    elif what == "set":
        asked = history.begin(key, "set", value)
        await d.put(key, value)
        history.end(asked)
    else:
        before, version = await d.entry(key)
        asked = history.begin(key, "swap", (before, value))
        history.end(asked, await d.compare_and_set(key, value, version))


async def use_space(t: Any, history: History, chance: random.Random, number: int) -> None:
    s = t.space("s")
    kind = f"kind{chance.randrange(PARTS)}"
    what = chance.choice(["write", "write", "take", "take", "read"])
    asked = history.begin(kind, what, number if what == "write" else None)
    if what == "write":
        await s.write((kind, number))
        history.end(asked)
        return
    found = await (s.take((kind, int), timeout=0) if what == "take" else s.read((kind, int), timeout=0))
    history.end(asked, None if found is None else found[1])


async def record(urls: list[str], client: Client, operations: int, trouble: Callable[[], Awaitable[None]]) -> History:
    """What `CLIENTS` of them did meanwhile. An operation whose answer never came is one that may have been done."""
    history = History(time.monotonic)
    numbers = iter(range(operations))

    async def work(place: int) -> None:
        chance = random.Random(place)
        async with aio.connect(urls[place % len(urls)], timeout=10) as t:
            for number in numbers:
                try:
                    await client(t, history, chance, number)
                except (ConnectionLost, Timeout):
                    pass
                await asyncio.sleep(0)

    troubling = asyncio.ensure_future(trouble())
    await asyncio.gather(*[work(place) for place in range(CLIENTS)])
    troubling.cancel()
    await asyncio.gather(troubling, return_exceptions=True)
    return history


def judge(history: History, model: Model, initial: Any) -> None:
    answered = sum(operation.known for operations in history.parts.values() for operation in operations)
    assert answered > len(history) * 0.9, "hardly anything was answered"
    assert history.broken_parts(model, initial) == []


CASES = pytest.mark.parametrize(
    ("client", "model", "initial"),
    [(use_map, register, None), (use_space, bag, frozenset())],
    ids=["map", "space"],
)


@CASES
def test_histories_are_linearizable_while_the_broker_is_killed_and_connections_are_cut(
    server: ServerProcess, client: Client, model: Model, initial: Any
) -> None:
    async def scenario() -> History:
        proxy = Proxy(server.port_of("amqp"))
        await proxy.start()
        chance = random.Random(5)

        async def trouble() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0.3, 1.0))
                if chance.random() < 0.5:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                else:
                    proxy.sever()
                    await asyncio.sleep(0.05)
                    proxy.heal()

        urls = [f"trunkline://127.0.0.1:{proxy.port}", f"trunkline://127.0.0.1:{server.port_of('amqp')}"]
        history = await record(urls, client, OPERATIONS, trouble)
        await proxy.close()
        return history

    judge(asyncio.run(scenario()), model, initial)


async def _no_trouble() -> None:
    return None


def _play_in_process(client: Client, operations: int) -> History:
    async def scenario() -> History:
        async with aio.connect("memory:", timeout=10) as t:
            return await record([t.url], client, operations, _no_trouble)

    return asyncio.run(scenario())


def test_a_map_that_does_not_compare_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    put = SharedMap.put

    async def careless(
        self: SharedMap, key: str, value: bytes, kind: str, change: str, expected: int | None = None
    ) -> Any:
        return await put(self, key, value, kind, change)

    monkeypatch.setattr(SharedMap, "put", careless)
    assert _play_in_process(use_map, 300).broken_parts(register, None)


def test_a_space_that_gives_a_tuple_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(self: QueueCursor, *_: object, selector: Any = None, **__: object) -> Any:
        found = self.look(selector)
        return [] if found is None else [found._replace(consumer=self)]

    monkeypatch.setattr(QueueCursor, "acquire", generous)
    assert _play_in_process(use_space, 300).broken_parts(bag, frozenset())
