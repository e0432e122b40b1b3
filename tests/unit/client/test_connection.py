"""One connection: negotiated versions, correlation, and what a peer that is no broker does to us."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.unit.client.fake_broker import FakeBroker
from trunkline.client.connection import MAX_RESPONSE_BYTES, KafkaConnection, split_addresses
from trunkline.client.errors import CONNECTION_FAILED, DISCONNECTED, TIMED_OUT, ClientError
from trunkline.protocols.kafka.apis import APIS, ApiKey
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse


@contextmanager
def peer(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A listener whose one connection is handled by `talk`."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            talk(connection)
            done.wait(30)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    done.set()
    thread.join()
    listener.close()


def test_the_highest_common_version_is_used() -> None:
    versions = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 6)}
    with FakeBroker(versions=versions) as broker, KafkaConnection("127.0.0.1", broker.port) as connection:
        connection.request(MetadataRequest(topics=[]), MetadataResponse)
        connection.request(MetadataRequest(topics=[]), MetadataResponse, max_version=4)
        assert [version for version, _ in broker.asked(MetadataRequest)] == [6, 4]


def test_an_api_without_a_common_version_is_unsupported() -> None:
    versions = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (90, 99)}
    with FakeBroker(versions=versions) as broker, KafkaConnection("127.0.0.1", broker.port) as connection:
        assert not connection.supports(ApiKey.METADATA)
        assert not connection.supports(ApiKey.FETCH)
        with pytest.raises(ClientError, match="does not support Metadata") as caught:
            connection.request(MetadataRequest(topics=[]), MetadataResponse)
        assert caught.value.name == "UNSUPPORTED_VERSION"
        assert broker.asked(MetadataRequest) == []


def test_a_broker_too_old_for_our_api_versions_is_asked_again_in_its_own() -> None:
    newest = APIS[ApiKey.API_VERSIONS].max_version

    def talk(connection: socket.socket) -> None:
        # Error 35 in version 0 with the one version that is known; then the real answer in that version.
        refusal = struct.pack(">ihihhh", 1, 35, 1, 18, 0, 0)
        connection.sendall(struct.pack(">i", len(refusal)) + refusal)
        again = connection.recv(65536)
        assert struct.unpack_from(">hhi", again, 4) == (18, 0, 2)
        answer = struct.pack(">ihihhhhhh", 2, 0, 2, 18, 0, 0, 3, 1, 5)
        connection.sendall(struct.pack(">i", len(answer)) + answer)

    assert newest > 0
    with peer(talk) as port, KafkaConnection("127.0.0.1", port) as connection:
        assert connection.versions == {18: (0, 0), 3: (1, 5)}
        assert connection.version_for(ApiKey.METADATA) == 5


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "announced a response"),
        (struct.pack(">i", MAX_RESPONSE_BYTES + 1), "announced a response"),
        (struct.pack(">i", -1), "announced a response"),
        (struct.pack(">iih", 6, 99, 0), "not a Kafka listener"),
        (struct.pack(">iihi", 10, 1, 0, 2**31 - 1), "not a Kafka listener"),
    ],
)
def test_a_peer_that_is_no_broker_is_told_apart(answer: bytes, words: str) -> None:
    with peer(lambda connection: connection.sendall(answer)) as port:
        connection = KafkaConnection("127.0.0.1", port)
        with pytest.raises(ClientError, match=words) as caught:
            connection.open()
        assert caught.value.hint.startswith("is it a Kafka listener?")
        assert not caught.value.retriable
        assert not connection.is_open


def test_silence_is_a_time_out_and_closes_the_connection() -> None:
    with peer(lambda connection: None) as port:
        connection = KafkaConnection("127.0.0.1", port, timeout_ms=50)
        with pytest.raises(ClientError) as caught:
            connection.open()
        assert caught.value.name == TIMED_OUT
        assert not connection.is_open


def test_a_connection_that_broke_is_not_used_again() -> None:
    with FakeBroker({ApiKey.METADATA: lambda request: None}) as broker:
        connection = KafkaConnection("127.0.0.1", broker.port)
        connection.open()
        for _ in range(2):
            with pytest.raises(ClientError) as caught:
                connection.request(MetadataRequest(topics=[]), MetadataResponse)
            assert caught.value.name == DISCONNECTED
        assert len(broker.asked(MetadataRequest)) == 1


def test_where_nobody_listens_the_error_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ClientError, match=f"127.0.0.1:{port}") as caught:
        KafkaConnection("127.0.0.1", port).open()
    assert caught.value.name == CONNECTION_FAILED
    assert "trunkline serve" in caught.value.hint


def test_our_name_and_version_are_sent() -> None:
    with FakeBroker() as broker, KafkaConnection("127.0.0.1", broker.port):
        ((_, request),) = broker.asked(ApiVersionsRequest)
        assert isinstance(request, ApiVersionsRequest)
        assert request.client_software_name == "trunkline"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:19092", [("::1", 19092)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
    ],
)
def test_addresses_are_split(text: str, expected: list[tuple[str, int]]) -> None:
    assert split_addresses(text) == expected


@pytest.mark.parametrize("text", ["", ",", "host:port", "host:0", "host:65536", ":9092"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientError):
        split_addresses(text)
