"""The router: the queues that a publication to an exchange reaches, through everything that is bound to everything.

The exchanges and queues of one virtual host, by name. A publication goes from exchange to exchange along bindings; each
exchange is asked once, so cycles end. An exchange that matches nothing at all hands on to its alternate exchange, if one
is named and exists, and that to its own. The answer has each queue once, in the order in which the walk found them; the
same topology gives the same order. The default exchange, named '', leads to the queue that the routing key names; nothing
is bound to it by hand.

Where all exchanges of a walk decide by routing key alone (direct, fanout, topic, type), the answer is remembered under
(exchange, key) until the topology changes: then `route` is one dictionary look-up. So are the default exchange's own
answers, each until a queue of that name comes or goes. Walks through headers or content exchanges, or on to the default
exchange, are made each time. O(bindings matched) per walk. Adding a queue disturbs nothing else that is remembered.

Declaring checks, then changes: a refusal leaves everything as it was. Removing an exchange or a queue removes its
bindings and says which, so that the caller can record it and delete what should go with its last binding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from trunkline.routing.errors import (
    AccessRefused,
    ExchangeExists,
    LimitReached,
    QueueExists,
    UnknownExchange,
    UnknownQueue,
)
from trunkline.routing.exchange import Binding, Exchange
from trunkline.routing.exchanges import create_exchange
from trunkline.routing.fields import NO_FIELDS, Fields
from trunkline.routing.limits import MAX_BINDINGS, MAX_CACHED_NAME_CHARS, MAX_EXCHANGES
from trunkline.routing.recent import Recent
from trunkline.routing.table import freeze

Q = TypeVar("Q")

DEFAULT_EXCHANGE: Final = ""


class Route(NamedTuple):
    """A binding by names: from an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    to_exchange: bool
    routing_key: str
    arguments: Mapping[str, object]


class ExchangeProperties(NamedTuple):
    name: str
    kind: str
    internal: bool
    alternate: str | None


_RouteKey = tuple[str, str, Hashable]


