"""A real Mosquitto on this machine: the peer of the MQTT benchmark and the oracle of the MQTT integration tests.

    with Mosquitto() as mosquitto:
        print(mosquitto.address, mosquitto.start_up_s, mosquitto.resident_bytes())

It is the `mosquitto` of the system's packages, run as a process of its own with its own configuration, files (in
`directory`, a temporary one by default, removed by `stop`) and ports, all on the loopback. Settings are Mosquitto's
defaults, except that anonymous clients are let in, only errors are logged, and, with `max_queued_messages 0`, that
it does not drop QoS 1 and 2 messages to a subscriber that is behind: a broker that drops is not comparable.
With `persistent` it keeps its state in `directory` through a clean restart; a kill loses what it did not save.

Limits: needs `mosquitto` (MosquittoUnavailable says so). Ports are found free and then handed over; if another process
takes one in between, start fails and can be tried again.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from trunkline.bench.mqtt_probe import wait_until_serving
from trunkline.bench.probe import ProbeError, resident_bytes

# Servers are in directories that not every user searches.
SERVER_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
OUTPUT_TAIL_CHARS = 2000
LOOPBACK = "127.0.0.1"


class MosquittoUnavailable(Exception):
    """Mosquitto cannot be run here; the message says what is missing or what it said."""


class Mosquitto:
    """One broker. `start` and `stop`, or `with`. It can be started again after `stop` when `directory` is given."""

    def __init__(
        self, directory: Path | None = None, settings: Mapping[str, str] | None = None, *, persistent: bool = False
    ) -> None:
        self.start_up_s = 0.0
        self._settings = dict(settings or {})
        self._persistent = persistent
        self._given_directory = directory
        self._directory: Path | None = None
        self._port = 0
        self._ws_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def ws_address(self) -> str:
        """Where it takes MQTT over WebSocket."""
        return f"{LOOPBACK}:{self._ws_port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise MosquittoUnavailable("Mosquitto is not running.")
        return self._process.pid

    @property
    def output_path(self) -> Path:
        if self._directory is None:
            raise MosquittoUnavailable("Mosquitto was never started.")
        return self._directory / "output.txt"

    def start(self) -> None:
        if self._process is not None:
            raise MosquittoUnavailable("Mosquitto is already running.")
        program = find_program()
        if program is None:
            raise MosquittoUnavailable("Running Mosquitto needs the package mosquitto: apt-get install mosquitto")
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="trunkline-mosquitto-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._launch(program, self._directory)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask for a clean shutdown, kill if that takes too long, and remove a temporary directory. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None and self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """SIGKILL, as a crash would: the directory stays until `stop`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def _launch(self, program: str, directory: Path) -> None:
        # A restart keeps its ports, so that clients find the broker again.
        self._port = self._port or _free_port()
        self._ws_port = self._ws_port or _free_port()
        (directory / "mosquitto.conf").write_text(self._configuration(directory))
        started = time.monotonic()
        with self.output_path.open("ab") as output:
            process = subprocess.Popen(
                [program, "-c", str(directory / "mosquitto.conf")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
            )
        self._process = process
        try:
            wait_until_serving(self.address, START_TIMEOUT_S, is_alive=lambda: process.poll() is None)
        except ProbeError as error:
            said = self.output_path.read_text(errors="replace").strip()[-OUTPUT_TAIL_CHARS:]
            raise MosquittoUnavailable(f"Mosquitto did not start: {error}. It said: {said or 'nothing'}") from error
        self.start_up_s = time.monotonic() - started

    def _configuration(self, directory: Path) -> str:
        lines = {"allow_anonymous": "true", "log_type": "error", "max_queued_messages": "0"}
        if os.geteuid() == 0:
            lines["user"] = "root"  # or it changes to a user that cannot write here
        if self._persistent:
            lines |= {"persistence": "true", "persistence_location": f"{directory}/"}
        lines |= self._settings
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        return f"{text}listener {self._port} {LOOPBACK}\nlistener {self._ws_port} {LOOPBACK}\nprotocol websockets\n"


def find_program() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SERVER_DIRECTORIES])
    return shutil.which("mosquitto", path=path)


def version() -> str:
    """The installed Mosquitto's version; empty when it cannot be told."""
    program = find_program()
    if program is None:
        return ""
    said = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False).stdout
    first = said.partition("\n")[0].split()
    return first[-1] if first else ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port
