"""Answers to recent questions: a bounded cache of tuples, close to least-recently-used, that is cheap to hit.

Two generations of plain dictionaries. Answers enter `hot`; when it is full it becomes `cold`, and the old `cold` is
dropped. A hit in `cold` moves the answer to `hot`. What was asked within the last `max_names` distinct questions is
always there, and at most twice `max_names` answers, or twice `max_values` of their elements, are held. A hit is one
dictionary look-up, where a strict order of use would cost a removal and an insertion on each.

Callers on the hot path read `recent.hot.get(key)` themselves and fall back to `get`. The owner calls `clear` on every
change that could alter an answer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from trunkline.routing.limits import MAX_CACHED_NAMES, MAX_CACHED_VALUES

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    __slots__ = ("_max_names", "_max_values", "_value_count", "cold", "hot")

    def __init__(self, max_names: int = MAX_CACHED_NAMES, max_values: int = MAX_CACHED_VALUES) -> None:
        self.hot: dict[K, tuple[V, ...]] = {}
        self.cold: dict[K, tuple[V, ...]] = {}
        self._max_names = max_names
        self._max_values = max_values
        self._value_count = 0

    def __len__(self) -> int:
        return len(self.hot) + len(self.cold)

    def get(self, key: K) -> tuple[V, ...] | None:
        answer = self.hot.get(key)
        if answer is None:
            answer = self.cold.pop(key, None)
            if answer is not None:
                self.put(key, answer)
        return answer

    def put(self, key: K, answer: tuple[V, ...]) -> None:
        """Remember an answer for a key that `get` did not find. Answers beyond the budget are not remembered."""
        if len(answer) > self._max_values:
            return
        if len(self.hot) >= self._max_names or self._value_count + len(answer) > self._max_values:
            self.cold = self.hot
            self.hot = {}
            self._value_count = 0
        self.hot[key] = answer
        self._value_count += len(answer)

    def forget(self, key: K) -> None:
        """Drop one answer. Its size stays counted until the generation turns, which only makes that come earlier."""
        self.hot.pop(key, None)
        self.cold.pop(key, None)

    def clear(self) -> None:
        if self.hot or self.cold:
            self.hot = {}
            self.cold = {}
            self._value_count = 0
