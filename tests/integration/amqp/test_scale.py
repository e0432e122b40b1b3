"""Long queues, many queues, bindings and connections: memory stays bounded, and nothing is lost or out of order.

A fraction of the promised numbers by default; TRUNKLINE_SCALE=full for all of them, with the figures printed (`-s`).
Memory has bounds that the documentation names; how long things take is printed, not asserted.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

import pytest

from tests.integration.amqp.brokers import RestartableAmqpBroker, Trunkline
from tests.integration.amqp.flood import BLOCK, Taker, declare, depth, flood, open_client, peak_bytes
from trunkline.bench.probe import resident_bytes
from trunkline.client.amqp import AmqpClient
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import Parser, Properties, encode_method, encode_publish
from trunkline.protocols.amqp.frames import Content, MethodFrame

pytestmark = [
    pytest.mark.ours_only("weighs our own process"),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

FULL = os.environ.get("TRUNKLINE_SCALE") == "full"
MESSAGES = 10_000_000 if FULL else 200_000
UNACKNOWLEDGED = 200_000  # the limit per queue and per channel
QUEUES = 10_000 if FULL else 500
BINDINGS = 10_000 if FULL else 2_000
CONNECTIONS = 1_000 if FULL else 100
CHANNELS = 10

MEGABYTE = 1 << 20
MAX_QUEUE_BYTES = 128 * MEGABYTE  # of the whole process, however long its queue
MAX_UNACKNOWLEDGED_BYTES = 256 * MEGABYTE
MAX_BYTES_PER_QUEUE = 20_000
MAX_BYTES_PER_BINDING = 2_000
MAX_BYTES_PER_CONNECTION = 40_000  # with its channels


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def lap(self, what: str, count: int = 0) -> None:
        seconds = time.monotonic() - self._began
        rate = f", {count / seconds:,.0f}/s" if count else ""
        print(f"{what}: {seconds:.2f} s{rate}")
        self._began = time.monotonic()


def ours(broker: RestartableAmqpBroker) -> Trunkline:
    assert isinstance(broker, Trunkline)
    return broker


@pytest.fixture
def broker(fresh_amqp: RestartableAmqpBroker) -> Trunkline:
    return ours(fresh_amqp)


def told(what: str, size_bytes: float) -> None:
    print(f"{what}: {size_bytes / MEGABYTE:,.1f} MiB")


def test_a_long_queue_is_filled_restarted_and_drained_in_bounded_memory(broker: Trunkline) -> None:
    with open_client(broker) as admin:
        declare(admin, "long")
    told("memory at rest", resident_bytes(broker.server.pid))
    watch = Stopwatch()
    flood(broker, "long", MESSAGES)
    watch.lap(f"{MESSAGES:,} messages published and confirmed", MESSAGES)
    filled = peak_bytes(broker.server.pid)
    told("peak while it was filled", filled)
    for stop, how in ((broker.kill, "a kill"), (broker.stop, "a clean stop")):
        stop()
        watch = Stopwatch()
        broker.start()
        watch.lap(f"start after {how}")
        with open_client(broker) as admin:
            assert depth(admin, "long") == MESSAGES
        watch = Stopwatch()
        with Taker(broker, "long", prefetch=1) as taker:
            taker.take(1, acknowledge=False)
        watch.lap("first delivery")
        told("memory after the start", resident_bytes(broker.server.pid))
    watch = Stopwatch()
    with Taker(broker, "long", prefetch=5_000) as taker:
        taker.take(1, acknowledge=False)
        flood_while = BLOCK if FULL else 0
        if flood_while:  # publishing stays possible behind a long backlog
            flood(broker, "long", flood_while)
        watch = Stopwatch()
        taker.take(MESSAGES + flood_while, acknowledge=True)
        watch.lap(f"{MESSAGES:,} messages delivered and acknowledged", MESSAGES)
        drained = peak_bytes(broker.server.pid)
        told("peak while it was drained", drained)
        with open_client(broker) as admin:
            assert depth(admin, "long") == 0
    assert max(filled, drained) < MAX_QUEUE_BYTES
    broker.kill()
    broker.start()
    with open_client(broker) as admin:
        assert depth(admin, "long") == 0, "what was acknowledged does not come again"


def test_a_consumer_that_never_acknowledges_stops_at_the_limit_and_gives_everything_back(broker: Trunkline) -> None:
    more = 2 * BLOCK
    with open_client(broker) as admin:
        declare(admin, "held")
        flood(broker, "held", UNACKNOWLEDGED + more)
        with Taker(broker, "held") as taker:
            taker.take(UNACKNOWLEDGED, acknowledge=False)
            taker.quiet()
            flood(broker, "held", BLOCK)  # publishers do not mind
            assert depth(admin, "held") == more + BLOCK
            peak = peak_bytes(broker.server.pid)
            told(f"peak with {UNACKNOWLEDGED:,} unacknowledged messages", peak)
        # It went without a word: another gets all of it, in order, and acknowledges.
        with Taker(broker, "held", prefetch=5_000) as taker:
            taker.take(UNACKNOWLEDGED + more + BLOCK, acknowledge=True)
        peak = peak_bytes(broker.server.pid)
        told("peak in all", peak)
        assert peak < MAX_UNACKNOWLEDGED_BYTES


def test_many_queues_cost_little_and_survive_a_restart(broker: Trunkline, many_files: None) -> None:
    names = [f"q{number:05}" for number in range(QUEUES)]
    sample = names[:: QUEUES // 100]
    with open_client(broker) as admin:
        declare(admin, "first")
        before = resident_bytes(broker.server.pid)
        watch = Stopwatch()
        for name in names:
            declare(admin, name)
        watch.lap(f"{QUEUES:,} durable queues declared", QUEUES)
        grown = (resident_bytes(broker.server.pid) - before) / QUEUES
        print(f"{grown:,.0f} bytes per queue")
        admin.confirm_publications()
        for name in sample:
            admin.publish("", name, name.encode(), Properties(delivery_mode=2))
    for stop, how in ((broker.kill, "a kill"), (broker.stop, "a clean stop")):
        stop()
        watch = Stopwatch()
        broker.start()
        watch.lap(f"start with {QUEUES:,} queues after {how}")
        told("memory after the start", resident_bytes(broker.server.pid))
        with open_client(broker) as admin:
            assert sum(depth(admin, name) for name in names) == len(sample)
            got = [admin.get(name, no_ack=False) for name in sample]
            assert [message.body.decode() for message in got if message is not None] == sample
    assert grown < MAX_BYTES_PER_QUEUE


def test_many_bindings_cost_little_and_survive_a_restart(broker: Trunkline) -> None:
    queues = [f"q{number:02}" for number in range(50)]
    with open_client(broker) as admin:
        for name in queues:
            declare(admin, name)
        exchange = m.ExchangeDeclare(0, "sites", "topic", False, True, False, False, False, {})
        admin.call(exchange, m.ExchangeDeclareOk)
        before = resident_bytes(broker.server.pid)
        watch = Stopwatch()
        for number in range(BINDINGS):
            bind = m.QueueBind(
                0, queues[number % 50], "sites", f"site.{number}.{'*' if number % 2 else '#'}", False, {}
            )
            admin.call(bind, m.QueueBindOk)
        watch.lap(f"{BINDINGS:,} bindings", BINDINGS)
        grown = (resident_bytes(broker.server.pid) - before) / BINDINGS
        print(f"{grown:,.0f} bytes per binding")
        assert grown < MAX_BYTES_PER_BINDING
    for round_number in range(2):
        with open_client(broker) as admin:
            admin.confirm_publications()
            watch = Stopwatch()
            for number in range(round_number, BINDINGS, BINDINGS // 200):
                admin.publish("sites", f"site.{number}.heat", b"%d" % number, Properties())
                message = admin.get(queues[number % 50], no_ack=True)
                assert message is not None
                assert message.body == b"%d" % number
            watch.lap("200 messages through the exchange", 200)
            assert sum(depth(admin, name) for name in queues) == 0, "each went to one queue"
        broker.stop()
        watch = Stopwatch()
        broker.start()
        watch.lap(f"start with {BINDINGS:,} bindings")


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class ManyChannels:
    """A connection with a consumer on each of its channels."""

    def __init__(self, broker: Trunkline, queue: str) -> None:
        self._client: AmqpClient = open_client(broker)
        self._wire = self._client.take_over()
        self._parser = Parser(expect_header=False)
        opens = [encode_method(number, m.ChannelOpen()) for number in range(2, CHANNELS + 1)]
        consumes = [
            encode_method(number, m.BasicConsume(0, queue, f"c{number}", False, True, False, False, {}))
            for number in range(1, CHANNELS + 1)
        ]
        self._wire.sendall(b"".join(opens + consumes))
        answered = 0
        while answered < CHANNELS:
            events = self._parser.feed(self._wire.recv(1 << 16))
            answered += sum(
                isinstance(event, MethodFrame) and isinstance(event.method, m.BasicConsumeOk) for event in events
            )

    def take(self) -> list[tuple[int, bytes]]:
        """One message on each channel: the channel and the body."""
        found: list[tuple[int, bytes]] = []
        while len(found) < CHANNELS:
            data = self._wire.recv(1 << 16)
            assert data, "the broker closed the connection"
            found += [(event.channel, event.body) for event in self._parser.feed(data) if isinstance(event, Content)]
        return found

    def close(self) -> None:
        self._wire.close()


def test_many_connections_with_many_channels_cost_little(broker: Trunkline, many_files: None) -> None:
    with open_client(broker) as admin:
        declare(admin, "shared", durable=False)
        held = [ManyChannels(broker, "shared")]
        before = resident_bytes(broker.server.pid)
        try:
            watch = Stopwatch()
            held += [ManyChannels(broker, "shared") for _ in range(CONNECTIONS)]
            watch.lap(f"{CONNECTIONS:,} connections with {CHANNELS} channels each", CONNECTIONS)
            grown = (resident_bytes(broker.server.pid) - before) / CONNECTIONS
            print(f"{grown:,.0f} bytes per connection with {CHANNELS} channels and consumers")
            count = len(held) * CHANNELS
            wire = admin.take_over()
            watch = Stopwatch()
            wire.sendall(b"".join(encode_publish(1, "", "shared", b"\0\0", b"%d" % n, 131_072) for n in range(count)))
            bodies = set()
            for connection in held:
                got = connection.take()
                assert {channel for channel, _ in got} == set(range(1, CHANNELS + 1)), "each consumer has its turn"
                bodies |= {body for _, body in got}
            watch.lap(f"{count:,} messages to {count:,} consumers", count)
            assert len(bodies) == count
            assert grown < MAX_BYTES_PER_CONNECTION
        finally:
            for connection in held:
                connection.close()
