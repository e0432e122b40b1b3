"""Clients are told to come back to the address on which they found the broker, unless another is configured."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.kafka import settings
from tests.integration.kafka.pipeline import Pipeline
from tests.integration.server import NO_LISTENERS
from tests.integration.waiting import DEADLINE_SECONDS, wait_until
from trunkline.cli.addresses import machine_addresses
from trunkline.protocols.kafka.messages.describe_cluster import DescribeClusterRequest
from trunkline.protocols.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from trunkline.protocols.kafka.messages.find_coordinator import FindCoordinatorRequest
from trunkline.protocols.kafka.messages.metadata import MetadataRequest

pytestmark = pytest.mark.ours_only("starts our own server")

BROKER = 4  # Kafka's number for a resource that is a broker


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[int, Path]]:
    """A server with these flags: its port, and the file of what it prints."""
    ready, output = directory / "ready.json", directory / "output.txt"
    command = [
        sys.executable,
        "-m",
        "trunkline",
        "serve",
        "--data",
        str(directory / "data"),
        "--ready-file",
        str(ready),
    ]
    command += ["--kafka-port", "0", "--amqp-port", "off", "--mqtt-port", "off", "--mqtt-ws-port", "off", *arguments]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, **NO_LISTENERS, "NO_COLOR": "1"}
        )
    try:
        wait_until(ready.exists, what="the ready file")
        yield int(json.loads(ready.read_text())["kafka"].rpartition(":")[2]), output
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_SECONDS)


def told(host: str, port: int) -> set[tuple[str, int]]:
    """Every address that a client is told which connects to this one."""
    with Pipeline(host, port) as pipeline:
        metadata, cluster, coordinator, configs = pipeline.ask(
            (MetadataRequest(topics=[]), 9),
            (DescribeClusterRequest(endpoint_type=1), 1),
            (FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4),
            (DescribeConfigsRequest(resources=[DescribeConfigsResource(
                resource_type=BROKER, resource_name="1", configuration_keys=["advertised.listeners"])]), 4),
        )  # fmt: skip
    found = {(each.host, each.port) for each in (*metadata.brokers, *cluster.brokers, *coordinator.coordinators)}
    shown = configs.results[0].configs[0].value.removeprefix("PLAINTEXT://")
    return found | {(shown.rpartition(":")[0].strip("[]"), int(shown.rpartition(":")[2]))}


def test_a_server_on_all_addresses_tells_each_client_the_one_that_it_used(tmp_path: Path) -> None:
    with serving(tmp_path, "--insecure", "--host", "0.0.0.0") as (port, output):
        for host in ("127.0.0.1", "127.0.0.2", *machine_addresses()):
            assert told(host, port) == {(host, port)}
        wait_until(lambda: "is ready" in output.read_text(), what="the banner")
        for host in ("127.0.0.1", *machine_addresses()):
            assert f"{host}:{port}" in output.read_text()


def test_a_client_works_through_an_address_that_is_not_the_first(tmp_path: Path) -> None:
    with serving(tmp_path, "--insecure", "--host", "0.0.0.0") as (port, _):
        bootstrap = f"127.0.0.3:{port}"
        producer = Producer(settings.confluent_producer(bootstrap))
        producer.produce("t", b"hello")
        assert producer.flush(DEADLINE_SECONDS) == 0
        consumer = Consumer(settings.confluent_consumer(bootstrap, "g"))
        consumer.subscribe(["t"])
        found = consumer.poll(DEADLINE_SECONDS)
        assert found is not None
        assert found.value() == b"hello"
        consumer.close()


def test_an_address_that_is_configured_is_told_to_all(tmp_path: Path) -> None:
    with serving(tmp_path, "--insecure", "--host", "0.0.0.0", "--advertised-host", "broker.example.org") as (
        port,
        output,
    ):
        for host in ("127.0.0.1", "127.0.0.2"):
            assert told(host, port) == {("broker.example.org", port)}
        wait_until(lambda: f"broker.example.org:{port}" in output.read_text(), what="the banner")


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    with serving(tmp_path, "--insecure", "--host", "::") as (port, output):
        assert told("::1", port) == {("::1", port)}
        wait_until(lambda: f"[::1]:{port}" in output.read_text(), what="the banner")
