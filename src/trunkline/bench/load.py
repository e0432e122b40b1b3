"""The load: one measurement of one case against one broker, in a process of its own.

`measure` starts `python -m trunkline.bench.load`, hands it a Job as JSON and reads the figures back, so that the
generator shares no interpreter with the broker or with the progress bar, and each measurement starts with an empty heap.
Every broker gets the same jobs with the same librdkafka settings, the library's defaults except:

- `linger.ms=0` and no Nagle delay for latency, where waiting for company is what is not wanted;
- `queued.min.messages`, `queued.max.messages.kbytes`, `fetch.queue.backoff.ms` for consuming, as the client would
  otherwise pause when its own queue is full for a moment, and the pause would be measured.

What the clock covers:

- produce: from the first queued message until the last one is acknowledged; then the end offsets must show them all.
- consume: from the assignment of the partitions until the last of the pre-filled messages has been received.
- end-to-end: from the first queued message until the last one has been received by a consumer that reads along.
- latency: per message, from the call of produce until the consumer has it, at `LATENCY_RATE_PER_S`.

Connecting and creating the topic are outside. The topic is deleted afterwards, except that a pre-filled one is kept for
the next repetition. Limit: a measurement that takes longer than `MEASURE_TIMEOUT_S` fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trunkline.bench.cases import percentile
from trunkline.bench.librdkafka import LoadError, Receiver, Sender

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

MEASURE_TIMEOUT_S = 120.0
ADMIN_TIMEOUT_S = 20.0
LATENCY_RATE_PER_S = 1000
LATENCY_WARM_UP_FRACTION = 0.2
STAMP_BYTES = 8


@dataclass(frozen=True, slots=True)
class Job:
    """What one measurement does.."""

    kind: str
    bootstrap: str
    topic: str
    size_bytes: int
    acks: str
    partitions: int
    messages: int
    ca: str = ""  # over TLS, believing this CA; "": in clear

    @property
    def where(self) -> dict[str, str]:
        return reached(self.bootstrap, self.ca)


def reached(bootstrap: str, ca: str) -> dict[str, str]:
    """What librdkafka has to be told to reach a broker."""
    tls = {"security.protocol": "SSL", "ssl.ca.location": ca} if ca else {}
    return {"bootstrap.servers": bootstrap, **tls}


def measure(job: Job) -> list[float]:
    """Run the job in its own process: one figure, or p50 and p99 in milliseconds for latency."""
    result = subprocess.run(
        [sys.executable, "-m", "trunkline.bench.load", json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        timeout=MEASURE_TIMEOUT_S + 2 * ADMIN_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadError(f"{job.kind} on {job.bootstrap} failed: {reason}")
    return [float(figure) for figure in json.loads(result.stdout)]


def run(job: Job) -> list[float]:
    """Do the job in this process."""
    if job.kind == "consume":
        return [_consume(job)]
    if job.kind == "prefill":
        create_topic(job)
        return [_produce(job)]
    with _temporary_topic(job):
        if job.kind == "produce":
            return [_produce(job)]
        if job.kind == "end-to-end":
            return [_end_to_end(job)]
        if job.kind == "latency":
            return _latency(job)
    raise LoadError(f"there is no measurement {job.kind}")


def _sender(job: Job) -> Sender:
    settings = {**job.where, "acks": job.acks, "client.id": "trunkline-bench", "log_level": "2"}
    return Sender(settings, job.topic, os.urandom(job.size_bytes))


def _receiver(job: Job) -> Receiver:
    settings = {
        **job.where,
        "group.id": "trunkline-bench",
        "client.id": "trunkline-bench",
        "enable.auto.commit": "false",
        "auto.offset.reset": "error",
        "queued.min.messages": "1000000",
        "queued.max.messages.kbytes": str(512 * 1024),
        "fetch.queue.backoff.ms": "5",
        "log_level": "2",
    }
    return Receiver(settings, job.topic, job.partitions)


def _produce(job: Job) -> float:
    with _sender(job) as sender:
        sender.send(1)
        sender.flush(ADMIN_TIMEOUT_S)
        started = time.perf_counter()
        sender.send(job.messages - 1)
        sender.flush(MEASURE_TIMEOUT_S)
        elapsed_s = time.perf_counter() - started
        stored = sender.end_offset(job.partitions)
    # At least, because a retried batch may be stored twice: the producer is not idempotent.
    if stored < job.messages:
        raise LoadError(f"only {stored:,} of {job.messages:,} acknowledged messages are in the log")
    return (job.messages - 1) / elapsed_s


def _consume(job: Job) -> float:
    with _receiver(job) as receiver:
        started = time.perf_counter()
        receiver.assign()
        receiver.receive(job.messages, MEASURE_TIMEOUT_S)
        return job.messages / (time.perf_counter() - started)


def _end_to_end(job: Job) -> float:
    with _sender(job) as sender, _receiver(job) as receiver:
        sender.send(1)
        sender.flush(ADMIN_TIMEOUT_S)
        receiver.assign()
        receiver.receive(1, ADMIN_TIMEOUT_S)
        failures: list[LoadError] = []

        def send_all() -> None:
            try:
                sender.send(job.messages - 1)
                sender.flush(MEASURE_TIMEOUT_S)
            except LoadError as error:
                failures.append(error)

        sending = threading.Thread(target=send_all, name="send")
        started = time.perf_counter()
        sending.start()
        try:
            receiver.receive(job.messages, MEASURE_TIMEOUT_S)
        finally:
            elapsed_s = time.perf_counter() - started
            sending.join()
        if failures:
            raise failures[0]
        return (job.messages - 1) / elapsed_s


def _latency(job: Job) -> list[float]:
    from confluent_kafka import Consumer, Producer, TopicPartition

    common = {**job.where, "socket.nagle.disable": True, "log_level": 2}
    producer = Producer({**common, "acks": job.acks, "linger.ms": 0, "delivery.report.only.error": True})
    consumer = Consumer({**common, "group.id": "trunkline-bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(job.topic, partition, 0) for partition in range(job.partitions)])
    try:
        _reach_every_partition(job, producer, consumer)
        return _timed_messages(job, producer, consumer)
    finally:
        consumer.close()


def _reach_every_partition(job: Job, producer: Producer, consumer: Consumer) -> None:
    """Send to each partition until each has delivered.

    A client keeps one fetch in flight per broker. Its first asks only for the partitions that it knows by then and may
    wait half a second; messages in the others would show that wait and not the broker's latency.
    """
    reached: set[int] = set()
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while len(reached) < job.partitions:
        for partition in range(job.partitions):
            producer.produce(job.topic, bytes(STAMP_BYTES), partition=partition)
        producer.flush(ADMIN_TIMEOUT_S)
        while (message := consumer.poll(0.1)) is not None:
            if message.error() is not None:
                raise LoadError(f"consuming failed: {message.error()}")
            reached.add(message.partition())
        if time.monotonic() > deadline:
            raise LoadError(f"only {len(reached)} of {job.partitions} partitions delivered anything")


def _timed_messages(job: Job, producer: Producer, consumer: Consumer) -> list[float]:
    padding = os.urandom(job.size_bytes - STAMP_BYTES)
    latencies_ms: list[float] = []

    def send_all() -> None:
        begin_ns = time.perf_counter_ns()
        interval_ns = 1_000_000_000 // LATENCY_RATE_PER_S
        for index in range(job.messages):
            wait_ns = begin_ns + index * interval_ns - time.perf_counter_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            stamp = time.perf_counter_ns().to_bytes(STAMP_BYTES, "big")
            # Partitions in turn: the default would stay on one for a while and leave the others unmeasured.
            producer.produce(job.topic, stamp + padding, partition=index % job.partitions)

    sending = threading.Thread(target=send_all, name="send")
    deadline = time.monotonic() + MEASURE_TIMEOUT_S
    sending.start()
    try:
        while len(latencies_ms) < job.messages:
            message = consumer.poll(0.1)
            now_ns = time.perf_counter_ns()
            if message is not None:
                if message.error() is not None:
                    raise LoadError(f"consuming failed: {message.error()}")
                latencies_ms.append((now_ns - int.from_bytes(message.value()[:STAMP_BYTES], "big")) / 1e6)
            elif time.monotonic() > deadline:
                raise LoadError(f"only {len(latencies_ms):,} of {job.messages:,} messages arrived")
    finally:
        sending.join()
    measured = latencies_ms[int(len(latencies_ms) * LATENCY_WARM_UP_FRACTION) :]
    return [percentile(measured, 0.50), percentile(measured, 0.99)]


@contextmanager
def _temporary_topic(job: Job) -> Iterator[None]:
    create_topic(job)
    try:
        yield
    finally:
        delete_topic(job.bootstrap, job.topic, job.ca)


def create_topic(job: Job) -> None:
    """Create it and wait until every partition has a leader, so that the clock starts with a usable topic."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({**job.where, "log_level": 2})
    try:
        admin.create_topics([NewTopic(job.topic, job.partitions, 1)])[job.topic].result(ADMIN_TIMEOUT_S)
    except KafkaException as error:
        raise LoadError(f"topic {job.topic} was not created: {error}") from error
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while time.monotonic() < deadline:
        topic = admin.list_topics(job.topic, timeout=ADMIN_TIMEOUT_S).topics[job.topic]
        if len(topic.partitions) == job.partitions and all(p.leader >= 0 for p in topic.partitions.values()):
            return
        time.sleep(0.02)
    raise LoadError(f"topic {job.topic} has no leaders after {ADMIN_TIMEOUT_S:g} s")


def delete_topic(bootstrap: str, topic: str, ca: str = "") -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**reached(bootstrap, ca), "log_level": 2})
    try:
        admin.delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)
    except KafkaException as error:
        raise LoadError(f"topic {topic} was not deleted: {error}") from error


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    try:
        figures = run(job)
    except LoadError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
