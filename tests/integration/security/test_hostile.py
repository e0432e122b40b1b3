"""Who does not mean well: old TLS, half a handshake, wrong passwords in bulk. Others are served meanwhile."""

from __future__ import annotations

import select
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.security.secured import PASSWORDS, Secured
from tests.integration.waiting import wait_until
from trunkline.client.connection import KafkaConnection
from trunkline.client.errors import ClientError
from trunkline.client.login import Login, Tls
from trunkline.protocols.listener.accepting import _MAX_HANDSHAKES, _TLS_HANDSHAKE_S

ELSEWHERE = "127.0.0.2"


def serves(secured: Secured, *, within_s: float = 10.0) -> None:
    """Somebody from another address logs in and is answered."""
    started = time.monotonic()
    plain = socket.create_connection(("127.0.0.1", secured.port("kafka-tls")), within_s, (ELSEWHERE, 0))
    context = ssl.create_default_context(cafile=secured.ca)
    with context.wrap_socket(plain, server_hostname="localhost") as talk:
        talk.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\0\0")  # ApiVersions 0
        assert talk.recv(4)
    assert time.monotonic() - started < within_s


@pytest.mark.parametrize(("version", "taken"), [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)])  # fmt: skip
@pytest.mark.parametrize("listener", ["kafka-tls", "amqps", "mqtts", "mqtt-wss"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_of_tls_are_not_spoken(
    secured: Secured, listener: str, version: ssl.TLSVersion, taken: bool
) -> None:
    context = ssl.create_default_context(cafile=secured.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = version
    with socket.create_connection(("127.0.0.1", secured.port(listener)), 10) as plain:
        if taken:
            assert context.wrap_socket(plain, server_hostname="localhost").version() == version.name.replace("_", ".")
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(plain, server_hostname="localhost")


def test_half_a_handshake_is_bounded_in_number_and_time(secured: Secured) -> None:
    port = secured.port("kafka-tls")
    opened = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(_MAX_HANDSHAKES + 20)]
    try:
        opened[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        # The ones too many are turned away at once: they can be read, to the end.
        found, _, _ = select.select(opened[-20:], [], [], 30)
        assert found
        assert all(map(_ended, found))
        serves(secured)
        opened[0].settimeout(_TLS_HANDSHAKE_S + 20)
        assert _ended(opened[0]), "who does not go on is cut off"
    finally:
        for each in opened:
            each.close()
    wait_until(lambda: _may_connect(secured), 20, "a place for another handshake from the same address")


def _ended(peer: socket.socket) -> bool:
    try:
        return peer.recv(100) == b""
    except ConnectionError:
        return True


def _may_connect(secured: Secured) -> bool:
    context = ssl.create_default_context(cafile=secured.ca)
    try:
        with socket.create_connection(("127.0.0.1", secured.port("kafka-tls")), 10) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
    except (ssl.SSLError, OSError):
        return False
    return True


def test_wrong_passwords_in_bulk_are_turned_away_and_others_are_served(secured: Secured) -> None:
    def guess(number: int) -> bool:
        login = Login("admin", f"guess {number}", mechanism="PLAIN")
        try:
            KafkaConnection("127.0.0.1", secured.port("kafka"), login=login, timeout_ms=20_000).open()
        except ClientError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        guesses = [pool.submit(guess, number) for number in range(300)]
        for _ in range(5):
            serves(secured)
            # Another user from the very address that the guesses come from.
            login = Login("alice", PASSWORDS["alice"], Tls(secured.ca), "PLAIN")
            with KafkaConnection("127.0.0.1", secured.port("kafka-tls"), login=login, timeout_ms=20_000):
                pass
        assert not any(each.result() for each in guesses)


def test_nonsense_on_every_listener_over_tls_ends_that_connection_alone(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=secured.ca)
    for listener in ("kafka-tls", "amqps", "mqtts", "mqtt-wss"):
        plain = socket.create_connection(("127.0.0.1", secured.port(listener)), 10)
        with context.wrap_socket(plain, server_hostname="localhost") as talk:
            talk.settimeout(20)
            talk.sendall(b"\xff" * 4_096)
            try:
                while talk.recv(4_096):
                    pass
            except (ConnectionError, ssl.SSLError):
                pass
    serves(secured)
