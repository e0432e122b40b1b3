"""The exchange that routes by content: a binding's filter decides, over headers and JSON body (see `content_index`)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from trunkline.routing.content_index import ContentIndex
from trunkline.routing.errors import InvalidBinding, InvalidFilter
from trunkline.routing.exchange import Binding, Exchange, argument_text
from trunkline.routing.fields import NO_FIELDS, Fields
from trunkline.routing.filter import Filter

D = TypeVar("D", bound=Hashable)

FILTER_ARGUMENT: Final = "x-filter"


class ContentExchange(Exchange[D]):
    kind = "content"
    by_key_alone = False

    def __init__(self) -> None:
        super().__init__()
        self._index: ContentIndex[D] = ContentIndex()

    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        return self._index.match(fields)

    def _add(self, binding: Binding[D]) -> bool:
        return self._index.add(_filter_of(binding), binding.destination)

    def _remove(self, binding: Binding[D]) -> None:
        self._index.remove(_filter_of(binding), binding.destination)

    def _token(self, binding: Binding[D]) -> Hashable:
        return binding.destination, argument_text(binding.arguments.get(FILTER_ARGUMENT))


def _filter_of(binding: Binding[D]) -> Filter:
    text = argument_text(binding.arguments.get(FILTER_ARGUMENT))
    if text is None:
        raise InvalidBinding(f"a binding to a content exchange needs its filter as the argument {FILTER_ARGUMENT}")
    try:
        return Filter(text)
    except InvalidFilter as error:
        raise InvalidBinding(f"{FILTER_ARGUMENT}: {error}") from error
