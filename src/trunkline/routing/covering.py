"""Covering: whether one topic pattern matches every name that another does.

A broker in an overlay need not pass on a subscription that one already passed on covers. Saying no where yes was right
only costs a message; saying yes where no was right would lose publications.

Both patterns are automata over levels. Where the covered one has a wildcard, it is enough to read a level that no pattern
names: a wildcard of the covering one matches that as well, and a named level only helps it. The search goes through pairs
of (place in the covered pattern, set of places in the covering one), from both beginnings; a pair in which the first has
ended and no place of the second has is a name that escapes. There are few pairs for patterns as people write them; in
theory they can double with each level, so the search ends with no after MAX_COVERING_STATES pairs.
"""

from __future__ import annotations

from typing import Final

from trunkline.routing.dialect import Dialect
from trunkline.routing.limits import MAX_COVERING_STATES

# A level that no pattern names.
_UNNAMED: Final = None


def covers(dialect: Dialect, wide: str, narrow: str) -> bool:
    """Whether every name that `narrow` matches is matched by `wide`. InvalidPattern if either is none."""
    if wide == narrow:
        return True
    wide_levels, narrow_levels = dialect.pattern_levels(wide), dialect.pattern_levels(narrow)
    wildcards = (dialect.single, dialect.multi)
    if dialect.hides(narrow) and wide_levels and wide_levels[0] in wildcards:
        return False
    start = _opened(dialect, wide_levels, frozenset({0}))
    pending = [(place, start) for place in _opened(dialect, narrow_levels, frozenset({0}))]
    if dialect.strict:  # an empty name is none, so it cannot escape
        pending = [pair for pair in pending if pair[0] < len(narrow_levels)]
    pairs = set(pending)
    while pending:
        place, places = pending.pop()
        if place == len(narrow_levels):
            if len(wide_levels) not in places:
                return False
            continue
        level = narrow_levels[place]
        after = place if level == dialect.multi else place + 1
        reading = _UNNAMED if level in wildcards else level
        reached = _opened(dialect, wide_levels, _read(dialect, wide_levels, places, reading))
        for following in _opened(dialect, narrow_levels, frozenset({after})):
            pair = (following, reached)
            if pair not in pairs:
                if len(pairs) >= MAX_COVERING_STATES:
                    return False
                pairs.add(pair)
                pending.append(pair)
    return True


def _opened(dialect: Dialect, levels: list[str], places: frozenset[int]) -> frozenset[int]:
    """The places, and those behind any-levels wildcards that match nothing."""
    found = set(places)
    for place in places:
        while place < len(levels) and levels[place] == dialect.multi:
            place += 1
            found.add(place)
    return frozenset(found)


def _read(dialect: Dialect, levels: list[str], places: frozenset[int], reading: str | None) -> frozenset[int]:
    after: set[int] = set()
    for place in places:
        if place == len(levels):
            continue
        if levels[place] == dialect.multi:
            after.add(place)
        elif levels[place] in (dialect.single, reading):
            after.add(place + 1)
    return frozenset(after)
