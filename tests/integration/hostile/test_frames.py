"""Bytes that are no Kafka requests: the connection is closed, and nobody else notices."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer, frame
from trunkline.protocols.kafka.apis import APIS, ApiKey, load

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile")]

MEGABYTE = 1024 * 1024
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
NOISE = random.Random(7).randbytes(5000)


def header(api_key: int, version: int, correlation_id: int = 77) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, -1)


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        struct.pack(">i", -1) + b"x" * 100,
        struct.pack(">i", -(2**31)) + b"x" * 100,
        struct.pack(">i", 101 * MEGABYTE),
        frame(b""),
        frame(b"\x00"),
        frame(b"\x00" * 7),
        CLIENT_HELLO,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff" * 4096,
        frame(NOISE),
        frame(header(999, 0)),
        frame(header(-5, 0)),
        frame(header(32767, 32767)),
    ],
    ids=[
        "2-GB length", "negative length", "most negative length", "just too long", "empty frame", "one byte", "half a header",
        "TLS", "HTTP", "SSH", "ones", "noise", "unknown API", "negative API", "largest API",
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_close_the_connection(victim: Victim, sent: bytes) -> None:
    before = victim.resident_bytes()
    with victim.connect() as peer:
        peer.send(sent)
        assert peer.is_closed_by_the_broker()
    assert victim.resident_bytes() - before < 8 * MEGABYTE


def test_versions_of_known_apis_that_do_not_exist_close_the_connection(victim: Victim) -> None:
    for key, api in APIS.items():
        for version in (api.max_version + 1, 32767, -1, -32768):
            if key == ApiKey.API_VERSIONS or api.supports(version):
                continue
            with victim.connect() as peer:
                peer.send(frame(header(key, version) + bytes(10)))
                assert peer.is_closed_by_the_broker(), f"{api.name} version {version}"


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_api_versions_of_a_newer_client_is_answered_in_version_0(victim: Victim, version: int) -> None:
    _, response = load(ApiKey.API_VERSIONS)
    with victim.connect() as peer:
        peer.send(frame(header(ApiKey.API_VERSIONS, version) + b"\x00\x00\x00"))
        answer = peer.read_frame()
        assert answer[:4] == struct.pack(">i", 77)
        decoded, _ = response.decode(memoryview(answer), 4, 0)
        assert getattr(decoded, "error_code", None) == 35
        assert ApiKey.API_VERSIONS in [row.api_key for row in getattr(decoded, "api_keys", [])]
        assert peer.serves(), "the client can step down on the same connection"


def test_half_frames_and_silence_cost_nothing(victim: Victim) -> None:
    before = victim.resident_bytes()
    half = frame(header(ApiKey.METADATA, 1) + bytes(1000))[:200]
    peers = [victim.connect() for _ in range(200)]
    for peer in peers:
        peer.send(half)
    with victim.connect() as other:
        assert other.serves()
    growth = victim.resident_bytes() - before
    for peer in peers:
        peer.socket.close()
    assert growth < 32 * MEGABYTE, f"{growth} bytes for 200 half requests"


def test_a_length_prefix_alone_reserves_no_memory(victim: Victim) -> None:
    """A hundred megabytes are announced on each of many connections; only bytes that arrive may be paid for."""
    before = victim.resident_bytes()
    peers = [victim.connect() for _ in range(400)]
    for peer in peers:
        peer.send(struct.pack(">i", 90 * MEGABYTE) + header(ApiKey.PRODUCE, 3))
    with victim.connect() as other:
        assert other.serves()
    growth = victim.resident_bytes() - before
    for peer in peers:
        peer.socket.close()
    assert growth < 64 * MEGABYTE, f"{growth // 1024} KB for {len(peers)} announced requests"


def test_a_request_that_comes_byte_by_byte_is_served(victim: Victim) -> None:
    request, _ = load(ApiKey.API_VERSIONS)
    with victim.connect() as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in peer.encoded(request(), 0):
            peer.send(bytes([byte]))
        assert len(peer.read_frame()) > 4


def test_connections_that_are_reset_at_once_are_forgotten(victim: Victim) -> None:
    for _ in range(500):
        peer = Peer(victim.port)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.send(frame(header(ApiKey.API_VERSIONS, 0)))
        peer.socket.close()
    with victim.connect() as other:
        assert other.serves()
