"""Many idle connections and many retained topics. A tenth of the promised numbers by default; TRUNKLINE_SCALE=full for all."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

import pytest

from tests.integration.mqtt.brokers import Trunkline
from tests.integration.mqtt.conftest import MqttBrokerFactory
from tests.integration.mqtt.wire import Wire
from trunkline.bench.mqtt_stream import connect, ping, subscribe
from trunkline.bench.probe import resident_bytes
from trunkline.protocols.mqtt.codec import encode_publishes
from trunkline.protocols.mqtt.packets import V311, PingReq, PingResp, PubAck

pytestmark = [
    pytest.mark.ours_only("weighs our own process"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

DIVISOR = 1 if os.environ.get("TRUNKLINE_SCALE") == "full" else 10
CONNECTIONS = 10_000 // DIVISOR
RETAINED = 100_000 // DIVISOR
MAX_BYTES_PER_CONNECTION = 12_000
BATCH = 500


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_cost_little_memory(mqtt_with: MqttBrokerFactory, many_files: None) -> None:
    broker = mqtt_with()
    assert isinstance(broker, Trunkline)
    address = f"127.0.0.1:{broker.port}"
    held = []
    try:
        for number in range(100):
            held.append(connect(address, f"first-{number}"))
            subscribe(held[-1], f"idle/first/{number}", 0)
        before = resident_bytes(broker.server.pid)
        for number in range(CONNECTIONS):
            held.append(connect(address, f"idle-{number}"))
            subscribe(held[-1], f"idle/{number}", 0)
        per_connection = (resident_bytes(broker.server.pid) - before) / CONNECTIONS
        print(f"{per_connection:,.0f} bytes per idle connection")
        assert per_connection < MAX_BYTES_PER_CONNECTION
        # It still serves them all, old and new.
        began = time.monotonic()
        for connection in held[:: CONNECTIONS // 100]:
            ping(connection)
        with Wire(broker.port) as publisher:
            publisher.connect("publisher")
            publisher.publish(f"idle/{CONNECTIONS - 1}", b"wake up", 1)
        assert b"wake up" in held[-1].recv(100)
        assert time.monotonic() - began < 20
    finally:
        for connection in held:
            connection.close()


def test_retained_topics_are_found_by_wildcard_and_survive_a_restart(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with()
    with Wire(broker.port) as publisher:
        publisher.connect("publisher")
        for start in range(0, RETAINED, BATCH):
            numbers = range(start, start + BATCH)
            messages = [
                (f"fleet/{number % 100}/{number}", b"%d" % number, 0, True, False, 0, b"") for number in numbers
            ]
            publisher.send_raw(encode_publishes(messages, V311))
        publisher.send(PingReq())
        publisher.receive(PingResp, 60)
        publisher.publish("fleet/last", b"last", 1, retain=True)
    for _ in range(2):
        with Wire(broker.port) as everything:
            everything.connect("everything")
            everything.subscribe("fleet/#", 0)
            got = {everything.take().payload for _ in range(RETAINED + 1)}
            assert len(got) == RETAINED + 1
        with Wire(broker.port) as one:
            one.connect("one")
            one.subscribe("fleet/7/+", 1)
            wanted = {f"fleet/7/{number}" for number in range(7, RETAINED, 100)}
            assert {one.take().topic for _ in wanted} == wanted
            one.quiet()
            began = time.monotonic()
            one.subscribe("fleet/8/8", 1)
            assert one.take().payload == b"8"
            assert time.monotonic() - began < 1.0
        broker.stop()
        broker.start()


def test_a_burst_of_acknowledged_retained_messages(mqtt_with: MqttBrokerFactory) -> None:
    broker = mqtt_with()
    with Wire(broker.port) as publisher:
        publisher.connect("publisher")
        for start in range(0, RETAINED // 10, BATCH):
            messages = [(f"r/{start + n}", b"x", 1, True, False, n + 1, b"") for n in range(BATCH)]
            publisher.send_raw(encode_publishes(messages, V311))
            assert [publisher.receive(PubAck, 60).packet_id for _ in range(BATCH)] == list(range(1, BATCH + 1))
