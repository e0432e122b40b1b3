"""The AMQP load: one measurement of one case against one broker, in processes of its own.

`measure` starts `python -m trunkline.bench.amqp_load`, hands it a Job as JSON and reads the figures back. That process
declares what is needed, then forks one process per side, a publisher and a consumer (or a requester and a replier), each
with its connections open before a barrier lets both start. Frames are made before and checked after: see `amqp_frames`.

What the clock covers:

- transient, fan-out, topic: from the first byte sent until the consumer has the last message of every queue. Messages
  are transient, acknowledged automatically, and sent as fast as the socket takes them. Fan-out counts deliveries.
- durable-ack-each, durable-ack-multiple: the same with a durable queue, persistent messages, at most CONFIRM_WINDOW
  unconfirmed, and a prefetch of PREFETCH; the clock also waits for the last confirm. The consumer acknowledges each
  message, or every ACK_EVERY with `multiple`. Afterwards the queue must be empty.
- fill: from the first byte sent until the last confirm, with nobody consuming; then the queue is read and checked.
- request-reply: per request, from its sending until its reply is there, one at a time, through two transient queues.

Limit: a measurement that takes longer than `MEASURE_TIMEOUT_S` fails.
"""

from __future__ import annotations

import json
import secrets
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from socket import socket

from trunkline.bench.amqp_cases import (
    ACK_EACH,
    ACK_EVERY,
    ACK_MULTIPLE,
    CONFIRM_WINDOW,
    FILL,
    PREFETCH,
    REQUEST_REPLY,
    TOPIC,
    TOPIC_BINDINGS,
    AmqpCase,
)
from trunkline.bench.amqp_frames import (
    ACK_BYTES,
    CONSUMER_TAG,
    Confirms,
    Deliveries,
    acknowledgement_up_to,
    acknowledgements,
    publications,
)
from trunkline.bench.cases import percentile
from trunkline.bench.librdkafka import LoadError
from trunkline.bench.sides import run_sides
from trunkline.client.amqp import AmqpClient, parse_url
from trunkline.client.errors import ClientError
from trunkline.protocols.amqp import methods as m

MEASURE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
EMPTY_TIMEOUT_S = 10.0
READ_BYTES = 1 << 20
PIECE_BYTES = 1 << 18  # sent in one call while confirms are awaited
LATENCY_WARM_UP_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """What one measurement does."""

    kind: str
    address: str
    size_bytes: int
    messages: int

    @property
    def case(self) -> AmqpCase:
        return AmqpCase(self.kind, self.size_bytes)


