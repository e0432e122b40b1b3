"""A budget of bytes that many share: who holds most must let go when all together hold too much.

Clients can make the broker keep bytes before they count for anything: half a request, a message whose last frame has not
come, publications of a transaction that is not committed, what a group member says of itself. Each such holder has bounds
of its own; the budget bounds their sum, which no limit per connection can.

A holder tells the budget what it holds whenever that has changed, which takes constant time; who holds nothing is not
known here. Only when the budget is exceeded are all holders looked at. Those of the origin (a client's address) that
holds most go first, the largest of them before the others, until an eighth of the budget is free: so the search is paid
for by that many bytes of input, and clients elsewhere are not closed for what many small holders of one place take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

_FREED_SHARE = 8


class Holder(Protocol):
    @property
    def origin(self) -> str:
        """Whose it is: the address that it came from."""

    @property
    def holding(self) -> str:
        """What it is, for people: "a Kafka connection"."""

    def let_go(self) -> None:
        """Give back what is held. The budget has forgotten the holder already."""


class Budget:
    __slots__ = ("_freeing", "_holders", "_on_let_go", "held_bytes", "let_go", "max_bytes")

    def __init__(
        self, max_bytes: int, on_let_go: Callable[[Holder, int], None] = lambda holder, held_bytes: None
    ) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.let_go = 0  # holders that had to
        self._on_let_go = on_let_go
        self._holders: dict[Holder, int] = {}
        self._freeing = False

    @property
    def holders(self) -> int:
        return len(self._holders)

    def hold(self, holder: Holder, now_bytes: int) -> None:
        """`holder` holds so many bytes from now on; 0 when it has let go of everything."""
        if now_bytes:
            before_bytes = self._holders.get(holder, 0)
            self._holders[holder] = now_bytes
        else:
            before_bytes = self._holders.pop(holder, 0)
        self.held_bytes += now_bytes - before_bytes
        if self.held_bytes > self.max_bytes and not self._freeing:
            self._free()

    def _free(self) -> None:
        by_origin: Counter[str] = Counter()
        for holder, held_bytes in self._holders.items():
            by_origin[holder.origin] += held_bytes
        worst_first = sorted(
            self._holders, key=lambda holder: (by_origin[holder.origin], self._holders[holder]), reverse=True
        )
        enough_bytes = self.max_bytes - self.max_bytes // _FREED_SHARE
        self._freeing = True
        try:
            for holder in worst_first:
                if self.held_bytes <= enough_bytes:
                    break
                held_bytes = self._holders[holder]
                self.hold(holder, 0)
                self.let_go += 1
                self._on_let_go(holder, held_bytes)
                holder.let_go()
        finally:
            self._freeing = False
