"""What a message carries comes back as it was: all properties, every type of header, bodies of every size."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import random
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, get

PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 4,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "3600000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order.created",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "left over",
}
HEADERS: dict[str, Any] = {
    "text": "grüße, 世界",
    "empty": "",
    "true": True,
    "false": False,
    "small": 7,
    "negative": -3,
    "large": 2**40,
    "nothing": None,
    "money": decimal.Decimal("12.34"),
    "when": datetime.datetime(2024, 2, 29, 12, 30, 15, tzinfo=datetime.UTC),
    "table": {"inner": {"deep": [1, "two", {"three": 3}]}},
    "list": ["a", 1, None, [True, False], {}],
    "bytes": b"\x00\xff",
}


def test_every_property_comes_back(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.basic_publish("", name, b"{}", pika.BasicProperties(**PROPERTIES, headers=HEADERS))
    properties = get(channel, name).properties
    assert {field: getattr(properties, field) for field in PROPERTIES} == PROPERTIES
    assert properties.headers == HEADERS


@pytest.mark.parametrize("field", sorted(PROPERTIES))
def test_a_property_comes_back_alone(channel: Any, queue: QueueFactory, field: str) -> None:
    name = queue()
    channel.basic_publish("", name, b"", pika.BasicProperties(**{field: PROPERTIES[field]}))
    properties = get(channel, name).properties
    set_fields = {each: getattr(properties, each) for each in PROPERTIES if getattr(properties, each) is not None}
    assert set_fields == {field: PROPERTIES[field]}
    assert properties.headers is None


def test_no_properties_stay_none(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.basic_publish("", name, b"bare")
    message = get(channel, name)
    assert message.properties == pika.BasicProperties()
    assert message.method.redelivered is False


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 4088, 131_064, 131_065, 1_000_000])
def test_bodies_of_any_size_come_back(channel: Any, queue: QueueFactory, size_bytes: int, persistent: bool) -> None:
    name, body = queue(), random.Random(size_bytes).randbytes(size_bytes)
    channel.confirm_delivery()
    channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2 if persistent else 1))
    assert get(channel, name).body == body


def test_ten_megabytes_are_pushed_whole(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, body = queue(), random.Random(1).randbytes(10_000_000)
    publisher, consumer = connect().channel(), connect().channel()
    inbox = Inbox(consumer, name)
    publisher.confirm_delivery()
    for _ in range(2):
        publisher.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
    digests = {hashlib.sha256(message.body).digest() for message in inbox.wait(2)}
    assert digests == {hashlib.sha256(body).digest()}


def test_a_small_negotiated_frame_cuts_bodies_into_many(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, body = queue(), random.Random(2).randbytes(50_000)
    channel = connect(frame_max=4096).channel()
    channel.confirm_delivery()
    channel.basic_publish("", name, body)
    assert get(channel, name).body == body


def test_a_queue_keeps_the_order_of_publication(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name = queue()
    publisher = connect().channel()
    for number in range(2000):
        publisher.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=1 + number % 2))
    inbox = Inbox(connect().channel(), name, auto_ack=True)
    inbox.wait(2000)
    assert inbox.bodies == [b"%d" % number for number in range(2000)]


def test_a_message_from_another_user_id_is_refused(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name = queue()
    channel = connect().channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", name, b"", pika.BasicProperties(user_id="somebody"))
    assert caught.value.reply_code == 406
    assert "user_id property set to 'somebody' but authenticated user was 'guest'" in caught.value.reply_text


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"headers": {"CC": "a"}}, '{unacceptable_type_in_header,"CC",longstr}'),
        ({"headers": {"CC": None}}, '{unacceptable_type_in_header,"CC",void}'),
        ({"headers": {"BCC": {"a": 1}}}, '{unacceptable_type_in_header,"BCC",table}'),
        ({"delivery_mode": 0}, "{delivery_mode_unknown,0}"),
        ({"delivery_mode": 3}, "{delivery_mode_unknown,3}"),
    ],
    ids=str,
)
def test_a_message_with_senseless_properties_is_refused(
    connect: ConnectionFactory, queue: QueueFactory, properties: dict[str, Any], why: str
) -> None:
    name, channel = queue(), connect().channel()
    channel.confirm_delivery()
    code, text = channel_error(lambda: channel.basic_publish("", name, b"x", pika.BasicProperties(**properties)))
    assert (code, text) == (406, f"PRECONDITION_FAILED - invalid message: {why}")


def test_a_timestamp_is_kept_to_its_64_bits(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.basic_publish("", name, b"", pika.BasicProperties(timestamp=2**40, headers={"n": -(2**63)}))
    properties = get(channel, name).properties
    assert (properties.timestamp, properties.headers) == (2**40, {"n": -(2**63)})
