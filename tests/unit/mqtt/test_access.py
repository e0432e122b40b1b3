"""What a client may publish, subscribe to and be given, by every kind of packet that it can send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.unit.mqtt.front_door import FrontDoor, Peer, front_door, payloads
from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.protocols.mqtt import errors, packets
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from trunkline.security.principal import Principal
from trunkline.security.rules import EVERYBODY, Effect, Kind, Operation, Pattern, Rule
from trunkline.security.topic_permissions import TopicPermission
from trunkline.security.users import Permission, User

READ, WRITE, ALLOW, DENY = Operation.READ, Operation.WRITE, Effect.ALLOW, Effect.DENY
# Every packet of a client, and what is asked before it is obeyed.
RULES = {
    "Connect": "the will: may its topic be published to?",
    "Publish": "may the topic be published to, its log topic and bound queues be written to?",
    "Subscribe": "may something that the filter matches be read? What, is asked for each topic that is delivered",
    "Unsubscribe": "nothing: it is the client's own",
    "PubAck": "nothing", "PubRec": "nothing", "PubRel": "nothing", "PubComp": "nothing",
    "PingReq": "nothing",
    "Disconnect": "nothing: the will was asked about in CONNECT",
    "Auth": "who it is: the logins' matter",
}  # fmt: skip
PARTS = {"Will", "Subscription", "Publications", "Acknowledgements"}  # of packets, or several of a kind
OF_SERVERS = {"ConnAck", "SubAck", "UnsubAck", "PingResp"}


def every_kind(kind: type[packets.Packet]) -> set[type[packets.Packet]]:
    """The kinds of packet that are sent: those without a kind below them."""
    below = {each for each in kind.__subclasses__() if each.__module__ == packets.__name__}
    return set().union(*map(every_kind, below)) if below else {kind}


def test_every_packet_has_a_rule() -> None:
    kinds = {kind.__name__ for kind in every_kind(packets.Packet)}
    assert kinds - PARTS == RULES.keys() | OF_SERVERS


def mqtt_rule(operation: Operation, name: str, effect: Effect = ALLOW, who: str = "User:bob") -> Rule:
    return Rule(Kind.MQTT_TOPIC, Pattern.FILTER, name, who, "*", operation, effect)


def topic_rule(operation: Operation, name: str, effect: Effect = ALLOW, who: str = "User:bob") -> Rule:
    return Rule(Kind.TOPIC, Pattern.LITERAL, name, who, "*", operation, effect)


@asynccontextmanager
async def opened() -> AsyncIterator[FrontDoor]:
    async with front_door() as door:
        door.core.accounts.put_user(User("bob"))
        yield door


def running(test: Callable[[FrontDoor], Awaitable[None]]) -> None:
    async def work() -> None:
        async with opened() as door:
            await test(door)

    asyncio.run(work())


async def connected(
    door: FrontDoor,
    client_id: str,
    version: int = V5,
    user: str = "bob",
    *,
    clean: bool = True,
    will: Will | None = None,
) -> Peer:
    """A client that has logged in as a user: the login itself is tested elsewhere."""
    peer = Peer(door.server, version)
    send_connect(peer, client_id, user, clean=clean, will=will)
    assert (await peer.receive(ConnAck)).reason_code == 0
    return peer


def send_connect(peer: Peer, client_id: str, user: str, *, clean: bool = True, will: Will | None = None) -> None:
    hub = peer.connection._hub
    admitted = hub.access.at_once
    hub.access.at_once = lambda *_: admitted(None, None, "127.0.0.1")._replace(principal=Principal(user))  # type: ignore
    try:
        peer.send(Connect(peer.version, client_id, clean, 0, will))
    finally:
        hub.access.at_once = admitted  # type: ignore[method-assign]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_may_not_be_published_is_dropped_and_told_where_that_can_be(version: int, qos: int) -> None:
    async def test(door: FrontDoor) -> None:
        guest = await door.connect("watcher")
        await guest.subscribe("#")
        door.core.access.book.add([mqtt_rule(WRITE, "mine/%c"), mqtt_rule(WRITE, "their/#", who="User:alice")])
        bob = await connected(door, "c", version)
        bob.send(Publish("their/x", b"no", qos, False, False, 1 if qos else 0))
        told = errors.NOT_AUTHORIZED if version == V5 else 0
        if qos == 1:
            assert (await bob.receive(PubAck)).reason_code == told
        elif qos == 2:
            assert (await bob.receive(PubRec)).reason_code == told
            if not told:
                bob.send(PubRel(1))
                assert (await bob.receive(PubComp)).reason_code == 0
        await bob.publish("mine/c", b"yes", qos, packet_id=2)
        assert (await guest.receive(Publish)).payload == b"yes"
        bob.send(*[Publish("their/x", b"no", qos, False, False, 10 + each if qos else 0) for each in range(3)])
        bob.send(PingReq())
        await bob.until(lambda: any(isinstance(each, PingResp) for each in bob.got))
        assert not bob.closed

    running(test)


def test_what_may_not_be_subscribed_to_is_refused_and_what_may_not_be_read_is_not_given() -> None:
    async def test(door: FrontDoor) -> None:
        guest = await door.connect("publisher")
        await guest.publish("home/bob/door", b"retained-mine", retain=True)
        await guest.publish("home/alice/door", b"retained-hers", retain=True)
        door.core.access.book.add([mqtt_rule(READ, "home/%u/#", who=EVERYBODY)])
        for version, code in ((V311, 0x80), (V5, errors.NOT_AUTHORIZED)):
            bob = await connected(door, f"c{version}", version)
            bob.send(Subscribe(1, [Subscription("home/alice/#", 1), Subscription("home/+/door", 1)]))
            assert (await bob.receive(SubAck)).reason_codes == [code, 1]
            assert (await bob.receive(Publish)).payload == b"retained-mine"
            await guest.publish("home/alice/door", b"hers")
            await guest.publish("home/bob/door", b"mine")
            assert (await bob.receive(Publish)).payload == b"mine"
            bob.drop()

    running(test)


def test_a_session_that_was_away_gets_what_it_may_read_now() -> None:
    async def test(door: FrontDoor) -> None:
        guest = await door.connect("publisher")
        bob = await connected(door, "c", V311, clean=False)
        await bob.subscribe("#")
        bob.drop()
        await guest.publish("a", b"1")
        await guest.publish("b", b"2")
        door.core.access.book.add([mqtt_rule(READ, "a", DENY)])
        bob = await connected(door, "c", V311, clean=False)
        assert (await bob.receive(Publish)).payload == b"2"
        bob.send(PubAck(1))
        door.core.access.book.remove(list(door.core.access.rules))
        await guest.publish("a", b"3")
        assert (await bob.receive(Publish)).payload == b"3"

    running(test)


def test_a_rule_that_comes_later_ends_what_was_given_until_then() -> None:
    async def test(door: FrontDoor) -> None:
        guest = await door.connect("publisher")
        bob = await connected(door, "c")
        await bob.subscribe("#")
        await guest.publish("t", b"1")
        assert (await bob.receive(Publish)).payload == b"1"
        door.core.access.book.add([topic_rule(READ, "mqtt", who="User:alice")])
        await guest.publish("t", b"2")
        door.core.access.book.remove(list(door.core.access.rules))
        await guest.publish("t", b"3")
        assert (await bob.receive(Publish)).payload == b"3"

    running(test)


def test_members_of_a_group_get_what_each_may_read() -> None:
    async def test(door: FrontDoor) -> None:
        guest = await door.connect("publisher")
        bob, alice = await connected(door, "b"), await connected(door, "a", user="alice")
        for each in (bob, alice):
            await each.subscribe("$share/g/#")
        door.core.access.book.add([mqtt_rule(READ, "for/%u", who=EVERYBODY)])
        for name in ("alice", "nobody", "bob", "alice"):
            await guest.publish(f"for/{name}", name.encode())
        await alice.until(lambda: len(alice.got) == 2)
        await bob.until(lambda: len(bob.got) == 1)
        assert payloads(alice.got) == [b"alice", b"alice"]
        assert payloads(bob.got) == [b"bob"]

    running(test)


def test_a_will_that_may_not_be_published_is_refused_with_the_connection() -> None:
    async def test(door: FrontDoor) -> None:
        door.core.access.book.add([mqtt_rule(WRITE, "their", who="User:alice")])
        for version, code in ((V311, 5), (V5, errors.NOT_AUTHORIZED)):
            peer = Peer(door.server, version)
            send_connect(peer, "c", "bob", will=Will("their", b"gone", 1, False, None))
            assert (await peer.receive(ConnAck)).reason_code == code
            await peer.ended()
        peer = await connected(door, "c", will=Will("mine", b"gone", 1, False, None))
        peer.send(Disconnect())
        await peer.ended()

    running(test)


def test_a_rule_about_the_log_topic_and_permissions_hold_for_mqtt() -> None:
    async def test(door: FrontDoor) -> None:
        core = door.core
        bob = await connected(door, "c")

        async def code(topic: str) -> int:
            bob.send(Publish(topic, b"x", 1, False, False, 1))
            return (await bob.receive(PubAck)).reason_code

        assert await code("t") == 0
        denial = topic_rule(WRITE, "mqtt", DENY)
        core.access.book.add([denial])
        assert await code("t") == errors.NOT_AUTHORIZED
        core.access.book.remove([denial])
        core.accounts.put_permission("bob", "/", Permission(write="^other$"))
        assert await code("t") == errors.NOT_AUTHORIZED
        core.accounts.put_permission("bob", "/", Permission(write=r"^amq\.topic$"))
        assert await code("t") == 0
        core.access.book.put_topic_permission("bob", "/", "amq.topic", TopicPermission(r"^t\.", ".*"))
        assert await code("t") == errors.NOT_AUTHORIZED
        assert await code("t/1") == 0

    running(test)


def test_a_queue_that_is_bound_to_the_topic_must_be_writable() -> None:
    async def test(door: FrontDoor) -> None:
        core = door.core
        vhost = core.messaging.topology.vhosts["/"]
        queue = await core.messaging.queues.declare(vhost, QueueDeclaration("q"))
        core.messaging.topology.bind(vhost, "amq.topic", "q", "t", {})
        core.access.book.add([topic_rule(WRITE, "q", DENY)])
        bob = await connected(door, "c")
        bob.send(Publish("t", b"x", 1, False, False, 1))
        assert (await bob.receive(PubAck)).reason_code == errors.NOT_AUTHORIZED
        core.access.book.remove(list(core.access.rules))
        await bob.publish("t", b"x")
        assert queue.cursor.ready == 1

    running(test)


def test_what_the_broker_tells_of_itself_is_for_administrators_once_anything_is_restricted() -> None:
    async def test(door: FrontDoor) -> None:
        bob = await connected(door, "c")
        assert await bob.subscribe("$SYS/#", retain_handling=2) == [1]
        door.core.access.book.add([topic_rule(READ, "unrelated")])
        assert await bob.subscribe("$SYS/broker/#") == [errors.NOT_AUTHORIZED]
        door.core.access.book.add([mqtt_rule(READ, "$SYS/broker/uptime")])
        assert await bob.subscribe("$SYS/broker/uptime") == [1]
        guest = await door.connect("local")
        assert await guest.subscribe("$SYS/#") == [1]

    running(test)


def test_refusals_are_in_the_audit_trail() -> None:
    async def test(door: FrontDoor) -> None:
        door.core.access.book.add([mqtt_rule(Operation.ALL, "x", DENY)])
        bob = await connected(door, "c")
        await bob.subscribe("x")
        bob.send(Publish("x", b"", 0))
        await door.written()
        while door.core.audit._writing is not None:
            await asyncio.sleep(0)
        events = (await door.core.audit.read(None, 10)).events
        found = [(each["user"], each["protocol"], each["target"], each["text"]) for each in events]
        assert found == [
            ("bob", "mqtt", "MQTT topic x", "may not read"),
            ("bob", "mqtt", "MQTT topic x", "may not write"),
        ]

    running(test)


def test_a_user_who_publishes_more_than_allowed_is_read_later() -> None:
    async def test(door: FrontDoor) -> None:
        door.core.access.book.put_limits("user", "bob", {"max-message-rate": 10})
        bob = await connected(door, "c")
        bob.send(*[Publish("t", b"", 0) for _ in range(100)])
        assert bob.reading
        bob.send(Publish("t", b"", 0))
        assert not bob.reading
        async with asyncio.timeout(10):
            while not bob.reading:
                await asyncio.sleep(0.01)

    running(test)
