"""Descriptors at their limit, clients that vanish, strangers who send garbage: served on, and a few lines in the log."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.hostile.canary import Canary
from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until
from trunkline.log.batch import NewRecord, build_batch
from trunkline.protocols.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile descriptors")]

OPEN_FILES = 256
FLOOD = 400
MOST_LINES = 12
BATCH = build_batch([NewRecord(b"k", bytes(8_000))])
LISTENERS = ("kafka", "amqp", "mqtt")
PARTITIONS = 30
GREETINGS = {"kafka": struct.pack(">i", 20), "amqp": b"AMQP\x00\x00\x09\x01", "mqtt": b"\x10\x14\x00\x04MQTT"}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Victim]:
    """A broker that may have few files open, and a canary that must not notice."""
    server = ServerProcess(tmp_path, open_files=OPEN_FILES)
    server.start()
    canary = Canary(server.bootstrap)
    canary.start()
    try:
        victim = Victim(server, canary)
        wait_until(canary.mark, what="the canary's first round trip")
        mark = canary.mark()
        yield victim
        canary.health_since(mark)
        assert "Traceback" not in victim.log(), victim.log()[:8000]
    finally:
        canary.stop()
        server.close()


def port_of(victim: Victim, listener: str) -> int:
    return victim.port if listener == "kafka" else victim.server.port_of(listener)


def warnings(victim: Victim) -> list[str]:
    return [line for line in victim.log().splitlines() if " WARNING " in line or " ERROR " in line]


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextlib.contextmanager
def flood(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that stay, as far as the broker lets them."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(ConnectionResetError):
                made.append(socket.create_connection(("127.0.0.1", port), 30))
        yield made
    finally:
        for each in made:
            each.close()


def test_connections_leave_descriptors_to_the_log(small: Victim) -> None:
    names = [f"t{number}" for number in range(40)]
    with Peer(small.port) as peer, contextlib.ExitStack() as stack:
        for listener in LISTENERS:
            stack.enter_context(flood(port_of(small, listener), FLOOD))
        wait_until(lambda: any("max_open_connections" in line for line in warnings(small)), what="a word about it")
        for name in names:
            make_topic(peer, name)
            assert produced(peer, name), small.server.log_tail()
        assert open_files(small.server.pid) < OPEN_FILES
    assert len(warnings(small)) <= MOST_LINES, warnings(small)
    for listener in LISTENERS:
        wait_until(partial(stays_open, port_of(small, listener)), what="connections to be taken again")


def test_a_listener_without_descriptors_rests_and_comes_back(small: Victim) -> None:
    pid = small.server.pid
    admin = AdminClient({"bootstrap.servers": small.bootstrap})
    # Small segments: to produce is to open files.
    admin.create_topics([NewTopic("rolling", 1, 1, config={"segment.bytes": "16384"})])["rolling"].result(30)
    with Peer(small.port) as peer:
        assert produced(peer, "rolling")
        tight = open_files(pid) + 12
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (tight, OPEN_FILES))
        try:
            with flood(port_of(small, "amqp"), 60):
                wait_until(lambda: any("no connection can be accepted" in line for line in warnings(small)))
                answers = [produced(peer, "rolling") for _ in range(40)]
                assert any(answers), "a producer goes on with the files that there are"
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        wait_until(lambda: produced(peer, "rolling"), what="the partition to take records")
        assert len(warnings(small)) <= MOST_LINES, warnings(small)
    wait_until(lambda: stays_open(port_of(small, "amqp")), what="connections to be taken again")


@pytest.mark.parametrize("listener", LISTENERS)
def test_garbage_is_summed_up(small: Victim, listener: str) -> None:
    chance = random.Random(listener)
    for _ in range(150):
        with (
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
            contextlib.closing(socket.create_connection(("127.0.0.1", port_of(small, listener)), 30)) as stranger,
        ):
            stranger.sendall(GREETINGS[listener] + chance.randbytes(200))
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16):
                pass
    assert len(warnings(small)) <= 3, warnings(small)


def test_clients_that_vanish_are_not_worth_a_line_each(small: Victim) -> None:
    admin = AdminClient({"bootstrap.servers": small.bootstrap})
    admin.create_topics([NewTopic("wide", PARTITIONS, 1)])["wide"].result(30)
    with Peer(small.port) as peer:
        batch = build_batch([NewRecord(None, bytes(20_000))])
        for partition in range(PARTITIONS):
            assert peer.produce("wide", batch, partition=partition).error_code == 0
    wanted = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1 << 20) for each in range(PARTITIONS)]
    everything = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[FetchTopic(topic="wide", partitions=wanted)]
    )
    for _ in range(20):
        vanishing = Peer(small.port, receive_buffer_bytes=4096)
        vanishing.send(vanishing.encoded(everything, 11) * 20)
        vanishing.socket.close()  # with most of its answers still to come, each in many pieces
    with Peer(small.port) as peer:
        assert peer.serves()
    assert "socket.send() raised exception" not in small.log()
    assert warnings(small) == []


def make_topic(peer: Peer, name: str) -> None:
    def leads() -> bool:
        answer = peer.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 4, MetadataResponse)
        return answer.topics[0].error_code == 0

    wait_until(leads, what=f"topic {name}")


def produced(peer: Peer, topic: str, batch: bytes = BATCH) -> bool:
    """Whether the broker took it; a refusal must be one that producers repeat."""
    code = peer.produce(topic, batch, acks=-1).error_code
    assert code in {0, 56}, "KAFKA_STORAGE_ERROR at worst"
    return code == 0


def stays_open(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.settimeout(0.2)
        try:
            return client.recv(1) != b""
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False
