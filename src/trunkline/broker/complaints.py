"""What clients can make the broker say, summed up.

Whoever reaches a port can send garbage to it, over and over. What is said about it is therefore counted by kind and
address: the first of its kind from an address is logged at once, those that follow within `interval_ms` become one line
("… and 45 more in the last 60 s"). Of each kind `max_addresses` addresses are told apart; all others count as one, so the
log grows by so many lines an interval and kind, whatever is done to the broker. Kinds are the program's words, never a
client's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

ELSEWHERE = "other addresses"


@dataclass(slots=True)
class _Repeats:
    text: str
    level: int
    count: int = 0


class Complaints:
    def __init__(self, *, interval_ms: int = 60_000, max_addresses: int = 20) -> None:
        self._interval_ms = interval_ms
        self._max_addresses = max_addresses
        self._by_kind: dict[str, dict[str, _Repeats]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, kind: str, address: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        """Say `text`, or count it. `error` is a fault of ours: the first line comes with its traceback."""
        known = self._by_kind.setdefault(kind, {})
        repeats = known.get(address)
        if repeats is None and len(known) >= self._max_addresses:
            address = ELSEWHERE
            repeats = known.get(address)
        if repeats is not None:
            repeats.count += 1
            repeats.text = text
            return
        known[address] = _Repeats(text, level)
        logger.log(level, "%s: %s", address, text, exc_info=error)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._interval_over)

    def sum_up(self) -> None:
        """Say what was counted since the last time, and forget those who have been quiet since."""
        for kind, known in list(self._by_kind.items()):
            for address, repeats in list(known.items()):
                if repeats.count:
                    logger.log(
                        repeats.level,
                        "%s: %s; and %d more of this kind (%s) in the last %g s",
                        address,
                        repeats.text,
                        repeats.count - 1,
                        kind,
                        self._interval_ms / 1000,
                    )
                    repeats.count = 0
                else:
                    del known[address]
            if not known:
                del self._by_kind[kind]

    def close(self) -> None:
        """Nothing is counted any more: say what was."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.sum_up()

    def _interval_over(self) -> None:
        self._timer = None
        self.sum_up()
        if self._by_kind:
            self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._interval_over)
