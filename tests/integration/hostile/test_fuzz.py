"""Made-up and spoiled requests of every API and version: answered or refused, never a fault inside the broker.

The `victim` fixture asserts after each test that the process lives, that no exception reached the log, and that the
canary kept working.
"""

from __future__ import annotations

import random
import socket
import struct

import pytest

from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer, frame
from tests.integration.hostile.specimen import specimen, spoiled
from trunkline.protocols.kafka.apis import APIS, Api, ApiKey, load
from trunkline.protocols.kafka.codec import encode_request
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from trunkline.protocols.kafka.wire import Message

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile")]

SPECIMENS_PER_VERSION = 8
SPOILED_PER_SPECIMEN = 4
PATIENCE_SECONDS = 0.25
HEADER_BYTES = 8  # api key, version, correlation id
GROWTH_BYTES_MAX = 64 * 1024 * 1024


class Fuzzer:
    """Sends bytes on a connection that it opens again whenever the broker has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answered = 0
        self.refused = 0
        self.silent = 0
        self._peer: Peer | None = None

    def send(self, request: bytes) -> None:
        """Send one framed request and wait until it is answered or refused; one that waits for others is left behind."""
        if self._peer is None:
            self._peer = Peer(self.port)
            self._peer.socket.settimeout(PATIENCE_SECONDS)
        try:
            self._peer.send(request)
            self._peer.read_frame()
            self.answered += 1
        except TimeoutError:
            self.silent += 1
            self.close()
        except (OSError, AssertionError):
            self.refused += 1
            self.close()

    def close(self) -> None:
        if self._peer is not None:
            self._peer.socket.close()
            self._peer = None


def advertised(victim: Victim) -> set[int]:
    with victim.connect() as peer:
        return {row.api_key for row in peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse).api_keys}


def encoded_specimen(request_type: type[Message], version: int, rng: random.Random) -> bytes:
    """A framed request; made up again when this version cannot say it (a null where it wants a list)."""
    while True:
        try:
            return b"".join(encode_request(specimen(request_type, rng), version, rng.getrandbits(31), "fuzz"))
        except ValueError:
            continue


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_no_request_can_make_a_handler_fail(victim: Victim, api: Api) -> None:
    rng = random.Random(api.key * 1000 + 1)
    request_type, _ = load(api.key)
    with victim.connect() as peer:
        # Made by asking for it, and again for each API: an earlier one may have deleted it.
        peer.ask(MetadataRequest(topics=[MetadataRequestTopic(name="specimen")]), 4, MetadataResponse)
    before = victim.resident_bytes()
    fuzzer = Fuzzer(victim.port)
    for version in range(api.min_version, api.max_version + 1):
        for _ in range(SPECIMENS_PER_VERSION):
            encoded = encoded_specimen(request_type, version, rng)
            fuzzer.send(encoded)
            body = encoded[4:]
            for _ in range(SPOILED_PER_SPECIMEN):
                # The header stays whole, so that the damage reaches the body's decoder and the handler.
                fuzzer.send(frame(body[:HEADER_BYTES] + spoiled(body[HEADER_BYTES:], rng)))
    fuzzer.close()
    assert fuzzer.refused > 0, "spoiled bytes were never noticed"
    if api.key in advertised(victim):
        assert fuzzer.answered > 0, "not one request reached the handler"
    growth = victim.resident_bytes() - before
    assert growth < GROWTH_BYTES_MAX, f"{growth} bytes after fuzzing {api.name}"


def test_noise_with_a_plausible_header(victim: Victim) -> None:
    rng = random.Random(5)
    fuzzer = Fuzzer(victim.port)
    for key, api in APIS.items():
        for _ in range(10):
            version = rng.randint(api.min_version, api.max_version)
            header = struct.pack(">hhih", key, version, 1, -1)
            fuzzer.send(frame(header + rng.randbytes(rng.choice([1, 10, 100, 3000]))))
    fuzzer.close()
    assert fuzzer.refused > len(APIS)


def test_a_connection_that_goes_away_in_the_middle_of_its_answers(victim: Victim) -> None:
    request_type, _ = load(ApiKey.METADATA)
    for _ in range(100):
        with victim.connect() as peer:
            for _ in range(20):
                peer.send(peer.encoded(request_type(), 1))
            peer.socket.shutdown(socket.SHUT_RDWR)
    with victim.connect() as other:
        assert other.serves()
