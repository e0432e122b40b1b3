"""stomp.py, the usual Python client, in the three versions."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import stomp as stomp_py

from tests.integration.stomp.conftest import StompBroker

PATIENCE_S = 20.0
CLIENTS = {"1.0": stomp_py.StompConnection10, "1.1": stomp_py.StompConnection11, "1.2": stomp_py.StompConnection12}


class Listener(stomp_py.ConnectionListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.messages: queues.Queue[Any] = queues.Queue()
        self.receipts: queues.Queue[str] = queues.Queue()
        self.errors: queues.Queue[Any] = queues.Queue()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)


class Client:
    def __init__(self, version: str, port: int) -> None:
        options = {} if version == "1.0" else {"heartbeats": (2000, 2000), "vhost": "/"}
        self.version = version
        self.connection = CLIENTS[version]([("127.0.0.1", port)], **options)
        self.heard = Listener()
        self.connection.set_listener("", self.heard)
        self.connection.connect("guest", "guest", wait=True)

    def message(self) -> Any:
        return self.heard.messages.get(timeout=PATIENCE_S)

    def receipt(self) -> str:
        return self.heard.receipts.get(timeout=PATIENCE_S)

    def ack(self, frame: Any, **options: Any) -> None:
        self._settle(self.connection.ack, frame, **options)

    def nack(self, frame: Any, **options: Any) -> None:
        self._settle(self.connection.nack, frame, **options)

    def _settle(self, call: Callable[..., None], frame: Any, **options: Any) -> None:
        if self.version == "1.2":
            call(frame.headers["ack"], **options)
        elif self.version == "1.1":
            call(frame.headers["message-id"], frame.headers["subscription"], **options)
        else:
            call(frame.headers["message-id"], **options)


@pytest.fixture(params=["1.0", "1.1", "1.2"])
def client(request: pytest.FixtureRequest, stomp: StompBroker) -> Iterator[Client]:
    made = Client(request.param, stomp.stomp_port)
    yield made
    if made.connection.is_connected():
        made.connection.disconnect()


def test_send_and_receive_with_receipts(client: Client, queue: str) -> None:
    connection = client.connection
    for number in range(20):
        connection.send(queue, f"message {number}", headers={"persistent": "true", "receipt": f"r{number}"})
    assert [client.receipt() for _ in range(20)] == [f"r{number}" for number in range(20)]
    connection.subscribe(queue, id="1", ack="client", headers={"prefetch-count": "5"})
    for number in range(20):
        frame = client.message()
        assert frame.body == f"message {number}"
        client.ack(frame)
    assert client.heard.errors.empty()


def test_transactions(client: Client, queue: str) -> None:
    connection = client.connection
    connection.subscribe(queue, id="1")
    for outcome in ("abort", "commit"):
        transaction = connection.begin()
        connection.send(queue, outcome, transaction=transaction)
        getattr(connection, outcome)(transaction)
    assert client.message().body == "commit"


def test_what_is_refused_comes_again(client: Client, queue: str) -> None:
    if client.version == "1.0":
        pytest.skip("1.0 has no NACK")
    client.connection.subscribe(queue, id="1", ack="client-individual")
    client.connection.send(queue, "x")
    client.nack(client.message())
    again = client.message()
    assert again.headers["redelivered"] == "true"
    client.ack(again)


def test_disconnect_waits_for_its_receipt(client: Client, queue: str) -> None:
    client.connection.send(queue, "last", headers={"persistent": "true"})
    client.connection.disconnect(receipt="bye")
    assert client.receipt() == "bye"
