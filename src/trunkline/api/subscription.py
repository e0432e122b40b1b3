"""A subscription: a queue of its own for as long as it lasts, bound by its filter.

Events are published to `amq.topic` with their topic as routing key, so MQTT clients and AMQP clients are publishers, too. What
topics cannot say is bound behind it: `trunkline.content` routes by expressions over fields and headers, `trunkline.types` by
the headers in which an event says what classes it is of.
"""

from __future__ import annotations

import secrets

from trunkline.api.filters import Channel, Content, Filter, Topic, routing_key
from trunkline.api.handle import Handle
from trunkline.api.intake import Intake
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.protocols.amqp import methods as m

EVENTS = "amq.topic"
CONTENT = "trunkline.content"
TYPES = "trunkline.types"
TYPE_HEADER = "type:"
_AHEAD = 256


class Subscription:
    def __init__(self, wire: Wire, filter: Filter) -> None:
        self._wire = wire
        self._filter = filter
        self._queue = f"subscription-{secrets.token_hex(8)}"

    async def start(self, handle: Handle, deadline: float) -> None:
        intake = Intake(self._wire, self._prepare, handle.arrived, prefetch=_AHEAD, lost=handle.lost)
        await handle.start(intake, deadline)

    async def _prepare(self, link: Link, channel: LinkChannel, timeout_s: float) -> str:
        declaration = m.QueueDeclare(0, self._queue, False, False, True, True, False, {})
        await channel.call(declaration, m.QueueDeclareOk, timeout_s)
        if isinstance(self._filter, Topic):
            await self._bind(channel, EVENTS, routing_key(self._filter.pattern), {}, timeout_s)
        elif isinstance(self._filter, Channel):
            await self._bind(channel, EVENTS, routing_key(self._filter.name) + ".#", {}, timeout_s)
        elif isinstance(self._filter, Content):
            await self._route_to(channel, CONTENT, "content", timeout_s)
            await self._bind(channel, CONTENT, "", {"x-filter": self._filter.expression}, timeout_s)
        else:
            await self._route_to(channel, TYPES, "headers", timeout_s)
            wanted: dict[str, FieldValue] = {"x-match": "all", TYPE_HEADER + self._filter.of.__name__: True}
            await self._bind(channel, TYPES, "", wanted, timeout_s)
        return self._queue

    async def _bind(
        self, channel: LinkChannel, exchange: str, key: str, arguments: dict[str, FieldValue], timeout_s: float
    ) -> None:
        await channel.call(m.QueueBind(0, self._queue, exchange, key, False, arguments), m.QueueBindOk, timeout_s)

    async def _route_to(self, channel: LinkChannel, exchange: str, kind: str, timeout_s: float) -> None:
        """Let every event reach an exchange that routes by something else than topics."""
        declaration = m.ExchangeDeclare(0, exchange, kind, False, True, False, False, False, {})
        await channel.call(declaration, m.ExchangeDeclareOk, timeout_s)
        await channel.call(m.ExchangeBind(0, exchange, EVENTS, "#", False, {}), m.ExchangeBindOk, timeout_s)
