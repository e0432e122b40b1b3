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
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trunkline.bench.mqtt_probe import greet
from trunkline.bench.probe import wait_until_serving
from trunkline.bench.server_process import LOOPBACK, ServerProcess, free_port

# Servers are in directories that not every user searches.
SERVER_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
START_TIMEOUT_S = 20.0


class MosquittoUnavailable(Exception):
    """Mosquitto cannot be run here; the message says what is missing or what it said."""


class Mosquitto(ServerProcess):
    """One broker. It can be started again after `stop` when `directory` is given."""

    product = "Mosquitto"
    unavailable = MosquittoUnavailable

    def __init__(
        self, directory: Path | None = None, settings: Mapping[str, str] | None = None, *, persistent: bool = False
    ) -> None:
        super().__init__(directory)
        self._settings = dict(settings or {})
        self._persistent = persistent
        self._port = 0
        self._ws_port = 0

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def ws_address(self) -> str:
        """Where it takes MQTT over WebSocket."""
        return f"{LOOPBACK}:{self._ws_port}"

    def _launch(self, directory: Path) -> None:
        program = find_program()
        if program is None:
            raise MosquittoUnavailable("Running Mosquitto needs the package mosquitto: apt-get install mosquitto")
        # A restart keeps its ports, so that clients find the broker again.
        self._port = self._port or free_port()
        self._ws_port = self._ws_port or free_port()
        configuration = directory / "mosquitto.conf"
        configuration.write_text(self._configuration(directory))
        self._run(
            [program, "-c", str(configuration)],
            lambda is_alive: wait_until_serving(self.address, START_TIMEOUT_S, is_alive, greet),
        )

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
