"""Requests and their replies: direct ones, that go from connection to connection through no queue.

A request waits in its service's queue for no longer than its asker waits for the reply. A connection that is lost takes the
replies with it: whoever waits is told, as whether the request was handled is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trunkline.api.errors import ConnectionLost, NoRoute, RequestFailed, Timeout
from trunkline.api.message import Message
from trunkline.api.outgoing import Letter, Outgoing
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.protocols.amqp.codec import Properties, decode_properties
from trunkline.protocols.amqp.frames import Deliver

REPLY_TO = "amq.rabbitmq.reply-to"
ERROR_HEADER = "x-error"
_AGAIN_S = 0.1


class Requests:
    def __init__(self, wire: Wire, outgoing: Outgoing) -> None:
        self._wire = wire
        self._outgoing = outgoing
        self._channel: LinkChannel | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[Deliver]] = {}

    async def request(
        self,
        service: str,
        value: object,
        timeout: float | None,
        *,
        headers: Mapping[str, FieldValue] | None = None,
        into: object = object,
    ) -> Message[Any]:
        """The reply. NoRoute if nobody ever served this, RequestFailed if the service raised, Timeout."""
        deadline = self._wire.deadline(timeout)
        channel = self._channel
        if channel is None or channel.ended is not None:
            channel = await self._wire.attempt(self._open, deadline)
        left = self._wire.left(deadline)
        number = self._outgoing.new_id()
        letter = self._outgoing.letter(
            value,
            "",
            service,
            headers=headers,
            expires=left,
            persistent=False,
            correlation_id=number,
            reply_to=REPLY_TO,
            message_id=number,
        )
        try:
            delivered = await self.ask(channel, letter, number, deadline)
        except NoRoute:
            # After a restart of the broker the services come back a moment later.
            if not self._wire.lately_reconnected or self._wire.left(deadline) <= _AGAIN_S:
                raise
            await asyncio.sleep(_AGAIN_S)
            return await self.request(service, value, self._wire.left(deadline), headers=headers, into=into)
        reply = Message[Any](delivered, None, into)
        error = reply.headers.get(ERROR_HEADER)
        if error is not None:
            raise RequestFailed(str(error))
        return reply

    async def ask(self, channel: LinkChannel, letter: Letter, number: str, deadline: float) -> Deliver:
        answer: asyncio.Future[Deliver] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            channel.publish_unconfirmed("", letter.routing_key, letter.properties, letter.body, mandatory=True)
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            raise Timeout(f"no reply of {letter.routing_key!r} came in time") from None
        finally:
            self._waiting.pop(number, None)

    async def channel(self, deadline: float) -> LinkChannel:
        channel = self._channel
        if channel is None or channel.ended is not None:
            channel = await self._wire.attempt(self._open, deadline)
        return channel

    async def _open(self, link: Link, timeout_s: float) -> LinkChannel:
        async with self._opening:
            channel = self._channel
            if channel is None or channel.ended is not None or channel.link is not link:
                channel = await link.channel(timeout_s)
                channel.on_end = self._lost
                channel.on_return = self._returned
                await channel.consume(REPLY_TO, "replies", self._replied, timeout_s, no_ack=True)
                self._channel = channel
            return channel

    def _replied(self, delivered: Deliver) -> None:
        answer = self._waiting.get(decode_properties(delivered.properties).correlation_id or "")
        if answer is not None and not answer.done():
            answer.set_result(delivered)

    def _returned(self, properties: Properties) -> None:
        answer = self._waiting.get(properties.correlation_id or "")
        if answer is not None and not answer.done():
            answer.set_exception(NoRoute("nobody has ever served this"))

    def _lost(self, why: Exception) -> None:
        self._channel = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(f"whether the request was handled is not known: {why}"))
