"""While the disk is short of space, publications wait: unread, unacknowledged, and nobody is cut off for it."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.mqtt.front_door import FrontDoor, Peer, front_door, payloads
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)

LOG = TopicPartition("mqtt", 0)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def stored(door: FrontDoor) -> int:
    return door.store.bounds(LOG).high_watermark


async def two_clients(door: FrontDoor, version: int = V311) -> tuple[Peer, Peer]:
    reader = await door.connect("reader", version)
    await reader.subscribe("t", qos=2)
    publisher = await door.connect("publisher", version, keep_alive_s=10)
    await publisher.publish("t", b"before", qos=1)
    await reader.receive(Publish)
    return reader, publisher


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
def test_publications_wait_for_space_and_are_then_taken_in_order(qos: int, version: int) -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door, version)
            door.core.space.set_blocked("low on disk")
            publisher.send(*(Publish("t", b"%d" % n, qos, False, False, n + 1 if qos else 0) for n in range(3)))
            publisher.send(Publish("t", b"3", qos, False, False, 4 if qos else 0))
            await settled()
            assert not publisher.reading
            assert stored(door) == 1
            assert not publisher.got
            assert not reader.got
            door.core.space.set_blocked(None)
            await reader.until(lambda: len(payloads(reader.got)) == 4)
            assert payloads(reader.got) == [b"0", b"1", b"2", b"3"]
            assert publisher.reading
            if qos:
                await publisher.receive_many(PubAck if qos == 1 else PubRec, 4)

    asyncio.run(work())


def test_whoever_does_not_publish_is_served_while_the_disk_is_low() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader, publisher = await two_clients(door)
            publisher.send(Publish("t", b"exactly once", 2, packet_id=5))
            await publisher.receive(PubRec)
            door.core.space.set_blocked("low on disk")
            publisher.send(PubRel(5), PingReq())  # what it began can be ended
            reader.send(PingReq(), Subscribe(9, [Subscription("other", 1)]))
            await reader.until(lambda: any(isinstance(packet, SubAck) for packet in reader.got))
            await publisher.until(lambda: any(isinstance(packet, PingResp) for packet in publisher.got))
            assert publisher.reading
            assert reader.reading
            late = await door.connect("late")
            late.send(PingReq())
            await late.receive(PingResp)

    asyncio.run(work())


def test_a_publisher_that_waits_for_space_is_not_cut_off_for_its_keep_alive() -> None:
    async def work() -> None:
        async with front_door() as door:
            _, publisher = await two_clients(door)
            door.core.space.set_blocked("low on disk")
            publisher.send(Publish("t", b"late", 1, packet_id=2), PingReq())
            for _ in range(60):
                door.pass_time(1_000)
            assert not publisher.closed
            door.core.space.set_blocked(None)
            await publisher.until(lambda: len(publisher.got) == 2)
            assert {type(packet) for packet in publisher.got} == {PubAck, PingResp}
            for _ in range(14):
                door.pass_time(1_000)
            assert not publisher.closed
            for _ in range(3):
                door.pass_time(1_000)
            assert publisher.closed, "the keep-alive counts again once the connection is read"

    asyncio.run(work())


def test_a_client_that_goes_while_it_waits_takes_its_publications_along() -> None:
    async def work() -> None:
        async with front_door() as door:
            _, publisher = await two_clients(door)
            door.core.space.set_blocked("low on disk")
            publisher.send(Publish("t", b"never acknowledged", 1, packet_id=2))
            publisher.drop()
            door.core.space.set_blocked(None)
            await settled()
            assert stored(door) == 1

    asyncio.run(work())
