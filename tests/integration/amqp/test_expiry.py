"""What a queue does not keep: expired messages, messages over its length, rejected ones; and where they go instead."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, ExchangeFactory, QueueFactory
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, bodies, depth, get, get_many, is_empty, wait_for_depth


def publish(channel: Any, queue: str, *sent: bytes, **properties: Any) -> None:
    channel.confirm_delivery()
    for body in sent:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


# -- time to live ------------------------------------------------------------------------------------------------------


def test_messages_older_than_the_queues_limit_are_dropped(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_message_ttl=200)
    publish(channel, name, b"a", b"b")
    assert get(channel, name).body == b"a"
    wait_for_depth(channel, name, 0)
    assert is_empty(channel, name)


def test_a_message_may_set_its_own_expiration(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    publish(channel, name, b"short", expiration="100")
    publish(channel, name, b"long", expiration="60000")
    wait_for_depth(channel, name, 1)
    assert get(channel, name).body == b"long"


def test_the_lower_of_both_limits_holds(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_message_ttl=150)
    publish(channel, name, b"x", expiration="60000")
    wait_for_depth(channel, name, 0)


def test_an_expiration_of_zero_is_for_waiting_consumers_only(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, publisher = queue(), connect().channel()
    publish(publisher, name, b"lost", expiration="0")
    wait_for_depth(publisher, name, 0)
    inbox = Inbox(connect().channel(), name, auto_ack=True)
    publish(publisher, name, b"seen", expiration="0")
    inbox.wait(1)
    assert inbox.bodies == [b"seen"]


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("soon", "no_integer"),
        ("", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_a_senseless_expiration_closes_the_channel(
    connect: ConnectionFactory, queue: QueueFactory, expiration: str, why: str
) -> None:
    name, channel = queue(), connect().channel()
    code, text = channel_error(lambda: publish(channel, name, b"x", expiration=expiration))
    assert (code, text) == (406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}")


@pytest.mark.parametrize("expiration", ["+60000", "060000", "315360000000"])
def test_an_expiration_is_any_whole_number(channel: Any, queue: QueueFactory, expiration: str) -> None:
    name = queue()
    publish(channel, name, b"x", expiration=expiration)
    assert get(channel, name).properties.expiration == expiration


def test_a_leased_message_does_not_expire_until_it_is_returned(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_message_ttl=200)
    publish(channel, name, b"x")
    message = get(channel, name, auto_ack=False)
    channel.connection.sleep(0.4)  # longer than it lives
    channel.basic_ack(message.method.delivery_tag)
    assert is_empty(channel, name)


# -- length ------------------------------------------------------------------------------------------------------------


def test_a_full_queue_drops_its_oldest(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_max_length=3)
    publish(channel, name, *(b"%d" % number for number in range(10)))
    wait_for_depth(channel, name, 3)
    assert bodies(get_many(channel, name, 3)) == [b"7", b"8", b"9"]


def test_a_queue_full_by_bytes_drops_its_oldest(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_max_length_bytes=100)
    publish(channel, name, *(b"%d" % number * 30 for number in range(6)))
    wait_for_depth(channel, name, 3)
    assert bodies(get_many(channel, name, 3)) == [b"3" * 30, b"4" * 30, b"5" * 30]


def test_leased_messages_do_not_count_for_the_length(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_max_length=2)
    publish(channel, name, b"a", b"b")
    leased = get(channel, name, auto_ack=False)
    publish(channel, name, b"c")
    assert bodies(get_many(channel, name, 2)) == [b"b", b"c"]
    channel.basic_ack(leased.method.delivery_tag)


def test_a_full_queue_refuses_publications_with_a_nack(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_max_length=2, x_overflow="reject-publish")
    publish(channel, name, b"a", b"b")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, b"c")
    assert bodies(get_many(channel, name, 2)) == [b"a", b"b"]
    publish(channel, name, b"d")
    assert get(channel, name).body == b"d"


def test_refused_publications_may_be_dead_lettered(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory
) -> None:
    graves, dead = exchange("fanout"), queue()
    channel.queue_bind(dead, graves)
    name = queue(x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange=graves)
    publish(channel, name, b"a")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, b"b")
    message = get(channel, dead)
    assert message.body == b"b"
    assert message.properties.headers["x-death"][0]["reason"] == "maxlen"
    assert depth(channel, name) == 1


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_dead_letters_say_why_and_from_where(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory, reason: str
) -> None:
    graves, dead, source = exchange("direct"), queue(), exchange("direct")
    limits: dict[str, Any] = {"expired": {"x_message_ttl": 100}, "maxlen": {"x_max_length": 1}}.get(reason, {})
    name = queue(x_dead_letter_exchange=graves, **limits)
    channel.queue_bind(name, source, "work")
    channel.queue_bind(dead, graves, "work")
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2, headers={"mine": 1}, message_id="m")
    channel.basic_publish(source, "work", b"x", properties)
    if reason == "rejected":
        channel.basic_reject(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    elif reason == "maxlen":
        channel.basic_publish(source, "work", b"y", properties)
    message = get(channel, dead)
    assert (message.body, message.method.exchange, message.method.routing_key) == (b"x", graves, "work")
    headers = message.properties.headers
    assert (headers["mine"], message.properties.message_id) == (1, "m")
    death = headers["x-death"][0]
    assert {key: death[key] for key in ("reason", "queue", "exchange", "routing-keys", "count")} == {
        "reason": reason,
        "queue": name,
        "exchange": source,
        "routing-keys": ["work"],
        "count": 1,
    }
    assert "time" in death
    assert headers["x-first-death-reason"] == reason
    assert headers["x-first-death-queue"] == name
    assert headers["x-first-death-exchange"] == source


def test_a_dead_letters_key_can_be_set(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    graves, dead = exchange("direct"), queue()
    channel.queue_bind(dead, graves, "failed")
    name = queue(x_dead_letter_exchange=graves, x_dead_letter_routing_key="failed")
    publish(channel, name, b"x")
    channel.basic_nack(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    message = get(channel, dead)
    assert message.method.routing_key == "failed"
    assert message.properties.headers["x-death"][0]["routing-keys"] == [name]


@pytest.mark.parametrize("kept", [True, False], ids=["its own keys", "another key"])
def test_a_dead_letter_with_copies_goes_to_all_its_keys_unless_one_is_set(
    channel: Any, queue: QueueFactory, exchange: ExchangeFactory, kept: bool
) -> None:
    graves, source = exchange("direct"), exchange("direct")
    keys = ("own", "copy", "blind", "set")
    dead = {key: queue() for key in keys}
    for key in keys:
        channel.queue_bind(dead[key], graves, key)
    limits = {} if kept else {"x_dead_letter_routing_key": "set"}
    name = queue(x_dead_letter_exchange=graves, **limits)
    channel.queue_bind(name, source, "own")
    headers = {"CC": ["copy"], "BCC": ["blind"], "mine": 1}
    channel.confirm_delivery()
    channel.basic_publish(source, "own", b"x", pika.BasicProperties(headers=headers))
    channel.basic_reject(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    for key in ("own", "copy", "blind") if kept else ("set",):
        message = get(channel, dead[key])
        assert (message.body, message.method.routing_key) == (b"x", "own" if kept else "set")
        found = message.properties.headers
        assert found["x-death"][0]["routing-keys"] == ["own", "copy"]
        assert (found.get("CC"), found.get("BCC"), found["mine"]) == (["copy"] if kept else None, None, 1)
    for key in ("set",) if kept else ("own", "copy", "blind"):
        assert is_empty(channel, dead[key])


def test_copies_are_remembered_from_death_to_death(channel: Any, queue: QueueFactory) -> None:
    third, copy = queue(), queue()
    second = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=third)
    first = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=second)
    publish(channel, first, b"x", headers={"CC": [copy]})
    assert get(channel, copy).body == b"x"
    for name in (first, second):
        channel.basic_reject(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    message = get(channel, third)
    deaths = message.properties.headers["x-death"]
    assert [(death["queue"], death["routing-keys"]) for death in deaths] == [(second, [second]), (first, [first, copy])]
    assert "CC" not in message.properties.headers
    assert is_empty(channel, copy)


@pytest.mark.parametrize(
    "claimed",
    [
        {"x-death": "long ago"},
        {"x-death": 5},
        {"x-death": {"queue": "elsewhere"}},
        {"x-death": []},
        {"x-first-death-queue": 5, "x-first-death-reason": True, "x-first-death-exchange": ["x"]},
        {"x-last-death-queue": 5, "x-last-death-reason": True},
        {"count": 5, "queue": None},
    ],
    ids=str,
)
def test_what_a_client_claims_of_deaths_does_not_hide_the_real_one(
    channel: Any, queue: QueueFactory, claimed: dict[str, Any]
) -> None:
    dead = queue()
    name = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    publish(channel, name, b"x", headers=claimed)
    before = get(channel, name, auto_ack=False)
    assert before.properties.headers == claimed  # it is the client's until the message dies
    channel.basic_reject(before.method.delivery_tag, requeue=False)
    headers = get(channel, dead).properties.headers
    death = headers["x-death"][0]
    assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)
    if "x-death" not in claimed:
        assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (name, "rejected")
        assert headers["x-first-death-exchange"] == ""


def test_dying_again_in_the_same_queue_counts_up(channel: Any, queue: QueueFactory, exchange: ExchangeFactory) -> None:
    """The usual retry: rejected to a waiting queue, expired from there back to work."""
    retry = exchange("direct")
    work = queue(x_dead_letter_exchange=retry)
    wait = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=work, x_message_ttl=50)
    channel.queue_bind(wait, retry, work)
    publish(channel, work, b"x")
    for attempt in range(4):
        message = get(channel, work, auto_ack=False)
        deaths = (message.properties.headers or {}).get("x-death", [])
        counts = [(death["queue"], death["reason"], death["count"]) for death in deaths]
        assert counts == ([(wait, "expired", attempt), (work, "rejected", attempt)] if attempt else [])
        channel.basic_reject(message.method.delivery_tag, requeue=attempt == 3)


def test_an_expired_dead_letter_loses_its_own_expiration(channel: Any, queue: QueueFactory) -> None:
    dead = queue()
    name = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    publish(channel, name, b"x", expiration="50")
    message = get(channel, dead)
    assert message.properties.expiration is None
    assert message.properties.headers["x-death"][0]["original-expiration"] == "50"


def test_a_cycle_without_rejection_ends(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_dead_letter_exchange="", x_message_ttl=50)
    second = queue(x_dead_letter_exchange="", x_dead_letter_routing_key=name, x_message_ttl=50)
    publish(channel, second, b"x")
    wait_for_depth(channel, second, 0)
    wait_for_depth(channel, name, 0)
    channel.connection.sleep(0.3)  # several times its life, if it went round
    assert is_empty(channel, name)
    assert is_empty(channel, second)


def test_without_a_dead_letter_exchange_rejected_messages_are_gone(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    publish(channel, name, b"x")
    channel.basic_reject(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    assert is_empty(channel, name)


def test_a_dead_letter_exchange_that_is_not_there_loses_the_letter(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_dead_letter_exchange="no such exchange")
    publish(channel, name, b"x")
    channel.basic_reject(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    assert is_empty(channel, name)


def test_a_message_returned_too_often_is_dead_lettered(channel: Any, queue: QueueFactory) -> None:
    dead = queue()
    name = queue(x_queue_type="quorum", x_delivery_limit=2, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    publish(channel, name, b"poison")
    counts = []
    for _ in range(3):
        message = get(channel, name, auto_ack=False)
        counts.append((message.properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(message.method.delivery_tag, requeue=True)
    assert counts == [0, 1, 2]
    message = get(channel, dead)
    assert message.body == b"poison"
    assert message.properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert is_empty(channel, name)


def test_a_quorum_queue_tells_consumers_how_often_a_message_came_before(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_queue_type="quorum")
    publish(channel, name, b"x")
    counts = []
    for _ in range(3):
        inbox = Inbox(channel, name)
        inbox.wait(1)
        counts.append((inbox.messages[0].properties.headers or {}).get("x-delivery-count"))
        channel.basic_cancel(inbox.tag)
        channel.basic_nack(inbox.messages[0].method.delivery_tag, requeue=True)
    assert counts == [None, 1, 2]


# -- priorities --------------------------------------------------------------------------------------------------------


def test_higher_priorities_come_first_and_equals_in_order(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_max_priority=5)
    channel.confirm_delivery()
    for number, priority in enumerate([None, 1, 5, 3, 5, 0, 9, 1]):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=priority))
    wait_for_depth(channel, name, 8)
    assert bodies(get_many(channel, name, 8)) == [b"2", b"4", b"6", b"3", b"1", b"7", b"0", b"5"]


def test_without_a_maximum_priorities_do_not_reorder(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.confirm_delivery()
    for priority in (1, 9, 5):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert bodies(get_many(channel, name, 3)) == [b"1", b"9", b"5"]


def test_a_returned_message_keeps_its_priority(channel: Any, queue: QueueFactory) -> None:
    name = queue(x_max_priority=3)
    channel.confirm_delivery()
    for number, priority in enumerate([1, 3, 2]):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=priority))
    messages = get_many(channel, name, 3, auto_ack=False)
    channel.basic_nack(0, multiple=True, requeue=True)
    wait_for_depth(channel, name, 3)
    assert bodies(get_many(channel, name, 3)) == bodies(messages) == [b"1", b"2", b"0"]
