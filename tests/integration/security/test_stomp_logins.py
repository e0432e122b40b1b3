"""STOMP clients log in over TLS: password, certificate, token; and over WebSocket."""

from __future__ import annotations

import queue as queues
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import stomp as stomp_py
import websocket

from tests.integration.security.secured import PASSWORDS, Secured

USER = "alice"
SECONDS = 30.0
Unique = Callable[[str], str]


class Heard(stomp_py.ConnectionListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.bodies: queues.Queue[str] = queues.Queue()

    def on_message(self, frame: Any) -> None:
        self.bodies.put(frame.body)


@pytest.mark.parametrize("how", ["password", "certificate", "token"])
def test_stomp_py_logs_in_over_tls(secured: Secured, unique: Unique, how: str) -> None:
    where = [("localhost", secured.port("stomps"))]
    connection = stomp_py.StompConnection12(where, vhost="/")
    certificate, key = secured.shown() if how == "certificate" else (None, None)
    connection.set_ssl(where, ca_certs=secured.ca, cert_file=certificate, key_file=key)
    heard = Heard()
    connection.set_listener("", heard)
    passwords = {"password": PASSWORDS[USER], "token": secured.issuer.token(USER)}
    if how == "certificate":
        connection.connect(wait=True)
    else:
        connection.connect(USER, passwords[how], wait=True)
    queue = f"/queue/{unique('stomps')}"
    connection.subscribe(queue, id="1")
    connection.send(queue, "private")
    assert heard.bodies.get(timeout=SECONDS) == "private"
    connection.disconnect()


def test_a_wrong_password_is_refused(secured: Secured) -> None:
    where = [("localhost", secured.port("stomps"))]
    connection = stomp_py.StompConnection12(where, vhost="/", reconnect_attempts_max=1)
    connection.set_ssl(where, ca_certs=secured.ca)
    with pytest.raises(stomp_py.exception.ConnectFailedException):
        connection.connect(USER, "wrong", wait=True)


def test_a_websocket_over_tls_carries_stomp(secured: Secured) -> None:
    options = {"ca_certs": secured.ca, "cert_reqs": ssl.CERT_REQUIRED}
    url = f"wss://localhost:{secured.port('stomp-wss')}/ws"
    socket = websocket.create_connection(url, SECONDS, sslopt=options, subprotocols=["v12.stomp"])
    socket.send(f"CONNECT\naccept-version:1.2\nhost:/\nlogin:{USER}\npasscode:{PASSWORDS[USER]}\n\n\0")
    assert socket.recv().startswith("CONNECTED\n")
    socket.close()
