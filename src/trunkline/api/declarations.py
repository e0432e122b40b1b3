"""Declaring queues: with settings as they are said, without any in whichever way they are declared already."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_errors import LinkRefused
from trunkline.protocols.amqp import methods as m

DELAYS = "trunkline.delay"  # the exchange for messages that wait


async def declare_queue(
    link: Link,
    name: str,
    arguments: Mapping[str, FieldValue],
    timeout_s: float,
    *,
    durable: bool = True,
    as_it_is: bool = False,
) -> None:
    """A queue, durable unless said. Without arguments, or with `as_it_is`, one that is there is taken as it is."""
    if not arguments or as_it_is:
        channel = await link.channel(timeout_s)
        try:
            await channel.call(_declaration(name, {}, passive=True), m.QueueDeclareOk, timeout_s)
            await channel.close(timeout_s)
            return
        except LinkRefused as error:
            if error.name != "NOT_FOUND":
                raise
    channel = await link.channel(timeout_s)
    await channel.call(_declaration(name, arguments, durable=durable), m.QueueDeclareOk, timeout_s)
    await channel.close(timeout_s)


async def declare_delays(link: Link, queue: str, timeout_s: float) -> None:
    """What messages with a delay are published to, bound to the queue that they are for."""
    channel = await link.channel(timeout_s)
    delays = m.ExchangeDeclare(
        0, DELAYS, "x-delayed-message", False, True, False, False, False, {"x-delayed-type": "direct"}
    )
    await channel.call(delays, m.ExchangeDeclareOk, timeout_s)
    await channel.call(m.QueueBind(0, queue, DELAYS, queue, False, {}), m.QueueBindOk, timeout_s)
    await channel.close(timeout_s)


def _declaration(
    name: str, arguments: Mapping[str, FieldValue], *, passive: bool = False, durable: bool = True
) -> m.QueueDeclare:
    return m.QueueDeclare(0, name, passive, durable, False, False, False, dict(arguments))
