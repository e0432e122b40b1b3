"""Selective receive in the language of filters: which messages of a queue a consumer wants.

A selector is a filter (`routing/filter`) over a message as content exchanges see it: its headers and the members of a JSON body.
Beside them, as in JMS, its properties by the names of their record headers, quoted because of the dot and dash:
`"amqp.correlation-id" = '17'`, `"amqp.priority" > 4`; a header of the same name comes first. How a queue uses it: `cursors/queue/selector`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final, cast

from trunkline.broker.messaging.envelope import TIMESTAMP_HEADER, TYPED_HEADER, read_section
from trunkline.broker.messaging.typed_values import decode_field, plain_value
from trunkline.cursors.queue import Message, Selector
from trunkline.cursors.queue.traits import DELIVERY_MODE_HEADER, EXPIRATION_HEADER, PRIORITY_HEADER
from trunkline.log.errors import CorruptBatch
from trunkline.routing.conjunctions import conjunctions_of
from trunkline.routing.content_index import ContentIndex
from trunkline.routing.fields import FieldPath, Fields
from trunkline.routing.filter import Filter
from trunkline.routing.predicates import predicates_of

_MAX_REMEMBERED: Final = 1_024
_MAX_REMEMBERED_BYTES: Final = 1_024
_MAX_KEY_CHARS: Final = 256  # a longer text is not looked up by
_NUMBERS: Final = frozenset({PRIORITY_HEADER, TIMESTAMP_HEADER, DELIVERY_MODE_HEADER, EXPIRATION_HEADER})


class MessageSelector:
    __slots__ = ("_filter", "equalities")

    def __init__(self, text: str) -> None:
        """InvalidFilter if the text does not parse."""
        self._filter = Filter(text)
        self.equalities: Sequence[tuple[Hashable, Hashable]] = _equalities_of(self._filter)

    @property
    def text(self) -> str:
        return self._filter.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSelector) and self._filter == other._filter

    def __hash__(self) -> int:
        return hash(self._filter)

    def index(self) -> _SelectorIndex:
        return _SelectorIndex()

    def fields_of(self, message: Message) -> Fields:
        return Fields(_headers_of(message.headers), message.value)

    def key_of(self, fields: object, field: Hashable) -> Hashable | None:
        return _key(cast(Fields, fields).value(cast(FieldPath, field)))

    def matches(self, fields: object) -> bool:
        return self._filter.matches(cast(Fields, fields))


class _SelectorIndex:
    """The broker's content index, for selectors."""

    __slots__ = ("_index",)

    def __init__(self) -> None:
        self._index: ContentIndex[MessageSelector] = ContentIndex()

    def add(self, selector: Selector) -> None:
        assert isinstance(selector, MessageSelector)
        self._index.add(selector._filter, selector)

    def remove(self, selector: Selector) -> None:
        assert isinstance(selector, MessageSelector)
        self._index.remove(selector._filter, selector)

    def matching(self, fields: object) -> Sequence[Selector]:
        return self._index.match(cast(Fields, fields))


def _equalities_of(filter_: Filter) -> list[tuple[Hashable, Hashable]]:
    """What must be equal for the filter to be true: of one conjunction only, because no alternative may be missed."""
    conjunctions = conjunctions_of(filter_.condition)
    predicates = predicates_of(conjunctions[0]) if len(conjunctions) == 1 else None
    if predicates is None:
        return []
    pairs = zip(predicates.paths, predicates.keys, strict=True)
    return [(path, key) for path, key in pairs if not isinstance(key, str) or len(key) <= _MAX_KEY_CHARS]


def _key(value: object) -> Hashable | None:
    if isinstance(value, bool):
        return (value,)  # or it would be found as 1
    if isinstance(value, str):
        return value if len(value) <= _MAX_KEY_CHARS else None
    return value if isinstance(value, int | float) else None


def _headers_of(section: bytes) -> dict[str, object]:
    return _remembered_headers(section) if len(section) <= _MAX_REMEMBERED_BYTES else _read_headers(section)


def _read_headers(section: bytes) -> dict[str, object]:
    try:
        reserved, table = read_section(section)
    except CorruptBatch:
        return {}
    headers: dict[str, object] = {}
    for name, value in reserved.items():
        if value is not None and name != TYPED_HEADER:
            text = value.decode("utf-8", "replace")
            headers[name] = int(text) if name in _NUMBERS and text.isascii() and text.isdigit() else text
    headers.update((name, plain_value(decode_field(encoded))) for name, encoded in table)
    return headers


_remembered_headers = lru_cache(_MAX_REMEMBERED)(_read_headers)
ANY_MESSAGE: Final = MessageSelector("true")
