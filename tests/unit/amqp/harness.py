"""A session without a socket: what a client sends goes in as bytes, what it would read comes out as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from tests.stores import as_chosen
from tests.unit.plain_wire import PlainWire
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import (
    NO_PROPERTIES,
    PROTOCOL_HEADER,
    Parser,
    ParserEvent,
    encode_confirm,
    encode_method,
    encode_publish,
)
from trunkline.protocols.amqp.frames import Content, MethodFrame
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.service import Service
from trunkline.protocols.amqp.session import Session
from trunkline.protocols.listener.session import Buffer

FRAME_MAX = 131_072
PATIENCE_S = 10.0
R = TypeVar("R", bound=m.Method)
CAPABLE: dict[str, FieldValue] = {
    "capabilities": {
        "authentication_failure_close": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "basic.nack": True,
    }
}


class Peer(PlainWire):
    """A client and its session."""

    def __init__(self, service: Service, *, loopback: bool = True) -> None:
        super().__init__("127.0.0.1" if loopback else "192.0.2.1")
        self.service = service
        self.raw = bytearray()
        self.events: list[ParserEvent] = []
        self._parser = Parser(expect_header=False)
        self.session = Session(service, self)

    # -- the session's wire

    def write(self, data: Buffer) -> None:
        self.raw += data
        if bytes(data[:4]) != b"AMQP":
            self.events += self._parser.feed(data)

    # -- the client

    def send(self, data: bytes) -> None:
        self.session.receive(data)

    def method(self, method: m.Method, channel: int = 1) -> None:
        self.send(encode_method(channel, method))

    async def call(self, method: m.Method, reply: type[R], channel: int = 1) -> R:
        self.method(method, channel)
        return await self.expect(reply)

    def publish(
        self,
        routing_key: str,
        body: bytes = b"body",
        *,
        exchange: str = "",
        properties: bytes = NO_PROPERTIES,
        mandatory: bool = False,
        channel: int = 1,
    ) -> None:
        self.send(encode_publish(channel, exchange, routing_key, properties, body, FRAME_MAX, mandatory=mandatory))

    def ack(self, tag: int, multiple: bool = False, channel: int = 1) -> None:
        self.send(encode_confirm(channel, tag, multiple))

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        await until(lambda: self.session._task is None)
        for _ in range(5):
            await asyncio.sleep(0)

    async def expect(self, reply: type[R]) -> R:
        await until(
            lambda: any(_is(event, reply) for event in self.events), lambda: f"{reply.__name__} in {self.events}"
        )
        for place, event in enumerate(self.events):
            if isinstance(event, MethodFrame) and isinstance(event.method, reply):
                del self.events[place]
                return event.method
        raise AssertionError(self.events)

    async def bodies(self, count: int) -> list[bytes]:
        await until(lambda: len(self.deliveries()) >= count, lambda: f"{count} deliveries in {self.events}")
        return [event.body for event in self.deliveries()]

    def deliveries(self) -> list[Content]:
        return [e for e in self.events if isinstance(e, Content) and isinstance(e.method, m.BasicDeliver)]

    def tags(self) -> list[int]:
        return [e.method.delivery_tag for e in self.deliveries() if isinstance(e.method, m.BasicDeliver)]

    # -- opening

    async def log_in(
        self,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        properties: dict[str, FieldValue] | None = None,
        heartbeat_s: int = 0,
    ) -> None:
        self.send(PROTOCOL_HEADER)
        await self.expect(m.ConnectionStart)
        response = b"\0" + user.encode() + b"\0" + password.encode()
        self.method(m.ConnectionStartOk(CAPABLE if properties is None else properties, "PLAIN", response, "en_US"), 0)
        await self.expect(m.ConnectionTune)
        self.method(m.ConnectionTuneOk(2047, FRAME_MAX, heartbeat_s), 0)
        self.method(m.ConnectionOpen(vhost), 0)
        await self.expect(m.ConnectionOpenOk)

    async def open_channel(self, channel: int = 1) -> None:
        await self.call(m.ChannelOpen(), m.ChannelOpenOk, channel)

    async def declare(self, name: str, *, durable: bool = False, channel: int = 1, **arguments: FieldValue) -> None:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        await self.call(m.QueueDeclare(0, name, False, durable, False, False, False, table), m.QueueDeclareOk, channel)

    async def consume(self, queue: str, *, no_ack: bool = False, tag: str = "c", channel: int = 1) -> None:
        await self.call(m.BasicConsume(0, queue, tag, False, no_ack, False, False, {}), m.BasicConsumeOk, channel)


def _is(event: ParserEvent, reply: type[m.Method]) -> bool:
    return isinstance(event, MethodFrame) and isinstance(event.method, reply)


async def until(condition: Callable[[], bool], what: Callable[[], str] = lambda: "") -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.001)


class Broker:
    def __init__(self, core: BrokerCore, service: Service, clock: ManualClock) -> None:
        self.core = core
        self.service = service
        self.clock = clock

    async def peer(
        self, *, heartbeat_s: int = 0, user: str = "guest", password: str = "guest", vhost: str = "/"
    ) -> Peer:
        """A client with an open channel."""
        peer = Peer(self.service)
        await peer.log_in(heartbeat_s=heartbeat_s, user=user, password=password, vhost=vhost)
        await peer.open_channel()
        return peer


@asynccontextmanager
async def broker(directory: Path, limits: AmqpLimits | None = None) -> AsyncIterator[Broker]:
    clock = ManualClock()
    core = BrokerCore(as_chosen(EmbeddedStore(directory, clock=clock)), clock=clock)
    await core.start()
    try:
        yield Broker(core, Service(core, limits), clock)
    finally:
        await core.close()


def run(work: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def with_broker(directory: Path, test: Callable[[Broker], Awaitable[None]], limits: AmqpLimits | None = None) -> None:
    async def work() -> None:
        async with broker(directory, limits) as started:
            await test(started)

    run(work())
