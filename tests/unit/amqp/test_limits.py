"""Limits of users and virtual hosts, as RabbitMQ enforces them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.amqp.harness import CAPABLE, FRAME_MAX, Broker, Peer, with_broker
from tests.unit.amqp.test_session_consuming import manage
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import PROTOCOL_HEADER
from trunkline.protocols.amqp.errors import NOT_ALLOWED, PRECONDITION_FAILED


async def turned_away(started: Broker) -> str:
    peer = Peer(started.service)
    peer.send(PROTOCOL_HEADER)
    await peer.expect(m.ConnectionStart)
    peer.method(m.ConnectionStartOk(CAPABLE, "PLAIN", b"\0guest\0guest", "en_US"), 0)
    await peer.expect(m.ConnectionTune)
    peer.method(m.ConnectionTuneOk(2047, FRAME_MAX, 0), 0)
    peer.method(m.ConnectionOpen("/"), 0)
    closed = await peer.expect(m.ConnectionClose)
    assert closed.reply_code == NOT_ALLOWED
    return closed.reply_text.removeprefix("NOT_ALLOWED - ")


def test_connections_of_a_user_and_of_a_virtual_host_are_limited(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        limits = started.core.access.book
        first = await started.peer()
        limits.put_limits("user", "guest", {"max-connections": 1})
        assert await turned_away(started) == "Connection refused for user 'guest': user connection limit (1) is reached"
        limits.put_limits("user", "guest", {"max-connections": -1})
        limits.put_limits("vhost", "/", {"max-connections": 1})
        expected = "access to vhost '/' refused for user 'guest': connection limit (1) is reached"
        assert await turned_away(started) == expected
        first.session.lost()
        await started.peer()
        assert await turned_away(started) == expected
        limits.put_limits("vhost", "/", {})
        await started.peer()

    with_broker(tmp_path, test)


def test_channels_of_a_user_are_limited_over_all_its_connections(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        first, second = await started.peer(), await started.peer()
        started.core.access.book.put_limits("user", "guest", {"max-channels": 3})
        await first.open_channel(2)
        second.method(m.ChannelOpen(), 2)
        closed = await second.expect(m.ConnectionClose)
        assert closed.reply_text == (
            "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of (3)"
        )
        second.session.lost()
        await first.open_channel(3)
        await first.call(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk, 3)
        await first.open_channel(4)

    with_broker(tmp_path, test)


def test_queues_of_a_virtual_host_are_limited(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("a")
        started.core.access.book.put_limits("vhost", "/", {"max-queues": 1})
        await peer.declare("a")
        peer.method(m.QueueDeclare(0, "b", False, False, False, False, False, {}))
        closed = await peer.expect(m.ChannelClose)
        assert closed.reply_code == PRECONDITION_FAILED
        assert closed.reply_text.endswith("cannot declare queue 'b': queue limit in vhost '/' (1) is reached")

    with_broker(tmp_path, test)


def test_who_sends_more_messages_than_allowed_is_read_later(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("a")
        started.core.access.subscribe(peer.session.access_changed)  # as the server does
        started.core.access.book.put_limits("user", "guest", {"max-message-rate": 100})
        for _ in range(1_000):
            peer.publish("a")
        assert peer.session.readable
        peer.publish("a")
        assert not peer.session.readable
        await asyncio.sleep(0.05)
        assert peer.session.readable
        await peer.settle()
        assert started.core.messaging.queues.require("a").cursor.ready == 1_001

    with_broker(tmp_path, test)


def test_limits_are_managed_exported_and_imported(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.consume("amq.rabbitmq.reply-to", no_ack=True)
        put = {"kind": "user", "name": "guest", "limits": {"max-channels": 9}}
        assert "ok" in await manage(peer, do="put_limits", **put)
        assert "ok" in await manage(peer, do="put_limits", kind="vhost", name="/", limits={"max-queues": 7})
        wrong = await manage(peer, do="put_limits", kind="user", name="guest", limits={"max-moons": 1})
        assert wrong["error"] == "precondition failed"
        exported = (await manage(peer, do="export"))["ok"]
        assert isinstance(exported, dict)
        assert exported["users"][0]["limits"] == {"max-channels": 9}
        assert exported["parameters"] == [
            {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": 7}}
        ]
        for kind, name in list(started.core.access.book.limits.by_place):
            started.core.access.book.put_limits(kind, name, {})
        assert "ok" in await manage(peer, do="import", definitions=exported)
        assert started.core.access.book.limits.by_place == {
            ("user", "guest"): {"max-channels": 9},
            ("vhost", "/"): {"max-queues": 7},
        }

    with_broker(tmp_path, test)
