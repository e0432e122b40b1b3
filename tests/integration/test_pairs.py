"""What one protocol put, every other one gets: all pairs, in one table.

There is one name, `pairs`: the Kafka topic, the AMQP, STOMP and SQS queue, the MQTT topic that is written to it. A door puts a
message there, or opens a way to get messages from there. What a queue's getter takes off the queue it acknowledges, so it may see
what was put for others before: it takes messages until the wanted one comes.

A new protocol is a class here and a row in PUTTING or GETTING.
"""

from __future__ import annotations

import queue as queues
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any

import boto3
import paho.mqtt.client as paho
import pika
import pytest
import stomp as stomp_py
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.kafka import sharing
from tests.integration.server import ServerProcess
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

NAME = "pairs"
GROUP = "pairs-workers"
SETTINGS = {"mqtt_topic": NAME, "stomp_port": "0"}
QUIET = {"log_level": 0}
CREDENTIALS = {"aws_access_key_id": "anything", "aws_secret_access_key": "goes", "region_name": "eu-west-1"}
POLL_SECONDS = 0.2

Get = Callable[[], bytes | None]  # the next message, None while there is none
Put = Callable[[ServerProcess, bytes], None]
Getting = Callable[[ServerProcess], AbstractContextManager[Get]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A broker with every listener, and the queue."""
    found = ServerProcess(tmp_path_factory.mktemp("pairs"), SETTINGS).start()
    try:
        with amqp_channel(found) as channel:
            channel.queue_declare(NAME, durable=True)
        put_by_mqtt(
            found, b"first"
        )  # a topic that others made is followed from the first publication, or a while later
        sharing.configure(
            AdminClient({"bootstrap.servers": found.bootstrap, **QUIET}), GROUP, auto_offset_reset="earliest"
        )
        yield found
        assert found.stop() == 0
        assert "Traceback" not in found.log.read_text(errors="replace"), found.log_tail()
    finally:
        found.close()


@contextmanager
def amqp_channel(server: ServerProcess) -> Iterator[Any]:
    with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port_of("amqp")))) as connection:
        yield connection.channel()


def sqs(server: ServerProcess) -> tuple[Any, str]:
    client = boto3.client("sqs", endpoint_url=f"http://127.0.0.1:{server.port_of('aws')}", **CREDENTIALS)
    return client, client.get_queue_url(QueueName=NAME)["QueueUrl"]


# -- putting -----------------------------------------------------------------------------------------------------------


def put_by_kafka(server: ServerProcess, body: bytes) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, **QUIET})
    producer.produce(NAME, body)
    assert producer.flush(DEADLINE_SECONDS) == 0


def put_by_amqp(server: ServerProcess, body: bytes) -> None:
    with amqp_channel(server) as channel:
        channel.confirm_delivery()
        channel.basic_publish("", NAME, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def put_by_mqtt(server: ServerProcess, body: bytes) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", server.port_of("mqtt"))
    client.loop_start()
    try:
        client.publish(NAME, body, qos=1).wait_for_publish(DEADLINE_SECONDS)
    finally:
        client.disconnect()
        client.loop_stop()


def put_by_stomp(server: ServerProcess, body: bytes) -> None:
    with stomp_connection(server) as (connection, heard):
        connection.send(f"/amq/queue/{NAME}", body, receipt="stored")
        assert heard.receipts.get(timeout=DEADLINE_SECONDS) == "stored"


def put_by_sqs(server: ServerProcess, body: bytes) -> None:
    client, url = sqs(server)
    client.send_message(QueueUrl=url, MessageBody=body.decode())


PUTTING: dict[str, Put] = {
    "kafka": put_by_kafka,
    "amqp": put_by_amqp,
    "mqtt": put_by_mqtt,
    "stomp": put_by_stomp,
    "sqs": put_by_sqs,
}


# -- getting -----------------------------------------------------------------------------------------------------------


@contextmanager
def get_by_kafka(server: ServerProcess) -> Iterator[Get]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reader", **QUIET})
    consumer.assign([TopicPartition(NAME, 0, 0)])

    def take() -> bytes | None:
        message = consumer.poll(POLL_SECONDS)
        return None if message is None or message.error() else message.value()

    with closing(consumer):
        yield take


@contextmanager
def get_by_share_group(server: ServerProcess) -> Iterator[Get]:
    consumer = sharing.joined(server.bootstrap, GROUP, [NAME])
    waiting: list[bytes] = []

    def take() -> bytes | None:
        if not waiting:
            waiting.extend(message.value() for message in sharing.poll(consumer, POLL_SECONDS))
        return waiting.pop(0) if waiting else None

    with closing(consumer):
        yield take


@contextmanager
def get_by_amqp(server: ServerProcess) -> Iterator[Get]:
    with amqp_channel(server) as channel:

        def take() -> bytes | None:
            _, _, body = channel.basic_get(NAME, auto_ack=True)
            return None if body is None else bytes(body)

        yield take


@contextmanager
def get_by_mqtt(server: ServerProcess) -> Iterator[Get]:
    found: queues.Queue[bytes] = queues.Queue()
    subscribed: queues.Queue[int] = queues.Queue()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_message = lambda client, data, message: found.put(message.payload)
    client.on_subscribe = lambda client, data, mid, codes, properties: subscribed.put(mid)
    client.connect("127.0.0.1", server.port_of("mqtt"))
    client.loop_start()
    client.subscribe(NAME, qos=1)
    subscribed.get(timeout=DEADLINE_SECONDS)
    try:
        yield lambda: next_of(found)
    finally:
        client.disconnect()
        client.loop_stop()


class Heard(stomp_py.ConnectionListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.messages: queues.Queue[bytes] = queues.Queue()
        self.receipts: queues.Queue[str] = queues.Queue()

    def on_message(self, frame: Any) -> None:
        body = frame.body
        self.messages.put(body.encode() if isinstance(body, str) else body)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])


@contextmanager
def stomp_connection(server: ServerProcess) -> Iterator[tuple[Any, Heard]]:
    connection = stomp_py.StompConnection12([("127.0.0.1", server.port_of("stomp"))], vhost="/")
    heard = Heard()
    connection.set_listener("", heard)
    connection.connect("guest", "guest", wait=True)
    try:
        yield connection, heard
    finally:
        connection.disconnect()


@contextmanager
def get_by_stomp(server: ServerProcess) -> Iterator[Get]:
    with stomp_connection(server) as (connection, heard):
        connection.subscribe(f"/amq/queue/{NAME}", id="1", ack="auto")
        yield lambda: next_of(heard.messages)


@contextmanager
def get_by_sqs(server: ServerProcess) -> Iterator[Get]:
    client, url = sqs(server)

    def take() -> bytes | None:
        for message in client.receive_message(QueueUrl=url, WaitTimeSeconds=0).get("Messages", ()):
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            return str(message["Body"]).encode()
        return None

    yield take


def next_of(found: queues.Queue[bytes]) -> bytes | None:
    try:
        return found.get(timeout=POLL_SECONDS)
    except queues.Empty:
        return None


GETTING: dict[str, Getting] = {
    "kafka": get_by_kafka,
    "share": get_by_share_group,
    "amqp": get_by_amqp,
    "mqtt": get_by_mqtt,
    "stomp": get_by_stomp,
    "sqs": get_by_sqs,
}


@pytest.mark.parametrize("getter", GETTING)
def test_what_one_protocol_put_every_other_gets(getter: str, server: ServerProcess) -> None:
    """One way of getting, open while each protocol puts: a subscriber has to be there before."""
    with GETTING[getter](server) as take:
        for putter, put in PUTTING.items():
            body = f"{putter} to {getter}".encode()
            put(server, body)
            wait_until(partial(_is_next, take, body), what=f"what {putter} put, got by {getter}")


def _is_next(take: Get, body: bytes) -> bool:
    return take() == body
