"""The route of a publication: the queues that its exchange gives it, and what stands in its way, in RabbitMQ's words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.envelope import Envelope
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue.errors import ScheduleFull
from trunkline.log.store import Durability
from trunkline.log.ticket import Appended
from trunkline.routing.errors import AccessRefused, RoutingError, UnknownExchange


def find_route(vhost: VirtualHost, envelope: Envelope, body: bytes) -> tuple[Queue, ...]:
    """The queues of a publication. A route by key alone is remembered in the envelope, for as long as it is true."""
    exchange, routing_key = envelope.exchange, envelope.routing_key
    try:
        if envelope.copies:
            fields = envelope.routing_fields(body)
            if exchange in vhost.exchanges and vhost.exchanges[exchange].internal:
                raise AccessRefused("")
            return vhost.router.forward(exchange, (routing_key, *envelope.copies), fields)
        queues = vhost.route_by_key(exchange, routing_key)
        if queues is None:
            return vhost.route(exchange, routing_key, envelope.routing_fields(body))
    except UnknownExchange:
        raise refusals.not_found("exchange", exchange, vhost.name) from None
    except AccessRefused:
        text = f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'"
        raise Refused(Reason.ACCESS_REFUSED, text) from None
    except RoutingError as error:
        raise refusals.precondition(str(error)) from None
    envelope.queues = queues
    envelope.route_version = vhost.version
    return queues


def is_delayed(vhost: VirtualHost, envelope: Envelope) -> bool:
    """Whether a delayed-message exchange holds this back for a while."""
    return envelope.exchange in vhost.delayed_exchanges and (envelope.delay_ms or 0) > 0


def delay(
    queues: Iterable[Queue], envelope: Envelope, body: bytes, now_ms: int, *, confirmed: bool
) -> list[asyncio.Future[Appended]]:
    """Schedule a publication in each of its queues; returns what a confirm has to wait for."""
    message = envelope.message(body, now_ms)
    waiting: list[asyncio.Future[Appended]] = []
    for queue in queues:
        disk = confirmed and envelope.persistent and queue.durable
        keyed = message._replace(key=envelope.order_key) if queue.orders_by_key else message
        try:
            scheduled = queue.cursor.schedule(
                keyed, now_ms + (envelope.delay_ms or 0), Durability.DISK if disk else Durability.OS
            )
        except ScheduleFull as error:
            raise refusals.precondition(str(error)) from None
        if confirmed and scheduled.stored is not None:
            waiting.append(scheduled.stored)
    return waiting
