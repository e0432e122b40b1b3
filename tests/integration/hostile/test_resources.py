"""Clients that take more than their share: connections, memory and answers are bounded, and the others keep working."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable

import pytest

from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer
from tests.integration.waiting import wait_until
from trunkline.log.batch import NewRecord, build_batch
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest
from trunkline.protocols.kafka.messages.fetch import FetchResponse
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile")]

MEGABYTE = 1024 * 1024
IDLE_CONNECTIONS = 5000
IDLE_BYTES_MAX = 60 * 1024
PIPELINED = 20_000
FETCH_MAX_BYTES = 57_671_680  # the broker's own limit on one answer
GIGABYTE = 2**30


@pytest.fixture(scope="module")
def large_topic(running_victim: Victim) -> str:
    """A topic of 120 MB, more than the broker puts into one answer."""
    name = "large"
    batch = build_batch([NewRecord(None, bytes(900_000))])
    with running_victim.connect() as peer:
        peer.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 4, MetadataResponse)
        for _ in range(133):
            assert peer.produce(name, batch).error_code == 0
    return name


def test_five_thousand_idle_connections(victim: Victim) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this account may open {hard} files; {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    before = victim.resident_bytes()
    idle: list[Peer] = []
    try:
        idle.extend(Peer(victim.port) for _ in range(IDLE_CONNECTIONS))
        for peer in idle[:: IDLE_CONNECTIONS // 50]:
            assert peer.serves()
        each = (victim.resident_bytes() - before) // IDLE_CONNECTIONS
        assert idle[-1].serves()
        assert each < IDLE_BYTES_MAX, f"an idle connection costs {each} bytes"
    finally:
        for peer in idle:
            peer.socket.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_fetch_for_a_gigabyte_gets_a_bounded_answer(victim: Victim, large_topic: str) -> None:
    before = victim.resident_bytes()
    with victim.connect() as peer:
        answer = peer.fetch(large_topic, 0, GIGABYTE)
        assert answer.error_code == 0
        size = len(answer.records or b"")
        assert MEGABYTE < size <= FETCH_MAX_BYTES
    growth = victim.resident_bytes() - before
    assert growth < 3 * FETCH_MAX_BYTES, f"{growth} bytes for one fetch"


def test_consumers_that_stop_reading_hold_bounded_memory(victim: Victim, large_topic: str) -> None:
    """Each asks again and again for as much as it can get, and reads nothing of it."""
    before = victim.resident_bytes()
    stalled = [victim.connect(receive_buffer_bytes=4096) for _ in range(30)]
    try:
        for peer in stalled:
            for _ in range(10):
                peer.send(peer.encoded(peer.fetch_request(large_topic, 0, GIGABYTE), 11))
        with victim.connect() as other:
            for offset in range(20):
                assert other.fetch(large_topic, offset, MEGABYTE).error_code == 0, "others are served meanwhile"
        growth = victim.resident_bytes() - before
        assert growth < 768 * MEGABYTE, f"{growth // MEGABYTE} MB for {len(stalled)} stalled consumers"
    finally:
        for peer in stalled:
            peer.socket.close()
    wait_until(
        lambda: victim.resident_bytes() - before < 256 * MEGABYTE,
        what="their memory to be given back when they are gone",
    )


def test_a_consumer_that_reads_slowly_gets_everything(victim: Victim, large_topic: str) -> None:
    with victim.connect(receive_buffer_bytes=4096) as peer:
        request = peer.encoded(peer.fetch_request(large_topic, 0, 8 * MEGABYTE), 11)
        peer.send(request * 3)
        for _ in range(3):
            answer, _ = FetchResponse.decode(memoryview(peer.read_frame()), 4, 11)
            assert len(answer.responses[0].partitions[0].records or b"") > 6 * MEGABYTE


def test_thousands_of_pipelined_requests_are_answered_in_order(victim: Victim) -> None:
    before = victim.resident_bytes()
    with victim.connect() as peer:
        requests = [peer.encoded(ApiVersionsRequest(), 0) for _ in range(PIPELINED)]
        sent = send_as_far_as_possible(peer.socket, b"".join(requests))
        growth = victim.resident_bytes() - before
        assert growth < 64 * MEGABYTE, f"{growth} bytes for pipelined requests that nobody reads the answers of"
        peer.socket.settimeout(30)
        data = b"".join(requests)
        for number in range(PIPELINED):
            # What did not fit into the socket goes out as answers are taken.
            if sent < len(data):
                sent += send_as_far_as_possible(peer.socket, data[sent:])
            assert int.from_bytes(peer.read_frame()[:4]) == number + 1


def send_as_far_as_possible(peer: socket.socket, data: bytes) -> int:
    """Send until the broker stops reading; returns how much it took."""
    view, sent = memoryview(data), 0
    peer.settimeout(0.05)
    try:
        while sent < len(data):
            sent += peer.send(view[sent : sent + 65536])
    except (TimeoutError, BlockingIOError):
        pass
    finally:
        peer.settimeout(30)
    return sent


def test_memory_comes_back_after_a_storm_of_connections(victim: Victim) -> None:
    def storm() -> None:
        for _ in range(300):
            with victim.connect() as peer:
                assert peer.serves()

    storm()
    before = victim.resident_bytes()
    repeated(storm, 4)
    growth = victim.resident_bytes() - before
    assert growth < 16 * MEGABYTE, f"{growth} bytes leaked by 1,200 connections"


def repeated(action: Callable[[], None], times: int) -> None:
    for _ in range(times):
        action()
