"""A broker to be abused, watched from outside: its process, its memory, its log, and a canary that must not notice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.hostile.canary import TYPICAL_SECONDS_MAX, WORST_SECONDS_MAX, Canary
from tests.integration.hostile.peer import Peer
from tests.integration.server import ServerProcess


class Victim:
    def __init__(self, server: ServerProcess, canary: Canary) -> None:
        self.server = server
        self.canary = canary

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def connect(self, receive_buffer_bytes: int | None = None) -> Peer:
        return Peer(self.port, receive_buffer_bytes)

    def resident_bytes(self) -> int:
        return self._memory("VmRSS")

    def peak_bytes(self) -> int:
        """The most that it has ever had."""
        return self._memory("VmHWM")

    def _memory(self, what: str) -> int:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def log(self) -> str:
        return self.server.log.read_text(errors="replace")


@pytest.fixture(scope="package")
def running_victim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    if request.config.getoption("--against") != "trunkline":
        pytest.skip("the hostile tests look into our own process")
    server = ServerProcess(tmp_path_factory.mktemp("hostile"))
    server.start()
    canary = Canary(server.bootstrap)
    canary.start()
    try:
        yield Victim(server, canary)
    finally:
        canary.stop()
        server.close()


@pytest.fixture
def victim(running_victim: Victim) -> Iterator[Victim]:
    """The broker; after the test it must be the same process, quiet in its log, and the canary undisturbed."""
    log_before = len(running_victim.log())
    mark = running_victim.canary.mark()
    pid = running_victim.server.pid
    yield running_victim
    health = running_victim.canary.health_since(mark)
    assert Path(f"/proc/{pid}").exists(), f"the broker died\n{running_victim.server.log_tail()}"
    logged = running_victim.log()[log_before:]
    assert "Traceback" not in logged, logged[-8000:]
    assert health.typical_seconds < TYPICAL_SECONDS_MAX, f"the canary was disturbed: {health}"
    assert health.worst_seconds < WORST_SECONDS_MAX, f"the canary was disturbed: {health}"
