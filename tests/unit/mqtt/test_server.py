"""What MQTT clients do not take counts: per connection, and with that of all other protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerLimits, BrokerSettings
from trunkline.broker.messaging.mapping import Mapping
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.protocols.mqtt.codec import encode
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.packets import V311, Connect, Packet, Publish, Subscribe, Subscription
from trunkline.protocols.mqtt.server import MqttServer
from trunkline.protocols.websocket.codec import Opcode, frame

DEADLINE_S = 30
PIECE = bytes(500_000)
OWN_BYTES = 16_000_000
HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Door:
    """A running server, a subscriber that reads only when the test does, and a publisher."""

    def __init__(self, server: MqttServer, subscriber: Streams, publisher: asyncio.StreamWriter) -> None:
        self.server = server
        self.broker = server.broker
        self.reader, self.writer = subscriber
        self._publisher = publisher

    @property
    def dropped(self) -> int:
        return self.server.hub.counters.dropped

    async def publish(self, count: int = 1) -> None:
        """QoS 0, and wait until the server has them."""
        counters = self.server.hub.counters
        wanted = counters.messages_received + count
        self._publisher.write(encode(Publish("t", PIECE), V311) * count)
        await until(lambda: counters.messages_received >= wanted and not self.server.hub.publishing.pending)


async def until(done: Callable[[], bool]) -> None:
    while not done():
        await asyncio.sleep(0.001)


def packets(*given: Packet, websocket: bool) -> bytes:
    data = b"".join(encode(packet, V311) for packet in given)
    if not websocket:
        return data
    unmasked = frame(Opcode.BINARY, data)
    return HANDSHAKE + bytes((unmasked[0], unmasked[1] | 0x80)) + bytes(4) + unmasked[2:]


@asynccontextmanager
async def door(data: Path, *, websocket: bool = False, max_unsent_bytes: int = 1 << 29) -> AsyncIterator[Door]:
    settings = BrokerSettings(limits=BrokerLimits(max_unsent_bytes=max_unsent_bytes))
    broker = BrokerCore(EmbeddedStore(data), settings=settings)
    await broker.start()
    server = MqttServer(broker, limits=MqttLimits(max_unsent_bytes=OWN_BYTES), mapping=Mapping(default_topic="off"))
    subscribing = await server.listen("127.0.0.1", 0, "mqtt-ws" if websocket else "mqtt")
    publishing = await server.listen("127.0.0.1", 0, "mqtt")
    try:
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(*subscribing, limit=1)
            wanted = Subscribe(1, [Subscription("t", 0)])
            writer.write(packets(Connect(V311, "slow"), wanted, websocket=websocket))
            await until(lambda: server.sessions.subscription_count == 1)
            _, publisher = await asyncio.open_connection(*publishing)
            publisher.write(encode(Connect(V311, "fast"), V311))
            yield Door(server, (reader, writer), publisher)
            writer.transport.abort()
            publisher.transport.abort()
            await until(lambda: not server.connections)
            assert (broker.counters.unsent_bytes, broker.output.held_bytes, broker.counters.connections) == (0, 0, 0)
    finally:
        await server.close()
        await broker.close()


over_tcp_and_websocket = pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])


@over_tcp_and_websocket
def test_what_a_client_does_not_take_counts_and_qos_0_beyond_its_own_limit_is_dropped(
    tmp_path: Path, websocket: bool
) -> None:
    async def scenario() -> None:
        async with door(tmp_path, websocket=websocket) as open_door:
            while not open_door.broker.counters.unsent_bytes:
                await open_door.publish()
            before = open_door.broker.counters.unsent_bytes
            await open_door.publish(4)
            assert open_door.broker.counters.unsent_bytes >= before + 4 * len(PIECE)
            assert open_door.dropped == 0
            while not open_door.dropped:
                await open_door.publish(8)
            assert OWN_BYTES < open_door.broker.counters.unsent_bytes < OWN_BYTES + 9 * len(PIECE)
            dropped = open_door.dropped
            while open_door.broker.counters.unsent_bytes:
                await open_door.reader.read(1 << 20)
            await open_door.publish()
            assert open_door.dropped == dropped, "who has caught up gets everything again"

    asyncio.run(scenario())


def test_qos_0_is_dropped_when_clients_of_any_protocol_have_left_too_much(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with door(tmp_path, max_unsent_bytes=10_000_000) as open_door:
            while not open_door.broker.counters.unsent_bytes:
                await open_door.publish()
            open_door.broker.counters.unsent_bytes += 10_000_000  # of Kafka and AMQP clients
            await open_door.publish(3)
            assert open_door.dropped == 3
            open_door.broker.counters.unsent_bytes -= 10_000_000
            await open_door.publish(3)
            assert open_door.dropped == 3

    asyncio.run(scenario())


def test_the_statistics_tell_what_is_unsent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with door(tmp_path) as open_door:
            while not open_door.broker.counters.unsent_bytes:
                await open_door.publish()
            values = open_door.server.statistics.values()
            assert values["unsent bytes"] == open_door.broker.counters.unsent_bytes

    asyncio.run(scenario())
