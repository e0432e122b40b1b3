"""What a node believes about the others: a state and an incarnation each, and which news overrides which.

    news ╲ believed   alive, i        suspect, i      dead, i        left, i
    alive, j          j > i           j > i           j > i          j > i
    suspect, j        j ≥ i           j > i           j > i          j > i
    dead, j           j ≥ i           j ≥ i           j > i          j > i
    left, j           j ≥ i           j ≥ i           j ≥ i          j > i

Only a member itself raises its incarnation: to refute what is said of it, and when it comes back. (SWIM ends with "dead": a
member that was declared dead would have to take another name. Here it may come back with a higher incarnation.)
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from trunkline.overlay.machine import Peer

MAX_INCARNATION = 1 << 32


class State(IntEnum):
    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_present(self) -> bool:
        return self <= State.SUSPECT


class Update(NamedTuple):
    """News of a member: what messages carry, and what a node believes."""

    member: Peer
    state: State
    incarnation: int


def overrides(news: Update, believed: Update) -> bool:
    if news.incarnation != believed.incarnation:
        return news.incarnation > believed.incarnation
    return news.state > believed.state


class Members:
    """The others, present and gone. `max_members` bounds them all; the longest gone make room."""

    def __init__(self, max_members: int) -> None:
        self._max_members = max_members
        self._believed: dict[Peer, Update] = {}
        self._gone: dict[Peer, None] = {}  # in the order in which they went
        self.refused = 0
        """News of members for whom there was no room."""

    def __len__(self) -> int:
        """How many are present."""
        return len(self._believed) - len(self._gone)

    def __contains__(self, member: Peer) -> bool:
        return member in self._believed and member not in self._gone

    def __iter__(self) -> Iterator[Peer]:
        return (member for member in self._believed if member not in self._gone)

    def get(self, member: Peer) -> Update | None:
        return self._believed.get(member)

    def present(self) -> list[Update]:
        return [update for update in self._believed.values() if update.state.is_present]

    def dead(self) -> list[Update]:
        """Who went without a word."""
        return [update for member in self._gone if (update := self._believed[member]).state is State.DEAD]

    def take(self, news: Update) -> bool:
        """Believe it if it overrides what is believed; whether it did."""
        believed = self._believed.get(news.member)
        if believed is None:
            if not news.state.is_present:
                return False  # nobody here knew it
            if len(self._believed) >= self._max_members and not self._make_room():
                self.refused += 1
                return False
        elif not overrides(news, believed):
            return False
        self._believed[news.member] = news
        if news.state.is_present:
            self._gone.pop(news.member, None)
        else:
            self._gone[news.member] = None
        return True

    def _make_room(self) -> bool:
        longest_gone = next(iter(self._gone), None)
        if longest_gone is None:
            return False
        del self._gone[longest_gone], self._believed[longest_gone]
        return True
