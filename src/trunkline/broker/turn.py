"""The turn: what is put off to the end of one pass of the event loop, so that it is done once for all that asks for it.

Reads that the loop finds ready are handled one after the other; each collects publications, acknowledgements and output.
At the end of that pass come, in this order: what was collected (appends, settlements), the dealing of messages to
consumers, the writing of output, and what nobody waits for (`put_off`). So a turn has one append per queue, one record of what was settled, and one write per
connection, however many frames were read.

Who has asked for something already must not ask again before it has run.

A server calls `hold` before it handles a read and `let_go` after it. When that read was the last thing that the loop had
to do in this pass, the turn ends right there instead of in a pass of its own: a lone request is answered a wake-up sooner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

Work = Callable[[], None]


class Turn:
    __slots__ = (
        "_afterwards",
        "_awaits_more",
        "_collected",
        "_deals",
        "_held",
        "_loop",
        "_output",
        "_running",
        "_scheduled",
    )

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._collected: list[Work] = []
        self._output: list[Work] = []
        self._afterwards: list[Work] = []
        self._deals: list[Work] = []
        self._scheduled = False
        self._running = False
        self._held = False
        self._awaits_more = False  # whether it ends behind the next read

    def hold(self) -> None:
        """Until `let_go`, only collect: nothing is scheduled."""
        self._held = True

    def let_go(self, *, unfinished: bool = False) -> None:
        """End the turn now if the loop has nothing else to do in this pass, else at the end of the pass.

        A read that ends within a message (`unfinished`) is about to be followed by another: one turn, and one commit, for both.
        """
        self._held = False
        if not (self._collected or self._output or self._deals) or self._scheduled or self._awaits_more:
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if unfinished:
            self._awaits_more = True
            # The next pass reads, and the turn ends behind it.
            self._loop.call_soon(self._loop.call_soon, self._take_up)
            return
        # What asyncio's own loops have yet to run in this pass; another loop's turn ends in the next pass.
        if getattr(self._loop, "_ready", True):
            self._schedule()
        else:
            self.run()

    def _take_up(self) -> None:
        """End the turn that waited for another read, if nothing else has."""
        self._awaits_more = False
        if not self._scheduled:
            self.run()

    def collect(self, work: Work) -> None:
        self._collected.append(work)
        self._schedule()

    def output(self, work: Work) -> None:
        self._output.append(work)
        self._schedule()

    def put_off(self, work: Work) -> bool:
        """Do this after the output of the turn that is being ended; False when none is, and the caller does it."""
        if self._running:
            self._afterwards.append(work)
        return self._running

    def ask_to_deal(self, deal: Work) -> None:
        """Deal in this turn; when asked for by a deal, in the next one, so that a long line lets others in between."""
        self._deals.append(deal)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._running and not self._held:
            self._scheduled = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Do what waits, and what comes up while doing it. Called by the loop; tests call it too."""
        if self._running:
            return
        self._running = True
        try:
            dealt = False
            while self._collected or self._output or self._afterwards or (self._deals and not dealt):
                if self._collected or (self._deals and not dealt):
                    work, self._collected = self._collected, []
                    _do(work)
                    dealt = True
                    work, self._deals = self._deals, []
                    _do(work)
                    if self._collected:  # a queue dead-lettered what it could not deal
                        continue
                work, self._output = self._output, []
                _do(work)
                work, self._afterwards = self._afterwards, []
                _do(work)
        finally:
            self._scheduled = False
            self._running = False
            if self._deals:
                self._schedule()


def _do(works: list[Work]) -> None:
    for work in works:
        try:
            work()
        except Exception:
            logger.exception("work at the end of a turn failed")
