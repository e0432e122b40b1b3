"""The type tree: which values subscribe to a type or one of its supertypes.

Type names are dotted, from the general to the special: a subscription to `order` matches `order`, `order.created` and
`order.created.v2`, but not `orders`. The empty name is the root: it matches every type.

The prefixes of a name are all its supertypes, so a dictionary by name is the whole structure. add, remove: O(1). match:
one look-up per level of the name plus the values found; other subscriptions do not matter. About 300 bytes per distinct
type subscribed to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SEPARATOR = "."


class TypeTree(Generic[T]):
    __slots__ = ("_size", "_values")

    def __init__(self) -> None:
        self._values: dict[str, dict[T, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        """The number of (type, value) pairs."""
        return self._size

    def add(self, type_name: str, value: T) -> bool:
        """Subscribe the value; False if it was subscribed to this type already."""
        values = self._values.setdefault(type_name, {})
        if value in values:
            return False
        values[value] = None
        self._size += 1
        return True

    def remove(self, type_name: str, value: T) -> bool:
        """Unsubscribe the value; False if it was not subscribed to this type."""
        values = self._values.get(type_name)
        if values is None or value not in values:
            return False
        del values[value]
        if not values:
            del self._values[type_name]
        self._size -= 1
        return True

    def match(self, type_name: str) -> tuple[T, ...]:
        """The values subscribed to the type or a supertype, each once, the most general first."""
        found = dict(self._values.get("", {}))
        if type_name:
            end = type_name.find(SEPARATOR)
            while end >= 0:
                found.update(self._values.get(type_name[:end], {}))
                end = type_name.find(SEPARATOR, end + 1)
            found.update(self._values.get(type_name, {}))
        return tuple(found)

    def types(self) -> Iterator[tuple[str, T]]:
        """All (type, value) pairs. The tree must not change meanwhile."""
        for type_name, values in self._values.items():
            for value in values:
                yield type_name, value
