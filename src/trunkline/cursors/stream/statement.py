"""What a member says of itself, and its group keeps as long as the member lives: bytes of the broker's input budget.

A member of a group says which protocols it speaks and what it subscribes to, as much as a megabyte of it, and lives up to
half an hour without another word. When all that clients make the broker hold is too much, the member that said most is let
go as if its session had ended; a live one joins again.
"""

from __future__ import annotations

from collections.abc import Callable

from trunkline.budget import Budget
from trunkline.cursors.stream.timers import Timers


class Statement:
    __slots__ = ("_budget", "_expel", "_timers", "holding", "origin")

    def __init__(self, budget: Budget, timers: Timers, *, group_id: str, host: str, expel: Callable[[], None]) -> None:
        self._budget = budget
        self._timers = timers
        self._expel = expel
        self.origin = host
        self.holding = f"a member of group {group_id:.100}"

    def has(self, size_bytes: int) -> None:
        """The member's statement has so many bytes now; 0 when the member is gone."""
        self._budget.hold(self, size_bytes)

    def let_go(self) -> None:
        # Not here and now: the group may be in the middle of taking the statement in.
        self._timers.after(0, self._expel)
