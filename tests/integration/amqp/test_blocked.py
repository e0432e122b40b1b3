"""A disk that runs full: connections that publish are told and wait, everybody else goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.amqp.brokers import Trunkline, url
from tests.integration.amqp.conftest import open_connection
from tests.integration.amqp.reading import Inbox, depth, serve, settle, wait_for_depth
from tests.integration.hostile.test_disk import MEGABYTE, mounted

pytestmark = [pytest.mark.ours_only("starts brokers of its own"), pytest.mark.xdist_group("hostile disk")]

DISK_BYTES = 64 * MEGABYTE
MIN_FREE_BYTES = 24 * MEGABYTE
QUEUE = "blocked"


class Alarm:
    """A connection that keeps what it is told."""

    def __init__(self, broker: Trunkline) -> None:
        self.connection = open_connection(broker)
        self.channel: Any = self.connection.channel()
        self.reasons: list[str] = []
        self.lifted = 0
        self.connection.add_on_connection_blocked_callback(self._blocked)
        self.connection.add_on_connection_unblocked_callback(self._unblocked)

    def _blocked(self, _connection: Any, frame: Any) -> None:
        self.reasons.append(frame.method.reason)

    def _unblocked(self, _connection: Any, _frame: Any) -> None:
        self.lifted += 1


class Disk:
    """A small file system with a broker on it, and a file that takes its room."""

    def __init__(self, broker: Trunkline) -> None:
        self.broker = broker
        self._filler = broker.server.data / "filler"

    def fill(self) -> None:
        self._filler.write_bytes(bytes(DISK_BYTES - MIN_FREE_BYTES))

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    broker = Trunkline(tmp_path, {"min_free_bytes": str(MIN_FREE_BYTES)})
    with mounted(broker.server.data, f"size={DISK_BYTES}"):
        try:
            broker.start()
            yield Disk(broker)
        finally:
            broker.close()


def test_publishers_are_told_and_wait_until_there_is_room(disk: Disk) -> None:
    publisher, consumer = Alarm(disk.broker), Alarm(disk.broker)
    publisher.channel.queue_declare(QUEUE, durable=True)
    for number in range(3):
        publisher.channel.basic_publish("", QUEUE, b"%d" % number)
    disk.fill()
    serve(publisher.connection, lambda: publisher.reasons, "connection.blocked")
    assert publisher.reasons == ["low on disk"]
    # What is published now is not read; the consumer's connection is served all the same.
    publisher.channel.basic_publish("", QUEUE, b"late")
    inbox = Inbox(consumer.channel, QUEUE)
    inbox.wait(3)
    inbox.ack_all()
    assert depth(consumer.channel, QUEUE) == 0
    serve(consumer.connection, lambda: consumer.reasons, "connection.blocked")
    disk.free()
    serve(publisher.connection, lambda: publisher.lifted, "connection.unblocked")
    inbox.wait(4)
    assert inbox.bodies == [b"0", b"1", b"2", b"late"]
    for alarm in (publisher, consumer):
        serve(alarm.connection, lambda alarm=alarm: alarm.lifted, "connection.unblocked")
        assert (alarm.reasons, alarm.lifted) == (["low on disk"], 1)
        alarm.connection.close()
    disk.broker.stop()


def test_a_connection_that_comes_while_the_disk_is_low_is_told_at_once(disk: Disk) -> None:
    watcher = Alarm(disk.broker)
    watcher.channel.queue_declare(QUEUE)
    disk.fill()
    serve(watcher.connection, lambda: watcher.reasons, "connection.blocked")
    # Told while it opens, before a callback can be there to hear it: what it hears is that the alarm was lifted.
    late = Alarm(disk.broker)
    # That it publishes is known by its first message, which is taken; it is read no further then.
    late.channel.basic_publish("", QUEUE, b"first")
    wait_for_depth(watcher.channel, QUEUE, 1)
    late.channel.basic_publish("", QUEUE, b"second")
    settle(watcher.channel, QUEUE)
    assert depth(watcher.channel, QUEUE) == 1
    disk.free()
    serve(late.connection, lambda: late.lifted, "connection.unblocked")
    assert [got.body for got in Inbox(watcher.channel, QUEUE).wait(2)] == [b"first", b"second"]


def test_the_command_line_says_at_once_why_it_waits(disk: Disk) -> None:
    """What is published while the disk is low is taken or refused within the time-out, and the reason is named."""
    watcher = Alarm(disk.broker)
    watcher.channel.queue_declare(QUEUE, durable=True)
    disk.fill()
    serve(watcher.connection, lambda: watcher.reasons, "connection.blocked")
    command = [sys.executable, "-m", "trunkline", "publish", QUEUE, "hello", "--url", url(disk.broker)]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "--request-timeout", "20"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "takes no publications for now: low on disk" in done.stderr
    assert time.monotonic() - begun < 15, "it waits neither for a goodbye nor for room when the message was taken"
    assert done.returncode == 0, done.stderr
    assert "published 5 bytes" in done.stderr
    wait_for_depth(watcher.channel, QUEUE, 1)
    disk.free()
    watcher.connection.close()
