"""The MQTT front door without a socket: a broker on a temporary log, and peers that speak packets to its sessions."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from tests import stores
from tests.late_log import LateLog
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.mapping import Mapping
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.protocols.mqtt.codec import MalformedPacket, Parser, Properties, encode
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Packet,
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
from trunkline.protocols.mqtt.server import MqttServer
from trunkline.protocols.mqtt.session import ClientConnection

TIMEOUT_S = 10.0
P = TypeVar("P", bound=Packet)


class Peer:
    """A client: `connection` is the broker's side of its connection."""

    def __init__(self, server: MqttServer, version: int = V311) -> None:
        self.version = version
        self.closed = False
        self.session_present = False
        self.reading = True
        self.unsent = 0
        self.full = False
        self.got: list[Packet] = []
        self.raw: list[bytes] = []
        self._parser = Parser(server_side=False, version=version, max_packet_bytes=1 << 28, topic_alias_maximum=100)
        self.connection = ClientConnection(server.hub, self, "127.0.0.1")
        self._arrived = asyncio.Event()

    # What the session asks of its connection.

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.raw.append(data)
        for event in self._parser.feed(data):
            assert not isinstance(event, MalformedPacket), event
            self.got.append(event)
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def unsent_bytes(self) -> int:
        return self.unsent

    def crowded(self) -> bool:
        return self.full

    # What a test does.

    def send(self, *packets: Packet) -> None:
        self.connection.receive(b"".join(encode(packet, self.version) for packet in packets))

    def drop(self) -> None:
        """Lose the connection."""
        self.closed = True
        self.connection.lost()

    async def until(self, done: Callable[[], bool], what: str = "") -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not done():
                assert not self.closed or done(), f"closed while waiting {what}: {self.got}"
                self._arrived.clear()
                await self._arrived.wait()

    async def receive(self, kind: type[P]) -> P:
        """The next packet, which is of this type."""
        await self.until(lambda: bool(self.got), f"for {kind.__name__}")
        packet = self.got.pop(0)
        assert isinstance(packet, kind), packet
        return packet

    async def receive_many(self, kind: type[P], count: int) -> list[P]:
        return [await self.receive(kind) for _ in range(count)]

    async def ended(self) -> list[Packet]:
        """Wait for the end; returns what came before it."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.closed:
                self._arrived.clear()
                await self._arrived.wait()
        return self.got

    async def subscribe(self, *filters: str, qos: int = 1, identifier: int = 0, **options: bool | int) -> list[int]:
        wanted = [
            Subscription(
                each,
                qos,
                bool(options.get("no_local")),
                bool(options.get("retain_as_published")),
                int(options.get("retain_handling", 0)),
            )
            for each in filters
        ]
        found = None
        if identifier:
            found = Properties()
            found.subscription_identifiers = [identifier]
        self.send(Subscribe(7, wanted, found))
        return (await self.receive(SubAck)).reason_codes

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 1, packet_id: int = 1, **fields: object
    ) -> None:
        """Publish and go through the whole handshake."""
        found = fields.get("properties")
        assert found is None or isinstance(found, Properties)
        self.send(Publish(topic, payload, qos, bool(fields.get("retain")), False, packet_id if qos else 0, found))
        if qos == 1:
            assert (await self.receive(PubAck)).packet_id == packet_id
        elif qos == 2:
            assert (await self.receive(PubRec)).packet_id == packet_id
            self.send(PubRel(packet_id))
            assert (await self.receive(PubComp)).packet_id == packet_id


class FrontDoor:
    def __init__(self, data: Path, clock: ManualClock, limits: MqttLimits, mapping: Mapping | None) -> None:
        self.data = data
        self.clock = clock
        self.store = EmbeddedStore(data, clock=clock)
        self.core = BrokerCore(stores.as_chosen(self.store), clock=clock)
        self.server = MqttServer(self.core, limits=limits, mapping=mapping)

    async def start(self) -> None:
        await self.core.start()
        await self.server.start()

    async def close(self) -> None:
        await self.server.close()
        await self.core.close()

    async def connect(
        self,
        client_id: str,
        version: int = V311,
        *,
        clean: bool = True,
        expiry_s: int | None = None,
        will: Will | None = None,
        keep_alive_s: int = 0,
        **fields: int,
    ) -> Peer:
        peer = Peer(self.server, version)
        found: Properties | None = None
        if version == V5 and (expiry_s is not None or fields):
            found = Properties()
            found.session_expiry_interval = expiry_s
            for name, value in fields.items():
                setattr(found, name, value)
        peer.send(Connect(version, client_id, clean, keep_alive_s, will, None, None, found))
        answer = await peer.receive(ConnAck)
        assert answer.reason_code == 0, answer
        peer.session_present = answer.session_present
        return peer

    async def returning(self, client_id: str, version: int = V311) -> Peer:
        """A client whose session is kept."""
        return await self.connect(client_id, version, clean=False, expiry_s=3600)

    async def written(self) -> None:
        """Wait until the turn has ended and the store has everything that it wrote."""
        await asyncio.sleep(0)
        if isinstance(self.core.store, LateLog):
            await self.core.store.rest()

    def pass_time(self, ms: float) -> None:
        self.clock.advance(ms)
        self.server.tick()


@asynccontextmanager
async def front_door(
    data: Path | None = None,
    *,
    clock: ManualClock | None = None,
    limits: MqttLimits | None = None,
    mapping: Mapping | None = None,
) -> AsyncIterator[FrontDoor]:
    directory = Path(tempfile.mkdtemp(prefix="trunkline-mqtt-"))
    door = FrontDoor(data or directory / "data", clock or ManualClock(), limits or MqttLimits(), mapping)
    await door.start()
    try:
        yield door
    finally:
        await door.close()
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def after_a_kill(door: FrontDoor) -> AsyncIterator[FrontDoor]:
    """A second broker on what the first has written so far: what one finds that is started after a SIGKILL."""
    directory = Path(tempfile.mkdtemp(prefix="trunkline-mqtt-"))
    copy = directory / "data"
    shutil.copytree(door.data, copy, ignore=shutil.ignore_patterns(".lock", ".clean_shutdown"))
    again = FrontDoor(copy, door.clock, door.server.limits, None)
    await again.start()
    try:
        yield again
    finally:
        await again.close()
        shutil.rmtree(directory, ignore_errors=True)


def payloads(packets: Iterable[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]
