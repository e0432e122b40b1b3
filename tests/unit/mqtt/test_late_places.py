"""A store that tells places late: publications are offered when their place is known, in order, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.mqtt.front_door import FrontDoor, Peer, after_a_kill, front_door, payloads
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import BatchTooLarge, LogError
from trunkline.log.store import Buffer, Durability, TopicPartition
from trunkline.log.ticket import Ticket
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.packets import (
    V5,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)

pytestmark = pytest.mark.at_once("these tests hold back places themselves")

LOG = TopicPartition("mqtt", 0)


class Places:
    """Holds back the places of what the broker writes to its MQTT topic."""

    def __init__(self, door: FrontDoor, patch: pytest.MonkeyPatch) -> None:
        self._store = door.core.store
        self._append = self._store.append
        self.waiting: list[tuple[Ticket, Ticket | None]] = []
        self.lose = False
        patch.setattr(self._store, "append", self.append)

    def append(self, tp: TopicPartition, batches: Buffer, durability: Durability = Durability.OS) -> Ticket:
        if tp != LOG:
            return self._append(tp, batches, durability)
        ticket = Ticket()
        self.waiting.append((ticket, None if self.lose else self._append(tp, batches, durability)))
        return ticket

    def foreign(self, value: bytes) -> None:
        """What a Kafka producer appends."""
        self._append(LOG, build_batch([NewRecord(b"t", value)], timestamp_ms=1))

    def tell(self, which: int = 0) -> None:
        """Tell the place of an append, and complete it."""
        ticket, stored = self.waiting.pop(which)
        assert stored is not None
        assert stored.place is not None
        ticket.placed(stored.place)
        ticket.set_result(stored.place)

    def fail(self, error: LogError) -> None:
        self.waiting.pop(0)[0].set_exception(error)

    async def sent(self, count: int) -> None:
        """Wait until so many appends wait for their place."""
        async with asyncio.timeout(10):
            while len(self.waiting) < count:
                await asyncio.sleep(0)


@contextmanager
def held(door: FrontDoor) -> Iterator[Places]:
    with pytest.MonkeyPatch.context() as patch:
        yield Places(door, patch)


async def two_clients(door: FrontDoor, qos: int = 2) -> tuple[Peer, Peer]:
    reader, publisher = await door.connect("reader", V5), await door.connect("publisher", V5)
    await reader.subscribe("t", qos=qos)
    await publisher.publish("t", b"first", qos=1)
    await reader.receive(Publish)
    return reader, publisher


async def publish(publisher: Peer, places: Places, *bodies: bytes, qos: int = 1) -> None:
    """Each in a turn of its own."""
    for body in bodies:
        before = len(places.waiting)
        publisher.send(Publish("t", body, qos, packet_id=100 + before if qos else 0))
        await places.sent(before + 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publications_are_offered_and_acknowledged_when_their_place_is_known(qos: int) -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            with held(door) as places:
                await publish(publisher, places, b"a", b"b", qos=qos)
                await asyncio.sleep(0)
                assert not reader.got
                assert not publisher.got
                places.tell()
                places.tell()
                await reader.until(lambda: len(reader.got) == 2)
                assert payloads(reader.got) == [b"a", b"b"]
                if qos:
                    acks = await publisher.receive_many(PubAck if qos == 1 else PubRec, 2)
                    assert [packet.packet_id for packet in acks] == [100, 101]

    asyncio.run(work())


def test_a_place_that_is_told_before_an_earlier_one_waits_for_it() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            with held(door) as places:
                await publish(publisher, places, b"a", b"b")
                places.tell(1)
                await asyncio.sleep(0)
                assert not reader.got
                places.tell()
                await reader.until(lambda: len(reader.got) == 2)
                assert payloads(reader.got) == [b"a", b"b"]
                assert [packet.packet_id for packet in await publisher.receive_many(PubAck, 2)] == [100, 101]

    asyncio.run(work())


def test_what_others_append_in_between_comes_in_the_order_of_the_log_and_once() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            with held(door) as places:
                await publish(publisher, places, b"a")
                places.foreign(b"theirs")
                await publish(publisher, places, b"b")
                places.foreign(b"theirs too")
                places.tell()
                places.tell()
                await reader.until(lambda: len(reader.got) >= 4)
                await publish(publisher, places, b"c")
                places.tell()
                await reader.until(lambda: len(reader.got) >= 5)
                assert payloads(reader.got) == [b"a", b"theirs", b"b", b"theirs too", b"c"]

    asyncio.run(work())


def test_whoever_subscribes_before_the_place_is_known_gets_it_and_whoever_leaves_does_not() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            with held(door) as places:
                publisher.send(Publish("t", b"live", 1, packet_id=5))
                await places.sent(1)
                late = await door.connect("late", V5)
                await late.subscribe("t", qos=1)
                reader.send(Unsubscribe(3, ["t"]))
                await reader.until(lambda: bool(reader.got))
                reader.got.clear()
                places.tell()
                await publisher.receive(PubAck)
                assert (await late.receive(Publish)).payload == b"live"
                assert not reader.got

    asyncio.run(work())


@pytest.mark.parametrize("topic_filter", ["t", "+", "#"])
def test_a_subscription_waits_for_retained_publications_that_came_before_it(topic_filter: str) -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            await publisher.publish("t", b"old", qos=1, retain=True)
            late = await door.connect("late", V5)
            with held(door) as places:
                for payload in (b"new", b"newest"):
                    publisher.send(Publish("t", payload, 0, True))
                    await places.sent(1 + (payload == b"newest"))
                late.send(Subscribe(7, [Subscription(topic_filter, 1)]), PingReq())
                publisher.send(Publish("t", b"behind it", 0))
                await places.sent(3)
                places.tell()
                await settled()
                assert not late.got, "neither the message before, nor an answer to what is behind the SUBSCRIBE"
                places.tell()
                await late.receive(SubAck)
                await late.until(lambda: len(late.got) >= 2)
                places.tell()
                await late.until(lambda: len(late.got) >= 3)
                await settled()
                found = [(each.payload, each.retain) for each in late.got if isinstance(each, Publish)]
                assert found == [(b"newest", True), (b"behind it", False)]
                assert any(isinstance(each, PingResp) for each in late.got)
            assert payloads(reader.got) == [b"old", b"new", b"newest", b"behind it"]

    asyncio.run(work())


def test_a_subscription_waits_for_nothing_that_it_does_not_ask_for() -> None:
    async def work() -> None:
        async with front_door() as door:
            _, publisher = await two_clients(door)
            late = await door.connect("late", V5)
            with held(door) as places:
                publisher.send(Publish("t", b"new", 0, True))
                await places.sent(1)
                await late.subscribe("other", "t/below")
                await late.subscribe("t", retain_handling=2)
                places.tell()
                assert (await late.receive(Publish)).payload == b"new"

    asyncio.run(work())


def test_a_subscription_goes_on_when_what_it_waited_for_is_lost() -> None:
    async def work() -> None:
        async with front_door() as door:
            _, publisher = await two_clients(door)
            late = await door.connect("late", V5)
            with held(door) as places:
                places.lose = True
                publisher.send(Publish("t", b"lost", 0, True))
                await places.sent(1)
                late.send(Subscribe(7, [Subscription("t", 1)]))
                places.fail(LogError("out of reach"))
                await late.receive(SubAck)
                await settled()
                assert not late.got

    asyncio.run(work())


def test_a_connection_that_goes_while_its_subscription_waits_is_gone() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            late = await door.connect("late", V5)
            with held(door) as places:
                publisher.send(Publish("t", b"new", 0, True))
                await places.sent(1)
                late.send(Subscribe(7, [Subscription("t", 1)]))
                late.drop()
                places.tell()
                await reader.receive(Publish)
                await settled()
                assert "late" not in door.server.sessions.by_client

    asyncio.run(work())


async def settled() -> None:
    """Long enough for everything that is due to be done: nothing here waits for a disk."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_ticket_that_fails_ends_the_connection_and_nothing_is_offered_or_retained(qos: int) -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            kept = await door.returning("kept", V5)
            with held(door) as places:
                places.lose = True
                kept.send(Publish("t", b"lost", qos, True, False, 7))
                await places.sent(1)
                places.fail(LogError("out of reach"))
                assert isinstance((await kept.ended())[-1], Disconnect)
            assert not reader.got
            assert not len(door.server.hub.retained)
            kept = await door.returning("kept", V5)
            kept.send(Publish("t", b"lost", qos, False, True, 7))  # sent again, it is a new one
            await kept.receive(PubAck if qos == 1 else PubRec)
            assert (await reader.receive(Publish)).payload == b"lost"
            await publisher.publish("t", b"next")
            assert (await reader.receive(Publish)).payload == b"next"

    asyncio.run(work())


