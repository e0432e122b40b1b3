"""News that rides on other messages: each is passed on a number of times that grows with the logarithm of the group.

What was passed on least goes first, so that fresh news is not held up by old. One entry a member: newer news replaces it.
"""

from __future__ import annotations

import math

from trunkline.overlay.machine import Peer
from trunkline.overlay.membership.members import Update

FACTOR = 3
"""Each piece is passed on FACTOR · log10-of-the-group times, rounded up, and then everybody has most probably heard it."""


class News:
    def __init__(self) -> None:
        self._by_times: list[dict[Peer, Update]] = []  # at index n: what was passed on n times
        self._times: dict[Peer, int] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, update: Update) -> None:
        self._remove(update.member)
        self._put(update, 0)

    def take(self, count: int, group_size: int) -> tuple[Update, ...]:
        """Up to `count` pieces to send along; they are counted as sent once more."""
        limit = transmissions(group_size)
        chosen: list[Update] = []
        for updates in self._by_times:
            chosen.extend(list(updates.values())[: count - len(chosen)])
            if len(chosen) >= count:
                break
        for update in chosen:
            times = self._times[update.member] + 1
            self._remove(update.member)
            if times < limit:
                self._put(update, times)
        return tuple(chosen)

    def _put(self, update: Update, times: int) -> None:
        while len(self._by_times) <= times:
            self._by_times.append({})
        self._by_times[times][update.member] = update
        self._times[update.member] = times

    def _remove(self, member: Peer) -> None:
        times = self._times.pop(member, None)
        if times is not None:
            del self._by_times[times][member]


def transmissions(group_size: int) -> int:
    return math.ceil(FACTOR * math.log10(group_size + 1)) + 1
