"""Records made up at random, and records without end, where the broker decodes them: nobody else notices.

They are produced raw to topics that are a queue, that MQTT is mapped to, that are compacted, and that are plain and become a
queue afterwards. Clients of AMQP and MQTT work on the same topics, with one connection each from the beginning to the end,
and must get every good record. `TRUNKLINE_HOSTILE_EXAMPLES` sets how many batches are tried.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import paho.mqtt.client as paho
import pika
import pytest
from hypothesis import HealthCheck, given, settings
from paho.mqtt.enums import CallbackAPIVersion

from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer
from tests.integration.hostile.records import batches
from tests.integration.hostile.test_batches import created
from tests.integration.waiting import wait_until
from tests.undecodable import UNDECODABLE, flood, sealed
from trunkline.log.batch import NewRecord, build_batch

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile")]

EXAMPLES = int(os.environ.get("TRUNKLINE_HOSTILE_EXAMPLES", "60"))
NONE, UNKNOWN_SERVER_ERROR, INVALID_RECORD = 0, -1, 87
MEGABYTE = 1024 * 1024
MQTT_TOPIC = "mqtt"
# What one batch may cost: itself unpacked, a copy, and a portion of its records.
GROWTH_BYTES_MAX = 500 * MEGABYTE


class Reader(Protocol):
    @property
    def alive(self) -> bool: ...
    @property
    def bodies(self) -> set[bytes]: ...


class AmqpReader(threading.Thread):
    """Consumes a queue on one connection, and acknowledges what it gets."""

    def __init__(self, port: int, queue: str, *, declare: bool = False) -> None:
        super().__init__(name=f"reader of {queue}", daemon=True)
        self.bodies: set[bytes] = set()
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
        self._channel = self._connection.channel()
        if declare:
            self._channel.queue_declare(queue, durable=True)
        self._channel.basic_qos(prefetch_count=500)
        self._channel.basic_consume(queue, self._on_message)
        self.start()

    @property
    def alive(self) -> bool:
        return self.is_alive()

    def _on_message(self, channel: object, method: object, properties: object, body: bytes) -> None:
        self.bodies.add(body)
        self._channel.basic_ack(getattr(method, "delivery_tag", 0))

    def run(self) -> None:
        self._channel.start_consuming()

    def stop(self) -> None:
        self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self.join(30)
        self._connection.close()


class MqttReader:
    """Subscribes to everything on one connection."""

    def __init__(self, port: int) -> None:
        self.bodies: set[bytes] = set()
        self.alive = True
        subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda client, data, message: self.bodies.add(bytes(message.payload))
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_disconnect = lambda *_: setattr(self, "alive", False)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("#", qos=1)
        self._client.loop_start()
        assert subscribed.wait(30)
        self._client.publish("good/topic", b"first", qos=1).wait_for_publish(30)  # makes the log topic

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Stage:
    """The topics, and who reads them."""

    def __init__(self, victim: Victim, unique: Callable[[str], str]) -> None:
        self.victim = victim
        self.queue, self.plain = unique("queue"), created(victim, unique("plain"), {"retention.ms": "-1"})
        self.compacted = created(victim, unique("compacted"), {"cleanup.policy": "compact"})
        self.peer = Peer(victim.port)
        self.amqp = AmqpReader(victim.server.port_of("amqp"), self.queue, declare=True)
        self.mqtt = MqttReader(victim.server.port_of("mqtt"))
        self.good: set[bytes] = set()

    def produce(self, batch: bytes) -> None:
        """To each topic. Whether it is taken is not the question."""
        for topic in (self.queue, MQTT_TOPIC, self.compacted, self.plain):
            assert self.peer.produce(topic, batch).error_code != UNKNOWN_SERVER_ERROR

    def expect_good(self) -> None:
        """A good record to each topic, which must arrive."""
        body = b"good %d" % len(self.good)
        self.good.add(body)
        batch = build_batch([NewRecord(b"good/topic", body)])
        for topic in (self.queue, MQTT_TOPIC, self.compacted, self.plain):
            assert self.peer.produce(topic, batch).error_code == NONE
        self.arrives(body, self.amqp)
        self.arrives(body, self.mqtt)

    @staticmethod
    def arrives(body: bytes, reader: Reader) -> None:
        wait_until(lambda: body in reader.bodies or not reader.alive, what=f"{body!r}")
        assert reader.alive, f"the connection of {type(reader).__name__} was lost"

    def open_plain_as_a_queue(self) -> None:
        """What was stored while nobody decoded the topic is passed over; everything good is delivered."""
        late = AmqpReader(self.victim.server.port_of("amqp"), self.plain)
        try:
            wait_until(lambda: self.good <= late.bodies or not late.alive, what="all good records of a topic")
            assert late.alive
        finally:
            late.stop()

    def close(self) -> None:
        self.peer.socket.close()
        self.amqp.stop()
        self.mqtt.stop()


@pytest.fixture
def stage(victim: Victim, unique: Callable[[str], str]) -> Iterator[Stage]:
    made = Stage(victim, unique)
    try:
        made.expect_good()
        yield made
    finally:
        made.close()


@pytest.mark.timeout(120 + EXAMPLES)
def test_random_records_disturb_nobody(stage: Stage) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(batches)
    def hold_out(batch: bytes) -> None:
        stage.produce(batch)
        stage.expect_good()

    hold_out()
    stage.open_plain_as_a_queue()


@pytest.mark.parametrize("form", UNDECODABLE)
def test_records_that_do_not_parse_are_refused_where_they_are_decoded(stage: Stage, form: str) -> None:
    for topic in (stage.queue, MQTT_TOPIC, stage.compacted):
        assert stage.peer.produce(topic, UNDECODABLE[form]).error_code == INVALID_RECORD
    assert stage.peer.produce(stage.plain, UNDECODABLE[form]).error_code == NONE
    stage.expect_good()
    stage.open_plain_as_a_queue()


def test_millions_of_records_in_a_few_kilobytes_are_refused_at_no_cost(stage: Stage, victim: Victim) -> None:
    record = b"\x0c\x00\x00\x00\x01\x01\x00"
    count = 60 * MEGABYTE // len(record)
    batch = sealed(record * count, count, codec="zstd")
    assert len(batch) < 20_000
    before = victim.resident_bytes()
    for topic in (stage.queue, MQTT_TOPIC, stage.compacted, stage.plain):
        assert stage.peer.produce(topic, batch).error_code == INVALID_RECORD
    stage.expect_good()
    assert victim.resident_bytes() - before < 100 * MEGABYTE


def test_as_many_records_as_are_taken_stall_nobody(stage: Stage, victim: Victim) -> None:
    """The canary, which the fixture looks at, goes on while floods of records go to everybody who decodes them."""
    most, more = flood(500_000), flood(20_000)
    before = victim.resident_bytes()
    for topic in (stage.compacted, stage.plain):
        assert stage.peer.produce(topic, most).error_code == NONE
    for topic in (stage.queue, MQTT_TOPIC):
        assert stage.peer.produce(topic, more).error_code == NONE
    late = AmqpReader(victim.server.port_of("amqp"), stage.plain)
    try:
        stage.arrives(b"", late)
        stage.expect_good()
    finally:
        late.stop()
    assert victim.resident_bytes() - before < GROWTH_BYTES_MAX
