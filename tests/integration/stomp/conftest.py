"""Fixtures for STOMP: a broker shared by all tests of a worker, raw clients closed at the end, names of one's own.

`--against rabbitmq` runs the same tests on a RabbitMQ with its STOMP plugin; what it does differently is marked `ours_only`
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.amqp.brokers import RabbitMQBroker, Trunkline
from tests.integration.stomp.wire import Wire

SETTINGS = {"stomp_port": "0", "stomp_ws_port": "0"}


class StompBroker(Protocol):
    """A broker that is up, with its ports for STOMP and AMQP."""

    @property
    def port(self) -> int:
        """AMQP's."""

    @property
    def stomp_port(self) -> int: ...

    def start(self) -> None: ...
    def kill(self) -> None: ...


class Dial(Protocol):
    def __call__(self, version: str | None = "1.2", **headers: object) -> Wire: ...


class Ours(Trunkline):
    def __init__(self, directory: Path, **settings: str) -> None:
        super().__init__(directory, {**SETTINGS, **settings})

    @property
    def stomp_port(self) -> int:
        return self.server.port_of("stomp")

    @property
    def ws_port(self) -> int:
        return self.server.port_of("stomp-ws")


def new_broker(against: str, directory: Path) -> Ours | RabbitMQBroker:
    return RabbitMQBroker(directory, ("rabbitmq_stomp",)) if against == "rabbitmq" else Ours(directory)


@pytest.fixture(scope="session")
def stomp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StompBroker]:
    """One broker for all tests of this worker: use names of your own (`unique`)."""
    against = request.config.getoption("--against")
    if ":" in against:
        pytest.skip("an existing broker's STOMP port is not known")
    broker = new_broker(against, tmp_path_factory.mktemp("stomp"))
    try:
        broker.start()
        yield broker
        broker.stop()
        if isinstance(broker, Ours):
            assert "Traceback" not in broker.server.log.read_text(errors="replace"), broker.log_tail()
    finally:
        broker.close()


@pytest.fixture
def fresh_stomp(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StompBroker]:
    """A broker of the test's own, started, that it may kill and start again."""
    broker = new_broker(request.config.getoption("--against"), tmp_path / "stomp")
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def dial(stomp: StompBroker) -> Iterator[Dial]:
    """Open a connection: `dial("1.1")`, or `dial(None)` for one that has not said CONNECT."""
    made: list[Wire] = []

    def make(version: str | None = "1.2", **headers: object) -> Wire:
        made.append(Wire(stomp.stomp_port))
        if version is not None:
            answer = made[-1].connect(version, **headers)
            assert answer.command == "CONNECTED", answer
        return made[-1]

    yield make
    for wire in made:
        wire.close()


@pytest.fixture
def queue(unique: Callable[[str], str]) -> str:
    return f"/queue/{unique('stomp')}"
