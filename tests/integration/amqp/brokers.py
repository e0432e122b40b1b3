"""The AMQP broker that the tests talk to: ours, a RabbitMQ that the run starts, or one that is already up.

All have the vhosts and users of `definitions`. A broker can be stopped, killed and started again on the same port and
data; clients then find it again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from tests.integration.amqp.definitions import DEFINITIONS
from tests.integration.server import LOG_TAIL_CHARACTERS, ServerProcess
from trunkline.bench.rabbitmq import RabbitMQ

HOST = "127.0.0.1"
IMPORT_SECONDS = 60.0


class AmqpBroker(Protocol):
    """A broker that is up."""

    @property
    def port(self) -> int: ...


class RestartableAmqpBroker(AmqpBroker, Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def log_tail(self) -> str: ...


def url(broker: AmqpBroker, user: str = "guest", password: str = "guest", vhost: str = "/", **query: str | int) -> str:
    options = "&".join(f"{name}={value}" for name, value in query.items())
    path = quote(vhost, safe="")
    return f"amqp://{quote(user)}:{quote(password)}@{HOST}:{broker.port}/{path}{'?' if options else ''}{options}"


class Trunkline:
    """Our server, with the definitions imported by our own command line at the first start."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.server = ServerProcess(directory, settings)
        self._definitions = directory / "definitions.json"

    @property
    def port(self) -> int:
        return self.server.port_of("amqp")

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def start(self) -> None:
        self.server.start()
        if not self._definitions.exists():
            self._definitions.write_text(DEFINITIONS)
            self._import_definitions()

    def stop(self) -> None:
        code = self.server.stop()
        assert code == 0, f"exit code {code}\n{self.log_tail()}"

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self.server.close()

    def log_tail(self) -> str:
        return self.server.log_tail()

    def _import_definitions(self) -> None:
        command = [sys.executable, "-m", "trunkline", "definitions", "import", "--url", url(self)]
        done = subprocess.run(
            [*command, str(self._definitions)], capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
        assert done.returncode == 0, f"{done.stderr}\n{self.log_tail()}"


class RabbitMQBroker:
    """A RabbitMQ of the test's own."""

    def __init__(self, directory: Path, plugins: Sequence[str] = ()) -> None:
        self._node = RabbitMQ(directory, definitions=DEFINITIONS, plugins=plugins)

    @property
    def port(self) -> int:
        return int(self._node.address.rpartition(":")[2])

    @property
    def stomp_port(self) -> int:
        return int(self._node.stomp_address.rpartition(":")[2])

    def start(self) -> None:
        self._node.start()

    def stop(self) -> None:
        self._node.stop()

    def kill(self) -> None:
        self._node.kill()

    def close(self) -> None:
        self._node.kill()
        self._node.stop()

    def log_tail(self) -> str:
        return self._node.output_path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


class ExistingAmqpBroker:
    """A broker on this machine that is up already."""

    def __init__(self, address: str) -> None:
        self.port = int(address.rpartition(":")[2])


def new_broker(against: str, directory: Path, settings: Mapping[str, str] | None = None) -> Trunkline | RabbitMQBroker:
    """A broker of the kind that `--against` names, not started yet."""
    return RabbitMQBroker(directory) if against == "rabbitmq" else Trunkline(directory, settings)
