"""The MQTT broker that the tests talk to: ours, a Mosquitto that the run starts, or one that is already up.

A broker can be stopped, killed and started again on the same ports and data; clients then find it again. A Mosquitto
that is killed forgets: what it promises after a kill is for ours alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.integration.server import LOG_TAIL_CHARACTERS, ServerProcess
from trunkline.bench.mosquitto import Mosquitto

HOST = "127.0.0.1"


class MqttBroker(Protocol):
    """A broker that is up."""

    @property
    def port(self) -> int: ...
    @property
    def ws_port(self) -> int: ...


class RestartableMqttBroker(MqttBroker, Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def log_tail(self) -> str: ...


class Trunkline:
    """Our server."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.server = ServerProcess(directory, settings)

    @property
    def port(self) -> int:
        return self.server.port_of("mqtt")

    @property
    def ws_port(self) -> int:
        return self.server.port_of("mqtt-ws")

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        code = self.server.stop()
        assert code == 0, f"exit code {code}\n{self.log_tail()}"

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self.server.close()

    def log_tail(self) -> str:
        return self.server.log_tail()


class MosquittoBroker:
    """A Mosquitto of the test's own, that keeps its state through a clean restart."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._mosquitto = Mosquitto(directory, settings, persistent=True)

    @property
    def port(self) -> int:
        return int(self._mosquitto.address.rpartition(":")[2])

    @property
    def ws_port(self) -> int:
        return int(self._mosquitto.ws_address.rpartition(":")[2])

    def start(self) -> None:
        self._mosquitto.start()

    def stop(self) -> None:
        self._mosquitto.stop()

    def kill(self) -> None:
        self._mosquitto.kill()

    def close(self) -> None:
        self._mosquitto.kill()
        self._mosquitto.stop()

    def log_tail(self) -> str:
        return self._mosquitto.output_path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


class ExistingMqttBroker:
    """A broker on this machine that is up already, given as HOST:PORT or HOST:PORT:WEBSOCKET_PORT."""

    def __init__(self, address: str) -> None:
        ports = address.split(":")[1:]
        self.port = int(ports[0])
        self._ws_port = int(ports[1]) if len(ports) > 1 else 0

    @property
    def ws_port(self) -> int:
        assert self._ws_port, "give the WebSocket port too: --against HOST:PORT:WEBSOCKET_PORT"
        return self._ws_port


def new_broker(against: str, directory: Path, settings: Mapping[str, str] | None = None) -> Trunkline | MosquittoBroker:
    """A broker of the kind that `--against` names, not started yet."""
    return MosquittoBroker(directory, settings) if against == "mosquitto" else Trunkline(directory, settings)
