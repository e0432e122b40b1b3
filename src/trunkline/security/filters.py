"""How MQTT topic filters compare: with a name, and with each other.

A rule about MQTT topics has a filter; a client subscribes to one; a mapping writes what one matches to a log topic. Whether a
rule speaks of a name, of all of another filter's names, or of some of them are the three questions here. `+` is one level,
`#` the parent and any depth; names that begin with `$` are not matched by a leading wildcard. Each costs O(levels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SINGLE: Final = "+"
MULTI: Final = "#"
_WILDCARDS: Final = frozenset({SINGLE, MULTI})


def check_filter(text: str) -> None:
    """Raise ValueError unless this is a topic filter."""
    levels = text.split("/")
    if not text or "\0" in text:
        raise ValueError("a topic filter has at least one character, and no U+0000")
    for index, level in enumerate(levels):
        if MULTI in level and (level != MULTI or index != len(levels) - 1):
            raise ValueError(f"'#' in {text!r} must fill the last level")
        if SINGLE in level and level != SINGLE:
            raise ValueError(f"'+' in {text!r} must fill its level")


def _hidden(levels: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one begins with a wildcard and the other with `$`: then they have no name in common."""
    return levels[0] in _WILDCARDS and other[0][:1] == "$"


def matches(levels: Sequence[str], name: Sequence[str]) -> bool:
    """Whether a filter matches a name."""
    if _hidden(levels, name):
        return False
    for index, level in enumerate(levels):
        if level == MULTI:
            return True
        if index >= len(name) or level not in (SINGLE, name[index]):
            return False
    return len(levels) == len(name)


def covers(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Whether every name that `narrow` matches is matched by `wide`."""
    if _hidden(wide, narrow):
        return False
    if list(narrow) == [MULTI]:
        narrow = [SINGLE, MULTI]  # the same: a name has at least one level
    for index, level in enumerate(wide):
        if level == MULTI:
            return True
        if index >= len(narrow) or narrow[index] == MULTI:
            return False
        if level != SINGLE and level != narrow[index]:
            return False
    return len(wide) == len(narrow)


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether some name is matched by both."""
    if _hidden(one, other) or _hidden(other, one):
        return False
    for left, right in zip(one, other, strict=False):
        if MULTI in (left, right):
            return True
        if left != right and SINGLE not in (left, right):
            return False
    longer = one if len(one) > len(other) else other
    rest = len(longer) - min(len(one), len(other))
    return rest == 0 or (rest == 1 and longer[-1] == MULTI)
