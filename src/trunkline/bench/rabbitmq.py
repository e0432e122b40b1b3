"""A real RabbitMQ on this machine: the peer of the AMQP benchmark and the oracle of the AMQP integration tests.

    with RabbitMQ() as rabbitmq:
        print(rabbitmq.address, rabbitmq.start_up_s, rabbitmq.resident_bytes())

It is the `rabbitmq-server` of the system's packages, run as a node of its own beside any that the system runs: its own
node name, files (in `directory`, a temporary one by default, removed by `stop`), Erlang cookie, port mapper and ports,
all on the loopback. `plugins` are enabled, and no other: with `rabbitmq_stomp` it speaks STOMP at `stomp_address`. Settings are RabbitMQ's defaults, except that nothing below an error is
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
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trunkline.bench.amqp_probe import greet
from trunkline.bench.probe import wait_until_serving
from trunkline.bench.server_process import LOOPBACK, ServerProcess, end, free_port

# The script itself: the one on the PATH changes to the user `rabbitmq` and to the system's node.
SERVER_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/lib/rabbitmq/sbin/rabbitmq-server")
START_TIMEOUT_S = 90.0


class RabbitMQUnavailable(Exception):
    """RabbitMQ cannot be run here; the message says what is missing or what it said."""


class RabbitMQ(ServerProcess):
    """One node. It can be started again after `stop` when `directory` is given."""

    product = "RabbitMQ"
    unavailable = RabbitMQUnavailable

    def __init__(
        self,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        definitions: str | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        super().__init__(directory)
        self._plugins = tuple(plugins)
        self._settings = dict(settings or {})
        self._definitions = definitions
        self._name = f"trunkline-{secrets.token_hex(4)}@localhost"
        self._port = 0
        self._stomp_port = 0
        self._port_mapper: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it is measured."""
        return self.amqp_address

    @property
    def amqp_address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def stomp_address(self) -> str:
        return f"{LOOPBACK}:{self._stomp_port}"

    def stop(self) -> None:
        super().stop()
        self._end_port_mapper()

    def kill(self) -> None:
        super().kill()
        self._end_port_mapper()

    def _launch(self, directory: Path) -> None:
        script = find_script()
        port_mapper = shutil.which("epmd")
        if script is None or port_mapper is None:
            raise RabbitMQUnavailable(
                "Running RabbitMQ needs the package rabbitmq-server: apt-get install rabbitmq-server"
            )
        # A restart keeps its port, so that clients find the node again.
        self._port = self._port or free_port()
        self._stomp_port = self._stomp_port or free_port()
        mapper_port = free_port()
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
        self._run(
            [script],
            lambda is_alive: wait_until_serving(self.amqp_address, START_TIMEOUT_S, is_alive, greet),
            environment=environment,
            started=started,
        )

    def _environment(self, directory: Path, mapper_port: int) -> dict[str, str]:
        lines = {"log.console": "true", "log.console.level": "error", "log.file": "false", **self._settings}
        if "rabbitmq_stomp" in self._plugins:
            lines["stomp.listeners.tcp.1"] = self.stomp_address
        if self._definitions is not None:
            (directory / "definitions.json").write_text(self._definitions)
            lines["load_definitions"] = str(directory / "definitions.json")
        (directory / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        (directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        (directory / "empty.conf").write_text("")
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(directory),  # where Erlang keeps its cookie
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
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
        end(mapper, self.stop_timeout_s)


def find_script() -> str | None:
    return next((script for script in SERVER_SCRIPTS if Path(script).exists()), None)


def is_available() -> bool:
    """Whether RabbitMQ is installed, so that a test can be skipped with a reason."""
    return find_script() is not None and shutil.which("epmd") is not None


def version() -> str:
    """The installed RabbitMQ's version, from its plugins' directory; empty when it cannot be told."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return found[-1].name.partition("-")[2] if found else ""


def _wait_for_listener(port: int, deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((LOOPBACK, port), timeout=1.0):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RabbitMQUnavailable(f"Erlang's port mapper does not listen: {error}") from error
            time.sleep(0.01)
