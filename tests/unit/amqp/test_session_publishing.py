"""Publishing through a session: confirms, returns, transactions, delays, dead letters, keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stores import below
from tests.unit.amqp.harness import FRAME_MAX, Broker, Peer, until, with_broker
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import StorageFailure
from trunkline.log.records import decode_headers
from trunkline.log.store import TopicPartition
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_method,
    encode_properties,
    encode_publish,
)
from trunkline.protocols.amqp.frames import Ack, Content, Nack
from trunkline.protocols.amqp.limits import AmqpLimits

PERSISTENT = encode_properties(Properties(delivery_mode=2))


async def confirming(started: Broker) -> Peer:
    peer = await started.peer()
    await peer.call(m.ConfirmSelect(False), m.ConfirmSelectOk)
    return peer


def confirms(peer: Peer) -> list[Ack | Nack]:
    return [event for event in peer.events if isinstance(event, Ack | Nack)]


def test_all_publications_of_a_turn_are_confirmed_by_one_frame_once_they_are_on_disk(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await confirming(started)
        await peer.declare("q", durable=True)
        peer.send(b"".join(encode_publish(1, "", "q", PERSISTENT, b"%d" % n, FRAME_MAX) for n in range(100)))
        started.service.turn.run()
        assert confirms(peer) == []  # appended, but not on disk
        await until(lambda: bool(confirms(peer)))
        assert confirms(peer) == [Ack(1, 100, True)]

    with_broker(tmp_path, test)


def test_confirms_keep_their_order_when_a_later_one_is_ready_first(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await confirming(started)
        await peer.declare("slow", durable=True)
        await peer.declare("quick")
        peer.publish("slow", properties=PERSISTENT)
        started.service.turn.run()
        peer.publish("quick")
        started.service.turn.run()
        assert confirms(peer) == []
        await until(lambda: bool(confirms(peer)))
        assert confirms(peer) == [Ack(1, 2, True)]

    with_broker(tmp_path, test)


@pytest.mark.parametrize("when", ["before it is appended", "before it is on disk"])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_a_message_is_confirmed_if_its_queue_is_deleted(tmp_path: Path, when: str, durable: bool) -> None:
    """It is gone with the queue, as it would be had it come a moment sooner."""

    async def test(started: Broker) -> None:
        peer = await confirming(started)
        for name in ("q", "other"):
            await peer.declare(name, durable=durable)
        queue = started.service.vhosts["/"].queues["q"]
        peer.publish("other", properties=PERSISTENT)
        peer.publish("q", properties=PERSISTENT)
        if when == "before it is on disk":
            started.service.turn.run()
            store = below(started.core.store)
            assert isinstance(store, EmbeddedStore)
            store._remove_partition(store._partitions.pop(TopicPartition("q", 0)))
        queue.cursor.vanish("the queue was deleted")
        await until(lambda: bool(confirms(peer)))
        assert confirms(peer) == [Ack(1, 2, True)]

    with_broker(tmp_path, test)


def test_a_message_is_not_confirmed_if_its_queue_cannot_write(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await confirming(started)
        await peer.declare("q", durable=True)
        store = below(started.core.store)
        assert isinstance(store, EmbeddedStore)
        peer.publish("q", properties=PERSISTENT)
        store._partitions[TopicPartition("q", 0)].fail(StorageFailure("a file", "no space"))
        await until(lambda: bool(confirms(peer)))
        assert confirms(peer) == [Nack(1, 1, False, False)]

    with_broker(tmp_path, test)


def test_a_message_is_returned_before_it_is_confirmed(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await confirming(started)
        await peer.settle()
        peer.events.clear()
        peer.publish("nowhere", b"lost", mandatory=True)
        peer.publish("nowhere", b"nobody minds")
        await until(lambda: len(peer.events) == 2)
        returned, confirmed = peer.events
        assert isinstance(returned, Content)
        assert returned.body == b"lost"
        assert isinstance(returned.method, m.BasicReturn)
        assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
        assert confirmed == Ack(1, 2, True)

    with_broker(tmp_path, test)


def test_what_a_full_queue_rejects_is_nacked_and_nothing_else(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await confirming(started)
        await peer.declare("full", x_max_length=2, x_overflow="reject-publish")
        await peer.declare("roomy")
        keys = ["full", "roomy", "full", "full", "roomy", "full"]
        peer.send(b"".join(encode_publish(1, "", key, b"\0\0", b"x", FRAME_MAX) for key in keys))
        await until(lambda: len(confirms(peer)) == 4)
        assert confirms(peer) == [Ack(1, 3, True), Nack(1, 4, False, False), Ack(1, 5, True), Nack(1, 6, False, False)]

    with_broker(tmp_path, test)


def test_nothing_is_confirmed_on_a_channel_that_closed_meanwhile(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await confirming(started)
        await peer.declare("q", durable=True)
        peer.publish("q", properties=PERSISTENT)
        started.service.turn.run()
        await peer.call(m.ChannelClose(200, "bye"), m.ChannelCloseOk)
        await until(lambda: peer.session.flow.unconfirmed_bytes == 0)
        await peer.settle()
        assert confirms(peer) == []

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (Properties(expiration="soon"), "invalid expiration 'soon'"),
        (Properties(user_id="somebody"), "user_id property set to 'somebody' but authenticated user was 'guest'"),
        (Properties(reply_to="amq.rabbitmq.reply-to"), "fast reply consumer does not exist"),
    ],
)
def test_properties_that_lie_end_the_channel(tmp_path: Path, properties: Properties, text: str) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        peer.publish("q", properties=encode_properties(properties))
        close = await peer.expect(m.ChannelClose)
        assert close.reply_code == codes.PRECONDITION_FAILED
        assert text in close.reply_text

    with_broker(tmp_path, test)


# -- transactions ------------------------------------------------------------------------------------------------------


async def transactional(started: Broker, *queues: str) -> Peer:
    peer = await started.peer()
    for name in queues:
        await peer.declare(name, durable=True)
    await peer.call(m.TxSelect(), m.TxSelectOk)
    return peer


def ready(started: Broker, queue: str) -> int:
    return started.service.vhosts["/"].queues[queue].cursor.ready


@pytest.mark.parametrize("queues", [("a",), ("a", "b", "c")])
def test_a_transactions_messages_appear_with_its_commit(tmp_path: Path, queues: tuple[str, ...]) -> None:
    async def test(started: Broker) -> None:
        peer = await transactional(started, *queues)
        for name in queues:
            peer.publish(name, b"1", properties=PERSISTENT)
            peer.publish(name, b"2", properties=PERSISTENT)
        await peer.settle()
        assert [ready(started, name) for name in queues] == [0] * len(queues)
        await peer.call(m.TxCommit(), m.TxCommitOk)
        assert [ready(started, name) for name in queues] == [2] * len(queues)
        await peer.consume(queues[-1], no_ack=True)
        assert await peer.bodies(2) == [b"1", b"2"]
        peer.publish(queues[0], b"3")
        await peer.call(m.TxRollback(), m.TxRollbackOk)
        await peer.call(m.TxCommit(), m.TxCommitOk)
        assert len(peer.deliveries()) == 2

    with_broker(tmp_path, test)


def test_acknowledgements_wait_for_the_commit_and_can_be_rolled_back(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await transactional(started, "q")
        for body in (b"1", b"2"):
            peer.publish("q", body)
        await peer.call(m.TxCommit(), m.TxCommitOk)
        await peer.consume("q")
        await peer.bodies(2)
        cursor = started.service.vhosts["/"].queues["q"].cursor
        peer.ack(2, multiple=True)
        await peer.settle()
        assert cursor.unacked == 2
        await peer.call(m.TxRollback(), m.TxRollbackOk)
        peer.ack(1)
        await peer.call(m.TxCommit(), m.TxCommitOk)
        assert cursor.unacked == 1
        peer.ack(1)
        assert (await peer.expect(m.ChannelClose)).reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"

    with_broker(tmp_path, test)


def test_a_transaction_that_does_not_fit_a_queue_leaves_nothing_anywhere(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await transactional(started, "a")
        await peer.declare("small", durable=True, x_max_length=1, x_overflow="reject-publish")
        peer.publish("a")
        peer.publish("small")
        peer.publish("small")
        peer.method(m.TxCommit())
        assert (await peer.expect(m.ChannelClose)).reply_code == codes.PRECONDITION_FAILED
        assert ready(started, "a") == ready(started, "small") == 0

    with_broker(tmp_path, test)


def test_a_transaction_is_bounded(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await transactional(started, "q")
        for _ in range(4):
            peer.publish("q")
        assert (await peer.expect(m.ChannelClose)).reply_code == codes.PRECONDITION_FAILED

    with_broker(tmp_path, test, AmqpLimits(max_transaction_messages=3))


# -- routing and time --------------------------------------------------------------------------------------------------


def test_a_delayed_message_comes_when_its_time_has_come(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        declare = m.ExchangeDeclare(
            0, "later", "x-delayed-message", False, True, False, False, False, {"x-delayed-type": "direct"}
        )
        await peer.call(declare, m.ExchangeDeclareOk)
        await peer.call(m.QueueBind(0, "q", "later", "k", False, {}), m.QueueBindOk)
        await peer.consume("q", no_ack=True)
        delayed = encode_properties(Properties(headers={"x-delay": 5_000}))
        peer.publish("k", b"later", exchange="later", properties=delayed)
        peer.publish("k", b"now", exchange="later")
        assert await peer.bodies(1) == [b"now"]
        started.clock.advance(4_999)
        started.core.messaging.queues.runtime.expire()
        await peer.settle()
        assert len(peer.deliveries()) == 1
        started.clock.advance(2)
        started.core.messaging.queues.runtime.expire()
        assert await peer.bodies(2) == [b"now", b"later"]

    with_broker(tmp_path, test)


def test_dead_letters_carry_their_history(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("dead")
        await peer.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        peer.publish("q", b"x", properties=encode_properties(Properties(expiration="9000", headers={"n": 1})))
        await peer.consume("q", tag="one")
        await peer.bodies(1)
        peer.method(m.BasicReject(1, False))
        await peer.consume("dead", tag="two")
        await until(lambda: len(peer.deliveries()) == 2)
        letter = peer.deliveries()[1]
        assert isinstance(letter.method, m.BasicDeliver)
        assert letter.method.routing_key == "dead"
        properties = decode_properties(letter.properties)
        headers = properties.headers
        assert properties.expiration is None
        assert headers is not None
        assert headers["n"] == 1
        assert headers["x-first-death-queue"] == "q"
        deaths = headers["x-death"]
        assert isinstance(deaths, list)
        death = deaths[0]
        assert isinstance(death, dict)
        assert (death["queue"], death["reason"], death["count"], death["original-expiration"]) == (
            "q",
            "rejected",
            1,
            "9000",
        )

    with_broker(tmp_path, test)


def test_copies_go_to_further_keys_and_blind_ones_are_not_shown(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        for name in ("a", "b", "c"):
            await peer.declare(name)
            await peer.consume(name, tag=name, no_ack=True)
        headers = Properties(headers={"CC": ["b"], "BCC": ["c"], "other": True})
        peer.publish("a", properties=encode_properties(headers))
        await peer.bodies(3)
        for delivery in peer.deliveries():
            assert decode_properties(delivery.properties).headers == {"CC": ["b"], "other": True}

    with_broker(tmp_path, test)


def test_a_queue_that_orders_by_key_gets_the_key_in_the_record(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q", durable=True, x_order_by_key=True)
        peer.publish("q", b"1", properties=encode_properties(Properties(headers={"x-order-key": "customer-7"})))
        peer.publish("q", b"2")
        await peer.settle()
        found = await started.service.vhosts["/"].queues["q"].cursor.peek(None, 2)
        assert [delivery.message.key for delivery in found] == [b"customer-7", b"q"]

    with_broker(tmp_path, test)


def test_a_message_read_as_a_record_shows_its_properties(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q", durable=True)
        properties = Properties(content_type="text/plain", priority=4, headers={"s": "text", "n": 7, "t": {"a": [1]}})
        peer.publish("q", b"body", properties=encode_properties(properties))
        await peer.settle()
        (found,) = await started.service.vhosts["/"].queues["q"].cursor.peek(None, 1)
        headers = dict(decode_headers(found.message.headers))
        assert headers["amqp.routing-key"] == b"q"
        assert headers["amqp.content-type"] == b"text/plain"
        assert headers["amqp.priority"] == b"4"
        assert (headers["s"], headers["n"]) == (b"text", b"7")
        assert json.loads(headers["t"] or b"") == {"a": [1]}

    with_broker(tmp_path, test)


# -- what is begun and not finished -----------------------------------------------------------------------------------


def test_half_a_message_and_a_transaction_are_held_until_they_end(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        peer = await broker.peer()
        await peer.declare("q")
        at_rest = peer.session.held_bytes
        whole = encode_publish(1, "", "q", NO_PROPERTIES, bytes(200_000), FRAME_MAX)
        peer.send(whole[:-100])
        assert peer.session.held_bytes > 190_000
        peer.send(whole[-100:])
        assert peer.session.held_bytes < at_rest + 1_000, "the route is remembered, the body is not"
        await peer.call(m.TxSelect(), m.TxSelectOk)
        for _ in range(3):
            peer.publish("q", bytes(10_000))
        assert peer.session.held_bytes > 30_000
        await peer.call(m.TxRollback(), m.TxRollbackOk)
        assert peer.session.held_bytes < at_rest + 1_000
        peer.publish("q", bytes(10_000))
        await peer.call(m.TxCommit(), m.TxCommitOk)
        assert peer.session.held_bytes < at_rest + 1_000
        peer.publish("q", bytes(10_000))
        await peer.call(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
        assert peer.session.held_bytes < at_rest + 1_000

    with_broker(tmp_path, scenario)


def test_what_waits_for_a_method_before_it_is_held(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        peer = await broker.peer()
        declare = m.QueueDeclare(0, "q", False, True, False, False, False, {})
        body = encode_publish(1, "", "q", NO_PROPERTIES, bytes(50_000), FRAME_MAX)
        peer.send(encode_method(1, declare) + body + body)
        assert peer.session.held_bytes > 100_000
        await peer.expect(m.QueueDeclareOk)
        await peer.settle()
        assert peer.session.held_bytes < 1_000

    with_broker(tmp_path, scenario)


def test_who_holds_too_much_is_told_so(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        peer = await broker.peer()
        peer.session.out_of_input()
        closed = await peer.expect(m.ConnectionClose)
        assert closed.reply_code == 506
        assert peer.closed

    with_broker(tmp_path, scenario)
