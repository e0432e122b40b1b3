"""The identities that were seen last, in bounded memory: the oldest is forgotten when there is one too many."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A dictionary in the order of arrival, of at most `limit` entries. All operations are O(1)."""

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("room for one, at least")
        self._limit = limit
        self._entries: dict[K, V] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Keep an entry; one that is there keeps its place in the order."""
        if key not in self._entries and len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value

    def newest(self, count: int) -> list[K]:
        """The last ones, newest first."""
        found: list[K] = []
        for key in reversed(self._entries):
            if len(found) >= count:
                break
            found.append(key)
        return found
