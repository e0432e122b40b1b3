"""The STOMP load: one measurement of one case against one broker, in processes of its own.

`measure` starts `python -m trunkline.bench.stomp_load` with a Job as JSON and reads the rate back. That process forks a publisher and a
consumer, each connected before a barrier lets both start. Frames are made before, and what came is checked after.

What the clock covers:

- transient: from the first byte sent until the consumer has the last message: no receipts, acknowledged automatically.
- persistent: the same with `persistent:true` and a receipt for each message, of which RECEIPT_WINDOW may be awaited, and a prefetch of
  PREFETCH; the clock also waits for the last receipt. Each message is acknowledged, or with `ack-multiple` every ACK_EVERY.
- fill: from the first byte sent until the last receipt, with nobody consuming; then the queue is read and checked.

Both brokers number the messages of a connection and name them `T_<id>@@<session>@@<number>`, so that acknowledgements can be made
without looking into each message. Frames are counted by their NUL: bodies have none.
"""

from __future__ import annotations

import json
import secrets
import selectors
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from socket import socket

from trunkline.bench.librdkafka import LoadError
from trunkline.bench.sides import run_sides
from trunkline.bench.stomp_cases import (
    ACK_EVERY,
    FILL,
    PERSISTENT,
    PERSISTENT_MULTIPLE,
    PREFETCH,
    RECEIPT_WINDOW,
    StompCase,
)
from trunkline.client.errors import ClientError
from trunkline.client.stomp import StompClient, parse_url
from trunkline.protocols.stomp.codec import Frame, Parser

MEASURE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
READ_BYTES = 1 << 20
PIECE_BYTES = 1 << 18

Times = tuple[float, float, list[float]]


@dataclass(frozen=True, slots=True)
class Job:
    kind: str
    address: str
    size_bytes: int
    messages: int

    @property
    def case(self) -> StompCase:
        return StompCase(self.kind, self.size_bytes)


def measure(job: Job) -> list[float]:
    """Run the job in its own processes."""
    result = subprocess.run(
        [sys.executable, "-m", "trunkline.bench.stomp_load", json.dumps(asdict(job))],
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
    queue = f"/queue/bench-{secrets.token_hex(4)}"
    if job.kind == FILL:
        ((begun, told, _),) = run_sides(lambda barrier: _publish(job, queue, barrier))
        run_sides(lambda barrier: _consume(job, queue, barrier))
        return [job.messages / (told - begun)]
    (begun, told, _), (_, received, _) = run_sides(
        lambda barrier: _publish(job, queue, barrier), lambda barrier: _consume(job, queue, barrier)
    )
    return [job.messages / (max(told, received) - begun)]


def _body(number: int, size_bytes: int) -> bytes:
    return b"%012d" % number + b"x" * (size_bytes - 12)


def _publish(job: Job, queue: str, barrier: Barrier) -> Times:
    persistent = job.case.persistent
    # All of one length, so that what may be sent is known in bytes.
    frames = memoryview(b"".join(_send(queue, number, job, persistent) for number in range(job.messages)))
    with StompClient(parse_url(job.address)) as client:
        # The queue is there before the clock runs.
        client.send(queue, _body(0, 12), {"expiration": "0"})
        wire = client.take_over()
        barrier.wait(START_TIMEOUT_S)
        begun = time.monotonic()
        if persistent:
            _send_and_wait(wire, frames, job.messages)
        else:
            wire.settimeout(MEASURE_TIMEOUT_S)
            wire.sendall(frames)
        return begun, time.monotonic(), []


def _send(queue: str, number: int, job: Job, persistent: bool) -> bytes:
    own = f"persistent:true\nreceipt:r{number:08d}\n" if persistent else "persistent:false\n"
    head = f"SEND\ndestination:{queue}\n{own}content-length:{job.size_bytes}\n\n"
    return head.encode() + _body(number, job.size_bytes) + b"\0"


def _send_and_wait(wire: socket, frames: memoryview, count: int) -> None:
    """Send everything with at most RECEIPT_WINDOW receipts awaited, and wait for the last."""
    length = len(frames) // count
    told = sent_bytes = 0
    deadline = time.monotonic() + MEASURE_TIMEOUT_S
    wire.setblocking(False)
    with selectors.DefaultSelector() as selector:
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        selector.register(wire, events)
        while told < count:
            allowed_bytes = min(count, told + RECEIPT_WINDOW) * length
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sent_bytes < allowed_bytes else 0)
            if wanted != events:
                events = wanted
                selector.modify(wire, events)
            ready = selector.select(1.0)
            if not ready and time.monotonic() > deadline:
                raise LoadError(f"only {told:,} of {count:,} receipts came")
            for _, mask in ready:
                if mask & selectors.EVENT_READ:
                    data = wire.recv(READ_BYTES)
                    if not data or b"ERROR" in data:
                        raise LoadError(f"the broker refuses: {data[:200]!r}")
                    told += data.count(b"\0")
                if mask & selectors.EVENT_WRITE:
                    sent_bytes += wire.send(frames[sent_bytes : min(allowed_bytes, sent_bytes + PIECE_BYTES)])
    wire.setblocking(True)


def _consume(job: Job, queue: str, barrier: Barrier) -> Times:
    modes = {PERSISTENT: "client-individual", PERSISTENT_MULTIPLE: "client"}
    mode = modes.get(job.kind, "auto")
    with StompClient(parse_url(job.address)) as client:
        head = f"SUBSCRIBE\nid:1\ndestination:{queue}\nack:{mode}\nprefetch-count:{PREFETCH}\n\n\0"
        wire = client.take_over()
        barrier.wait(START_TIMEOUT_S)
        begun = time.monotonic()
        wire.sendall(head.encode())
        pieces = _take_all(wire, job, f"ACK\nid:T_1@@{client.session}@@")
        ended = time.monotonic()
        _check(pieces, job)
        return begun, ended, []


def _take_all(wire: socket, job: Job, ack: str) -> list[bytes]:
    wire.settimeout(MEASURE_TIMEOUT_S)
    pieces: list[bytes] = []
    taken = acked = 0
    while taken < job.messages:
        data = wire.recv(READ_BYTES)
        if not data:
            raise LoadError(f"the broker closed the consumer's connection after {taken:,} messages")
        pieces.append(data)
        taken += data.count(b"\0")
        if job.kind == PERSISTENT:
            wire.sendall("".join([f"{ack}{number}\n\n\0" for number in range(acked + 1, taken + 1)]).encode())
            acked = taken
        elif job.kind == PERSISTENT_MULTIPLE and (taken - acked >= ACK_EVERY or taken >= job.messages):
            wire.sendall(f"{ack}{taken}\n\n\0".encode())
            acked = taken
    return pieces


def _check(pieces: list[bytes], job: Job) -> None:
    """Not measured: that all came, once and in order."""
    parser = Parser(1_000, 1 << 20, 1 << 28)
    expected = 0
    for piece in pieces:
        for event in parser.feed(piece):
            if not isinstance(event, Frame) or event.command != b"MESSAGE":
                raise LoadError(f"the broker says something else: {piece[:200]!r}")
            if event.body != _body(expected, job.size_bytes):
                raise LoadError(f"message {expected} is {event.body[:20]!r}")
            expected += 1
    if expected != job.messages:
        raise LoadError(f"{expected:,} of {job.messages:,} messages came")


def main() -> None:
    try:
        figures = run(Job(**json.loads(sys.argv[1])))
    except (LoadError, ClientError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
