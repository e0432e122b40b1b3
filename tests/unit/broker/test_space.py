"""Who publishes waits while the disk is nearly full, and is told when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from trunkline.broker import space as space_module
from trunkline.broker.space import Space
from trunkline.log.capabilities import LogDirectory
from trunkline.log.embedded.store import EmbeddedStore


class Disk(EmbeddedStore):
    free_bytes: int | None = 100

    async def directories(self) -> Sequence[LogDirectory]:
        if self.free_bytes is None:
            raise OSError("not today")
        return [LogDirectory("/nowhere", 1_000, self.free_bytes, {})]


def test_who_must_wait_is_told_when_space_runs_low_and_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_module, "CHECK_S", 0.001)

    async def test() -> None:
        disk = Disk(tmp_path)
        space = Space(disk, min_free_bytes=50)
        told: list[str | None] = []
        space.subscribe(told.append)
        space.start()

        async def until_told(expected: list[str | None]) -> None:
            async with asyncio.timeout(10):
                while told != expected:
                    await asyncio.sleep(0)

        disk.free_bytes = 49
        await until_told(["low on disk"])
        assert space.blocked == "low on disk"
        disk.free_bytes = None  # what cannot be told changes nothing
        await asyncio.sleep(0.01)
        assert space.blocked == "low on disk"
        disk.free_bytes = 50
        await until_told(["low on disk", None])
        assert space.blocked is None
        await space.close()

    asyncio.run(test())
