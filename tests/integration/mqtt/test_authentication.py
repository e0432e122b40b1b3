"""Users, passwords and the enhanced method PLAIN, on a broker that lets nobody in without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.mqtt.brokers import RestartableMqttBroker
from tests.integration.mqtt.conftest import MqttBrokerFactory
from tests.integration.mqtt.wire import Wire, properties
from trunkline.protocols.mqtt.packets import V5, V311, Auth, ConnAck, Connect, PingReq

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5
pytestmark = pytest.mark.ours_only("users and the method PLAIN are Trunkline's own")

PLAIN = b"\0guest\0guest"
WRONG = b"\0guest\0wrong"


@pytest.fixture
def strict(mqtt_with: MqttBrokerFactory) -> RestartableMqttBroker:
    return mqtt_with(mqtt_anonymous="false")


@pytest.fixture
def wire(strict: RestartableMqttBroker) -> Iterator[Wire]:
    with Wire(strict.port, V5) as made:
        yield made


@mqtt311("MQTT-3.2.2-4", "MQTT-3.2.2-5")
@mqtt5("MQTT-3.1.4-2", "MQTT-3.2.2-6", "MQTT-3.2.2-7")
def test_only_known_users_with_their_password_are_let_in(strict: RestartableMqttBroker) -> None:
    for version in (V311, V5):
        for name, password, codes in (
            (None, None, {4: (5, 4), 5: (0x87, 0x86)}),
            ("guest", b"wrong", {4: (4, 5), 5: (0x86, 0x87)}),
            ("nobody", b"guest", {4: (4, 5), 5: (0x86, 0x87)}),
            ("guest", b"guest", {4: (0,), 5: (0,)}),
        ):
            with Wire(strict.port, version) as wire:
                connack = wire.connect("c", user_name=name, password=password)
                assert connack.reason_code in codes[version]
                assert not connack.session_present
                if connack.reason_code == 0:
                    wire.quiet()
                else:
                    wire.closed()


def plain(data: bytes | None) -> Auth:
    return Auth(0x18, properties(authentication_method="PLAIN", authentication_data=data))


@mqtt5("MQTT-4.12.0-5")
def test_plain_in_connect(wire: Wire) -> None:
    given = properties(authentication_method="PLAIN", authentication_data=PLAIN)
    connack = wire.connect("c", properties=given)
    assert connack.reason_code == 0
    assert connack.properties is not None
    assert connack.properties.authentication_method == "PLAIN"
    wire.quiet()


@mqtt5("MQTT-4.12.0-2", "MQTT-4.12.0-3", "MQTT-4.12.0-5", "MQTT-3.15.2-1", "MQTT-3.2.0-1")
def test_plain_by_auth_when_the_broker_asks(wire: Wire) -> None:
    wire.send(Connect(V5, "c", properties=properties(authentication_method="PLAIN")))
    asked = wire.receive(Auth)
    assert asked.reason_code == 0x18
    assert asked.properties is not None
    assert asked.properties.authentication_method == "PLAIN"
    wire.send(plain(PLAIN))
    connack = wire.receive(ConnAck)
    assert connack.reason_code == 0
    assert connack.properties is not None
    assert connack.properties.authentication_method == "PLAIN"
    wire.quiet()


@mqtt5("MQTT-4.12.0-4")
def test_a_failed_exchange_is_refused_and_closed(wire: Wire) -> None:
    wire.send(Connect(V5, "c", properties=properties(authentication_method="PLAIN")))
    wire.receive(Auth)
    wire.send(plain(WRONG))
    assert wire.receive(ConnAck).reason_code in {0x86, 0x87}
    wire.closed()


@mqtt5("MQTT-3.1.2-30", "MQTT-3.14.0-1")
def test_another_packet_in_the_middle_of_the_exchange_is_refused(wire: Wire) -> None:
    wire.send(Connect(V5, "c", properties=properties(authentication_method="PLAIN")))
    wire.receive(Auth)
    wire.send(PingReq())
    assert wire.receive(ConnAck).reason_code == 0x82
    wire.closed()


@mqtt5("MQTT-4.12.0-5", "MQTT-4.12.0-3")
@pytest.mark.parametrize("code", [0x00, 0x19])
def test_an_auth_of_the_wrong_step_is_refused(wire: Wire, code: int) -> None:
    wire.send(Connect(V5, "c", properties=properties(authentication_method="PLAIN")))
    wire.receive(Auth)
    wire.send(Auth(code, properties(authentication_method="PLAIN", authentication_data=PLAIN)))
    assert wire.receive(ConnAck).reason_code >= 0x80
    wire.closed()


@mqtt5("MQTT-4.12.1-1", "MQTT-4.12.1-2", "MQTT-3.15.2-1")
@pytest.mark.parametrize(
    ("method", "data", "outcome"), [("PLAIN", PLAIN, 0x00), ("PLAIN", WRONG, 0x87), ("OTHER", PLAIN, 0x82)]
)
def test_reauthentication(wire: Wire, method: str, data: bytes, outcome: int) -> None:
    wire.connect("c", properties=properties(authentication_method="PLAIN", authentication_data=PLAIN))
    wire.send(Auth(0x19, properties(authentication_method=method, authentication_data=data)))
    if outcome == 0:
        assert wire.receive(Auth).reason_code == 0
        wire.quiet()
    else:
        wire.closed(outcome, 0x8C)


@mqtt5("MQTT-3.15.2-2", "MQTT-3.15.2-3")
def test_auth_fits_the_clients_maximum_packet_size(strict: RestartableMqttBroker) -> None:
    limit = 30
    with Wire(strict.port, V5, max_packet_bytes=limit) as wire:
        asked = properties(authentication_method="PLAIN", maximum_packet_size=limit)
        wire.send(Connect(V5, "c", properties=asked))
        wire.receive(Auth)
        wire.send(plain(PLAIN))
        assert wire.receive(ConnAck).reason_code == 0


@mqtt5("MQTT-3.15.2-1")
def test_an_undefined_auth_reason_closes_the_connection(wire: Wire) -> None:
    wire.connect("c", properties=properties(authentication_method="PLAIN", authentication_data=PLAIN))
    wire.send_raw(b"\xf0\x02\x01\x00")
    wire.closed(0x81, 0x82)
