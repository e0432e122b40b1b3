"""Retained publications that are under way: they have come, and have no place in the log yet.

A publication is retained when it has its place. A subscription that comes after it must not find the message before it, nor
get it live: it waits until everything that was under way when it came has landed, that is, has its place or will never have
one. What comes later does not hold it up.

With a store in this process a publication is under way until the end of its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trunkline.broker.messaging.mapping import filter_matches

# More comparisons than this are not made for one SUBSCRIBE: it waits for everything instead.
_MAX_COMPARISONS = 10_000


class _Waiting:
    __slots__ = ("go_on", "names")

    def __init__(self, names: dict[str, int], go_on: Callable[[], None]) -> None:
        self.names = names  # and how many of each have to land
        self.go_on = go_on


class UnderWay:
    def __init__(self) -> None:
        self._names: dict[str, int] = {}  # and how many of each
        self._waiting: dict[str, list[_Waiting]] = {}
        self._done: list[_Waiting] = []

    def come(self, name: str) -> None:
        self._names[name] = self._names.get(name, 0) + 1

    def landed(self, name: str) -> None:
        left = self._names[name] - 1
        if left:
            self._names[name] = left
        else:
            del self._names[name]
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return
        still = []
        for each in waiting:
            each.names[name] -= 1
            if each.names[name]:
                still.append(each)
            else:
                del each.names[name]
                if not each.names:
                    self._done.append(each)
        if still:
            self._waiting[name] = still

    def let_go(self) -> None:
        """Let those go on who waited for what has landed. To be called when that has been offered to those who follow live."""
        if self._done:
            done, self._done = self._done, []
            for each in done:
                each.go_on()

    def wait(self, filters: Sequence[str], go_on: Callable[[], None]) -> bool:
        """Whether something that the filters match is under way; then `go_on` is called when it has landed."""
        if not self._names or not filters:
            return False
        names = self._matching(filters)
        if not names:
            return False
        waiting = _Waiting({name: self._names[name] for name in names}, go_on)
        for name in names:
            self._waiting.setdefault(name, []).append(waiting)
        return True

    def _matching(self, filters: Sequence[str]) -> list[str]:
        if len(self._names) * len(filters) > _MAX_COMPARISONS:
            return list(self._names)
        levels = [each.split("/") for each in filters]
        return [name for name in self._names if any(filter_matches(each, name.split("/")) for each in levels)]