class _Place(Generic[Q]):
    """What a binding can lead to. `incoming` has the bindings that do, so that removing it need not search for them."""

    __slots__ = ("incoming", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.incoming: dict[_RouteKey, Route] = {}


class _QueuePlace(_Place[Q]):
    __slots__ = ("queue",)

    def __init__(self, name: str, queue: Q) -> None:
        super().__init__(name)
        self.queue = queue


class _ExchangePlace(_Place[Q]):
    __slots__ = ("exchange", "properties")

    def __init__(self, properties: ExchangeProperties, exchange: Exchange[_Place[Q]]) -> None:
        super().__init__(properties.name)
        self.properties = properties
        self.exchange = exchange


class _DefaultExchange(Exchange[_Place[Q]]):
    kind = "direct"
    by_key_alone = False

    def __init__(self, queue_named: Callable[[str], _QueuePlace[Q] | None]) -> None:
        super().__init__()
        self._queue_named = queue_named

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[_Place[Q], ...]:
        queue = self._queue_named(routing_key)
        return () if queue is None else (queue,)

    def _add(self, binding: Binding[_Place[Q]]) -> bool:
        raise AccessRefused("bindings of the default exchange cannot be made by hand")

    def _remove(self, binding: Binding[_Place[Q]]) -> None:
        raise AssertionError("the default exchange has no bindings of its own")


class Router(Generic[Q]):
    """Routes for one virtual host. `version` grows with every change that could alter a route by key."""

    def __init__(self, *, max_exchanges: int = MAX_EXCHANGES, max_bindings: int = MAX_BINDINGS) -> None:
        self._max_exchanges = max_exchanges
        self._max_bindings = max_bindings
        self._queues: dict[str, _QueuePlace[Q]] = {}
        default = ExchangeProperties(DEFAULT_EXCHANGE, "direct", internal=False, alternate=None)
        self._exchanges: dict[str, _ExchangePlace[Q]] = {
            DEFAULT_EXCHANGE: _ExchangePlace(default, _DefaultExchange(self._queues.get))
        }
        self._binding_count = 0
        self._recent: Recent[tuple[str, str], Q] = Recent()
        self.version = 0

    # -- the per-message path

    def route(self, exchange: str, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[Q, ...]:
        """The queues that a client's publication reaches. UnknownExchange; AccessRefused if the exchange is internal."""
        answer = self._recent.hot.get((exchange, routing_key))
        if answer is not None:
            return answer
        answer = self._recent.get((exchange, routing_key))
        if answer is not None:
            return answer
        place = self._exchange_place(exchange)
        if place.properties.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange}'")
        answer, by_key_alone = self._walk(place, (routing_key,), fields)
        # The default exchange has one answer per queue name, which `add_queue` and `remove_queue` forget.
        if (by_key_alone or exchange == DEFAULT_EXCHANGE) and len(routing_key) <= MAX_CACHED_NAME_CHARS:
            self._recent.put((exchange, routing_key), answer)
        return answer

    def route_by_key(self, exchange: str, routing_key: str) -> tuple[Q, ...] | None:
        """As `route`, for who has not looked at headers and body yet; None if the answer depends on them."""
        answer = self._recent.hot.get((exchange, routing_key)) or self._recent.get((exchange, routing_key))
        if answer is not None:
            return answer
        place = self._exchange_place(exchange)
        if place.properties.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange}'")
        answer, by_key_alone = self._walk(place, (routing_key,), NO_FIELDS)
        if not by_key_alone:
            return None
        if len(routing_key) <= MAX_CACHED_NAME_CHARS:
            self._recent.put((exchange, routing_key), answer)
        return answer

    def forward(self, exchange: str, routing_keys: Sequence[str], fields: Fields = NO_FIELDS) -> tuple[Q, ...]:
        """The queues for what the broker itself publishes (dead letters), and for several keys at once (CC and BCC).

        Internal exchanges are allowed. An alternate exchange is asked only if none of the keys matches.
        """
        return self._walk(self._exchange_place(exchange), routing_keys, fields)[0]

    def _walk(
        self, start: _ExchangePlace[Q], routing_keys: Sequence[str], fields: Fields
    ) -> tuple[tuple[Q, ...], bool]:
        queues: dict[_QueuePlace[Q], None] = {}
        visited: dict[_ExchangePlace[Q], None] = {start: None}
        pending = [start]
        by_key_alone = True
        for place in pending:  # grows while we go
            by_key_alone = by_key_alone and place.exchange.by_key_alone
            matched = False
            for routing_key in routing_keys:
                for target in place.exchange.route(routing_key, fields):
                    matched = True
                    if isinstance(target, _QueuePlace):
                        queues[target] = None
                    elif isinstance(target, _ExchangePlace) and target not in visited:
                        visited[target] = None
                        pending.append(target)
            if not matched and place.properties.alternate is not None:
                alternate = self._exchanges.get(place.properties.alternate)
                if alternate is not None and alternate not in visited:
                    visited[alternate] = None
                    pending.append(alternate)
        return tuple(place.queue for place in queues), by_key_alone

    # -- topology

    def declare_exchange(self, name: str, kind: str, *, internal: bool = False, alternate: str | None = None) -> bool:
        """Create an exchange; False if it exists just so. ExchangeExists if it exists otherwise."""
        properties = ExchangeProperties(name, kind, internal, alternate)
        existing = self._exchanges.get(name)
        if existing is not None:
            if existing.properties != properties:
                raise ExchangeExists(f"exchange '{name}' exists as {existing.properties}")
            return False
        if len(self._exchanges) >= self._max_exchanges:
            raise LimitReached(f"there are {self._max_exchanges} exchanges already")
        self._exchanges[name] = _ExchangePlace(properties, create_exchange(kind))
        self._changed()  # it may be the alternate that others name
        return True

    def delete_exchange(self, name: str) -> list[Route]:
        """Remove an exchange and every binding from or to it, which is the answer."""
        place = self._exchange_place(name)
        if name == DEFAULT_EXCHANGE:
            raise AccessRefused("the default exchange cannot be deleted")
        gone = list(place.incoming.values())
        gone += [
            self._route_of(name, binding)
            for binding in place.exchange.bindings()
            if binding.destination is not place  # a loop to itself is among the incoming
        ]
        for route in gone:
            self._unbind(route)
        del self._exchanges[name]
        self._changed()
        return gone

    def add_queue(self, name: str, queue: Q) -> None:
        """Let the default exchange lead to a queue, and bindings be made to it."""
        if name in self._queues:
            raise QueueExists(f"queue '{name}' exists")
        self._queues[name] = _QueuePlace(name, queue)
        self._recent.forget((DEFAULT_EXCHANGE, name))

    def remove_queue(self, name: str) -> list[Route]:
        """Forget a queue and every binding to it, which is the answer."""
        place = self._queues.get(name)
        if place is None:
            raise UnknownQueue(f"no queue '{name}'")
        gone = list(place.incoming.values())
        for route in gone:
            self._unbind(route)
        del self._queues[name]
        self._recent.forget((DEFAULT_EXCHANGE, name))
        return gone

    def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
        *,
        to_exchange: bool = False,
    ) -> bool:
        """Bind a queue, or an exchange, to an exchange; False if it is bound just so already."""
        place = self._bindable(source)
        target = self._target(destination, to_exchange)
        if self._binding_count >= self._max_bindings and not place.exchange.holds(target, routing_key, arguments):
            raise LimitReached(f"there are {self._max_bindings} bindings already")
        if not place.exchange.bind(target, routing_key, arguments):
            return False
        route = Route(source, destination, to_exchange, routing_key, dict(arguments or {}))
        target.incoming[_route_key(route)] = route
        self._binding_count += 1
        self._changed()
        return True

    def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
        *,
        to_exchange: bool = False,
    ) -> bool:
        """Remove a binding; False if there is none like it."""
        self._bindable(source)
        self._target(destination, to_exchange)
        return self._unbind(Route(source, destination, to_exchange, routing_key, arguments or {}))

    def has_bindings(self, exchange: str) -> bool:
        """Whether anything is bound to the exchange as a source; an auto-delete exchange goes with its last."""
        return len(self._exchange_place(exchange).exchange) > 0

    def exchanges(self) -> list[ExchangeProperties]:
        return [place.properties for place in self._exchanges.values()]

    def bindings(self, source: str) -> Iterator[Route]:
        """The bindings of an exchange as a source. The topology must not change meanwhile."""
        return (self._route_of(source, binding) for binding in self._exchange_place(source).exchange.bindings())

    def bindings_to(self, destination: str, *, to_exchange: bool = False) -> list[Route]:
        """The bindings that lead to a queue or an exchange."""
        return list(self._target(destination, to_exchange).incoming.values())

    @property
    def binding_count(self) -> int:
        return self._binding_count

    def _unbind(self, route: Route) -> bool:
        place = self._exchanges[route.source]
        target = self._target(route.destination, route.to_exchange)
        if not place.exchange.unbind(target, route.routing_key, route.arguments):
            return False
        del target.incoming[_route_key(route)]
        self._binding_count -= 1
        self._changed()
        return True

    def _changed(self) -> None:
        self.version += 1
        self._recent.clear()

    def _exchange_place(self, name: str) -> _ExchangePlace[Q]:
        place = self._exchanges.get(name)
        if place is None:
            raise UnknownExchange(f"no exchange '{name}'")
        return place

    def _bindable(self, source: str) -> _ExchangePlace[Q]:
        if source == DEFAULT_EXCHANGE:
            raise AccessRefused("bindings of the default exchange cannot be changed")
        return self._exchange_place(source)

    def _target(self, name: str, to_exchange: bool) -> _Place[Q]:
        if to_exchange:
            if name == DEFAULT_EXCHANGE:
                raise AccessRefused("nothing can be bound to lead to the default exchange")
            return self._exchange_place(name)
        place = self._queues.get(name)
        if place is None:
            raise UnknownQueue(f"no queue '{name}'")
        return place

    def _route_of(self, source: str, binding: Binding[_Place[Q]]) -> Route:
        target = binding.destination
        return Route(
            source, target.name, isinstance(target, _ExchangePlace), binding.routing_key, dict(binding.arguments)
        )


def _route_key(route: Route) -> _RouteKey:
    return route.source, route.routing_key, freeze(route.arguments) if route.arguments else None
