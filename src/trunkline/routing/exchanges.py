"""Exchanges: each kind's answer to which destinations a routing key and the fields of a publication lead to.

| kind | a binding matches if | route costs |
|---|---|---|
| direct | its key is the routing key | matches |
| fanout | always | matches |
| topic | its key, a pattern of words, matches the routing key | see `topic_tree` |
| headers | the message has all or any of its arguments as headers (`x-match`) | see `headers_index` |
| content | its filter (`x-filter`) is true for headers and JSON body | see `content_index` |
| type | its key is the routing key or a supertype of it (`order` for `order.created`) | levels + matches |

`x-match` is `all` (the default), `any`, `all-with-x` or `any-with-x`; only the last two look at headers whose names begin
with `x-`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from trunkline.routing.dialect import AMQP
from trunkline.routing.errors import InvalidBinding, UnknownExchangeKind
from trunkline.routing.exchange import Binding, Exchange, argument_text
from trunkline.routing.fields import NO_FIELDS, Fields
from trunkline.routing.headers_index import PRESENT, HeaderRule, HeadersIndex
from trunkline.routing.table import freeze
from trunkline.routing.topic_tree import TopicTree
from trunkline.routing.type_tree import TypeTree

D = TypeVar("D", bound=Hashable)

MATCH_ARGUMENT: Final = "x-match"
_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


class DirectExchange(Exchange[D]):
    kind = "direct"

    def __init__(self) -> None:
        super().__init__()
        self._by_key: dict[str, dict[D, None]] = {}

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        return tuple(self._by_key.get(routing_key, ()))

    def _add(self, binding: Binding[D]) -> bool:
        destinations = self._by_key.setdefault(binding.routing_key, {})
        if binding.destination in destinations:
            return False
        destinations[binding.destination] = None
        return True

    def _remove(self, binding: Binding[D]) -> None:
        destinations = self._by_key[binding.routing_key]
        del destinations[binding.destination]
        if not destinations:
            del self._by_key[binding.routing_key]


class FanoutExchange(Exchange[D]):
    kind = "fanout"

    def __init__(self) -> None:
        super().__init__()
        self._destinations: dict[D, None] = {}

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        return tuple(self._destinations)

    def _add(self, binding: Binding[D]) -> bool:
        if binding.destination in self._destinations:
            return False
        self._destinations[binding.destination] = None
        return True

    def _remove(self, binding: Binding[D]) -> None:
        del self._destinations[binding.destination]

    def _token(self, binding: Binding[D]) -> Hashable:
        return binding.destination


class TopicExchange(Exchange[D]):
    kind = "topic"

    def __init__(self) -> None:
        super().__init__()
        self._tree: TopicTree[D] = TopicTree(AMQP)

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        return self._tree.match(routing_key)

    def _add(self, binding: Binding[D]) -> bool:
        return self._tree.add(binding.routing_key, binding.destination)

    def _remove(self, binding: Binding[D]) -> None:
        self._tree.remove(binding.routing_key, binding.destination)


class TypeExchange(Exchange[D]):
    kind = "type"

    def __init__(self) -> None:
        super().__init__()
        self._tree: TypeTree[D] = TypeTree()

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        return self._tree.match(routing_key)

    def _add(self, binding: Binding[D]) -> bool:
        return self._tree.add(binding.routing_key, binding.destination)

    def _remove(self, binding: Binding[D]) -> None:
        self._tree.remove(binding.routing_key, binding.destination)


class HeadersExchange(Exchange[D]):
    kind = "headers"
    by_key_alone = False

    def __init__(self) -> None:
        super().__init__()
        self._index: HeadersIndex[D] = HeadersIndex()
        self._rules: dict[Hashable, HeaderRule[D]] = {}

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        return self._index.match(fields.headers)

    def _add(self, binding: Binding[D]) -> bool:
        token = self._token(binding)
        if token in self._rules:
            return False
        rule = self._rules[token] = _header_rule(binding)
        self._index.add(rule)
        return True

    def _remove(self, binding: Binding[D]) -> None:
        self._index.remove(self._rules.pop(self._token(binding)))

    def _token(self, binding: Binding[D]) -> Hashable:
        return binding.destination, freeze(binding.arguments)


def create_exchange(kind: str) -> Exchange[D]:
    """An exchange of a kind by its name, or UnknownExchangeKind."""
    match kind:
        case "direct":
            return DirectExchange()
        case "fanout":
            return FanoutExchange()
        case "topic":
            return TopicExchange()
        case "headers":
            return HeadersExchange()
        case "content":
            # No exchange is of this kind unless someone declares one, and the language of filters is large.
            from trunkline.routing.content_exchange import ContentExchange

            return ContentExchange()
        case "type":
            return TypeExchange()
    raise UnknownExchangeKind(f"no exchange kind {kind!r}; there are direct, fanout, topic, headers, content and type")


def _header_rule(binding: Binding[D]) -> HeaderRule[D]:
    given = binding.arguments.get(MATCH_ARGUMENT, "all")
    mode = argument_text(given)
    if mode not in _MATCHES:
        raise InvalidBinding(f"{MATCH_ARGUMENT} is {given!r}; it must be all, any, all-with-x or any-with-x")
    with_x = mode.endswith("-with-x")
    wanted = {
        name: PRESENT if value is None else freeze(value)
        for name, value in binding.arguments.items()
        if name != MATCH_ARGUMENT and (with_x or not name.startswith("x-"))
    }
    return HeaderRule(binding.destination, wanted, any_of=mode.startswith("any"))
