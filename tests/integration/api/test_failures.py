"""What becomes of calls, consumers and promises when the broker is killed and comes back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import trunkline
from tests.integration.api.conftest import url_of
from tests.integration.api.scenario import FACES, eventually, now, play
from tests.integration.server import ServerProcess
from trunkline import ConnectionLost, Topic, aio

pytestmark = pytest.mark.parametrize("face", FACES)


def restart_after(server: ServerProcess, seconds: float) -> threading.Thread:
    """Kill the broker now, and start it again later."""
    server.kill()

    def start() -> None:
        time.sleep(seconds)
        server.start()

    thread = threading.Thread(target=start)
    thread.start()
    return thread


def test_calls_that_wait_go_on_when_the_broker_is_back(face: str, server: ServerProcess) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue("jobs")
        await now(queue.put("kept"))
        seen: list[str] = []
        events: list[str] = []
        worker = await now(t.queue("work").notify(lambda message: seen.append(message.value)))
        await now(t.subscribe(Topic("a/+"), lambda event: events.append(event.value)))
        await now(t.serve("echo", lambda message: message.value))
        empty = t.queue("empty")
        waiting = asyncio.create_task(_in_thread(empty.get(30) if not hasattr(t, "core") else lambda: empty.get(30)))
        await asyncio.sleep(0.3)
        back = restart_after(server, 0.5)
        await now(queue.put("during"))  # waits for the broker
        back.join()
        for expected in ("kept", "during"):
            message = await now(queue.get())
            assert message.value == expected
            await now(message.ack())
        await now(empty.put("at last"))
        assert (await waiting).value == "at last"
        await now(t.queue("work").put("job"))
        await eventually(lambda: seen == ["job"])
        await now(t.publish("event", topic="a/b"))
        await eventually(lambda: events == ["event"])
        assert (await now(t.request("echo", "hello"))).value == "hello"
        await now(worker.stop())

    play(face, url_of(server), scenario)


async def _in_thread(call: Any) -> Any:
    return await (asyncio.to_thread(call) if callable(call) else call)


def test_a_broker_that_does_not_come_back_is_a_clear_error(face: str, server: ServerProcess) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue("jobs")
        await now(queue.put(1))
        server.kill()
        calls: list[Callable[[], Any]] = [
            lambda: queue.put(2, timeout=0.5),
            lambda: queue.get(timeout=0.5),
            lambda: t.publish(1, timeout=0.5),
        ]
        for call in calls:
            started = time.monotonic()
            with pytest.raises(ConnectionLost):
                await now(call())
            assert time.monotonic() - started < 10

    play(face, url_of(server), scenario, timeout=1.0)


def test_nobody_listening_is_told_at_once(face: str, server: ServerProcess) -> None:
    server.kill()

    async def connect() -> None:
        if face == "async":
            async with aio.connect(url_of(server), timeout=5):
                pass
        else:
            await asyncio.to_thread(trunkline.connect, url_of(server), timeout=5)

    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        asyncio.run(connect())
    assert time.monotonic() - started < 4


def test_what_a_transaction_took_and_put_is_there_once_after_kills(face: str, server: ServerProcess) -> None:
    """Workers move numbers from one queue to another while the broker is killed again and again."""
    if face == "sync":
        pytest.skip("one face is enough for the broker's promise")
    count = 120

    async def scenario(t: Any) -> None:
        source = t.queue("in", delivery="exactly-once")
        target = t.queue("out")
        await source.put_all(range(count))

        async def move(number: int, x: Any) -> None:
            await x.put("out", number)
            await asyncio.sleep(0.01)

        handle = await source.notify(move, concurrency=4)
        for killed in range(3):
            await eventually(lambda: handle.handled >= 15 * (killed + 1), 30)  # noqa: B023 (called before the next round)
            await asyncio.to_thread(restart_after(server, 0.1).join)

        async def waiting(name: str) -> int:
            (queue,) = await t.manage("queues", name=name)
            return int(queue["ready"]) + int(queue["unacked"])

        deadline = time.monotonic() + 30
        while await waiting("in"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await handle.stop()
        found = []
        for _ in range(await waiting("out")):
            message = await target.get()
            found.append(message.value)
            await message.ack()
        assert sorted(found) == list(range(count))

    play(face, url_of(server), scenario, timeout=30.0)
