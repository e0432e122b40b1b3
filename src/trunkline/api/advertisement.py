"""Advertisements: a publisher says what it will publish, and subscribers can ask whether anybody does.

    handle = await t.advertise(Topic("stocks/#"))       # until it is stopped, or the connection is closed
    await t.advertised(Content("price < 100"))          # how many have advertised what may match

An advertisement is a binding to a queue that is exclusive to the connection: when that is lost it is gone, and made anew on the
next one.
"""

from __future__ import annotations

import secrets

from trunkline.api import bodies
from trunkline.api.filters import Channel, Content, Filter, Topic
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout
from trunkline.protocols.amqp import methods as m

EXCHANGE = "trunkline.advertisements"


def described(filter: Filter) -> dict[str, FieldValue]:
    """The kind of a filter and its text, as the broker compares them."""
    if isinstance(filter, Topic):
        return {"kind": "topic", "text": filter.pattern}
    if isinstance(filter, Channel):
        return {"kind": "topic", "text": filter.name + "/#"}
    if isinstance(filter, Content):
        return {"kind": "content", "text": filter.expression}
    return {"kind": "type", "text": "/" + "".join(f"{name}/" for name in bodies.type_names(filter.of))}


class Advertisement:
    """Stands until it is stopped."""

    def __init__(self, wire: Wire, filter: Filter) -> None:
        self.filter = filter
        self._wire = wire
        self._queue = f"advertisement-{secrets.token_hex(8)}"

    async def start(self, deadline: float) -> None:
        await self._wire.attempt(self._declare, deadline)
        self._wire.add(self)

    async def resume(self, link: Link) -> None:
        try:
            await self._declare(link, self._wire.timeout_s)
        except (LinkTimeout, LinkRefused) as error:
            raise LinkLost(str(error)) from None

    async def _declare(self, link: Link, timeout_s: float) -> None:
        channel = await link.channel(timeout_s)
        exchange = m.ExchangeDeclare(0, EXCHANGE, "headers", False, True, False, False, False, {})
        await channel.call(exchange, m.ExchangeDeclareOk, timeout_s)
        queue = m.QueueDeclare(0, self._queue, False, False, True, False, False, {})
        await channel.call(queue, m.QueueDeclareOk, timeout_s)
        arguments = described(self.filter)
        await channel.call(m.QueueBind(0, self._queue, EXCHANGE, "", False, arguments), m.QueueBindOk, timeout_s)
        await channel.close(timeout_s)

    async def stop(self) -> None:
        self._wire.remove(self)

        async def delete(link: Link, timeout_s: float) -> None:
            channel = await link.channel(timeout_s)
            await channel.call(m.QueueDelete(0, self._queue, False, False, False), m.QueueDeleteOk, timeout_s)
            await channel.close(timeout_s)

        await self._wire.attempt(delete, self._wire.deadline(None))
