"""What a user must be allowed for each method: the table names every method that does something, so a new one has to be added.

Each is tried as a user who has just what it takes, as users who lack one thing of it, and, where it is about a queue, as a
user to whom a rule denies the same for the queue's topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.amqp.harness import Broker, Peer, with_broker
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.errors import ACCESS_REFUSED
from trunkline.protocols.amqp.states import CHANNELS, ChannelState, Step
from trunkline.security.rules import Effect, Kind, Operation, Pattern, Rule
from trunkline.security.topic_permissions import TopicPermission
from trunkline.security.users import Access, Permission, User, hash_password

CONFIGURE, WRITE, READ = Access.CONFIGURE, Access.WRITE, Access.READ
DEFAULT = "amq.default"


class Needs(NamedTuple):
    method: m.Method
    reply: type[m.Method]
    accesses: tuple[tuple[Access, str], ...]
    operation: Operation | None = None  # on the topic of the queue q
    topic: str = "q"


NEEDS: Mapping[str, Needs] = {
    "exchange.declare": Needs(
        m.ExchangeDeclare(0, "new", "direct", False, False, False, False, False, {}),
        m.ExchangeDeclareOk,
        ((CONFIGURE, "new"),),
    ),
    "exchange.declare, alternate": Needs(
        m.ExchangeDeclare(0, "new", "direct", False, False, False, False, False, {"alternate-exchange": "y"}),
        m.ExchangeDeclareOk,
        ((CONFIGURE, "new"), (READ, "new"), (WRITE, "y")),
    ),
    "exchange.delete": Needs(m.ExchangeDelete(0, "y", False, False), m.ExchangeDeleteOk, ((CONFIGURE, "y"),)),
    "exchange.bind": Needs(
        m.ExchangeBind(0, "y", "x", "key", False, {}), m.ExchangeBindOk, ((WRITE, "y"), (READ, "x"))
    ),
    "exchange.unbind": Needs(
        m.ExchangeUnbind(0, "y", "x", "key", False, {}), m.ExchangeUnbindOk, ((WRITE, "y"), (READ, "x"))
    ),
    "queue.declare": Needs(
        m.QueueDeclare(0, "new", False, False, False, False, False, {}),
        m.QueueDeclareOk,
        ((CONFIGURE, "new"),),
        Operation.CREATE,
        "new",
    ),
    "queue.declare, again": Needs(
        m.QueueDeclare(0, "q", False, False, False, False, False, {}),
        m.QueueDeclareOk,
        ((CONFIGURE, "q"),),
        Operation.DESCRIBE,
    ),
    "queue.declare, dead letters": Needs(
        m.QueueDeclare(0, "new", False, False, False, False, False, {"x-dead-letter-exchange": "y"}),
        m.QueueDeclareOk,
        ((CONFIGURE, "new"), (READ, "new"), (WRITE, "y")),
    ),
    "queue.declare, passive": Needs(
        m.QueueDeclare(0, "q", True, False, False, False, False, {}), m.QueueDeclareOk, (), Operation.DESCRIBE
    ),
    "queue.bind": Needs(
        m.QueueBind(0, "q", "x", "key", False, {}), m.QueueBindOk, ((WRITE, "q"), (READ, "x")), Operation.WRITE
    ),
    "queue.unbind": Needs(
        m.QueueUnbind(0, "q", "x", "key", {}), m.QueueUnbindOk, ((WRITE, "q"), (READ, "x")), Operation.WRITE
    ),
    "queue.purge": Needs(m.QueuePurge(0, "q", False), m.QueuePurgeOk, ((READ, "q"),), Operation.READ),
    "queue.delete": Needs(
        m.QueueDelete(0, "q", False, False, False), m.QueueDeleteOk, ((CONFIGURE, "q"),), Operation.DELETE
    ),
    "basic.consume": Needs(
        m.BasicConsume(0, "q", "tag", False, False, False, False, {}),
        m.BasicConsumeOk,
        ((READ, "q"),),
        Operation.READ,
    ),
    "basic.get": Needs(m.BasicGet(0, "q", False), m.BasicGetEmpty, ((READ, "q"),), Operation.READ),
}
PUBLISHED = "basic.publish"  # has no reply: see its own test
# What a channel does with what its client has been allowed already, or with itself.
OWN = frozenset(
    {
        "channel.flow",
        "basic.qos",
        "basic.cancel",
        "basic.recover",
        "basic.recover-async",
        "basic.ack",
        "basic.nack",
        "basic.reject",
        "confirm.select",
        "tx.select",
        "tx.commit",
        "tx.rollback",
    }
)


def test_every_method_that_does_something_has_a_rule() -> None:
    doing = {method.NAME for method, step in CHANNELS[ChannelState.OPEN].items() if isinstance(step, Step) and step.act}
    assert doing == {name.partition(",")[0] for name in NEEDS} | OWN | {PUBLISHED}


def expression(accesses: tuple[tuple[Access, str], ...], wanted: Access) -> str:
    names = [name for access, name in accesses if access is wanted]
    return f"^({'|'.join(names)})$" if names else "^$"


async def peer_with(started: Broker, user: str, accesses: tuple[tuple[Access, str], ...]) -> Peer:
    accounts = started.core.accounts
    if user not in accounts.users:
        accounts.put_user(User(user, hash_password(user)))
    accounts.put_permission(user, "/", Permission(*(expression(accesses, each) for each in (CONFIGURE, WRITE, READ))))
    return await started.peer(user=user, password=user)


async def prepare(started: Broker) -> Peer:
    guest = await started.peer()
    await guest.declare("q")
    for name in ("x", "y"):
        await guest.call(
            m.ExchangeDeclare(0, name, "topic", False, False, False, False, False, {}), m.ExchangeDeclareOk
        )
    return guest


async def refused(peer: Peer, method: m.Method) -> str:
    peer.method(method)
    closed = await peer.expect(m.ChannelClose)
    assert closed.reply_code == ACCESS_REFUSED
    peer.method(m.ChannelCloseOk())
    await peer.open_channel()
    return closed.reply_text


@pytest.mark.parametrize("name", NEEDS)
def test_a_user_may_with_what_the_method_needs_and_not_without(tmp_path: Path, name: str) -> None:
    needs = NEEDS[name]

    async def test(started: Broker) -> None:
        await prepare(started)
        for lacking in needs.accesses:
            peer = await peer_with(started, "lacks", tuple(each for each in needs.accesses if each != lacking))
            text = await refused(peer, needs.method)
            kind = "queue" if lacking[1] == "q" or (name.startswith("queue") and lacking[1] == "new") else "exchange"
            assert text == f"ACCESS_REFUSED - access to {kind} '{lacking[1]}' in vhost '/' refused for user 'lacks'"
        book = started.core.access.book
        if needs.operation is not None:
            peer = await peer_with(started, "denied", needs.accesses)
            denial = Rule(Kind.TOPIC, Pattern.LITERAL, needs.topic, "User:denied", "*", needs.operation, Effect.DENY)
            book.add([denial])
            assert "refused for user 'denied'" in await refused(peer, needs.method)
            book.remove([denial])
            allowance = denial._replace(principal="User:somebody", effect=Effect.ALLOW)
            book.add([allowance])
            assert "refused for user 'denied'" in await refused(peer, needs.method)
            book.remove([allowance])
        peer = await peer_with(started, "may", needs.accesses)
        await peer.call(needs.method, needs.reply)

    with_broker(tmp_path, test)


def test_publishing_needs_the_exchange_the_key_and_each_queue_that_it_leads_to(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        guest = await prepare(started)
        await guest.call(m.QueueBind(0, "q", "x", "#", False, {}), m.QueueBindOk)
        book = started.core.access.book
        peer = await peer_with(started, "bob", ())

        async def publish(exchange: str, key: str) -> str | None:
            peer.publish(key, exchange=exchange)
            peer.method(m.QueueDeclare(0, "q", True, False, False, False, False, {}))
            await peer.settle()
            if peer.session.channels:
                await peer.expect(m.QueueDeclareOk)
                return None
            closed = await peer.expect(m.ChannelClose)
            assert closed.reply_code == ACCESS_REFUSED
            peer.method(m.ChannelCloseOk())
            await peer.open_channel()
            return closed.reply_text.removeprefix("ACCESS_REFUSED - ")

        assert await publish("", "q") == "access to exchange 'amq.default' in vhost '/' refused for user 'bob'"
        assert await publish("x", "q") == "access to exchange 'x' in vhost '/' refused for user 'bob'"
        started.core.accounts.put_permission("bob", "/", Permission("^$", "^(x|amq.default|q)$", "^q$"))
        assert await publish("", "q") is None
        assert await publish("x", "a.b") is None
        book.put_topic_permission("bob", "/", "x", TopicPermission("^a\\.", ".*"))
        assert await publish("x", "a.b") is None
        assert await publish("x", "b") == "access to topic 'b' in exchange 'x' in vhost '/' refused for user 'bob'"
        denial = Rule(Kind.TOPIC, Pattern.LITERAL, "q", "User:bob", "*", Operation.WRITE, Effect.DENY)
        book.add([denial])
        assert await publish("", "q") == "bob may not write topic q"
        assert await publish("x", "a.b") == "bob may not write topic q"
        book.remove([denial])
        assert await publish("x", "a.b") is None
        await guest.settle()
        assert started.core.messaging.queues.require("q").cursor.ready == 4

    with_broker(tmp_path, test)


def test_binding_by_a_key_needs_the_topic_permission_and_what_mqtt_rules_say(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        await prepare(started)
        book = started.core.access.book
        peer = await peer_with(started, "bob", ((WRITE, "q"), (READ, "x"), (READ, "amq.topic")))
        book.put_topic_permission("bob", "/", "x", TopicPermission("^$", "^free"))
        await peer.call(m.QueueBind(0, "q", "x", "free.x", False, {}), m.QueueBindOk)
        text = await refused(peer, m.QueueBind(0, "q", "x", "other", False, {}))
        assert text.endswith("access to topic 'other' in exchange 'x' in vhost '/' refused for user 'bob'")
        book.add([Rule(Kind.MQTT_TOPIC, Pattern.FILTER, "plant/%u/#", "User:*", "*", Operation.READ, Effect.ALLOW)])
        await peer.call(m.QueueBind(0, "q", "amq.topic", "plant.bob.*", False, {}), m.QueueBindOk)
        for key in ("#", "plant.#", "plant.alice.*"):
            assert "refused for user 'bob'" in await refused(peer, m.QueueBind(0, "q", "amq.topic", key, False, {}))

    with_broker(tmp_path, test)


def test_a_consumer_who_may_read_no_more_is_cancelled(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        guest = await prepare(started)
        peer = await peer_with(started, "bob", ((READ, "q"),))
        await peer.consume("q")
        started.core.access.subscribe(peer.session.access_changed)  # as the server does
        started.core.access.book.add(
            [Rule(Kind.TOPIC, Pattern.LITERAL, "q", "User:bob", "*", Operation.READ, Effect.DENY)]
        )
        assert (await peer.expect(m.BasicCancel)).consumer_tag == "c"
        guest.publish("q")
        await guest.settle()
        assert not peer.deliveries()
        assert started.core.messaging.queues.require("q").cursor.ready == 1

    with_broker(tmp_path, test)
