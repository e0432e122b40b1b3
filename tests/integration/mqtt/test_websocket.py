"""MQTT over WebSocket, by hand: the handshake, and what may be in a frame."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from collections.abc import Iterator

import pytest

from tests.integration.mqtt.brokers import MqttBroker
from tests.integration.mqtt.conftest import ClientFactory
from trunkline.protocols.mqtt.codec import Parser, encode
from trunkline.protocols.mqtt.packets import V5, V311, ConnAck, Connect, PingReq, PingResp, PubAck, Publish

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5

TIMEOUT_SECONDS = 15.0
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketWire:
    """A WebSocket client that sends the frames it is told to."""

    def __init__(self, port: int, protocols: str | None = "mqtt", path: str = "/mqtt") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._buffer = b""
        key = base64.b64encode(os.urandom(16))
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        if protocols is not None:
            lines.append(f"Sec-WebSocket-Protocol: {protocols}")
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                break
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *fields = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1]) if first else 0
        self.fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)
        }
        if self.status == 101:
            wanted = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
            assert self.fields["sec-websocket-accept"] == wanted

    def send_frame(self, opcode: int, data: bytes, *, final: bool = True, masked: bool = True) -> None:
        head = bytes([(0x80 if final else 0) | opcode])
        bit = 0x80 if masked else 0
        if len(data) < 126:
            head += bytes([bit | len(data)])
        elif len(data) < 65_536:
            head += bytes([bit | 126]) + len(data).to_bytes(2, "big")
        else:
            head += bytes([bit | 127]) + len(data).to_bytes(8, "big")
        if masked:
            mask = os.urandom(4)
            head += mask
            data = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self._socket.sendall(head + data)

    def receive_frame(self) -> tuple[int, bytes]:
        """The next frame, or (CLOSE, b"") when the connection is closed."""
        while True:
            frame = self._take_frame()
            if frame is not None:
                return frame
            if not self._more():
                return CLOSE, b""

    def receive_until(self, count: int, version: int) -> list[object]:
        parser = Parser(server_side=False, version=version, max_packet_bytes=1 << 24)
        packets: list[object] = []
        while len(packets) < count:
            opcode, data = self.receive_frame()
            assert opcode in {BINARY, CONTINUATION}, opcode
            packets += parser.feed(data)
        return packets

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> bool:
        try:
            piece = self._socket.recv(1 << 16)
        except ConnectionError:
            return False
        self._buffer += piece
        return bool(piece)

    def _take_frame(self) -> tuple[int, bytes] | None:
        data = self._buffer
        if len(data) < 2:
            return None
        size, start = data[1] & 0x7F, 2
        assert not data[1] & 0x80, "a server does not mask"
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        if len(data) < start + size:
            return None
        self._buffer = data[start + size :]
        return data[0] & 0x0F, data[start : start + size]


@pytest.fixture
def web(mqtt: MqttBroker) -> Iterator[WebSocketWire]:
    wire = WebSocketWire(mqtt.ws_port)
    yield wire
    wire.close()


@mqtt311("MQTT-6.0.0-3", "MQTT-6.0.0-4", "MQTT-7.1.1-1")
@mqtt5("MQTT-6.0.0-3", "MQTT-6.0.0-4", "MQTT-4.2.0-1")
def test_the_subprotocol_is_mqtt(mqtt: MqttBroker) -> None:
    for offered in ("mqtt", "other, mqtt"):
        wire = WebSocketWire(mqtt.ws_port, offered)
        assert wire.status == 101
        assert wire.fields["sec-websocket-protocol"] == "mqtt"
        wire.close()


@mqtt311("MQTT-6.0.0-3")
@mqtt5("MQTT-6.0.0-3")
@pytest.mark.ours_only("Mosquitto upgrades without it")
def test_a_client_that_does_not_offer_mqtt_is_refused(mqtt: MqttBroker) -> None:
    for offered in (None, "other"):
        wire = WebSocketWire(mqtt.ws_port, offered)
        assert wire.status != 101
        wire.close()


@mqtt311("MQTT-6.0.0-1")
@mqtt5("MQTT-6.0.0-1")
@pytest.mark.ours_only("Mosquitto reads text frames too")
def test_a_text_frame_closes_the_connection(web: WebSocketWire) -> None:
    web.send_frame(TEXT, encode(Connect(V311, ""), V311))
    opcode, _ = web.receive_frame()
    assert opcode == CLOSE


@mqtt311("MQTT-6.0.0-2")
@mqtt5("MQTT-6.0.0-2")
@pytest.mark.parametrize("version", [V311, V5])
def test_packets_need_not_be_aligned_to_frames(web: WebSocketWire, version: int) -> None:
    data = encode(Connect(version, ""), version) + encode(PingReq(), version) * 2
    web.send_frame(BINARY, data[:1])
    web.send_frame(BINARY, data[1:7])
    web.send_frame(BINARY, data[7:])
    web.send_frame(BINARY, encode(PingReq(), version) * 3)
    packets = web.receive_until(6, version)
    assert isinstance(packets[0], ConnAck)
    assert all(isinstance(packet, PingResp) for packet in packets[1:])


def test_fragmented_messages_are_joined_and_pings_answered_in_between(web: WebSocketWire) -> None:
    data = encode(Connect(V311, ""), V311) + encode(PingReq(), V311)
    web.send_frame(BINARY, data[:5], final=False)
    web.send_frame(PING, b"still there?")
    opcode, echoed = web.receive_frame()
    assert (opcode, echoed) == (PONG, b"still there?")
    web.send_frame(CONTINUATION, data[5:8], final=False)
    web.send_frame(CONTINUATION, data[8:])
    packets = web.receive_until(2, V311)
    assert isinstance(packets[0], ConnAck)
    assert isinstance(packets[1], PingResp)


@pytest.mark.ours_only("Mosquitto reads it")
def test_an_unmasked_frame_closes_the_connection(web: WebSocketWire) -> None:
    web.send_frame(BINARY, encode(Connect(V311, ""), V311), masked=False)
    opcode, _ = web.receive_frame()
    assert opcode == CLOSE


def test_a_close_frame_is_answered(web: WebSocketWire) -> None:
    web.send_frame(BINARY, encode(Connect(V311, ""), V311))
    web.receive_until(1, V311)
    web.send_frame(CLOSE, b"\x03\xe8")
    opcode, _ = web.receive_frame()
    assert opcode == CLOSE


def test_messages_cross_between_tcp_and_websocket(web: WebSocketWire, client: ClientFactory, topic: str) -> None:
    subscriber = client()
    subscriber.subscribe(topic, 1)
    payload = bytes(range(256)) * 300
    web.send_frame(BINARY, encode(Connect(V311, ""), V311))
    web.receive_until(1, V311)
    web.send_frame(BINARY, encode(Publish(topic, payload, 1, False, False, 5), V311))
    (acknowledged,) = web.receive_until(1, V311)
    assert isinstance(acknowledged, PubAck)
    assert subscriber.take().payload == payload


def test_a_request_that_is_no_upgrade_gets_an_http_error(mqtt: MqttBroker) -> None:
    with socket.create_connection(("127.0.0.1", mqtt.ws_port), timeout=TIMEOUT_SECONDS) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = plain.recv(1 << 16)
    assert not answer or answer.startswith(b"HTTP/1.1 4")
