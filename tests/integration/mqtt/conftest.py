"""Fixtures for MQTT: a broker shared by all tests of a worker, raw clients closed at the end, topics of one's own.

`--against mosquitto` runs the same tests on a Mosquitto that the run starts; what it does differently is marked
`ours_only` with the reason. `mqtt311` and `mqtt5` name the normative statements that a test checks, as
docs/protocols/mqtt.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.mqtt.brokers import (
    ExistingMqttBroker,
    MqttBroker,
    RestartableMqttBroker,
    Trunkline,
    new_broker,
)
from tests.integration.mqtt.wire import Wire
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.packets import V5, V311, Will


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mqtt311(*statements): normative statements of MQTT 3.1.1 that the test checks")
    config.addinivalue_line("markers", "mqtt5(*statements): normative statements of MQTT 5.0 that the test checks")


class Dial(Protocol):
    def __call__(self, version: int = V311, *, topic_alias_maximum: int = 0) -> Wire: ...


class ClientFactory(Protocol):
    def __call__(
        self,
        version: int = V311,
        client_id: str | None = None,
        *,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        topic_alias_maximum: int = 0,
    ) -> Wire: ...


class MqttBrokerFactory(Protocol):
    def __call__(self, **settings: str) -> RestartableMqttBroker: ...


@pytest.fixture(scope="session")
def mqtt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttBroker]:
    """One broker for all tests of this worker: use names of your own (`unique`, `topic`)."""
    against = request.config.getoption("--against")
    if ":" in against:
        yield ExistingMqttBroker(against)
        return
    broker = new_broker(against, tmp_path_factory.mktemp("mqtt"))
    try:
        broker.start()
        yield broker
        broker.stop()
        if isinstance(broker, Trunkline):
            assert "Traceback" not in broker.server.log.read_text(errors="replace"), broker.log_tail()
    finally:
        broker.close()


@pytest.fixture
def mqtt_with(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MqttBrokerFactory]:
    """Start a broker of the test's own with these settings, that it may stop, kill and start again."""
    against = request.config.getoption("--against")
    if ":" in against:
        pytest.skip("an existing broker is not ours to configure or restart")
    started: list[RestartableMqttBroker] = []

    def start(**settings: str) -> RestartableMqttBroker:
        broker = new_broker(against, tmp_path / f"mqtt-{len(started)}", settings)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.close()


@pytest.fixture
def fresh_mqtt(mqtt_with: MqttBrokerFactory) -> RestartableMqttBroker:
    return mqtt_with()


@pytest.fixture(params=[V311, V5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Run the test with a client of each version."""
    chosen: int = request.param
    return chosen


@pytest.fixture
def dial(mqtt: MqttBroker) -> Iterator[Dial]:
    """Open connections that have said nothing yet."""
    made: list[Wire] = []

    def make(version: int = V311, *, topic_alias_maximum: int = 0) -> Wire:
        made.append(Wire(mqtt.port, version, topic_alias_maximum=topic_alias_maximum))
        return made[-1]

    yield make
    for wire in made:
        wire.cut()


@pytest.fixture
def client(dial: Dial, unique: Callable[[str], str]) -> ClientFactory:
    """Clients that the broker has accepted; each has an id of its own unless it is given one."""

    def make(
        version: int = V311,
        client_id: str | None = None,
        *,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        topic_alias_maximum: int = 0,
    ) -> Wire:
        wire = dial(version, topic_alias_maximum=topic_alias_maximum)
        connack = wire.connect(
            unique("client") if client_id is None else client_id,
            clean_start=clean_start,
            keep_alive_s=keep_alive_s,
            will=will,
            properties=properties,
        )
        assert connack.reason_code == 0, f"refused: 0x{connack.reason_code:02x}"
        return wire

    return make


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    """A topic name that no other test uses."""
    return f"test/{unique('topic')}"
