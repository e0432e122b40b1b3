"""Every test here runs over every store: a store is what passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores import late
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.memory.store import MemoryStore
from trunkline.log.store import LogStore

STORES = ("memory", "embedded", "late-memory", "late-embedded")
MakeStore = Callable[[], LogStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("--store")
    if "make_store" in metafunc.fixturenames:
        params = [name for name in STORES if chosen is None or name.partition("-")[0] == chosen]
        metafunc.parametrize("make_store", params, indirect=True)


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> MakeStore:
    """Makes the store; it is started by the test, on its own loop."""
    kind, _, below = request.param.partition("-")

    def make() -> LogStore:
        name = below or kind
        store = MemoryStore(clock=clock) if name == "memory" else EmbeddedStore(tmp_path / "log", clock=clock)
        return late(store) if kind == "late" else store

    return make
