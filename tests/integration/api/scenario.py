"""One suite for both faces of the API.

A scenario is a coroutine function that is given `t`, asynchronous or not, and asks everything through `now`, which waits for what
has to be awaited. So the same lines are run against both.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import trunkline
from trunkline import aio

FACES = ("sync", "async")
Scenario = Callable[[Any], Coroutine[Any, Any, None]]


async def now(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.01)


def play(face: str, url: str, scenario: Scenario, *, timeout: float = 20.0) -> None:
    """Run a scenario over a connection of this face."""

    async def over_async() -> None:
        async with aio.connect(url, timeout=timeout) as t:
            await scenario(t)

    async def over_sync() -> None:
        t = await asyncio.to_thread(trunkline.connect, url, timeout=timeout)
        try:
            await scenario(t)
        finally:
            await asyncio.to_thread(t.close)

    asyncio.run(over_async() if face == "async" else over_sync())
