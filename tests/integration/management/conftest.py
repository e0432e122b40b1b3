"""A broker with its HTTP listener, shared by all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.management.api import Api
from tests.integration.server import ServerProcess


@pytest.fixture(scope="session")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("managed"), {"http_port": "0"})
    server.start()
    try:
        yield server
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


@pytest.fixture(scope="session")
def api(managed: ServerProcess) -> Api:
    return Api(managed.port_of("http"))
