"""Ourselves as a separate process, started as a user would: `python -m trunkline serve` on a free port of the loopback.

`start_up_s` runs from the start of the interpreter until the broker answers Metadata, measured as it is for the peer.
The data directory is a temporary one and removed by `stop`, whichever way the measurement ended.

An installed package has its bytecode compiled; a checkout run with PYTHONDONTWRITEBYTECODE never does, and would compile
itself at every start. So here bytecode is kept, in the user's cache directory where the environment forbids it beside the
sources. The first start after a change compiles; whoever measures start-up discards one start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from trunkline.bench.probe import POLL_INTERVAL_S, ProbeError, wait_until_serving
from trunkline.bench.server_process import LOOPBACK, IsAlive, ServerProcess
from trunkline.listeners import LISTENERS

# All are on, as they are for a user, each on a free port.
START_TIMEOUT_S = 30.0


class TrunklineProcess(ServerProcess):
    """One broker process. `address` is that of the listener that is asked for."""

    product = "trunkline"

    def __init__(self, listener: str = "kafka", certificates: Path | None = None) -> None:
        """`certificates` is a directory of `trunkline tls self-signed`, for a listener over TLS."""
        super().__init__()
        self._certificates = certificates
        self.address = ""
        self._listener = listener
        self.bootstrap = ""

    def _launch(self, directory: Path) -> None:
        ready_path = directory / "ready.json"
        command = [sys.executable, "-m", "trunkline", "serve", "--data", str(directory / "data")]
        command += ["--host", LOOPBACK, "--ready-file", str(ready_path)]
        if self._certificates is not None:
            command += ["--tls-certificate", str(self._certificates / "server.pem")]
            command += ["--tls-key", str(self._certificates / "server.key")]

        def wait(is_alive: IsAlive) -> None:
            _wait_for_ready_file(ready_path, is_alive)
            ready = json.loads(ready_path.read_text())
            self.bootstrap, self.address = str(ready["kafka"]), str(ready[self._listener])
            wait_until_serving(self.bootstrap, START_TIMEOUT_S, is_alive=is_alive)

        self._run(command, wait, environment=_environment(self._listener))


def _wait_for_ready_file(path: Path, is_alive: IsAlive) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not path.exists():
        if not is_alive():
            raise ProbeError("it exited")
        if time.monotonic() > deadline:
            raise ProbeError(f"no ready file after {START_TIMEOUT_S:g} s")
        time.sleep(POLL_INTERVAL_S)


def _environment(listener: str) -> dict[str, str]:
    """Free ports for the listener that is measured and for Kafka's, which tells that the broker is up; the others stay off."""
    ports = {f"TRUNKLINE_{row.setting.upper()}": "0" if row.name in ("kafka", listener) else "off" for row in LISTENERS}
    environment = {**os.environ, **ports}
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environment["PYTHONPYCACHEPREFIX"] = str(cache / "trunkline" / "bytecode")
    return environment
