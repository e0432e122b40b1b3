"""The examples in examples/amqp do what their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.amqp.brokers import AmqpBroker, url
from tests.integration.amqp.conftest import open_connection
from tests.integration.waiting import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples" / "amqp"
EXAMPLE_SECONDS = 60.0
QUEUES = ("hello", "tasks", "rpc_queue")
EXCHANGES = ("logs", "direct_logs", "topic_logs")

# The examples have fixed names: one test at a time.
pytestmark = pytest.mark.xdist_group("amqp-examples")


class Receiver:
    """An example that runs until it has had its messages."""

    def __init__(self, broker: AmqpBroker, directory: Path, *command: str) -> None:
        self._output = directory / f"{command[0]}-{os.urandom(4).hex()}.txt"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *command], stdout=output, stderr=output, cwd=EXAMPLES, env=environment(broker)
            )
        wait_until(lambda: "ready" in self.lines() or self._process.poll() is not None, what="the receiver")

    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def finished(self) -> list[str]:
        """Its output without `ready`, when it has ended by itself."""
        assert self._process.wait(EXAMPLE_SECONDS) == 0, self.lines()
        return [line for line in self.lines() if line != "ready"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Stage:
    def __init__(self, broker: AmqpBroker, directory: Path) -> None:
        self._broker = broker
        self._directory = directory
        self.receivers: list[Receiver] = []

    def start(self, *command: str) -> Receiver:
        self.receivers.append(Receiver(self._broker, self._directory, *command))
        return self.receivers[-1]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=EXAMPLES,
            env=environment(self._broker),
            timeout=EXAMPLE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def environment(broker: AmqpBroker) -> dict[str, str]:
    return {**os.environ, "AMQP_URL": url(broker)}


@pytest.fixture
def stage(amqp: AmqpBroker, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(amqp, tmp_path)
    yield made
    for receiver in made.receivers:
        receiver.close()
    connection = open_connection(amqp)
    channel = connection.channel()
    for queue in QUEUES:
        channel.queue_delete(queue)
    for exchange in EXCHANGES:
        channel.exchange_delete(exchange)
    connection.close()


def test_hello(stage: Stage) -> None:
    assert stage.run("hello_send.py", "Hello,", "queue") == "sent Hello, queue"
    assert stage.start("hello_receive.py", "--count", "1").finished() == ["received Hello, queue"]


def test_work_queue_shares_tasks(stage: Stage) -> None:
    workers = [stage.start("work_worker.py", "--count", "2") for _ in range(2)]
    for number in range(4):
        stage.run("work_new_task.py", f"task {number}..")
    done = Counter(line for worker in workers for line in worker.finished())
    assert done == Counter(f"done task {number}.." for number in range(4))


def test_publish_subscribe_copies(stage: Stage) -> None:
    listeners = [stage.start("pubsub_receive_logs.py", "--count", "2") for _ in range(2)]
    for line in ("one", "two"):
        stage.run("pubsub_emit_log.py", line)
    assert [listener.finished() for listener in listeners] == [["received one", "received two"]] * 2


def test_routing_selects(stage: Stage) -> None:
    listener = stage.start("routing_receive_logs.py", "--count", "2", "warning", "error")
    for severity in ("info", "error", "warning"):
        stage.run("routing_emit_log.py", severity, "disk")
    assert listener.finished() == ["error: disk", "warning: disk"]


def test_topics_match(stage: Stage) -> None:
    listener = stage.start("topics_receive_logs.py", "--count", "2", "kern.*", "*.critical")
    for key in ("auth.info", "kern.info", "auth.critical"):
        stage.run("topics_emit_log.py", key, "oops")
    assert listener.finished() == ["kern.info: oops", "auth.critical: oops"]


def test_rpc_answers(stage: Stage) -> None:
    server = stage.start("rpc_server.py", "--count", "2")
    assert stage.run("rpc_client.py", "30") == "fibonacci(30) = 832040"
    assert stage.run("rpc_client.py", "10") == "fibonacci(10) = 55"
    assert server.finished() == ["fibonacci(30) = 832040", "fibonacci(10) = 55"]
