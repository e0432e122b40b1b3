"""A subscription: a queue of its own for as long as it lasts, bound by its filter; with the past, a stream that is there for all.

Events are published to `amq.topic` with their topic as routing key, so MQTT clients and AMQP clients are publishers, too. What
topics cannot say is bound behind it: `trunkline.content` routes by expressions over fields and headers, `trunkline.types` by
the headers in which an event says what classes it is of.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime, timedelta

from trunkline.api.declarations import declare_queue
from trunkline.api.filters import Channel, Content, Filter, Topic, routing_key
from trunkline.api.handle import Handle
from trunkline.api.intake import Intake
from trunkline.api.settlement import Settlement
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue, Timestamp
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import decode_properties
from trunkline.protocols.amqp.frames import Deliver

EVENTS = "amq.topic"
CONTENT = "trunkline.content"
TYPES = "trunkline.types"
TYPE_HEADER = "type:"
_AHEAD = 256
_OFFSET = "x-stream-offset"

Since = str | datetime | timedelta


class Subscription:
    """With `since` its queue is a stream that outlives it: the history of its filter, which all who ask for the past share."""

    def __init__(self, wire: Wire, filter: Filter, since: Since | None = None) -> None:
        self._wire = wire
        self._filter = filter
        self._since = since
        self._queue = f"subscription-{secrets.token_hex(8)}" if since is None else history_of(filter)

    async def start(self, handle: Handle, deadline: float) -> None:
        if self._since is None:
            intake = Intake(self._wire, self._prepare, handle.arrived, prefetch=_AHEAD, lost=handle.lost)
        else:

            def arrived(delivered: Deliver, settlement: Settlement) -> None:
                offset = (decode_properties(delivered.properties).headers or {}).get(_OFFSET)
                if isinstance(offset, int):
                    intake.arguments[_OFFSET] = offset + 1  # where it goes on, on another link
                handle.arrived(delivered, settlement)

            intake = Intake(
                self._wire,
                self._prepare,
                arrived,
                prefetch=_AHEAD,
                arguments={_OFFSET: _place(self._since)},
                per_consumer=True,
            )
        await handle.start(intake, deadline)

    async def keep(self, link: Link, timeout_s: float, seconds: float | None = None) -> None:
        """Have the history kept from now on, without listening."""
        channel = await link.channel(timeout_s)
        await self._prepare(link, channel, timeout_s, seconds)
        await channel.close(timeout_s)

    async def _prepare(self, link: Link, channel: LinkChannel, timeout_s: float, keep: float | None = None) -> str:
        if self._since is None:
            declaration = m.QueueDeclare(0, self._queue, False, False, True, True, False, {})
            await channel.call(declaration, m.QueueDeclareOk, timeout_s)
        else:
            arguments: dict[str, FieldValue] = {"x-queue-type": "stream"}
            if keep is not None:
                arguments["x-max-age"] = f"{max(1, round(keep))}s"
            await declare_queue(link, self._queue, arguments, timeout_s, as_it_is=True)
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


def history_of(filter: Filter) -> str:
    """The stream in which events that match are kept."""
    return f"history-{hashlib.sha256(written(filter).encode()).hexdigest()[:16]}"


def written(filter: Filter) -> str:
    """A filter as text, the same for equal ones."""
    if isinstance(filter, Topic):
        return f"topic:{filter.pattern}"
    if isinstance(filter, Channel):
        return f"channel:{filter.name}"
    return f"content:{filter.expression}" if isinstance(filter, Content) else f"type:{filter.of.__name__}"


def _place(since: Since) -> FieldValue:
    if isinstance(since, str):
        if since != "earliest":
            raise ValueError(f"since is 'earliest', a datetime or a timedelta, not {since!r}")
        return "first"
    moment = datetime.now(UTC) - since if isinstance(since, timedelta) else since
    return Timestamp(max(0, int(moment.timestamp())))