def test_an_identifier_is_not_written_down_before_its_publication_has_a_place() -> None:
    async def work() -> None:
        async with front_door() as door:
            await two_clients(door)
            kept = await door.returning("kept", V5)
            with held(door) as places:
                places.lose = True
                kept.send(Publish("t", b"under way", 2, packet_id=7))
                await places.sent(1)
                await door.written()
                await settled()
                async with after_a_kill(door) as again:
                    reader = await again.connect("reader", V5)
                    await reader.subscribe("t", qos=2)
                    kept = await again.returning("kept", V5)
                    kept.send(Publish("t", b"under way", 2, dup=True, packet_id=7))
                    await kept.receive(PubRec)
                    assert (await reader.receive(Publish)).payload == b"under way"
                    kept.send(Publish("t", b"under way", 2, dup=True, packet_id=7))
                    await kept.receive(PubRec)
                    await again.written()
                    async with after_a_kill(again) as once_more:
                        reader = await once_more.connect("reader", V5)
                        await reader.subscribe("t", qos=2)
                        kept = await once_more.returning("kept", V5)
                        kept.send(
                            Publish("t", b"under way", 2, dup=True, packet_id=7), Publish("t", b"next", 1, packet_id=8)
                        )
                        await kept.receive(PubRec)
                        assert (await reader.receive(Publish)).payload == b"next", "the other is known"

    asyncio.run(work())


def test_a_batch_that_is_refused_late_takes_only_what_is_too_large_with_it() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            with held(door) as places:
                places.lose = True
                publisher.send(*(Publish("t", b"%d" % number, 1, packet_id=number) for number in (1, 2)))
                await places.sent(1)
                places.lose = False
                places.fail(BatchTooLarge("too large"))
                await places.sent(2)
                places.tell()
                places.tell()
                await reader.until(lambda: len(reader.got) == 2)
                assert payloads(reader.got) == [b"1", b"2"]
                await publisher.receive_many(PubAck, 2)

    asyncio.run(work())


def test_what_has_no_place_counts_against_the_turns_limit() -> None:
    async def work() -> None:
        async with front_door(limits=MqttLimits(max_turn_bytes=1_000)) as door:
            reader, publisher = await two_clients(door)
            with held(door) as places:
                await publish(publisher, places, bytes(600), bytes(600), qos=0)
                publisher.send(Publish("t", b"one more", 0))
                assert not publisher.reading
                await places.sent(3)
                for _ in range(3):
                    places.tell()
                assert publisher.reading
                await reader.until(lambda: len(reader.got) == 3)

    asyncio.run(work())