def measure(job: Job) -> list[float]:
    """Run the job in its own processes: one rate, or p50 and p99 in milliseconds for request/reply."""
    result = subprocess.run(
        [sys.executable, "-m", "trunkline.bench.amqp_load", json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        timeout=2 * MEASURE_TIMEOUT_S + START_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadError(f"{job.kind} on {job.address} failed: {reason}")
    return [float(figure) for figure in json.loads(result.stdout)]


def run(job: Job) -> list[float]:
    """Do the job with forks of this process."""
    places = Places(job)
    with AmqpClient(parse_url(job.address)) as admin:
        places.declare(admin)
        try:
            if job.kind == REQUEST_REPLY:
                return _request_reply(job, places)
            if job.kind == FILL:
                return [_fill(job, places)]
            return [_stream(job, places, admin)]
        finally:
            places.delete(admin)


class Places:
    """The queues, exchange and routing keys of a job, under names of its own."""

    def __init__(self, job: Job) -> None:
        case = job.case
        name = f"bench-{secrets.token_hex(4)}"
        self._exchange_kind = case.exchange_kind
        self._durable = case.durable
        self.exchange = f"{name}-x" if case.exchange_kind else ""
        count = 2 if job.kind == REQUEST_REPLY else case.queues
        self.queues = [f"{name}-{number}" for number in range(count)]
        self.keys = [self.queues[0]]
        if job.kind == TOPIC:
            self.keys = [f"site.{number:05}.temperature" for number in range(TOPIC_BINDINGS)]

    def declare(self, admin: AmqpClient) -> None:
        for queue in self.queues:
            declare = m.QueueDeclare(0, queue, False, self._durable, False, False, False, {})
            admin.call(declare, m.QueueDeclareOk)
        if not self.exchange:
            return
        exchange = m.ExchangeDeclare(0, self.exchange, self._exchange_kind, False, False, False, False, False, {})
        admin.call(exchange, m.ExchangeDeclareOk)
        for queue in self.queues:
            for pattern in self._patterns():
                bind = m.QueueBind(0, queue, self.exchange, pattern, False, {})
                admin.call(bind, m.QueueBindOk)

    def delete(self, admin: AmqpClient) -> None:
        for queue in self.queues:
            admin.call(m.QueueDelete(0, queue, False, False, False), m.QueueDeleteOk)
        if self.exchange:
            admin.call(m.ExchangeDelete(0, self.exchange, False, False), m.ExchangeDeleteOk)

    def _patterns(self) -> list[str]:
        """For a topic exchange half with `*` and half with `#`, so that each key matches one."""
        if self._exchange_kind != "topic":
            return self.keys
        words = [key.rpartition(".")[0] for key in self.keys]
        return [f"{word}.{'*' if number % 2 else '#'}" for number, word in enumerate(words)]


# -- what is measured ----------------------------------------------------------------------------------------------------


def _stream(job: Job, places: Places, admin: AmqpClient) -> float:
    case = job.case
    (begun, confirmed, _), (_, received, _) = run_sides(
        lambda barrier: _publish(job, places, barrier), lambda barrier: _consume(job, places, barrier)
    )
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while left := sum(_depth(admin, queue) for queue in places.queues):
        if time.monotonic() > deadline:
            raise LoadError(f"{left:,} messages are left in the queues")
        time.sleep(0.05)
    ended = max(confirmed, received) if case.durable else received
    return job.messages * case.queues / (ended - begun)


def _fill(job: Job, places: Places) -> float:
    ((begun, confirmed, _),) = run_sides(lambda barrier: _publish(job, places, barrier))
    # Not measured: that all of it is there, once and in order.
    run_sides(lambda barrier: _consume(job, places, barrier))
    return job.messages / (confirmed - begun)


def _request_reply(job: Job, places: Places) -> list[float]:
    _, (_, _, latencies_ms) = run_sides(
        lambda barrier: _reply(job, places, barrier), lambda barrier: _request(job, places, barrier)
    )
    measured = latencies_ms[int(len(latencies_ms) * LATENCY_WARM_UP_FRACTION) :]
    return [percentile(measured, 0.50), percentile(measured, 0.99)]


def _depth(admin: AmqpClient, queue: str) -> int:
    passive = m.QueueDeclare(0, queue, True, False, False, False, False, {})
    return admin.call(passive, m.QueueDeclareOk).message_count


# -- the sides -----------------------------------------------------------------------------------------------------------


def _publish(job: Job, places: Places, barrier: Barrier) -> tuple[float, float, list[float]]:
    durable = job.case.durable
    frames = memoryview(publications(places.exchange, places.keys, job.size_bytes, durable, job.messages))
    with AmqpClient(parse_url(job.address)) as client:
        if durable:
            client.call(m.ConfirmSelect(False), m.ConfirmSelectOk)
        wire = client.take_over()
        barrier.wait(START_TIMEOUT_S)
        begun = time.monotonic()
        if durable:
            _send_confirmed(wire, frames, job.messages)
        else:
            wire.sendall(frames)
        return begun, time.monotonic(), []


def _send_confirmed(wire: socket, frames: memoryview, count: int) -> None:
    """Send everything with at most CONFIRM_WINDOW messages unconfirmed, and wait for the last confirm."""
    length = len(frames) // count
    confirms, sent_bytes = Confirms(), 0
    deadline = time.monotonic() + MEASURE_TIMEOUT_S
    wire.setblocking(False)
    with selectors.DefaultSelector() as selector:
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        selector.register(wire, events)
        while confirms.confirmed < count:
            allowed_bytes = min(count, confirms.confirmed + CONFIRM_WINDOW) * length
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sent_bytes < allowed_bytes else 0)
            if wanted != events:
                events = wanted
                selector.modify(wire, events)
            ready = selector.select(1.0)
            if not ready and time.monotonic() > deadline:
                raise LoadError(f"only {confirms.confirmed:,} of {count:,} messages were confirmed")
            for _, mask in ready:
                if mask & selectors.EVENT_READ:
                    data = wire.recv(READ_BYTES)
                    if not data:
                        raise LoadError("the broker closed the publisher's connection")
                    confirms.feed(data)
                if mask & selectors.EVENT_WRITE:
                    sent_bytes += wire.send(frames[sent_bytes : min(allowed_bytes, sent_bytes + PIECE_BYTES)])
    wire.setblocking(True)


class _Intake:
    """What one consumer has received, and how it acknowledges."""

    def __init__(self, job: Job, places: Places, wire: socket) -> None:
        self.wire = wire
        self.count = job.messages
        self.taken = 0
        self.deliveries = Deliveries(places.exchange, places.keys[0], job.size_bytes, job.case.durable)
        self.room = memoryview(bytearray(self.count * self.deliveries.length_bytes))
        self._filled_bytes = 0
        self._kind = job.kind
        self._acks = memoryview(acknowledgements(self.count) if job.kind == ACK_EACH else b"")
        self._acked = 0

    def take(self) -> bool:
        """Read once; true when everything has come and is acknowledged."""
        until = min(len(self.room), self._filled_bytes + READ_BYTES)
        received = self.wire.recv_into(self.room[self._filled_bytes : until])
        if not received:
            raise LoadError("the broker closed the consumer's connection")
        self._filled_bytes += received
        self.taken = self._filled_bytes // self.deliveries.length_bytes
        if self._kind == ACK_EACH and self.taken > self._acked:
            self.wire.sendall(self._acks[self._acked * ACK_BYTES : self.taken * ACK_BYTES])
            self._acked = self.taken
        elif self._kind == ACK_MULTIPLE and (self.taken - self._acked >= ACK_EVERY or self.taken == self.count):
            self._acked = self.taken if self.taken == self.count else self.taken - self.taken % ACK_EVERY
            self.wire.sendall(acknowledgement_up_to(self._acked))
        return self._filled_bytes == len(self.room)


def _consume(job: Job, places: Places, barrier: Barrier) -> tuple[float, float, list[float]]:
    """One connection per queue, all served here."""
    clients = [AmqpClient(parse_url(job.address)) for _ in places.queues]
    manual = job.kind in {ACK_EACH, ACK_MULTIPLE}
    try:
        intakes = []
        for client, queue in zip(clients, places.queues, strict=True):
            if manual:
                client.call(m.BasicQos(0, PREFETCH, False), m.BasicQosOk)
            # Without an answer: it could not be told from the deliveries that follow it at once in a filled queue.
            client.send(m.BasicConsume(0, queue, CONSUMER_TAG, False, not manual, False, True, {}))
            intakes.append(_Intake(job, places, client.take_over()))
        barrier.wait(START_TIMEOUT_S)
        begun = time.monotonic()
        _take_all(intakes)
        ended = time.monotonic()
        for intake in intakes:
            intake.deliveries.check(intake.room, intake.count)
        return begun, ended, []
    finally:
        for client in clients:
            client.close()


def _take_all(intakes: Sequence[_Intake]) -> None:
    deadline = time.monotonic() + MEASURE_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for intake in intakes:
            selector.register(intake.wire, selectors.EVENT_READ, intake)
        while selector.get_map():
            for key, _ in selector.select(1.0):
                ready: _Intake = key.data
                if ready.take():
                    selector.unregister(ready.wire)
            if time.monotonic() > deadline:
                taken = sum(intake.taken for intake in intakes)
                raise LoadError(f"only {taken:,} of {sum(intake.count for intake in intakes):,} messages arrived")


def _request(job: Job, places: Places, barrier: Barrier) -> tuple[float, float, list[float]]:
    requests, replies = places.queues
    frames = memoryview(publications("", [requests], job.size_bytes, False, job.messages))
    length = len(frames) // job.messages
    latencies_ms: list[float] = []
    with AmqpClient(parse_url(job.address)) as client:
        wire, answer = _listen(client, replies, job)
        barrier.wait(START_TIMEOUT_S)
        begun = time.monotonic()
        for number in range(job.messages):
            asked_ns = time.perf_counter_ns()
            wire.sendall(frames[number * length : (number + 1) * length])
            answer.next()
            latencies_ms.append((time.perf_counter_ns() - asked_ns) / 1e6)
            if answer.number() != number:
                raise LoadError(f"request {number} was answered with {answer.number()}")
        return begun, time.monotonic(), latencies_ms


def _reply(job: Job, places: Places, barrier: Barrier) -> tuple[float, float, list[float]]:
    requests, replies = places.queues
    frames = memoryview(publications("", [replies], job.size_bytes, False, job.messages))
    length = len(frames) // job.messages
    with AmqpClient(parse_url(job.address)) as client:
        wire, request = _listen(client, requests, job)
        barrier.wait(START_TIMEOUT_S)
        begun = time.monotonic()
        for _ in range(job.messages):
            request.next()
            number = request.number()
            wire.sendall(frames[number * length : (number + 1) * length])
        return begun, time.monotonic(), []


class _One:
    """Deliveries received one at a time."""

    def __init__(self, wire: socket, deliveries: Deliveries) -> None:
        self._wire = wire
        self._body_at = deliveries.body_at
        self._room = memoryview(bytearray(deliveries.length_bytes))

    def next(self) -> None:
        filled = 0
        while filled < len(self._room):
            received = self._wire.recv_into(self._room[filled:])
            if not received:
                raise LoadError("the broker closed the connection")
            filled += received

    def number(self) -> int:
        return int.from_bytes(self._room[self._body_at : self._body_at + 8], "big")


def _listen(client: AmqpClient, queue: str, job: Job) -> tuple[socket, _One]:
    client.call(m.BasicConsume(0, queue, CONSUMER_TAG, False, True, False, False, {}), m.BasicConsumeOk)
    wire = client.take_over()
    wire.settimeout(MEASURE_TIMEOUT_S)
    return wire, _One(wire, Deliveries("", queue, job.size_bytes, persistent=False))


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    try:
        figures = run(job)
    except (LoadError, ClientError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
