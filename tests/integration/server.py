"""A broker that the tests start, stop, kill and start again.

`new_server` gives the kind that `--against` names. `ServerProcess` is our own `python -m trunkline serve` in a process of its
own, over a store that answers late if `--store` says so. The first start takes a free port; later starts keep it, so that
clients find the broker again. The server's output goes to `server.log` beside the data directory, and its last lines are part
of the error when it does not come up.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from tests import stores
from tests.integration.waiting import wait_until
from trunkline.listeners import LISTENERS

START_SECONDS = 30.0
STOP_SECONDS = 30.0
LOG_TAIL_CHARACTERS = 4000

# The first member of a group need not wait for others, and the server-side timeouts of KIP-848 groups are short enough
# to see a killed member replaced. Classic groups choose their timeout in the client.
QUICK_GROUPS: Mapping[str, str] = {
    "group_initial_rebalance_delay_ms": "0",
    "group_consumer_session_timeout_ms": "6000",
    "group_consumer_heartbeat_interval_ms": "500",
}
# What an Apache Kafka needs to be told beside the same settings.
APACHE_MINIMUMS: Mapping[str, str] = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "log.initial.task.delay.ms": "500",
}
APACHE_NAMES: Mapping[str, str] = {"auto_create_topics": "auto.create.topics.enable"}
APACHE_HEAP = "512m"
LASTING_PORTS = (10_000, 32_000)
# What our server listens for beside Kafka; further listeners are on where a test's settings say so (`"stomp_port": "0"`).
OTHER_LISTENERS = ("amqp", "mqtt", "mqtt-ws", "aws")
NO_LISTENERS = {f"TRUNKLINE_{row.setting.upper()}": "off" for row in LISTENERS}
_REPOSITORY = Path(__file__).parents[2]
_CHANCE = random.SystemRandom()  # property tests seed the common one, alike in all workers


class RunningBroker(Protocol):
    """What every test may ask of the broker it talks to."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def data(self) -> Path: ...


class RestartableBroker(RunningBroker, Protocol):
    def start(self) -> object: ...
    def stop(self) -> object: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def log_tail(self) -> str: ...


class LastingPorts:
    """Free ports that stay free while their server is down: the system gives none of this range to clients, and a lock on
    a file keeps other tests, also of other runs, from choosing them as long as this object lives."""

    def __init__(self) -> None:
        self._locks: list[IO[str]] = []
        self._directory = Path(tempfile.gettempdir()) / f"trunkline-test-ports-{os.getuid()}"
        self._directory.mkdir(exist_ok=True)

    def take(self) -> int:
        while True:
            port = _CHANCE.randrange(*LASTING_PORTS)
            lock = (self._directory / str(port)).open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.create_server(("127.0.0.1", port)):
                    self._locks.append(lock)
                    return port
            except OSError:
                lock.close()


class ServerProcess:
    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, open_files: int | None = None
    ) -> None:
        """`open_files` is how many the process may have, if not as many as this one."""
        asked = {**QUICK_GROUPS, **(settings or {})}
        self._open_files = open_files
        self.data = directory / "data"
        self.log = directory / "server.log"
        self._ready = directory / "ready.json"
        self._environment = {**os.environ, **{f"TRUNKLINE_{name.upper()}": value for name, value in asked.items()}}
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = LastingPorts()
        self._port = self._ports.take()
        self._other_ports = {name: self._ports.take() for name in OTHER_LISTENERS}
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self._port

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def port_of(self, listener: str) -> int:
        """The port of another listener than Kafka's, by its name in the ready file."""
        assert self._other_ports.get(listener), f"the server has no listener for {listener}"
        return self._other_ports[listener]

    def start(self) -> ServerProcess:
        assert self._process is None, "the broker is already running"
        self._ready.unlink(missing_ok=True)
        late = stores.is_late()
        program = ["tests.late_serve"] if late else ["trunkline", "serve"]
        command = [sys.executable, "-m", *program, "--data", str(self.data), "--host", self.host]
        command += ["--kafka-port", str(self._port), "--ready-file", str(self._ready)]
        if self._open_files is not None:
            command = ["sh", "-c", f'ulimit -n {self._open_files} && exec "$0" "$@"', *command]
        ports = NO_LISTENERS | {
            f"TRUNKLINE_{name.upper().replace('-', '_')}_PORT": str(self._other_ports[name]) for name in OTHER_LISTENERS
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**ports, **self._environment}, cwd=_REPOSITORY if late else None
            )
        try:
            wait_until(self._is_ready, START_SECONDS, "the server's ready file")
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log_tail()}") from None
        ready = json.loads(self._ready.read_text())
        self._port = int(ready["kafka"].rpartition(":")[2])
        for name in ready.keys() - {"kafka", "pid"}:
            self._other_ports[name] = int(ready[name].rpartition(":")[2])
        assert ready["pid"] == self._process.pid
        return self

    def stop(self) -> int:
        """Ask for a clean shutdown and return the exit code."""
        process = self._take()
        process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"no clean shutdown in {STOP_SECONDS:g} s\n{self.log_tail()}") from None

    def kill(self) -> None:
        process = self._take()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the server exited with {code} before it was ready"
        return self._ready.exists()

    def _take(self) -> subprocess.Popen[bytes]:
        process = self._process
        assert process is not None, "the broker is not running"
        self._process = None
        return process


class ExistingBroker:
    """A broker that is up already, given as HOST:PORT; its files and its process are not ours to touch."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.host, _, port = bootstrap.rpartition(":")
        self.port = int(port)

    @property
    def pid(self) -> int:
        raise AssertionError("an existing broker's process is not known")

    @property
    def data(self) -> Path:
        raise AssertionError("an existing broker's files are not known")


class ApacheKafkaProcess:
    """A real Apache Kafka with the same verbs as `ServerProcess`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        from trunkline.bench.apache_kafka import ApacheKafka

        asked = {**QUICK_GROUPS, **(settings or {})}
        properties = {APACHE_NAMES.get(name, name.replace("_", ".")): value for name, value in asked.items()}
        self.data = directory / "log"
        self.host = "127.0.0.1"
        self._kafka = ApacheKafka(
            directory=directory, heap=APACHE_HEAP, properties={**APACHE_MINIMUMS, **properties}, quiet=True
        )

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    @property
    def port(self) -> int:
        return int(self._kafka.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._kafka.pid

    def start(self) -> ApacheKafkaProcess:
        self._kafka.start()
        return self

    def stop(self) -> int:
        self._kafka.stop()
        return 0

    def kill(self) -> None:
        self._kafka.kill()

    def close(self) -> None:
        self._kafka.kill()
        self._kafka.stop()

    def log_tail(self) -> str:
        return (self.data.parent / "output.txt").read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


def new_server(against: str, directory: Path, settings: Mapping[str, str] | None = None) -> RestartableBroker:
    """A broker of the kind that `--against` names, not started yet. An existing one cannot be restarted: ours instead."""
    return ApacheKafkaProcess(directory, settings) if against == "kafka" else ServerProcess(directory, settings)
