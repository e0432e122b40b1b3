"""What a session does with packets: rules, limits, time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

import pytest

from tests.unit.mqtt.front_door import Peer, front_door, payloads
from trunkline.broker.messaging.mapping import Mapping, MappingRule
from trunkline.log.errors import LogError
from trunkline.log.ticket import Appended, Ticket
from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import Properties, encode
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.packets import (
    V5,
    V31,
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
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from trunkline.protocols.mqtt.source import Source


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def expiring(seconds: int) -> Properties:
    found = Properties()
    found.message_expiry_interval = seconds
    return found


# -- connections -----------------------------------------------------------------------------------------------------


def test_packets_sent_before_connack_are_answered_after_it_in_order() -> None:
    async def work() -> None:
        async with front_door() as door:
            peer = Peer(door.server)
            peer.send(
                Connect(V311, "eager", False),
                Subscribe(1, [Subscription("t", 1)]),
                Publish("t", b"x", 1, packet_id=2),
                PingReq(),
            )
            assert not peer.reading
            assert isinstance(await peer.receive(ConnAck), ConnAck)
            await peer.until(lambda: len(peer.got) == 4)
            assert peer.reading
            assert {type(packet).__name__ for packet in peer.got} == {"SubAck", "Publish", "PubAck", "PingResp"}

    run(work())


@pytest.mark.parametrize(
    ("connect", "code"),
    [
        (Connect(V311, "", False), 2),
        (Connect(V31, "", True), 2),
        (Connect(V311, "x" * 2000, True), 2),
        (Connect(V5, "x" * 2000, True), errors.CLIENT_IDENTIFIER_NOT_VALID),
    ],
)
def test_a_bad_client_identifier_is_refused(connect: Connect, code: int) -> None:
    async def work() -> None:
        async with front_door() as door:
            peer = Peer(door.server, connect.version)
            peer.send(connect)
            got = await peer.ended()
            assert [packet.reason_code for packet in got if isinstance(packet, ConnAck)] == [code]
            assert not door.server.sessions.by_client

    run(work())


def test_a_session_is_taken_over_and_the_old_connection_told() -> None:
    async def work() -> None:
        async with front_door() as door:
            first = await door.connect("c", V5, clean=False, expiry_s=100)
            await first.subscribe("t")
            second = await door.connect("c", V5, clean=False, expiry_s=100)
            assert second.session_present
            told = (await first.ended())[-1]
            assert isinstance(told, Disconnect)
            assert told.reason_code == errors.SESSION_TAKEN_OVER
            await (await door.connect("p")).publish("t", b"x")
            assert (await second.receive(Publish)).payload == b"x"

    run(work())


def test_a_silent_connection_is_closed_after_one_and_a_half_keep_alives() -> None:
    async def work() -> None:
        async with front_door() as door:
            watcher = await door.connect("watcher")
            await watcher.subscribe("will")
            silent = await door.connect("silent", V5, keep_alive_s=10, will=Will("will", b"gone"))
            door.pass_time(14_000)
            silent.send(PingReq())
            await silent.receive(PingResp)
            door.pass_time(14_000)
            assert not silent.closed
            door.pass_time(3_000)
            told = (await silent.ended())[-1]
            assert isinstance(told, Disconnect)
            assert told.reason_code == errors.KEEP_ALIVE_TIMEOUT
            assert (await watcher.receive(Publish)).payload == b"gone"

    run(work())


def test_a_session_expires_and_its_will_comes_no_later() -> None:
    async def work() -> None:
        async with front_door() as door:
            watcher = await door.connect("watcher")
            await watcher.subscribe("will")
            delayed = Properties()
            delayed.will_delay_interval = 1000
            client = await door.connect("c", V5, clean=False, expiry_s=60, will=Will("will", b"w", 0, False, delayed))
            await client.subscribe("t")
            client.drop()
            door.pass_time(59_000)
            assert "c" in door.server.sessions.by_client
            door.pass_time(2_000)
            assert (await watcher.receive(Publish)).payload == b"w"
            assert "c" not in door.server.sessions.by_client
            again = await door.connect("c", V5, clean=False, expiry_s=60)
            assert not again.session_present

    run(work())


def test_a_will_is_not_sent_when_the_client_is_back_before_its_delay_or_says_goodbye() -> None:
    async def work() -> None:
        async with front_door() as door:
            watcher = await door.connect("watcher")
            await watcher.subscribe("will/#")
            delayed = Properties()
            delayed.will_delay_interval = 10
            client = await door.connect("c", V5, expiry_s=60, will=Will("will/1", b"1", 0, False, delayed))
            client.drop()
            door.pass_time(5_000)
            client = await door.connect("c", V5, clean=False, expiry_s=60, will=Will("will/2", b"2"))
            door.pass_time(20_000)
            client.send(Disconnect())
            await client.ended()
            client = await door.connect("c", V5, will=Will("will/3", b"3"))
            client.send(Disconnect(errors.DISCONNECT_WITH_WILL))
            await client.ended()
            assert payloads([await watcher.receive(Publish)]) == [b"3"]
            assert watcher.got == []

    run(work())


# -- messages --------------------------------------------------------------------------------------------------------


def test_messages_expire_and_say_how_long_they_have_left() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("c", V5)
            await client.subscribe("t")
            client.drop()
            publisher = await door.connect("p", V5)
            await publisher.publish("t", b"short", properties=expiring(5))
            await publisher.publish("t", b"long", properties=expiring(100))
            await publisher.publish("kept", b"r", retain=True, properties=expiring(5))
            door.pass_time(10_000)
            client = await door.returning("c", V5)
            message = await client.receive(Publish)
            assert message.payload == b"long"
            assert message.properties is not None
            assert message.properties.message_expiry_interval == 90
            await client.subscribe("kept")
            await publisher.publish("t", b"end")
            assert (await client.receive(Publish)).payload == b"end"
            assert len(door.server.hub.retained) == 0

    run(work())


def test_a_message_comes_once_at_the_highest_qos_with_all_identifiers() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.connect("c", V5)
            await client.subscribe("a/#", qos=0, identifier=1)
            await client.subscribe("a/+", qos=2, identifier=2)
            await client.subscribe("b", qos=2, identifier=3)
            publisher = await door.connect("p", V5)
            await publisher.publish("a/x", b"x", qos=1)
            message = await client.receive(Publish)
            assert message.qos == 1
            assert message.properties is not None
            assert sorted(message.properties.subscription_identifiers) == [1, 2]
            assert client.got == []

    run(work())


def test_no_local_holds_back_ones_own_messages_but_not_those_that_another_filter_asks_for() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.connect("c", V5)
            await client.subscribe("a/#", qos=1, no_local=True)
            await client.subscribe("a/b", qos=0)
            client.send(Publish("a/a", b"own", 0), Publish("a/b", b"both", 0))
            assert (await client.receive(Publish)).payload == b"both"
            other = await door.connect("other", V5)
            await other.publish("a/a", b"others")
            assert (await client.receive(Publish)).payload == b"others"

    run(work())


def test_a_message_that_is_too_large_for_the_client_is_passed_over() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.connect("c", V5, maximum_packet_size=100)
            await client.subscribe("t")
            publisher = await door.connect("p")
            await publisher.publish("t", b"x" * 200)
            await publisher.publish("t", b"small")
            assert (await client.receive(Publish)).payload == b"small"
            assert door.server.hub.counters.dropped == 1

    run(work())


def test_topic_aliases_are_used_towards_a_client_that_takes_them() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.connect("c", V5, topic_alias_maximum=1)
            await client.subscribe("#")
            publisher = await door.connect("p")
            client.raw.clear()
            for topic in ("first/topic", "first/topic", "second/topic"):
                await publisher.publish(topic, b"x", qos=0)
                assert (await client.receive(Publish)).topic == topic
            assert [b"first/topic" in data[:20] for data in client.raw] == [True, False, False]

    run(work())


@pytest.mark.parametrize("members", [1, 3])
def test_a_shared_subscription_divides_messages_and_keeps_them_while_all_are_away(members: int) -> None:
    async def work() -> None:
        async with front_door() as door:
            peers = [await door.returning(f"m{number}", V5) for number in range(members)]
            for peer in peers:
                assert await peer.subscribe("$share/g/t/#") == [1]
            publisher = await door.connect("p")
            for number in range(30):
                await publisher.publish(f"t/{number}", b"%d" % number)
            shares = [await peer.receive_many(Publish, 30 // members) for peer in peers]
            assert all(peer.got == [] for peer in peers)
            got = [payload for share in shares for payload in payloads(share)]
            for peer, share in zip(peers, shares, strict=True):
                peer.send(*(PubAck(packet.packet_id) for packet in share))
                peer.drop()
            for number in range(30, 40):
                await publisher.publish(f"t/{number}", b"%d" % number)
            back = await door.returning("m0", V5)
            got += payloads(await back.receive_many(Publish, 10))
            assert sorted(map(int, got)) == list(range(40))
            assert back.got == []

    run(work())


def test_a_retained_message_comes_with_a_subscription_as_its_options_say() -> None:
    async def work() -> None:
        async with front_door() as door:
            publisher = await door.connect("p")
            for name in ("a/1", "a/2", "b", "$x"):
                await publisher.publish(name, name.encode(), retain=True)
            client = await door.connect("c", V5)
            await client.subscribe("#", qos=1)
            got = await client.receive_many(Publish, 3)
            assert {packet.topic for packet in got} == {"a/1", "a/2", "b"}
            assert all(packet.retain and packet.qos == 1 for packet in got)
            await client.subscribe("#", qos=1, retain_handling=1)  # it exists
            await client.subscribe("a/+", qos=1, retain_handling=2)
            await client.subscribe("a/+", qos=0, retain_as_published=True)
            assert len(await client.receive_many(Publish, 2)) == 2
            await publisher.publish("a/3", b"live", retain=True)
            assert (await client.receive(Publish)).retain
            assert client.got == []

    run(work())


def test_unsubscribing_stops_messages_and_says_if_there_was_nothing() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("c", V5)
            await client.subscribe("a", "b")
            client.send(Unsubscribe(3, ["a", "never"]))
            assert (await client.receive(UnsubAck)).reason_codes == [0, errors.NO_SUBSCRIPTION_EXISTED]
            publisher = await door.connect("p")
            await publisher.publish("a", b"no")
            await publisher.publish("b", b"yes")
            assert (await client.receive(Publish)).payload == b"yes"

    run(work())


def test_acknowledgements_leave_in_the_order_of_what_they_acknowledge() -> None:
    async def work() -> None:
        mapping = Mapping([MappingRule("other/#", "other"), MappingRule("off/#", "off")])
        async with front_door(mapping=mapping) as door:
            client = await door.connect("c")
            topics = ["t", "other/t", "off/t"] * 20
            for number, topic in enumerate(topics, 1):
                client.send(Publish(topic, b"", 1, packet_id=number))
            acks = await client.receive_many(PubAck, 60)
            assert [ack.packet_id for ack in acks] == list(range(1, 61))

    run(work())


def test_a_repeated_qos_2_publication_is_acknowledged_and_not_published_again() -> None:
    async def work() -> None:
        async with front_door() as door:
            watcher = await door.connect("watcher")
            await watcher.subscribe("t")
            client = await door.connect("c", V5)
            client.send(Publish("t", b"1", 2, packet_id=1), Publish("t", b"1", 2, dup=True, packet_id=1))
            assert len(await client.receive_many(PubRec, 2)) == 2
            client.send(PubRel(1), PubRel(1))
            assert [(await client.receive(PubComp)).reason_code for _ in range(2)] == [
                0,
                errors.PACKET_IDENTIFIER_NOT_FOUND,
            ]
            client.send(Publish("t", b"2", 2, packet_id=1))
            await client.receive(PubRec)
            assert payloads(await watcher.receive_many(Publish, 2)) == [b"1", b"2"]

    run(work())


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False], ids=["refused", "not on disk"])
def test_a_qos_2_publication_that_was_not_stored_is_a_new_one_when_it_comes_again(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    def fails(*_: object) -> Ticket:
        if at_once:
            raise LogError("the disk is full")
        ticket = Ticket()
        ticket.placed(Appended(0, 0, -1, 0))
        ticket.set_exception(LogError("the disk is broken"))
        return ticket

    async def work() -> None:
        async with front_door() as door:
            other = await door.connect("other")
            await other.publish("t", b"so that the log topic exists", qos=2)
            client = await door.returning("c", V5)
            with monkeypatch.context() as broken:
                broken.setattr(Source, "append", fails)
                client.send(Publish("t", b"x", 2, packet_id=7))
                told = (await client.ended())[-1]
                assert isinstance(told, Disconnect)
                assert told.reason_code == errors.IMPLEMENTATION_SPECIFIC_ERROR
            await other.subscribe("t")
            client = await door.returning("c", V5)
            client.send(Publish("t", b"x", 2, dup=True, packet_id=7))
            assert (await client.receive(PubRec)).reason_code == errors.SUCCESS
            assert (await other.receive(Publish)).payload == b"x"

    run(work())


def test_more_than_receive_maximum_ends_the_connection() -> None:
    async def work() -> None:
        async with front_door(limits=MqttLimits(receive_maximum=3)) as door:
            client = await door.connect("c", V5)
            client.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 6)))
            told = (await client.ended())[-1]
            assert isinstance(told, Disconnect)
            assert told.reason_code == errors.RECEIVE_MAXIMUM_EXCEEDED

    run(work())


def test_limits_on_subscriptions_topics_sessions_and_retained_messages() -> None:
    limits = MqttLimits(
        max_subscriptions=2, max_topic_levels=3, max_sessions=2, max_retained_messages=1, sys_interval_ms=0
    )

    async def work() -> None:
        async with front_door(limits=limits) as door:
            client = await door.connect("c", V5)
            assert await client.subscribe("a", "b", "c", "a/b/c/d", "a/#/b", "$share/g") == [
                1,
                1,
                errors.QUOTA_EXCEEDED,
                errors.TOPIC_FILTER_INVALID,
                errors.TOPIC_FILTER_INVALID,
                errors.TOPIC_FILTER_INVALID,
            ]
            client.send(Publish("a/b/c/d", b"", 1, packet_id=1), Publish("$SYS/x", b"", 2, packet_id=2))
            assert (await client.receive(PubAck)).reason_code == errors.TOPIC_NAME_INVALID
            assert (await client.receive(PubRec)).reason_code == errors.NOT_AUTHORIZED
            await client.publish("x", b"1", retain=True)
            await client.publish("y", b"1", retain=True)
            assert len(door.server.hub.retained) == 1
            assert door.server.hub.counters.retained_refused == 1
            await door.connect("d", V5)
            refused = Peer(door.server, V5)
            refused.send(Connect(V5, "e"))
            got = await refused.ended()
            assert isinstance(got[0], ConnAck)
            assert got[0].reason_code == errors.QUOTA_EXCEEDED

    run(work())


def test_qos_0_to_a_client_that_does_not_read_is_dropped_and_qos_1_waits_in_the_log() -> None:
    async def work() -> None:
        async with front_door(limits=MqttLimits(max_unsent_bytes=1000)) as door:
            client = await door.connect("c")
            await client.subscribe("t")
            client.unsent = 2000
            client.connection.pause_writing()
            publisher = await door.connect("p")
            await publisher.publish("t", b"zero", qos=0)
            await publisher.publish("t", b"one", qos=1)
            await publisher.publish("t", b"two", qos=1)
            assert client.got == []
            assert door.server.hub.counters.dropped == 1
            client.unsent = 0
            client.connection.resume_writing()
            assert payloads(await client.receive_many(Publish, 2)) == [b"one", b"two"]

    run(work())


def test_messages_of_topics_that_are_not_stored_wait_up_to_a_limit() -> None:
    limits = MqttLimits(max_inflight_messages=1, max_queued_messages=2)

    async def work() -> None:
        async with front_door(limits=limits, mapping=Mapping(default_topic="off")) as door:
            client = await door.connect("c")
            await client.subscribe("t")
            publisher = await door.connect("p")
            for number in range(5):
                await publisher.publish("t", b"%d" % number)
            got = []
            for _ in range(3):
                message = await client.receive(Publish)
                got.append(message.payload)
                client.send(PubAck(message.packet_id))
            await asyncio.sleep(0)
            assert got == [b"0", b"1", b"2"]
            assert client.got == []
            assert door.server.hub.counters.dropped == 2

    run(work())


# -- hostile ---------------------------------------------------------------------------------------------------------


def test_random_bytes_close_their_connection_and_nothing_else() -> None:
    async def work() -> None:
        random_source = random.Random(4)
        async with front_door() as door:
            good = await door.connect("good")
            await good.subscribe("t")
            samples = [
                encode(Publish("t", b"payload", 1, packet_id=1), V5),
                encode(Subscribe(1, [Subscription("a/#", 2)]), V5),
                encode(PubRel(1), V5),
                encode(Disconnect(4), V5),
            ]
            for number in range(300):
                peer = Peer(door.server, V5)
                if number % 3:
                    peer.send(Connect(V5, f"c{number}"))
                data = bytearray(random_source.choice(samples) * 3)
                for _ in range(random_source.randrange(1, 6)):
                    data[random_source.randrange(len(data))] = random_source.randrange(256)
                peer.connection.receive(bytes(data))
                await asyncio.sleep(0)
                peer.drop()
            client = await door.connect("p")
            await client.publish("t", b"the end")
            await good.until(lambda: b"the end" in payloads(good.got))
            assert not good.closed

    run(work())
