"""Many messages with little client: frames made once and sent again and again, deliveries counted by their length.

A message's body carries its number within a block of `BLOCK` messages; a block of frames is made before anything is sent
and serves for as many messages as a test wants. Deliveries of one queue have one length, so that a reader divides, and
looks at the numbers of what it has read.
"""

from __future__ import annotations

import selectors
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.amqp.brokers import AmqpBroker, url
from trunkline.bench.amqp_frames import CONSUMER_TAG, Confirms, Deliveries, acknowledgement_up_to, publications
from trunkline.client.amqp import AmqpClient, parse_url
from trunkline.protocols.amqp import methods as m

BLOCK = 50_000
BODY_BYTES = 100
UNCONFIRMED = 10_000
STALL_SECONDS = 60.0
PIECE_BYTES = 1 << 18


def open_client(broker: AmqpBroker) -> AmqpClient:
    return AmqpClient(parse_url(url(broker)), timeout_ms=int(STALL_SECONDS * 1000))


def declare(client: AmqpClient, queue: str, durable: bool = True) -> None:
    client.call(m.QueueDeclare(0, queue, False, durable, False, False, False, {}), m.QueueDeclareOk)


def depth(client: AmqpClient, queue: str) -> int:
    passive = m.QueueDeclare(0, queue, True, False, False, False, False, {})
    return client.call(passive, m.QueueDeclareOk).message_count


def flood(broker: AmqpBroker, queue: str, count: int) -> None:
    """Publish `count` persistent messages, a whole number of blocks or less than one, and wait for every confirm."""
    block = min(count, BLOCK)
    assert count % block == 0, "whole blocks only"
    frames = memoryview(publications("", [queue], BODY_BYTES, True, block))
    length = len(frames) // block
    with open_client(broker) as client:
        client.confirm_publications()
        wire = client.take_over()
        wire.setblocking(False)
        confirms, sent_bytes, heard = Confirms(), 0, time.monotonic()
        with selectors.DefaultSelector() as selector:
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(wire, events)
            while confirms.confirmed < count:
                allowed = min(count, confirms.confirmed + UNCONFIRMED) * length
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sent_bytes < allowed else 0)
                if wanted != events:
                    events = wanted
                    selector.modify(wire, events)
                for _, mask in selector.select(1.0):
                    heard = time.monotonic()
                    if mask & selectors.EVENT_READ:
                        data = wire.recv(1 << 20)
                        assert data, "the broker closed the publisher's connection"
                        confirms.feed(data)
                    if mask & selectors.EVENT_WRITE:
                        start = sent_bytes % len(frames)
                        piece = min(PIECE_BYTES, allowed - sent_bytes)
                        sent_bytes += wire.send(frames[start : start + piece])
                assert time.monotonic() - heard < STALL_SECONDS, f"{confirms.confirmed:,} of {count:,} confirmed"
        wire.setblocking(True)


class Taker:
    """A consumer that counts what comes, checks the numbers, and acknowledges all of it or nothing."""

    def __init__(self, broker: AmqpBroker, queue: str, *, first: int = 0, prefetch: int = 0) -> None:
        self.taken = 0
        self._first = first
        self._deliveries = Deliveries("", queue, BODY_BYTES, persistent=True)
        self._rest = b""
        self._client = open_client(broker)
        if prefetch:
            self._client.call(m.BasicQos(0, prefetch, False), m.BasicQosOk)
        self._client.send(m.BasicConsume(0, queue, CONSUMER_TAG, False, False, False, True, {}))
        self._wire = self._client.take_over()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Gone without a word, with whatever it holds."""
        self._wire.close()

    def take(self, count: int, *, acknowledge: bool) -> None:
        """Until `count` messages have come in all. Numbers go on from the first, in order, none missing."""
        length, at = self._deliveries.length_bytes, self._deliveries.body_at
        while self.taken < count:
            data = self._wire.recv(1 << 20)
            assert data, "the broker closed the consumer's connection"
            data = self._rest + data
            whole = len(data) // length
            for number in range(whole):
                start = number * length + at
                expected = (self._first + self.taken + number) % BLOCK
                assert int.from_bytes(data[start : start + 8], "big") == expected, f"message {self.taken + number}"
            self._rest = data[whole * length :]
            self.taken += whole
            if whole and acknowledge:
                self._wire.sendall(acknowledgement_up_to(self.taken))

    def quiet(self) -> None:
        """Nothing more comes; a heartbeat would not, since none was negotiated."""
        self._wire.settimeout(1.0)
        try:
            extra = self._wire.recv(100)
        except TimeoutError:
            extra = b""
        self._wire.settimeout(STALL_SECONDS)
        assert not extra, "more than the limit was delivered"


def peak_bytes(pid: int) -> int:
    """The most physical memory that the process has held so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has exited")
