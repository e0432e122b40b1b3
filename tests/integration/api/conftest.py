"""A server for all tests of a worker, and one of a test's own that it may kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.server import ServerProcess


def url_of(server: ServerProcess) -> str:
    return f"trunkline://127.0.0.1:{server.port_of('amqp')}"


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = ServerProcess(tmp_path_factory.mktemp("api")).start()
    yield url_of(server)
    assert server.stop() == 0, server.log_tail()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    found = ServerProcess(tmp_path / "server").start()
    yield found
    found.close()
