"""A disk that is full, a directory that cannot be written, a directory that someone else has open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.integration.hostile.peer import Peer
from tests.integration.server import NO_LISTENERS, ServerProcess
from tests.integration.waiting import wait_until
from trunkline.log.batch import NewRecord, build_batch, iter_batches
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytestmark = [pytest.mark.ours_only("starts brokers of its own"), pytest.mark.xdist_group("hostile disk")]

KAFKA_STORAGE_ERROR = 56
MEGABYTE = 1024 * 1024
REFUSAL_SECONDS = 30.0
BATCH = build_batch([NewRecord(b"k", bytes(200_000))])
SMALL_BATCH = build_batch([NewRecord(b"k", b"small")])


@contextmanager
def mounted(where: Path, options: str) -> Iterator[None]:
    """A small file system of its own; skips where that takes more rights than we have."""
    where.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mount.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def make_topic(peer: Peer, name: str) -> None:
    def leads() -> bool:
        answer = peer.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 4, MetadataResponse)
        return answer.topics[0].error_code == 0

    wait_until(leads, what=f"topic {name}")


def test_a_full_disk_refuses_producers_serves_consumers_and_works_again_with_room(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with mounted(server.data, "size=24m"):
        filler = server.data / "filler"
        filler.write_bytes(bytes(14 * MEGABYTE))
        server.start()
        try:
            with Peer(server.port) as peer:
                make_topic(peer, "t")
                stored = 0
                while (answer := peer.produce("t", BATCH, acks=-1)).error_code == 0:
                    assert answer.base_offset == stored
                    stored += 1
                    assert stored < 200, "the disk never filled up"
                assert answer.error_code == KAFKA_STORAGE_ERROR
                assert stored > 10
                # The refusal repeats, consumers read, and no batch is half there.
                assert peer.produce("t", BATCH).error_code == KAFKA_STORAGE_ERROR
                assert read_all(server, "t") == stored
                filler.unlink()
                recovered = wait_until(lambda: produced(peer), what="a record taken after room was made")
                assert recovered >= stored
                assert len(list(iter_batches(peer.fetch("t", recovered).records or b""))) == 1
            assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
            server.kill()
            server.start()
            assert read_all(server, "t") >= stored + 1, "everything acknowledged is there after a crash, too"
        finally:
            server.close()


def produced(peer: Peer) -> int:
    """The offset that a record was given; 0 when it was refused."""
    answer = peer.produce("t", BATCH, acks=-1)
    return answer.base_offset if answer.error_code == 0 else 0


def read_all(server: ServerProcess, topic: str) -> int:
    """How many records a consumer reads from the beginning to the end."""
    config = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "r",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
    }
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    count = 0
    try:
        while True:
            message = consumer.poll(REFUSAL_SECONDS)
            assert message is not None, "nothing from the broker"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return count
            count += 1
    finally:
        consumer.close()


def refused(data: Path, *arguments: str) -> str:
    """Start a broker that must refuse, with exit code 1 and one sentence for people; returns what it said."""
    command = [
        sys.executable,
        "-m",
        "trunkline",
        "serve",
        "--data",
        str(data),
        "--kafka-port",
        "0",
        "--amqp-port",
        "off",
        "--mqtt-port",
        "off",
        *arguments,
    ]
    environment = {**os.environ, **NO_LISTENERS}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=REFUSAL_SECONDS, check=False, env=environment
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert 0 < len(done.stderr.strip().splitlines()) <= 3, done.stderr
    return done.stderr


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.start()
    try:
        said = refused(server.data)
        assert str(server.data) in said
        assert str(server.pid) in said, "it names the process that has the directory"
        with Peer(server.port) as peer:
            assert peer.serves(), "the first one is not disturbed"
    finally:
        server.close()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with mounted(data, "size=1m,ro"):
        assert str(data) in refused(data)


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("not a directory")
    assert str(data) in refused(data)


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "first")
    server.start()
    try:
        said = refused(tmp_path / "second", "--kafka-port", str(server.port))
        assert str(server.port) in said
    finally:
        server.close()


def test_an_abort_on_a_disk_that_is_full_to_the_last_byte_is_made_up_for(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, {"min_free_bytes": "0"})
    with mounted(server.data, "size=24m"):
        filler = server.data / "filler"
        server.start()
        try:
            config = {"bootstrap.servers": server.bootstrap, "transactional.id": "t", "transaction.timeout.ms": 60_000}
            producer = Producer(config)
            producer.init_transactions(REFUSAL_SECONDS)
            producer.begin_transaction()
            producer.produce("t", b"aborted")
            assert producer.flush(REFUSAL_SECONDS) == 0
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            # The marker fits the page that the log has; its entry in the aborted index is a file that does not.
            with suppress(KafkaException):
                producer.abort_transaction(5.0)
            with Peer(server.port) as peer:
                assert peer.fetch("t").error_code == 0, "the partition is read all the same"
                filler.unlink()
                wait_until(lambda: peer.produce("t", SMALL_BATCH, acks=-1).error_code == 0, what="a record taken")
            wait_until(lambda: read_all(server, "t") == 1, what="the aborted record is gone, the other is there")
            assert "takes no records" in server.log.read_text()
            assert "Traceback" not in server.log.read_text(), server.log_tail()
        finally:
            server.close()
