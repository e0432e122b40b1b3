"""An asynchronous AMQP 0-9-1 connection on our own codec: what the Python API speaks with. RabbitMQ answers it just as well.

A link is one connection, from its handshake to its end. It never reconnects: when it is lost, everything that waits on it
fails with `LinkLost`, and whoever owns it opens another. What is written in one pass of the event loop leaves in one write.

Time: `open` has a deadline of its own; calls and publications carry theirs (`LinkChannel`), and one timer watches over all
that wait. Heartbeats are agreed on, sent when nothing else is, and a broker that is silent for two of them is lost.

Limits: what waits to be written is bounded by the transport's high-water mark: `writable` is cleared above it, and callers
wait for it before they write more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkRefused
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import (
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    FrameError,
    Parser,
    ParserEvent,
    encode_method,
)
from trunkline.protocols.amqp.errors import REPLY_NAMES
from trunkline.protocols.amqp.frames import Ack, Content, Deliver, Heartbeat, MethodFrame, Nack
from trunkline.version import VERSION

_HEARTBEAT_S = 20
_TICK_S = 0.05
_HIGH_WATER_BYTES = 1 << 20
_CAPABILITIES: dict[str, FieldValue] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class LinkAddress(NamedTuple):
    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"


class Link(asyncio.Protocol):
    def __init__(self, address: LinkAddress, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.loop = loop
        self.server_properties: dict[str, FieldValue] = {}
        self.frame_max_bytes = 131_072
        self.blocked: str | None = None  # why the broker takes no publications
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost: LinkLost | LinkRefused | None = None
        self.on_lost: Callable[[Exception], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = Parser(expect_header=False, deliveries=True)
        self._out: list[bytes] = []
        self._channels: dict[int, LinkChannel] = {}
        self._next_channel = 1
        self._channel_max = 2_047
        self._replies: dict[type[m.Method], asyncio.Future[m.Method]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = 0
        self._last_read = self._last_write = loop.time()
        self._ended: asyncio.Future[None] = loop.create_future()

    # -- open and close ------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, address: LinkAddress, timeout_s: float) -> Link:
        """LinkLost if nobody answers there in time, LinkRefused if the broker does not let us in."""
        loop = asyncio.get_running_loop()
        link = cls(address, loop)
        where = f"{address.host}:{address.port}"
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await loop.create_connection(lambda: link, address.host, address.port)
                except OSError as error:
                    raise LinkLost(f"cannot connect to {where}: {error.strerror or error}") from None
                await link._shake_hands()
        except TimeoutError:
            link.abort(LinkLost(f"{where} did not answer in {timeout_s:g} s"))
            raise LinkLost(f"{where} did not answer in {timeout_s:g} s") from None
        except BaseException:
            link.abort(LinkLost("the handshake failed"))
            raise
        return link

    async def _shake_hands(self) -> None:
        started = self._expect(m.ConnectionStart)
        self.write(PROTOCOL_HEADER)
        start = await started
        assert isinstance(start, m.ConnectionStart)
        self.server_properties = start.server_properties
        response = b"\0" + self.address.user.encode() + b"\0" + self.address.password.encode()
        properties: dict[str, FieldValue] = {
            "product": "trunkline",
            "version": VERSION,
            "platform": "Python",
            "capabilities": _CAPABILITIES,
        }
        tuned = self._expect(m.ConnectionTune)
        self.send(0, m.ConnectionStartOk(properties, "PLAIN", response, "en_US"))
        tune = await tuned
        assert isinstance(tune, m.ConnectionTune)
        self.frame_max_bytes = tune.frame_max or self.frame_max_bytes
        self._channel_max = tune.channel_max or self._channel_max
        self._parser.set_frame_max(self.frame_max_bytes)
        self._heartbeat_s = min(tune.heartbeat or _HEARTBEAT_S, _HEARTBEAT_S)
        self.send(0, m.ConnectionTuneOk(self._channel_max, self.frame_max_bytes, self._heartbeat_s))
        opened = self._expect(m.ConnectionOpenOk)
        self.send(0, m.ConnectionOpen(self.address.vhost))
        await opened
        self._tick()

    def _expect(self, reply: type[m.Method]) -> asyncio.Future[m.Method]:
        self._replies[reply] = future = self.loop.create_future()
        return future

    async def close(self, timeout_s: float = 1.0) -> None:
        """Say goodbye and wait for the broker's, for so long."""
        if self.lost is None:
            try:
                async with asyncio.timeout(timeout_s):
                    closed = self._expect(m.ConnectionCloseOk)
                    self.send(0, m.ConnectionClose(200, "Goodbye"))
                    await closed
            except (TimeoutError, LinkLost, LinkRefused):
                pass
        self.abort(LinkLost("the connection is closed"))
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended
        except TimeoutError:
            pass

    def abort(self, why: LinkLost | LinkRefused) -> None:
        """End at once; whoever waits is told why."""
        transport = self._transport
        self._lose(why)
        if transport is None:
            if not self._ended.done():
                self._ended.set_result(None)
        else:
            self._flush()
            transport.close()

    def _lose(self, why: LinkLost | LinkRefused) -> None:
        if self.lost is not None:
            return
        self.lost = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in self._replies.values():
            _fail(future, why)
        self._replies.clear()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end(why)
        self.writable.set()
        if self.on_lost is not None:
            self.on_lost(why)

    # -- channels ------------------------------------------------------------------------------------------------

    async def channel(self, timeout_s: float) -> LinkChannel:
        if self.lost is not None:
            raise self.lost
        number = self._next_channel
        while number in self._channels:
            number = number % self._channel_max + 1
        self._next_channel = number % self._channel_max + 1
        channel = self._channels[number] = LinkChannel(self, number)
        await channel.call(m.ChannelOpen(), m.ChannelOpenOk, timeout_s)
        return channel

    def forget(self, channel: LinkChannel) -> None:
        self._channels.pop(channel.number, None)
        self._parser.forget_channel(channel.number)

    # -- writing -------------------------------------------------------------------------------------------------

    def send(self, channel: int, method: m.Method) -> None:
        self.write(encode_method(channel, method))

    def write(self, data: bytes) -> None:
        out = self._out
        if not out:
            self.loop.call_soon(self._flush)
        out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._last_write = self.loop.time()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._flush()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self._last_read = self.loop.time()
        if self._replies and data.startswith(b"AMQP"):
            self.abort(LinkLost("the broker speaks another version of AMQP"))
            return
        channels = self._channels
        for event in self._parser.feed(data):
            if isinstance(event, Deliver):
                channel = channels.get(event.channel)
                if channel is not None:
                    channel.deliver(event)
            elif isinstance(event, Ack | Nack):
                channel = channels.get(event.channel)
                if channel is not None:
                    channel.confirm(event.tag, event.multiple, refused=isinstance(event, Nack))
            else:
                self._take(event)

    def _take(self, event: ParserEvent) -> None:
        if isinstance(event, Content):
            channel = self._channels.get(event.channel)
            if channel is not None:
                channel.content(event)
        elif isinstance(event, MethodFrame):
            if event.channel:
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.method(event.method)
            else:
                self._connection_method(event.method)
        elif isinstance(event, FrameError):
            self.abort(LinkLost(f"{self.address.host}:{self.address.port} sent what is not AMQP: {event.text}"))
        else:
            assert isinstance(event, Heartbeat)

    def _connection_method(self, method: m.Method) -> None:
        if isinstance(method, m.ConnectionClose):
            self.send(0, m.ConnectionCloseOk())
            name = REPLY_NAMES.get(method.reply_code, str(method.reply_code))
            text = method.reply_text.removeprefix(f"{name} - ")
            # A broker that goes down says so, and is one that may come back.
            lost = method.reply_code == 320
            self.abort(LinkLost(f"the broker closed the connection: {text}") if lost else LinkRefused(name, text))
        elif isinstance(method, m.ConnectionBlocked):
            self.blocked = method.reason
        elif isinstance(method, m.ConnectionUnblocked):
            self.blocked = None
        else:
            future = self._replies.pop(type(method), None)
            if future is not None and not future.done():
                future.set_result(method)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(LinkLost(f"the connection was lost{'' if exc is None else f': {exc}'}"))
        if not self._ended.done():
            self._ended.set_result(None)

    # -- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Let go of what waited too long; keep the connection alive, or find out that it is not."""
        if self.lost is not None:
            return
        now = self.loop.time()
        for channel in list(self._channels.values()):
            channel.expire(now)
        if self._heartbeat_s:
            if now - self._last_write > self._heartbeat_s / 2:
                self.write(HEARTBEAT_FRAME)
            if now - self._last_read > 2 * self._heartbeat_s:
                self.abort(LinkLost(f"the broker was silent for {2 * self._heartbeat_s} s"))
                return
        self._timer = self.loop.call_later(_TICK_S, self._tick)


def _fail(future: asyncio.Future[m.Method], why: Exception) -> None:
    if not future.done():
        future.set_exception(why)
        future.exception()  # whoever stopped waiting for it is not reported
