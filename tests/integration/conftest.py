"""Fixtures: a broker shared by all tests of a worker, a broker of one's own, and names that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.server import ExistingBroker, RestartableBroker, RunningBroker, new_server


class BrokerFactory(Protocol):
    def __call__(self, **settings: str) -> RestartableBroker: ...


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for all tests of this worker: use names of your own (`unique`, `topic`)."""
    against = request.config.getoption("--against")
    if ":" in against:
        yield ExistingBroker(against)
        return
    server = new_server(against, tmp_path_factory.mktemp("broker"))
    server.start()
    yield server
    assert server.stop() == 0, server.log_tail()


@pytest.fixture
def broker_with(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerFactory]:
    """Start a broker of the test's own with these settings: `broker_with(auto_create_topics="false")`."""
    against = request.config.getoption("--against")
    if ":" in against:
        pytest.skip("an existing broker is not ours to configure or restart")
    started: list[RestartableBroker] = []

    def start(**settings: str) -> RestartableBroker:
        server = new_server(against, tmp_path / f"broker-{len(started)}", settings)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def fresh_broker(broker_with: BrokerFactory) -> RestartableBroker:
    """A broker of the test's own, started, that it may stop, kill and start again on the same port and data."""
    return broker_with()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Make a name that no other test uses: `unique("group")`."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"
