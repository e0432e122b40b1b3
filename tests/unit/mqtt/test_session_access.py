"""Who may connect, by which method, what administrators ask; and queues of AMQP that are bound to topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine

import pytest

from tests.unit.mqtt.front_door import FrontDoor, Peer, front_door
from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.log.records import decode_headers
from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.packets import V5, V311, Auth, ConnAck, Connect, Disconnect, PubAck, Publish
from trunkline.security.principal import anonymous
from trunkline.security.users import User


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def closed_to_strangers(door: FrontDoor) -> None:
    door.server.hub.access.anonymous = False


def method(name: str, data: bytes | None = None) -> Properties:
    found = Properties()
    found.authentication_method = name
    found.authentication_data = data
    return found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    ("user", "password", "code_3", "code_5"),
    [
        ("guest", b"guest", 0, 0),
        ("guest", b"wrong", 4, errors.BAD_USER_NAME_OR_PASSWORD),
        ("nobody", b"guest", 4, errors.BAD_USER_NAME_OR_PASSWORD),
        (None, None, 5, errors.NOT_AUTHORIZED),
    ],
)
def test_users_are_checked_when_strangers_are_not_let_in(
    version: int, user: str | None, password: bytes | None, code_3: int, code_5: int
) -> None:
    async def work() -> None:
        async with front_door() as door:
            closed_to_strangers(door)
            peer = Peer(door.server, version)
            peer.send(Connect(version, "c", True, 0, None, user, password))
            code = code_5 if version == V5 else code_3
            assert (await peer.receive(ConnAck)).reason_code == code
            assert peer.closed == (code != 0)

    run(work())


def test_guest_may_not_come_from_another_machine() -> None:
    async def work() -> None:
        async with front_door() as door:
            closed_to_strangers(door)
            peer = Peer(door.server, V5)
            peer.connection.peer = "192.0.2.7"
            peer.send(Connect(V5, "c", True, 0, None, "guest", b"guest"))
            assert (await peer.receive(ConnAck)).reason_code == errors.BAD_USER_NAME_OR_PASSWORD

    run(work())


def test_plain_in_connect_by_auth_and_again() -> None:
    async def work() -> None:
        async with front_door() as door:
            peer = Peer(door.server, V5)
            peer.send(Connect(V5, "at-once", True, 0, None, None, None, method("PLAIN", b"\0guest\0guest")))
            answer = await peer.receive(ConnAck)
            assert answer.reason_code == 0
            assert answer.properties is not None
            assert answer.properties.authentication_method == "PLAIN"

            peer = Peer(door.server, V5)
            peer.send(Connect(V5, "asked", True, 0, None, None, None, method("PLAIN")))
            assert (await peer.receive(Auth)).reason_code == errors.CONTINUE_AUTHENTICATION
            assert "asked" not in door.server.sessions.by_client
            peer.send(Auth(errors.CONTINUE_AUTHENTICATION, method("PLAIN", b"\0guest\0guest")))
            assert (await peer.receive(ConnAck)).reason_code == 0
            peer.send(Auth(errors.REAUTHENTICATE, method("PLAIN", b"\0guest\0guest")))
            assert (await peer.receive(Auth)).reason_code == errors.SUCCESS
            peer.send(Auth(errors.REAUTHENTICATE, method("PLAIN", b"\0guest\0wrong")))
            told = (await peer.ended())[-1]
            assert isinstance(told, Disconnect)
            assert told.reason_code == errors.NOT_AUTHORIZED

    run(work())


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        (method("GS2-KRB5"), None, errors.BAD_AUTHENTICATION_METHOD),
        (method("PLAIN", b"\0guest\0wrong"), None, errors.NOT_AUTHORIZED),
        (method("PLAIN", b"nonsense"), None, errors.NOT_AUTHORIZED),
        (method("PLAIN"), Auth(errors.CONTINUE_AUTHENTICATION, method("OTHER", b"x")), errors.PROTOCOL_ERROR),
        (method("PLAIN"), Publish("t", b"too early"), errors.PROTOCOL_ERROR),
    ],
)
def test_a_method_that_fails_ends_in_a_connack_that_says_why(
    first: Properties, then: Auth | Publish | None, code: int
) -> None:
    async def work() -> None:
        async with front_door() as door:
            peer = Peer(door.server, V5)
            peer.send(Connect(V5, "c", True, 0, None, None, None, first))
            if then is not None:
                await peer.receive(Auth)
                peer.send(then)
            last = (await peer.ended())[-1]
            assert isinstance(last, ConnAck)
            assert last.reason_code == code
            assert not door.server.sessions.by_client

    run(work())


async def ask(peer: Peer, operation: str, **asked: object) -> dict[str, object]:
    properties = Properties()
    properties.response_topic = "answers"
    properties.correlation_data = b"7"
    peer.send(Publish(f"$SYS/manage/{operation}", json.dumps(asked).encode(), 0, False, False, 0, properties))
    answer = await peer.receive(Publish)
    assert answer.properties is not None
    assert answer.properties.correlation_data == b"7"
    found = json.loads(answer.payload)
    assert isinstance(found, dict)
    return found


def test_only_administrators_are_answered() -> None:
    async def work() -> None:
        async with front_door() as door:
            closed_to_strangers(door)
            door.core.accounts.put_user(User("plain", User("x").password_hash))
            local = Peer(door.server, V5)
            local.send(Connect(V5, "admin", True, 0, None, "guest", b"guest"))
            await local.receive(ConnAck)
            await local.subscribe("answers", qos=0)
            assert "result" in await ask(local, "sessions")
            assert "error" in await ask(local, "session", client_id="nobody")
            assert "error" in await ask(local, "dance")
            local.connection.principal = anonymous("127.0.0.1")
            properties = Properties()
            properties.response_topic = "answers"
            local.send(Publish("$SYS/manage/sessions", b"", 1, False, False, 3, properties))
            assert (await local.receive(PubAck)).reason_code == errors.NOT_AUTHORIZED

    run(work())


def test_an_administrator_ends_a_session_its_own_included() -> None:
    async def work() -> None:
        async with front_door() as door:
            admin, other = await door.connect("admin", V5), await door.returning("other", V5)
            await admin.subscribe("answers", qos=0)
            await ask(admin, "kill", client_id="other")
            told = (await other.ended())[-1]
            assert isinstance(told, Disconnect)
            assert told.reason_code == errors.ADMINISTRATIVE_ACTION
            assert "other" not in door.server.sessions.by_client
            properties = Properties()
            properties.response_topic = "answers"
            admin.send(Publish("$SYS/manage/kill", b'{"client_id": "admin"}', 1, False, False, 1, properties))
            await admin.ended()
            assert not door.server.sessions.by_client

    run(work())


def test_a_queue_bound_to_amq_topic_gets_publications_and_holds_up_their_acknowledgement() -> None:
    async def work() -> None:
        async with front_door() as door:
            messaging = door.core.messaging
            vhost = messaging.topology.vhosts["/"]
            queue = await messaging.queues.declare(vhost, QueueDeclaration("readings"))
            bound = messaging.topology.bind(vhost, "amq.topic", "readings", "sensors.*.t", {})
            assert bound is not None
            await bound
            client = await door.connect("c")
            await client.publish("sensors/7/t", b"21", qos=1)
            await client.publish("sensors/7/other", b"no", qos=1)
            await client.publish("sensors/8/t", b"22", qos=0)
            await client.publish("end", b"", qos=1)
            taken = queue.cursor.acquire(10)
            assert [delivery.message.value for delivery in taken] == [b"21", b"22"]
            headers = dict(decode_headers(taken[0].message.headers))
            assert headers["amqp.exchange"] == b"amq.topic"
            assert headers["amqp.routing-key"] == b"sensors.7.t"
            assert headers["mqtt.client"] == b"c"

    run(work())


@pytest.mark.parametrize("password", [b"guest", b"wrong"])
def test_nothing_that_was_sent_behind_a_connect_takes_effect_before_the_login(password: bytes) -> None:
    async def work() -> None:
        async with front_door() as door:
            closed_to_strangers(door)
            watcher = Peer(door.server, V5)
            watcher.send(Connect(V5, "watcher", True, 0, None, "guest", b"guest"))
            await watcher.receive(ConnAck)
            await watcher.subscribe("t", qos=0)
            peer = Peer(door.server, V5)
            peer.send(
                Connect(V5, "hasty", True, 0, None, "guest", password), Publish("t", b"behind", 1, False, False, 1)
            )
            if password == b"guest":
                assert (await peer.receive(ConnAck)).reason_code == 0
                await peer.receive(PubAck)
                assert (await watcher.receive(Publish)).payload == b"behind"
                return
            (refusal,) = await peer.ended()
            assert isinstance(refusal, ConnAck)
            assert refusal.reason_code == errors.BAD_USER_NAME_OR_PASSWORD
            assert not watcher.got
            assert "hasty" not in door.server.sessions.by_client

    run(work())


def test_a_client_that_goes_away_during_its_login_leaves_nothing() -> None:
    async def work() -> None:
        async with front_door() as door:
            closed_to_strangers(door)
            peer = Peer(door.server, V5)
            peer.send(Connect(V5, "gone", True, 0, None, "guest", b"guest"))
            checking = peer.connection._checking
            assert checking is not None
            peer.drop()
            await checking
            assert "gone" not in door.server.sessions.by_client
            assert not peer.got

    run(work())
