"""Every test here runs over every store: a store is what passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.memory.store import MemoryStore
from trunkline.log.store import LogStore

MakeStore = Callable[[], LogStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "embedded"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> MakeStore:
    """Makes the store; it is started by the test, on its own loop."""

    def make() -> LogStore:
        if request.param == "memory":
            return MemoryStore(clock=clock)
        return EmbeddedStore(tmp_path / "log", clock=clock)

    return make
