"""A broker with two users, bob and alice, who may do everything in the virtual host "/" until a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.access.clients import Broker
from tests.integration.server import ServerProcess


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if request.config.getoption("--against") != "trunkline":
        pytest.skip("rules that hold for every protocol are ours")
    server = ServerProcess(tmp_path_factory.mktemp("access"))
    try:
        server.start()
        broker = Broker(server)
        broker.add_users("bob", "alice")
        yield broker
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


@pytest.fixture
def guarded(shared: Broker) -> Iterator[Broker]:
    """The broker, without rules before and after the test, and everybody's permissions as at the start."""
    yield shared
    shared.forget_rules()
    shared.add_users("bob", "alice")


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of the test's own, that it may kill."""
    if request.config.getoption("--against") != "trunkline":
        pytest.skip("rules that hold for every protocol are ours")
    server = ServerProcess(tmp_path / "server")
    try:
        server.start()
        broker = Broker(server)
        broker.add_users("bob", "alice")
        yield broker
    finally:
        server.close()
