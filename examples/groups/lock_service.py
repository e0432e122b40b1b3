"""A lock service as a replicated state machine: every member of a group has all of it, and none is in charge.

Each request is a message to the group. All members get all of them in one order, so all agree on who holds which lock and who waits for
it, without asking each other. When a view says that somebody is gone, all release what it held, at the same place in the order. Who
joins is given the state by the others.

    python examples/groups/lock_service.py [url]
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from typing import Any

from trunkline import aio
from trunkline.api.team_view import View


class LockService:
    def __init__(self, t: aio.Connection, name: str = "locks", lease: float = 5.0) -> None:
        self.lines: dict[str, list[str]] = {}  # lock -> who holds it, and behind it who waits
        self._held: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.group = t.group(name, order="total", lease=lease)
        self.group.on_message(self._request)
        self.group.on_view(self._view)
        self.group.state(give=self._give, take=self._take)

    # -- what all members do, in the same order ----------------------------------------------------------------------

    async def _request(self, sender: str, request: dict[str, str]) -> None:
        lock = request["lock"]
        line = self.lines.setdefault(lock, [])
        if request["do"] == "acquire" and sender not in line:
            line.append(sender)
        elif request["do"] == "release" and sender in line:
            line.remove(sender)
        self._tell(lock)

    async def _view(self, view: View) -> None:
        for lock, line in self.lines.items():
            line[:] = [member for member in line if member in view.members]
            self._tell(lock)

    async def _give(self) -> dict[str, list[str]]:
        return self.lines

    async def _take(self, lines: dict[str, list[str]]) -> None:
        self.lines = lines

    def _tell(self, lock: str) -> None:
        line = self.lines[lock]
        if line and line[0] == self.group.me:
            self._held[lock].set()
        else:
            self._held[lock].clear()

    # -- what a program asks for -------------------------------------------------------------------------------------

    async def acquire(self, lock: str) -> None:
        await self.group.send({"do": "acquire", "lock": lock})
        await self._held[lock].wait()

    async def release(self, lock: str) -> None:
        await self.group.send({"do": "release", "lock": lock})


async def main(url: str) -> list[str]:
    """Three members take turns; the one that dies with the lock is followed by the next."""
    told: list[str] = []
    async with aio.connect(url) as first, aio.connect(url) as second:
        one, two = LockService(first, lease=1.0), LockService(second, lease=1.0)
        await one.group.join()
        await two.group.join()
        await one.acquire("printer")
        told.append("one holds the printer")
        waiting = asyncio.create_task(two.acquire("printer"))
        while len(two.lines.get("printer", [])) < 2:
            await asyncio.sleep(0.01)
        told.append("two waits for it")
        await first.close()  # with the lock in its hands
        await waiting
        told.append("one is gone, two holds it")
        async with aio.connect(url) as third:
            three = LockService(third)
            await three.group.join()
            assert three.lines == {"printer": [two.group.me]}
            told.append("three knows it, too")
    return told


def run(arguments: list[str]) -> Any:
    return asyncio.run(main(arguments[1] if len(arguments) > 1 else "memory:"))


if __name__ == "__main__":
    print("\n".join(run(sys.argv)))
