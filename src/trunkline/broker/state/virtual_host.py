"""A virtual host: a name space of exchanges, queues and bindings, and the routes between them. Memory only.

Records in the topology make what is durable come back (`topology`); this holds what is there now and keeps its parts
consistent: every queue is in the router under its name, every exchange in the router has its `ExchangeInfo`.

The seven exchanges that AMQP clients expect are always there: '', amq.direct, amq.fanout, amq.topic, amq.headers,
amq.match, and none of them can be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from trunkline.broker.state.arguments import Arguments
from trunkline.routing.fields import NO_FIELDS, Fields
from trunkline.routing.router import Route, Router

if TYPE_CHECKING:
    from trunkline.broker.messaging.queue import Queue

DELAYED_KIND: Final = "x-delayed-message"
ALTERNATE_ARGUMENT: Final = "alternate-exchange"
PREDECLARED: Final[Mapping[str, str]] = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


@dataclass(frozen=True, slots=True)
class ExchangeInfo:
    name: str
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)

    @property
    def delayed(self) -> bool:
        return self.kind == DELAYED_KIND

    @property
    def routing_kind(self) -> str:
        """The kind that decides where publications go; for a delayed-message exchange, the one it was given."""
        return str(self.arguments.get("x-delayed-type", "")) if self.delayed else self.kind

    @property
    def alternate(self) -> str | None:
        name = self.arguments.get(ALTERNATE_ARGUMENT)
        return name if isinstance(name, str) else None


class VirtualHost:
    def __init__(self, name: str) -> None:
        self.name = name
        self.router: Router[Queue] = Router()
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, ExchangeInfo] = {"": ExchangeInfo("", "direct")}
        self.delayed_exchanges: set[str] = set()
        self._queue_changes = 0
        for exchange, kind in PREDECLARED.items():
            self.add_exchange(ExchangeInfo(exchange, kind))

    def route(self, exchange: str, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[Queue, ...]:
        """The queues of a publication; RoutingError if it may not be made."""
        if not exchange:
            queue = self.queues.get(routing_key)
            return () if queue is None else (queue,)
        return self.router.route(exchange, routing_key, fields)

    def route_by_key(self, exchange: str, routing_key: str) -> tuple[Queue, ...] | None:
        """As `route`, for who has not looked at headers and body yet; None if the answer depends on them."""
        if not exchange:
            queue = self.queues.get(routing_key)
            return () if queue is None else (queue,)
        return self.router.route_by_key(exchange, routing_key)

    @property
    def version(self) -> int:
        """Grows with every change that could alter a route by key."""
        return self.router.version + self._queue_changes

    def add_exchange(self, info: ExchangeInfo) -> None:
        self.router.declare_exchange(info.name, info.routing_kind, internal=info.internal, alternate=info.alternate)
        self.exchanges[info.name] = info
        if info.delayed:
            self.delayed_exchanges.add(info.name)

    def forget_exchange(self, name: str) -> None:
        """After the router has deleted it."""
        self.exchanges.pop(name, None)
        self.delayed_exchanges.discard(name)

    def add_queue(self, queue: Queue) -> None:
        self.router.add_queue(queue.name, queue)
        self.queues[queue.name] = queue
        self._queue_changes += 1

    def remove_queue(self, name: str) -> list[Route]:
        """Forget a queue and its bindings, which are the answer."""
        del self.queues[name]
        self._queue_changes += 1
        return self.router.remove_queue(name)
