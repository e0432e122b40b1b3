"""MQTT clients log in: password, certificate, token and SCRAM, over TLS and WebSocket."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from scramp import ScramClient

from tests.integration.mqtt.test_mqttjs import library
from tests.integration.security.secured import PASSWORDS, Secured
from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import Parser, Properties, encode
from trunkline.protocols.mqtt.packets import V5, Auth, ConnAck, Connect, Packet

__all__ = ["library"]  # a fixture

USER = "alice"
SECONDS = 30.0
NODE = Path(__file__).parent / "node"
Unique = Callable[[str], str]


# -- paho --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("how", ["password", "certificate", "token", "wrong"])
def test_paho_logs_in(secured: Secured, unique: Unique, how: str, transport: str) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, transport=transport)
    certificate, key = secured.shown() if how == "certificate" else (None, None)
    client.tls_set(secured.ca, certificate, key)
    if how != "certificate":
        passwords = {"password": PASSWORDS[USER], "token": secured.issuer.token(USER), "wrong": "wrong"}
        client.username_pw_set(USER, passwords[how])
    answered, heard = threading.Event(), threading.Event()
    codes: list[int] = []
    bodies: list[bytes] = []

    def on_connect(_c: object, _u: object, _f: object, code: paho.ReasonCode, _p: object) -> None:
        codes.append(code.value)
        answered.set()

    def on_message(_c: object, _u: object, message: paho.MQTTMessage) -> None:
        bodies.append(message.payload)
        heard.set()

    client.on_connect, client.on_message = on_connect, on_message
    client.connect("localhost", secured.port("mqtts" if transport == "tcp" else "mqtt-wss"))
    client.loop_start()
    try:
        assert answered.wait(SECONDS)
        if how == "wrong":
            assert codes[0] == errors.BAD_USER_NAME_OR_PASSWORD
            return
        assert codes == [0]
        topic = unique("topic")
        client.subscribe(topic, 1)
        client.publish(topic, b"body", 1)
        assert heard.wait(SECONDS)
        assert bodies == [b"body"]
    finally:
        client.disconnect()
        client.loop_stop()


# -- mosquitto_pub -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="needs mosquitto-clients")
@pytest.mark.parametrize("how", ["password", "certificate", "wrong", "nothing"])
def test_mosquitto_pub_logs_in(secured: Secured, how: str) -> None:
    certificate, key = secured.shown()
    login = {
        "password": ["-u", USER, "-P", PASSWORDS[USER]],
        "certificate": ["--cert", certificate, "--key", key],
        "wrong": ["-u", USER, "-P", "wrong"],
        "nothing": [],
    }[how]
    where = ["-h", "localhost", "-p", str(secured.port("mqtts")), "--cafile", secured.ca]
    command = ["mosquitto_pub", *where, *login, "-q", "1", "-t", "t", "-m", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode == 0) is (how in {"password", "certificate"}), done.stderr


# -- MQTT.js -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("node") is None or shutil.which("npm") is None, reason="needs Node.js and npm")
@pytest.mark.parametrize("how", ["password", "certificate", "over WebSocket"])
def test_mqttjs_logs_in(secured: Secured, library: Path, how: str) -> None:
    certificate, key = secured.shown()
    login = {"username": USER, "password": PASSWORDS[USER]}
    if how == "certificate":
        login = {"cert": certificate, "key": key}
    url = f"mqtts://localhost:{secured.port('mqtts')}"
    if how == "over WebSocket":
        url = f"wss://localhost:{secured.port('mqtt-wss')}/mqtt"
    done = subprocess.run(
        ["node", str(NODE / "mqttjs.mjs"), str(library), url, secured.ca, json.dumps(login)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "body", done.stderr


# -- SCRAM, which no client library has yet ----------------------------------------------------------------------------


class Talker:
    def __init__(self, secured: Secured) -> None:
        plain = socket.create_connection(("localhost", secured.port("mqtts")), SECONDS)
        self.socket = ssl.create_default_context(cafile=secured.ca).wrap_socket(plain, server_hostname="localhost")
        self._parser = Parser(server_side=False, version=V5)

    def ask(self, packet: Packet) -> Packet:
        self.socket.sendall(encode(packet, V5))
        while True:
            data = self.socket.recv(65_536)
            assert data, "the broker has hung up"
            found = self._parser.feed(data)
            if found:
                answer = found[0]
                assert isinstance(answer, Packet)
                return answer


def method(name: str, data: str) -> Properties:
    found = Properties()
    found.authentication_method = name
    found.authentication_data = data.encode()
    return found


def data_of(packet: Packet) -> str:
    assert isinstance(packet, Auth | ConnAck)
    assert packet.properties is not None
    return (packet.properties.authentication_data or b"").decode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_by_enhanced_authentication_and_again_later(secured: Secured, mechanism: str) -> None:
    talker = Talker(secured)
    client = ScramClient([mechanism], USER, PASSWORDS[USER])
    asked = talker.ask(Connect(V5, "", True, 0, None, None, None, method(mechanism, client.get_client_first())))
    assert isinstance(asked, Auth)
    assert asked.reason_code == errors.CONTINUE_AUTHENTICATION
    client.set_server_first(data_of(asked))
    answer = talker.ask(Auth(errors.CONTINUE_AUTHENTICATION, method(mechanism, client.get_client_final())))
    assert isinstance(answer, ConnAck)
    assert answer.reason_code == 0
    client.set_server_final(data_of(answer))

    again = ScramClient([mechanism], USER, PASSWORDS[USER])
    asked = talker.ask(Auth(errors.REAUTHENTICATE, method(mechanism, again.get_client_first())))
    again.set_server_first(data_of(asked))
    done = talker.ask(Auth(errors.CONTINUE_AUTHENTICATION, method(mechanism, again.get_client_final())))
    assert isinstance(done, Auth)
    assert done.reason_code == errors.SUCCESS
    again.set_server_final(data_of(done))


@pytest.mark.parametrize("user", [USER, "nobody"])
def test_scram_with_a_wrong_password_fails_at_the_end_whoever_it_is(secured: Secured, user: str) -> None:
    talker = Talker(secured)
    client = ScramClient(["SCRAM-SHA-256"], user, "wrong")
    asked = talker.ask(Connect(V5, "", True, 0, None, None, None, method("SCRAM-SHA-256", client.get_client_first())))
    client.set_server_first(data_of(asked))
    final = Auth(errors.CONTINUE_AUTHENTICATION, method("SCRAM-SHA-256", client.get_client_final()))
    answer = talker.ask(final)
    assert isinstance(answer, ConnAck)
    assert answer.reason_code == errors.NOT_AUTHORIZED
