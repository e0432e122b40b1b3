"""Exactly once, through kills of the broker and cut connections at random moments.

A publisher and a subscriber, both with kept sessions, keep to the protocol; packets are handled one at a time, and between any
two of them the broker may be replaced by one that finds only what was written, or a connection may be cut with everything
on it lost.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from itertools import count

import pytest

from tests.unit.mqtt.front_door import FrontDoor, Peer, after_a_kill, front_door
from trunkline.protocols.mqtt.packets import V311, ConnAck, Connect, PubAck, PubComp, Publish, PubRec, PubRel

COUNT = 30
WINDOW = 4
STORMY_STEPS = 10_000
MAX_S = 60.0


class Client:
    def __init__(self, name: str, random_source: random.Random) -> None:
        self.name = name
        self.random = random_source
        self.peer: Peer | None = None
        self.connected = False

    async def step(self, door: FrontDoor) -> None:
        """Connect, or handle one packet if there is one."""
        if self.peer is None or self.peer.closed:
            self.peer = Peer(door.server, V311)
            self.connected = False
            self.peer.send(Connect(V311, self.name, False))
            return
        if not self.peer.got:
            return
        packet = self.peer.got.pop(0)
        if isinstance(packet, ConnAck):
            self.connected = True
            self.on_connected(self.peer)
        else:
            self.on_packet(self.peer, packet)

    def lose(self) -> None:
        if self.peer is not None and not self.peer.closed:
            self.peer.drop()
        self.peer = None
        self.connected = False

    def on_connected(self, peer: Peer) -> None: ...

    def on_packet(self, peer: Peer, packet: object) -> None: ...


class Publisher(Client):
    def __init__(self, name: str, random_source: random.Random, qos: int) -> None:
        super().__init__(name, random_source)
        self.qos = qos
        self.next_number = 0
        self.next_id = 0
        self.open: dict[int, bytes | None] = {}  # packet id -> payload; None once it is released

    @property
    def done(self) -> bool:
        return self.next_number == COUNT and not self.open

    def publish(self) -> None:
        if self.connected and self.peer is not None and self.next_number < COUNT and len(self.open) < WINDOW:
            while True:
                self.next_id = self.next_id % 6 + 1  # few identifiers, so that they are used again soon
                if self.next_id not in self.open:
                    break
            payload = b"%d" % self.next_number
            self.next_number += 1
            self.open[self.next_id] = payload
            self.peer.send(Publish("t", payload, self.qos, packet_id=self.next_id))

    def on_connected(self, peer: Peer) -> None:
        for packet_id, payload in self.open.items():
            if payload is None:
                peer.send(PubRel(packet_id))
            else:
                peer.send(Publish("t", payload, self.qos, dup=True, packet_id=packet_id))

    def on_packet(self, peer: Peer, packet: object) -> None:
        if isinstance(packet, PubRec):
            self.open[packet.packet_id] = None
            peer.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubComp | PubAck):
            self.open.pop(packet.packet_id, None)


class Subscriber(Client):
    def __init__(self, name: str, random_source: random.Random) -> None:
        super().__init__(name, random_source)
        self.received: set[int] = set()
        self.delivered: list[int] = []

    def on_packet(self, peer: Peer, packet: object) -> None:
        if isinstance(packet, Publish):
            if packet.qos == 1:
                self.delivered.append(int(packet.payload))
                peer.send(PubAck(packet.packet_id))
                return
            if packet.packet_id not in self.received:
                self.received.add(packet.packet_id)
                self.delivered.append(int(packet.payload))
            peer.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self.received.discard(packet.packet_id)
            peer.send(PubComp(packet.packet_id))


async def play(seed: int, qos: int) -> list[int]:
    source = random.Random(seed)
    async with front_door() as first:
        subscriber = Subscriber("subscriber", source)
        publisher = Publisher("publisher", source, qos)
        peer = await first.returning("subscriber")
        await peer.subscribe("t", qos=qos)
        peer.drop()
        doors = [first]
        kills = AsyncExitStack()
        try:
            deadline_s = asyncio.get_running_loop().time() + MAX_S
            for step in count():
                if publisher.done and len(set(subscriber.delivered)) == COUNT and not subscriber.received:
                    break
                if asyncio.get_running_loop().time() > deadline_s:
                    break
                # After a while nothing more is cut or killed: then everything must get through, however slow the store is.
                match source.randrange(40) if step < STORMY_STEPS else source.randrange(3, 40):
                    case 0 if len(doors) < 8:
                        subscriber.lose()
                        publisher.lose()
                        again = after_a_kill(doors[-1])
                        doors.append(await kills.enter_async_context(again))
                    case 1:
                        subscriber.lose()
                    case 2:
                        publisher.lose()
                    case choice if choice < 15:
                        publisher.publish()
                    case _:
                        await subscriber.step(doors[-1])
                        await publisher.step(doors[-1])
                if source.randrange(3) == 0 or step >= STORMY_STEPS:
                    await asyncio.sleep(0)
                elif source.randrange(10) == 0:
                    await asyncio.sleep(0.001)  # lets fsyncs come in
        finally:
            await kills.aclose()
        return subscriber.delivered


@pytest.mark.parametrize("seed", range(6))
def test_qos_2_is_never_lost_and_never_doubled(seed: int) -> None:
    assert asyncio.run(play(seed, 2)) == list(range(COUNT))


@pytest.mark.parametrize("seed", range(3))
def test_qos_1_is_never_lost(seed: int) -> None:
    assert sorted(set(asyncio.run(play(seed, 1)))) == list(range(COUNT))
