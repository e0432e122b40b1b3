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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from trunkline.bench.probe import POLL_INTERVAL_S, ProbeError, resident_bytes, wait_until_serving

# All are on, as they are for a user, each on a free port.
LISTENERS = ("KAFKA", "AMQP", "MQTT", "MQTT_WS")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
OUTPUT_TAIL_CHARS = 2000


class TrunklineProcess:
    """One broker process; `with` starts and stops it. `address` is that of the listener that is asked for."""

    def __init__(self, listener: str = "kafka") -> None:
        self.start_up_s = 0.0
        self.address = ""
        self._listener = listener
        self.bootstrap = ""
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ProbeError("the broker is not running")
        return self._process.pid

    def start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="trunkline-bench-"))
        ready_path = self._directory / "ready.json"
        output_path = self._directory / "output.txt"
        command = [sys.executable, "-m", "trunkline", "serve", "--data", str(self._directory / "data")]
        command += ["--host", "127.0.0.1", "--ready-file", str(ready_path)]
        started = time.monotonic()
        with output_path.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(self._listener),
            )
        self._process = process
        try:
            self._wait_for_ready_file(ready_path, process)
            ready = json.loads(ready_path.read_text())
            self.bootstrap, self.address = str(ready["kafka"]), str(ready[self._listener])
            wait_until_serving(self.bootstrap, START_TIMEOUT_S, is_alive=lambda: process.poll() is None)
        except ProbeError as error:
            said = output_path.read_text(errors="replace").strip()[-OUTPUT_TAIL_CHARS:]
            self.stop()
            raise ProbeError(f"trunkline did not start: {error}. It said: {said or 'nothing'}") from error
        except BaseException:
            self.stop()
            raise
        self.start_up_s = time.monotonic() - started

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    @staticmethod
    def _wait_for_ready_file(path: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            if process.poll() is not None:
                raise ProbeError(f"it exited with status {process.returncode}")
            if time.monotonic() > deadline:
                raise ProbeError(f"no ready file after {START_TIMEOUT_S:g} s")
            time.sleep(POLL_INTERVAL_S)


def _environment(listener: str) -> dict[str, str]:
    """Free ports for the listener that is measured and for Kafka's, which tells that the broker is up; the others stay off."""
    on = {"KAFKA", listener.upper().replace("-", "_")}
    ports = {f"TRUNKLINE_{name}_PORT": "0" if name in on else "off" for name in LISTENERS}
    environment = {**os.environ, **ports}
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environment["PYTHONPYCACHEPREFIX"] = str(cache / "trunkline" / "bytecode")
    return environment
