"""Queues: what a declaration asks and answers, who may use a queue, and when it goes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pika
import pytest

from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.failing import channel_error, exists
from tests.integration.amqp.reading import Inbox, consumers, depth, get, is_empty, wait_for_depth
from tests.integration.waiting import wait_until


def test_a_declaration_answers_with_name_and_counts(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    answer = channel.queue_declare(name, durable=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (name, 3, 0)
    Inbox(connect().channel(), name).wait(3)
    answer = channel.queue_declare(name, passive=True).method
    assert (answer.message_count, answer.consumer_count) == (0, 1)


def test_the_server_names_a_queue(connection: Any) -> None:
    channel = connection.channel()
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"amq\.gen-[-_A-Za-z0-9]{22}", name) for name in names)


def test_an_empty_name_means_the_queue_declared_last_on_the_channel(connection: Any) -> None:
    channel = connection.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.fanout")
    channel.queue_unbind("", "amq.fanout")
    channel.basic_publish("", name, b"x")
    assert get(channel, "").body == b"x"
    assert channel.queue_purge("").method.message_count == 0


def test_a_passive_declaration_of_what_is_not_there_is_not_found(connection: Any, unique: Callable[[str], str]) -> None:
    name = unique("queue")
    assert channel_error(lambda: connection.channel().queue_declare(name, passive=True)) == (
        404,
        f"NOT_FOUND - no queue '{name}' in vhost '/'",
    )
    assert channel_error(lambda: connection.channel().exchange_declare(name, passive=True)) == (
        404,
        f"NOT_FOUND - no exchange '{name}' in vhost '/'",
    )


def test_declaring_again_the_same_way_is_no_error(connection: Any, queue: QueueFactory) -> None:
    name = queue(x_max_length=10, x_message_ttl=60_000)
    connection.channel().queue_declare(name, durable=True, arguments={"x-message-ttl": 60_000, "x-max-length": 10})


@pytest.mark.parametrize(
    ("declared", "received", "text"),
    [
        (
            {"durable": True},
            {"durable": False},
            "inequivalent arg 'durable' for queue '{}' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            {"durable": True},
            {"durable": True, "auto_delete": True},
            "inequivalent arg 'auto_delete' for queue '{}' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"durable": True, "arguments": {"x-max-length": 10}},
            {"durable": True, "arguments": {"x-max-length": 11}},
            "inequivalent arg 'x-max-length' for queue '{}' in vhost '/': received '11' but current is '10'",
        ),
        (
            {"durable": True, "arguments": {"x-message-ttl": 10}},
            {"durable": True},
            "inequivalent arg 'x-message-ttl' for queue '{}' in vhost '/': received none "
            "but current is the value '10' of type 'signedint'",
        ),
        (
            {"durable": True},
            {"durable": True, "arguments": {"x-dead-letter-exchange": "amq.fanout"}},
            "inequivalent arg 'x-dead-letter-exchange' for queue '{}' in vhost '/': "
            "received the value 'amq.fanout' of type 'longstr' but current is none",
        ),
    ],
)
def test_declaring_again_another_way_is_a_precondition_failure(
    connection: Any,
    unique: Callable[[str], str],
    scrapped: tuple[list[str], list[str]],
    declared: dict[str, Any],
    received: dict[str, Any],
    text: str,
) -> None:
    name = unique("queue")
    connection.channel().queue_declare(name, **declared)
    scrapped[0].append(name)
    code, reply = channel_error(lambda: connection.channel().queue_declare(name, **received))
    assert (code, reply) == (406, "PRECONDITION_FAILED - " + text.format(name))


def test_declaring_an_exchange_another_way_is_a_precondition_failure(
    connection: Any, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> None:
    name = unique("exchange")
    connection.channel().exchange_declare(name, "topic", durable=True)
    scrapped[1].append(name)
    assert channel_error(lambda: connection.channel().exchange_declare(name, "fanout", durable=True)) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': "
        "received 'fanout' but current is 'topic'",
    )
    assert channel_error(lambda: connection.channel().exchange_declare(name, "topic")) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for exchange '{name}' in vhost '/': "
        "received 'false' but current is 'true'",
    )


NOT_CLASSIC = " of queue type rabbit_classic_queue"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-message-ttl": -1}, ": {value_negative,-1}"),
        ({"x-message-ttl": "soon"}, ': "expected integer, got longstr"'),
        ({"x-message-ttl": None}, ': "expected integer, got void"'),
        ({"x-message-ttl": True}, ': "expected integer, got bool"'),
        ({"x-message-ttl": [1]}, ': "expected integer, got array"'),
        ({"x-message-ttl": 315_360_000_001}, ": {value_too_large,315360000001}"),
        ({"x-expires": 0}, ": {value_zero,0}"),
        ({"x-expires": None}, ': "expected integer, got void"'),
        ({"x-max-length": -5}, ": {value_negative,-5}"),
        ({"x-max-length": None}, ': "expected integer, got void"'),
        ({"x-max-length-bytes": {}}, ': "expected integer, got table"'),
        ({"x-max-priority": 256}, ": {max_value_exceeded,256}"),
        ({"x-max-priority": -1}, ": {value_negative,-1}"),
        ({"x-overflow": "explode"}, ": invalid_overflow"),
        ({"x-overflow": None}, ": {unacceptable_type,void}"),
        ({"x-dead-letter-routing-key": "k"}, ": routing_key_but_no_dlx_defined"),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5}, ": {unacceptable_type,signedint}"),
        ({"x-single-active-consumer": "yes"}, ": {unacceptable_type,longstr}"),
        ({"x-queue-type": "heap"}, ": \"unsupported queue type 'heap'\""),
        ({"x-queue-type": None}, ": {unacceptable_type,void}"),
        ({"x-queue-mode": "fast"}, ": \"unsupported queue mode 'fast'\""),
        ({"x-queue-mode": 5}, ": {unacceptable_type,signedint}"),
        ({"x-queue-version": 3}, ": \"unsupported queue version '3'\""),
        ({"x-queue-version": "2"}, ': "expected integer, got longstr"'),
        ({"x-max-age": "soon"}, NOT_CLASSIC),
        ({"x-max-age": "1Y"}, NOT_CLASSIC),
        ({"x-stream-max-segment-size-bytes": 1}, NOT_CLASSIC),
        ({"x-initial-cluster-size": 1}, NOT_CLASSIC),
        ({"x-queue-type": "quorum", "x-dead-letter-strategy": "never"}, ": invalid_dlx_strategy"),
        ({"x-queue-type": "quorum", "x-max-in-memory-length": -1}, ": {value_negative,-1}"),
        ({"x-queue-type": "quorum", "x-quorum-initial-group-size": 0}, ": {value_zero,0}"),
        ({"x-queue-type": "quorum", "x-queue-leader-locator": "moon"}, ": invalid_queue_locator_arg"),
    ],
    ids=str,
)
def test_a_senseless_argument_is_refused(
    connection: Any, unique: Callable[[str], str], arguments: dict[str, Any], why: str
) -> None:
    name, argument = unique("queue"), list(arguments)[-1]
    code, text = channel_error(lambda: connection.channel().queue_declare(name, durable=True, arguments=arguments))
    assert code == 406
    assert text == f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/'{why}"
    assert not exists(connection, name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-priority": 0},
        {"x-max-length": 0},
        {"x-message-ttl": 315_360_000_000},
        {"x-queue-version": 2, "x-queue-mode": "default"},
        {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-queue-leader-locator": "balanced"},
        {"x-queue-master-locator": "min-masters"},
        {"x-unheard-of": None},
    ],
    ids=str,
)
def test_an_argument_with_sense_is_taken(
    connection: Any,
    unique: Callable[[str], str],
    scrapped: tuple[list[str], list[str]],
    arguments: dict[str, Any],
) -> None:
    name = unique("queue")
    scrapped[0].append(name)
    for _ in range(2):
        connection.channel().queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.parametrize(("value", "kind"), [(5, "signedint"), (None, "void"), (["x"], "array")])
def test_an_exchange_is_named_by_a_string(
    connection: Any, unique: Callable[[str], str], value: object, kind: str
) -> None:
    name = unique("name")
    for operation, argument, owner in (
        ("queue_declare", "x-dead-letter-exchange", "queue"),
        ("exchange_declare", "alternate-exchange", "exchange"),
    ):
        declare = getattr(connection.channel(), operation)
        code, text = channel_error(partial(declare, name, arguments={argument: value}))
        assert (code, text) == (
            406,
            f"PRECONDITION_FAILED - invalid type '{kind}' for arg '{argument}' in {owner} '{name}' in vhost '/'",
        )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-priority": "high"}, ': "expected integer, got longstr"'),
        ({"x-priority": None}, ': "expected integer, got void"'),
        ({"x-priority": True}, ': "expected integer, got bool"'),
        ({"x-cancel-on-ha-failover": 1}, ": {unacceptable_type,signedint}"),
        ({"x-stream-offset": "first"}, NOT_CLASSIC),
        ({"x-stream-offset": 0}, NOT_CLASSIC),
    ],
    ids=str,
)
def test_a_senseless_argument_of_a_consumer_is_refused(
    connection: Any, queue: QueueFactory, arguments: dict[str, Any], why: str
) -> None:
    name, (argument,) = queue(), arguments
    code, text = channel_error(lambda: Inbox(connection.channel(), name, arguments=arguments))
    assert code == 406
    assert text == f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/'{why}"
    assert consumers(connection.channel(), name) == 0


def test_a_name_of_the_servers_own_is_refused(connection: Any) -> None:
    code, text = channel_error(lambda: connection.channel().queue_declare("amq.mine"))
    assert (code, text) == (403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")


def test_an_exclusive_queue_is_locked_for_other_connections(
    connect: ConnectionFactory, unique: Callable[[str], str]
) -> None:
    name, owner, other = unique("queue"), connect(), connect()
    mine = owner.channel()
    mine.queue_declare(name, exclusive=True)
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original declaration."
    )
    for attempt in (
        lambda channel: channel.queue_declare(name, exclusive=True),
        lambda channel: channel.queue_declare(name, passive=True),
        lambda channel: channel.basic_get(name),
        lambda channel: channel.queue_purge(name),
        lambda channel: channel.queue_delete(name),
        lambda channel: channel.basic_consume(name, print),
        lambda channel: channel.queue_bind(name, "amq.fanout"),
    ):
        code, reply = channel_error(lambda attempt=attempt: attempt(other.channel()))  # type: ignore[misc]
        assert code == 405
        assert reply == text
    other.channel().basic_publish("", name, b"anybody may publish to it")
    assert get(mine, name).body == b"anybody may publish to it"
    owner.close()
    wait_until(lambda: not exists(other, name), what="the end of the exclusive queue")


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connect: ConnectionFactory, unique: Callable[[str], str]
) -> None:
    name, connection = unique("queue"), connect()
    channel = connection.channel()
    channel.queue_declare(name, auto_delete=True)
    assert exists(connection, name)
    first, second = Inbox(channel, name), Inbox(channel, name)
    channel.basic_cancel(first.tag)
    assert exists(connection, name)
    channel.basic_cancel(second.tag)
    wait_until(lambda: not exists(connection, name), what="the end of the auto-delete queue")


def test_an_auto_delete_queue_goes_when_its_consumers_connection_does(
    connect: ConnectionFactory, unique: Callable[[str], str]
) -> None:
    name, mine, other = unique("queue"), connect(), connect()
    channel = mine.channel()
    channel.queue_declare(name, auto_delete=True)
    Inbox(channel, name)
    mine.close()
    wait_until(lambda: not exists(other, name), what="the end of the auto-delete queue")


def test_a_transient_queue_outlives_its_connection(
    connect: ConnectionFactory, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> None:
    name, first = unique("queue"), connect()
    first.channel().queue_declare(name)
    first.channel().basic_publish("", name, b"still here")
    first.close()
    scrapped[0].append(name)
    assert get(connect().channel(), name).body == b"still here"


def test_purging_counts_what_was_ready_and_leaves_what_is_leased(channel: Any, queue: QueueFactory) -> None:
    name = queue()
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    leased = get(channel, name, auto_ack=False)
    assert channel.queue_purge(name).method.message_count == 4
    assert is_empty(channel, name)
    channel.basic_nack(leased.method.delivery_tag, requeue=True)
    assert get(channel, name).body == b"0"


def test_deleting_counts_and_minds_conditions(connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")
    code, text = channel_error(lambda: connection.channel().queue_delete(name, if_empty=True))
    assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty")
    inbox = Inbox(channel, name)
    code, text = channel_error(lambda: connection.channel().queue_delete(name, if_unused=True))
    assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use")
    inbox.wait(1)
    channel.basic_cancel(inbox.tag)
    channel.basic_nack(inbox.messages[0].method.delivery_tag)
    wait_for_depth(channel, name, 1)
    assert channel.queue_delete(name).method.message_count == 1
    assert channel.queue_delete(name).method.message_count == 0  # once more is no error


def test_an_unused_queue_expires(connection: Any, unique: Callable[[str], str]) -> None:
    name, channel = unique("queue"), connection.channel()
    channel.queue_declare(name, durable=True, arguments={"x-expires": 300})
    inbox = Inbox(channel, name)
    channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
    inbox.wait(1)
    connection.sleep(0.6)  # longer than it lives unused: the consumer must keep it
    assert exists(connection, name)
    channel.basic_cancel(inbox.tag)
    connection.sleep(0.35)
    wait_until(lambda: not exists(connection, name), what="the queue's expiry")


@pytest.mark.parametrize("use", ["declare", "passive", "get"])
def test_a_queue_that_is_used_does_not_expire(connection: Any, unique: Callable[[str], str], use: str) -> None:
    name, channel, arguments = unique("queue"), connection.channel(), {"x-expires": 1_000}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_bind(name, "amq.direct", name)
    for _ in range(6):
        connection.sleep(0.4)
        if use == "get":
            assert channel.basic_get(name)[0] is None
        else:
            channel.queue_declare(name, durable=True, arguments=arguments, passive=use == "passive")
    channel.basic_publish("amq.direct", name, b"x")
    assert get(channel, name).body == b"x"  # it still has its binding: it is the same queue


def test_every_vhost_has_queues_of_its_own(connect: ConnectionFactory, unique: Callable[[str], str]) -> None:
    from tests.integration.amqp.definitions import OTHER_VHOST

    name, here, there = unique("queue"), connect().channel(), connect(vhost=OTHER_VHOST).channel()
    for channel, body in ((here, b"here"), (there, b"there")):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "amq.direct", name)
        channel.basic_publish("amq.direct", name, body)
    assert get(here, name).body == b"here"
    assert get(there, name).body == b"there"
    here.queue_delete(name)
    assert depth(there, name) == 0
    assert consumers(there, name) == 0
    there.queue_delete(name)


@pytest.mark.parametrize(
    "name",
    ["with space", "slash/es", "über", "a" * 255, "dots..dots", "colon:semi;", "per%cent", ".", "..", "__queue_state"],
)
def test_a_queue_may_have_any_name(connect: ConnectionFactory, name: str) -> None:
    channel = connect().channel()
    channel.queue_declare(name)
    try:
        channel.basic_publish("", name, b"x")
        assert get(channel, name).body == b"x"
    finally:
        channel.queue_delete(name)


def test_quorum_and_lazy_queues_are_accepted(connection: Any, queue: QueueFactory) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    for name in (queue(x_queue_type="quorum"), queue(x_queue_type="classic", x_queue_mode="lazy")):
        channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
        assert get(channel, name).body == b"x"
