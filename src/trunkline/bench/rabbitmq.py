"""A real RabbitMQ on this machine: the peer of the AMQP benchmark and the oracle of the AMQP integration tests.

    with RabbitMQ() as rabbitmq:
        print(rabbitmq.address, rabbitmq.start_up_s, rabbitmq.resident_bytes())

It is the `rabbitmq-server` of the system's packages, run as a node of its own beside any that the system runs: its own
node name, files (in `directory`, a temporary one by default, removed by `stop`), Erlang cookie, port mapper and ports,
all on the loopback. No plugin is enabled. Settings are RabbitMQ's defaults, except that nothing below an error is
logged; `settings` adds lines to its `rabbitmq.conf`, `definitions` are loaded at the start.

The Erlang port mapper (epmd) is a child of ours and stopped with the node: one that Erlang starts by itself would
outlive both.

Limits: needs `rabbitmq-server` and Erlang (RabbitMQUnavailable says so). Ports are found free and then handed over; if
another process takes one in between, start fails and can be tried again.
"""

from __future__ import annotations

import os
import secrets
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

from trunkline.bench.amqp_probe import wait_until_serving
from trunkline.bench.probe import ProbeError, resident_bytes

# The script itself: the one on the PATH changes to the user `rabbitmq` and to the system's node.
SERVER_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/lib/rabbitmq/sbin/rabbitmq-server")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
OUTPUT_TAIL_CHARS = 2000
LOOPBACK = "127.0.0.1"


class RabbitMQUnavailable(Exception):
    """RabbitMQ cannot be run here; the message says what is missing or what it said."""


class RabbitMQ:
    """One node. `start` and `stop`, or `with`. It can be started again after `stop` when `directory` is given."""

    def __init__(
        self,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        definitions: str | None = None,
    ) -> None:
        self.start_up_s = 0.0
        self._settings = dict(settings or {})
        self._definitions = definitions
        self._given_directory = directory
        self._directory: Path | None = None
        self._name = f"trunkline-{secrets.token_hex(4)}@localhost"
        self._port = 0
        self._port_mapper: subprocess.Popen[bytes] | None = None
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
    def pid(self) -> int:
        if self._process is None:
            raise RabbitMQUnavailable("RabbitMQ is not running.")
        return self._process.pid

    @property
    def output_path(self) -> Path:
        if self._directory is None:
            raise RabbitMQUnavailable("RabbitMQ was never started.")
        return self._directory / "output.txt"

    def start(self) -> None:
        if self._process is not None:
            raise RabbitMQUnavailable("RabbitMQ is already running.")
        script = find_script()
        port_mapper = shutil.which("epmd")
        if script is None or port_mapper is None:
            raise RabbitMQUnavailable(
                "Running RabbitMQ needs the package rabbitmq-server: apt-get install rabbitmq-server"
            )
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="trunkline-rabbitmq-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._launch(script, port_mapper, self._directory)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask for a clean shutdown, kill if that takes too long, and remove a temporary directory. Safe to call twice."""
        process, self._process = self._process, None
        _end(process)
        self._end_port_mapper()
        if self._directory is not None and self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """SIGKILL, as a crash would: the directory stays until `stop`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._end_port_mapper()

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)

    def _launch(self, script: str, port_mapper: str, directory: Path) -> None:
        # A restart keeps its port, so that clients find the node again.
        self._port = self._port or _free_port()
        mapper_port = _free_port()
        environment = self._environment(directory, mapper_port)
        started = time.monotonic()
        self._port_mapper = subprocess.Popen(
            [port_mapper, "-address", LOOPBACK, "-port", str(mapper_port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        _wait_for_listener(mapper_port, started + START_TIMEOUT_S)
        with self.output_path.open("ab") as output:
            process = subprocess.Popen(
                [script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
            )
        self._process = process
        try:
            wait_until_serving(self.address, START_TIMEOUT_S, is_alive=lambda: process.poll() is None)
        except ProbeError as error:
            said = self.output_path.read_text(errors="replace").strip()[-OUTPUT_TAIL_CHARS:]
            raise RabbitMQUnavailable(f"RabbitMQ did not start: {error}. It said: {said or 'nothing'}") from error
        self.start_up_s = time.monotonic() - started

    def _environment(self, directory: Path, mapper_port: int) -> dict[str, str]:
        lines = {"log.console": "true", "log.console.level": "error", "log.file": "false", **self._settings}
        if self._definitions is not None:
            (directory / "definitions.json").write_text(self._definitions)
            lines["load_definitions"] = str(directory / "definitions.json")
        (directory / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        (directory / "enabled_plugins").write_text("[].\n")
        (directory / "empty.conf").write_text("")
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(directory),  # where Erlang keeps its cookie
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(_free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "empty.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false",
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(mapper_port),
            # The script then becomes the Erlang machine instead of waiting for it, so that the pid we have is the node's.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _end_port_mapper(self) -> None:
        mapper, self._port_mapper = self._port_mapper, None
        _end(mapper)


def find_script() -> str | None:
    return next((script for script in SERVER_SCRIPTS if Path(script).exists()), None)


def is_available() -> bool:
    """Whether RabbitMQ is installed, so that a test can be skipped with a reason."""
    return find_script() is not None and shutil.which("epmd") is not None


def version() -> str:
    """The installed RabbitMQ's version, from its plugins' directory; empty when it cannot be told."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return found[-1].name.partition("-")[2] if found else ""


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_listener(port: int, deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((LOOPBACK, port), timeout=1.0):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RabbitMQUnavailable(f"Erlang's port mapper does not listen: {error}") from error
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port
