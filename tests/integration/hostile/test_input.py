"""Input that is begun and never finished, by many at once: one budget holds for all of it, and the others keep working."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.hostile.canary import TYPICAL_SECONDS_MAX, WORST_SECONDS_MAX, Canary
from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until
from trunkline.client.amqp import Address, AmqpClient
from trunkline.client.mqtt import MqttAddress, MqttClient
from trunkline.protocols.amqp.codec import Properties
from trunkline.protocols.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile input")]

MEGABYTE = 1024 * 1024
BUDGET_BYTES = 64 * MEGABYTE
SLACK_BYTES = 96 * MEGABYTE  # buffers that grow are there twice for a moment; the allocator keeps some of what is freed
PIECE = bytes(256 * 1024)
SETTINGS = {
    "max_input_bytes": str(BUDGET_BYTES),
    "max_request_bytes": str(32 * MEGABYTE),
    "max_message_bytes": str(32 * MEGABYTE),
    "mqtt_max_packet_bytes": str(16 * MEGABYTE),
}


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Victim]:
    """A broker with a small budget for input, watched as the other victim is."""
    server = ServerProcess(tmp_path, SETTINGS)
    server.start()
    canary = Canary(server.bootstrap)
    canary.start()
    victim = Victim(server, canary)
    try:
        mark = canary.mark()
        before = victim.resident_bytes()
        yield victim
        health = canary.health_since(mark)
        assert "Traceback" not in victim.log(), victim.log()[-8000:]
        assert health.typical_seconds < TYPICAL_SECONDS_MAX, f"the canary was disturbed: {health}"
        assert health.worst_seconds < WORST_SECONDS_MAX, f"the canary was disturbed: {health}"
        growth = victim.peak_bytes() - before
        assert growth < BUDGET_BYTES + SLACK_BYTES, f"{growth // MEGABYTE} MB for input that was never finished"
        with AmqpClient(Address(port=server.port_of("amqp"))) as amqp:
            amqp.confirm_publications()
            amqp.publish("", "nowhere", b"x", Properties(), mandatory=False)
        with MqttClient(MqttAddress(port=server.port_of("mqtt"))) as mqtt:
            mqtt.publish("afterwards", b"x", qos=1)
    finally:
        canary.stop()
        server.close()


def pour(peer: socket.socket, size: int) -> bool:
    """Send so many zeros; false when the broker hung up before it had them all."""
    try:
        for _ in range(size // len(PIECE)):
            peer.sendall(PIECE)
    except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError):
        return False
    return True


def test_half_sent_kafka_requests(narrow: Victim) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(narrow.connect()) for _ in range(40)]
        for peer in peers:
            peer.send(struct.pack(">i", 24 * MEGABYTE))
            pour(peer.socket, 16 * MEGABYTE)
        assert wait_until(lambda: lines(narrow, "max_input_bytes"), what="a word about it in the log") < 10


def test_half_sent_amqp_messages(narrow: Victim) -> None:
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(amqp_peer(narrow))
            client.sendall(amqp_content_header(24 * MEGABYTE))
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for _ in range(16 * MEGABYTE // 100_000):
                    client.sendall(amqp_frame(3, 1, bytes(100_000)))
        assert wait_until(lambda: lines(narrow, "max_input_bytes"), what="a word about it in the log") < 10


def test_amqp_transactions_that_are_never_committed(narrow: Victim) -> None:
    with ExitStack() as stack:
        for _ in range(6):
            client = stack.enter_context(amqp_peer(narrow))
            client.sendall(amqp_frame(1, 1, struct.pack(">HH", 90, 10)))  # tx.select
            body = bytes(100_000)
            message = amqp_content_header(len(body)) + amqp_frame(3, 1, body)
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for _ in range(24 * MEGABYTE // len(body)):
                    client.sendall(message)
        assert wait_until(lambda: lines(narrow, "max_input_bytes"), what="a word about it in the log") < 10


def test_half_sent_mqtt_packets(narrow: Victim) -> None:
    with ExitStack() as stack:
        for number in range(12):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", narrow.server.port_of("mqtt"))))
            name = b"slow-%d" % number
            client.sendall(mqtt_packet(0x10, b"\x00\x04MQTT\x05\x02\x00\x00\x00" + struct.pack(">H", len(name)) + name))
            assert client.recv(2)[0] == 0x20
            client.sendall(b"\x30" + varint(15 * MEGABYTE))
            pour(client, 12 * MEGABYTE)
        assert wait_until(lambda: lines(narrow, "max_input_bytes"), what="a word about it in the log") < 10


def test_a_connect_packet_of_megabytes_is_not_waited_for(narrow: Victim) -> None:
    before = narrow.resident_bytes()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", narrow.server.port_of("mqtt"))))
            for _ in range(100)
        ]
        for client in clients:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(b"\x10" + varint(15 * MEGABYTE))
                pour(client, 2 * MEGABYTE)
        for client in clients:
            client.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b"", "the broker takes no CONNECT of that size"
        growth = narrow.resident_bytes() - before
        assert growth < 32 * MEGABYTE, f"{growth // MEGABYTE} MB for 100 strangers"


def test_an_amqp_client_that_has_not_logged_in_may_send_small_frames_only(narrow: Victim) -> None:
    with socket.create_connection(("127.0.0.1", narrow.server.port_of("amqp"))) as client:
        client.settimeout(30)
        client.sendall(b"AMQP\x00\x00\x09\x01")
        wait_until(lambda: client.recv(1 << 16), what="connection.start")
        client.sendall(struct.pack(">BHI", 1, 0, 100_000) + bytes(100))
        received = b""
        while piece := client.recv(1 << 16):
            received += piece
        assert b"FRAME_ERROR" in received


def test_members_that_say_too_much_of_themselves(narrow: Victim) -> None:
    """A megabyte each, in groups of their own, with sessions of half an hour."""
    metadata = bytes(1_000_000)
    with ExitStack() as stack:
        for number in range(150):
            peer = stack.enter_context(narrow.connect())
            request = JoinGroupRequest(
                group_id=f"talkative-{number}",
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            )
            assert peer.ask(request, 2, JoinGroupResponse).error_code == 0
    wait_until(lambda: lines(narrow, "max_input_bytes"), what="a word about it in the log")


def test_a_request_that_takes_too_long_to_arrive_ends_its_connection(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, {"max_request_ms": "1000"})
    server.start()
    try:
        with Peer(server.port) as slow, Peer(server.port) as idle:
            slow.send(struct.pack(">i", 1000))
            slow.socket.settimeout(0.2)

            def hung_up_on() -> bool:
                try:
                    slow.send(b"x")  # a byte now and then does not help
                    return slow.socket.recv(1) == b""
                except TimeoutError:
                    return False
                except (ConnectionResetError, BrokenPipeError):
                    return True

            wait_until(hung_up_on, what="the end of the connection")
            assert idle.serves(), "a connection that has begun nothing stays"
    finally:
        server.close()


def lines(victim: Victim, word: str) -> int:
    return len(re.findall(word, victim.log()))


@contextlib.contextmanager
def amqp_peer(victim: Victim) -> Iterator[socket.socket]:
    """A raw connection with channel 1 open."""
    with socket.create_connection(("127.0.0.1", victim.server.port_of("amqp"))) as peer:
        peer.settimeout(30)
        start_ok = struct.pack(">HHI", 10, 11, 0) + b"\x05PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest\x05en_US"
        tune_ok = struct.pack(">HHHIH", 10, 31, 100, 131_072, 0)
        peer.sendall(b"AMQP\x00\x00\x09\x01" + amqp_frame(1, 0, start_ok) + amqp_frame(1, 0, tune_ok))
        peer.sendall(amqp_frame(1, 0, struct.pack(">HH", 10, 40) + b"\x01/\0\0"))
        peer.sendall(amqp_frame(1, 1, struct.pack(">HH", 20, 10) + b"\0"))
        received = b""
        while struct.pack(">HH", 20, 11) not in received:
            received += peer.recv(1 << 16)
        yield peer


def amqp_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def amqp_content_header(size: int) -> bytes:
    publish = amqp_frame(1, 1, struct.pack(">HHH", 60, 40, 0) + b"\0\x07nowhere\0")
    return publish + amqp_frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0))


def varint(value: int) -> bytes:
    """MQTT's remaining length."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def mqtt_packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body
