"""The MQTT load: one measurement of one case against one broker.

`measure` starts two processes of `python -m trunkline.bench.mqtt_load`, one with all subscribers and one with all
publishers, so that neither waits for the other's interpreter. They share a file mapped into memory with the subscribers'
counts. The clock runs from the first message sent until the last one received, both taken from the system's monotonic
clock; connecting, subscribing, encoding and checking are outside of it.

`idle_connection_bytes` holds `IDLE_CONNECTIONS` clients that are connected and subscribed, and weighs the broker before
and after.

Limits: a measurement that takes longer than `MEASURE_TIMEOUT_S` fails.
"""

from __future__ import annotations

import json
import mmap
import queue
import resource
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

from trunkline.bench.librdkafka import LoadError
from trunkline.bench.mqtt_stream import (
    TOPIC,
    Counts,
    Layout,
    Publisher,
    StreamError,
    Subscriber,
    connect,
    publish_all,
    receive_all,
    subscribe,
)

MEASURE_TIMEOUT_S = 150.0
COUNT_BYTES = 8


@dataclass(frozen=True, slots=True)
class MqttJob:
    """What both processes do; `counts_path` is the file that they map."""

    role: str
    address: str
    qos: int
    size_bytes: int
    publishers: int
    subscribers: int
    messages: int
    counts_path: str
    tag: str


def measure(address: str, qos: int, size_bytes: int, publishers: int, subscribers: int, messages: int) -> float:
    """Messages received a second, by all subscribers together."""
    per_publisher = max(1, messages // publishers)
    tag = secrets.token_hex(4)
    with tempfile.NamedTemporaryFile(prefix="trunkline-bench-") as counts, _Roles() as roles:
        counts.write(bytes(COUNT_BYTES * subscribers))
        counts.flush()
        for role in ("subscribe", "publish"):
            roles.start(
                MqttJob(role, address, qos, size_bytes, publishers, subscribers, per_publisher, counts.name, tag)
            )
        roles.collect("ready", "ready")
        roles.tell_all("go")
        # Whether everything arrived, and was acknowledged, counts for more than when.
        told = roles.collect("began", "checked", "ended", "checked")
    return per_publisher * publishers * subscribers / (float(told["ended"]) - float(told["began"]))


class _Roles:
    """The two processes. What they say comes through one queue, so that a failure of either is heard at once."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self, job: MqttJob) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "trunkline.bench.mqtt_load", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        threading.Thread(target=self._listen, args=(process, job.role), name=job.role, daemon=True).start()

    def tell_all(self, word: str) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.write(word + "\n")
                process.stdin.flush()

    def collect(self, *words: str) -> dict[str, str]:
        """Lines that begin with these words, one each, in any order; what follows the word, by word."""
        wanted = list(words)
        told: dict[str, str] = {}
        deadline = time.monotonic() + MEASURE_TIMEOUT_S
        while wanted:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise LoadError(f"the load took longer than {MEASURE_TIMEOUT_S:g} s") from None
            word, _, rest = line.partition(" ")
            if word not in wanted:
                raise LoadError(rest if word == "failed" else f"unexpected: {line}")
            wanted.remove(word)
            told[word] = rest
        return told

    def _listen(self, process: subprocess.Popen[str], role: str) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                self._lines.put(line.strip())
        if process.wait() != 0:
            self._lines.put(f"failed the {role} process ended with status {process.returncode}")


def idle_connection_bytes(address: str, connections: int, resident_bytes: Callable[[], int]) -> float:
    """The broker's memory for one client that is connected and subscribed."""
    _allow_descriptors(connections + 100)
    tag = secrets.token_hex(4)
    held = []
    try:
        # The first few bring in what all share: code, pools, the first pages.
        for index in range(connections // 10):
            held.append(connect(address, f"idle-{tag}-{index}"))
            subscribe(held[-1], f"idle/{tag}/{index}", 0)
        before = resident_bytes()
        for index in range(connections // 10, connections):
            held.append(connect(address, f"idle-{tag}-{index}"))
            subscribe(held[-1], f"idle/{tag}/{index}", 0)
        grown = resident_bytes() - before
    finally:
        for connection in held:
            connection.close()
    return max(1.0, grown / (connections - connections // 10))


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        if wanted < count:
            raise LoadError(f"{count} open files are needed and only {hard} allowed: raise `ulimit -n`")


# -- in the processes of the load


def run(job: MqttJob) -> None:
    _allow_descriptors(job.publishers + job.subscribers + 100)
    layout = Layout(job.qos, job.size_bytes)
    with open(job.counts_path, "r+b") as file, mmap.mmap(file.fileno(), COUNT_BYTES * job.subscribers) as mapped:
        shared = memoryview(mapped).cast("Q")
        try:
            if job.role == "publish":
                _publish(job, layout, shared)
            else:
                _subscribe(job, layout, shared)
        finally:
            shared.release()


def _publish(job: MqttJob, layout: Layout, shared: memoryview) -> None:
    publishers = [
        Publisher(connect(job.address, f"bench-{job.tag}-p{number}"), layout, number, job.messages)
        for number in range(job.publishers)
    ]
    _say("ready")
    sys.stdin.readline()
    began = time.monotonic()
    _say(f"began {began}")
    publish_all(publishers, job.qos, shared)
    _say("checked")
    for publisher in publishers:
        publisher.connection.close()


def _subscribe(job: MqttJob, layout: Layout, shared: memoryview) -> None:
    count = job.messages * job.publishers
    subscribers: list[Subscriber] = []
    for number in range(job.subscribers):
        connection = connect(job.address, f"bench-{job.tag}-s{number}")
        subscribers.append(Subscriber(connection, layout, count))
        subscribe(connection, TOPIC, job.qos)
    _say("ready")
    sys.stdin.readline()
    receive_all(subscribers, Counts(shared))
    _say(f"ended {time.monotonic()}")
    for subscriber in subscribers:
        subscriber.verify(job.publishers)
    _say("checked")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    job = MqttJob(**json.loads(sys.argv[1]))
    try:
        run(job)
    except (StreamError, OSError) as error:
        _say(f"failed {job.role}: {error}")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
