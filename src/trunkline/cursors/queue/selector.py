"""Selectors: which messages of a queue a consumer wants. What the filter language is, queues need not know.

The broker's (`broker/messaging/selection`) are filters of `routing/`. To consume selectively a protocol makes one of the
text that its client sent and gives it to the cursor:

    selector = message_selector("price < 100")              # InvalidFilter if it does not parse
    cursor.add_consumer(consumer, selector=selector)        # push
    cursor.acquire(1, consumer=me, selector=selector)       # pull: empty, then `await cursor.load(selector)` and again
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from trunkline.cursors.queue.message import Message


class SelectorIndex(Protocol):
    """Many selectors, so that a message is not tried against each."""

    def add(self, selector: Selector) -> None: ...

    def remove(self, selector: Selector) -> None: ...

    def matching(self, fields: object) -> Sequence[Selector]: ...


class Selector(Hashable, Protocol):
    """Equal selectors want the same messages."""

    @property
    def equalities(self) -> Sequence[tuple[Hashable, Hashable]]:
        """Fields, and what they must be for the selector to match: what a message can be looked up by."""
        ...

    def index(self) -> SelectorIndex:
        """An index for selectors of this sort, with nothing in it."""
        ...

    def fields_of(self, message: Message) -> object:
        """What all selectors of this sort look at."""
        ...

    def key_of(self, fields: object, field: Hashable) -> Hashable | None:
        """What a field is, in the terms of `equalities`; None if it is nothing that they name."""
        ...

    def matches(self, fields: object) -> bool: ...
