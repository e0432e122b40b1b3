"""The ladder: values under distinct bounds, in order, for whoever asks for all up to or all from a number.

The bounds are in chunks of at most `2 * CHUNK`, each sorted, so that adding and removing move a few kilobytes at most; what
stands on a bound is in a dictionary beside them. add, remove: O(log n + CHUNK); asking: O(log n) and what is found.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final, final

CHUNK: Final = 256


@final
class Ladder:
    """Compiled, so plain objects: the rule tree knows what it keeps here."""

    def __init__(self) -> None:
        self.rungs: dict[float, object] = {}
        self._chunks: list[list[float]] = []
        self._lasts: list[float] = []  # the greatest bound of each chunk

    def __len__(self) -> int:
        return len(self.rungs)

    def add(self, bound: float, value: object) -> None:
        """Put the value on a bound that holds none."""
        self.rungs[bound] = value
        chunks, lasts = self._chunks, self._lasts
        if not chunks:
            chunks.append([bound])
            lasts.append(bound)
            return
        place = min(bisect_left(lasts, bound), len(lasts) - 1)
        chunk = chunks[place]
        insort(chunk, bound)
        lasts[place] = chunk[-1]
        if len(chunk) > 2 * CHUNK:
            chunks.insert(place + 1, chunk[CHUNK:])
            del chunk[CHUNK:]
            lasts.insert(place, chunk[-1])

    def remove(self, bound: float) -> None:
        del self.rungs[bound]
        place = bisect_left(self._lasts, bound)
        chunk = self._chunks[place]
        del chunk[bisect_left(chunk, bound)]
        if chunk:
            self._lasts[place] = chunk[-1]
        else:
            del self._chunks[place]
            del self._lasts[place]

    def up_to(self, number: float) -> list[object]:
        """What stands on bounds that are at most the number."""
        place = bisect_right(self._lasts, number)
        rungs = self.rungs
        found: list[object] = []
        for chunk in self._chunks[:place]:
            found += [rungs[bound] for bound in chunk]
        if place < len(self._chunks):
            chunk = self._chunks[place]
            found += [rungs[bound] for bound in chunk[: bisect_right(chunk, number)]]
        return found

    def at_least(self, number: float) -> list[object]:
        """What stands on bounds that are at least the number."""
        place = bisect_left(self._lasts, number)
        rungs = self.rungs
        found: list[object] = []
        if place < len(self._chunks):
            chunk = self._chunks[place]
            found += [rungs[bound] for bound in chunk[bisect_left(chunk, number) :]]
        for chunk in self._chunks[place + 1 :]:
            found += [rungs[bound] for bound in chunk]
        return found
