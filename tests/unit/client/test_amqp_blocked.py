"""A broker that takes no publications: the client says why, and gives up with that reason."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from trunkline.client.amqp import Address, AmqpClient
from trunkline.client.errors import BLOCKED, ClientError
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import Parser, Properties, encode_method
from trunkline.protocols.amqp.frames import MethodFrame, ProtocolHeader

ANSWERS: dict[type[m.Method], tuple[int, m.Method]] = {
    m.ConnectionStartOk: (0, m.ConnectionTune(0, 131_072, 0)),
    m.ConnectionOpen: (0, m.ConnectionOpenOk()),
    m.ChannelOpen: (1, m.ChannelOpenOk()),
    m.ConfirmSelect: (1, m.ConfirmSelectOk()),
}


def speak(listener: socket.socket) -> None:
    """A broker up to confirm.select; then it is blocked and reads no more."""
    peer, _ = listener.accept()
    parser = Parser(expect_header=True)
    with peer:
        while data := peer.recv(65_536):
            for event in parser.feed(data):
                if isinstance(event, ProtocolHeader):
                    peer.sendall(encode_method(0, m.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US")))
                elif isinstance(event, MethodFrame) and type(event.method) in ANSWERS:
                    peer.sendall(encode_method(*ANSWERS[type(event.method)]))
                    if isinstance(event.method, m.ConfirmSelect):
                        peer.sendall(encode_method(0, m.ConnectionBlocked("low on disk")))


def test_a_publication_that_is_never_confirmed_fails_with_the_brokers_reason() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=speak, args=(listener,), daemon=True).start()
        address = Address(port=listener.getsockname()[1])
        client = AmqpClient(address, timeout_ms=500, on_blocked=told.append)
        client.confirm_publications()
        with pytest.raises(ClientError, match="takes no publications: low on disk") as caught:
            client.publish("", "q", b"x", Properties())
        assert caught.value.name == BLOCKED
        assert "min_free_bytes" in caught.value.hint
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < 0.4, "it waits for no goodbye"
    assert told == ["low on disk"]
