"""The ticket of an append: where the batch went, as soon as that is known, and when it is as durable as was asked for.

A store in this process knows the place at once, a cluster after a while: whoever needs the place asks the ticket, and
nobody computes it from the bounds of the partition. A ticket is a future of the place that completes when the durability
that was asked for is reached; the place is known then at the latest.

A batch that was refused has no place: the ticket fails. A batch that has its place may still fail to become durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple


class Appended(NamedTuple):
    """Where a batch went. `duplicate` means that an idempotent producer sent it before and it stands there already."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 when the topic keeps the producer's timestamps
    log_start_offset: int
    duplicate: bool = False


class Ticket(asyncio.Future[Appended]):
    place: Appended | None = None  # once it is known
    _waiting: list[Callable[[Ticket], None]] | None = None

    def when_placed(self, call: Callable[[Ticket], None]) -> None:
        """Have `call` called with this ticket: at once if the place is known, else when it is, or when there will be none."""
        if self.place is not None or self.done():
            call(self)
        elif self._waiting is None:
            self._waiting = [call]
            self.add_done_callback(_tell)
        else:
            self._waiting.append(call)

    async def until_placed(self) -> None:
        """Wait until the place is known, or it is known that there will be none."""
        if self.place is None and not self.done():
            known = asyncio.Event()
            self.when_placed(lambda _: known.set())
            await known.wait()

    def placed(self, place: Appended) -> None:
        """For the store: the batch stands here."""
        self.place = place
        _tell(self)


def _tell(ticket: asyncio.Future[Appended]) -> None:
    assert isinstance(ticket, Ticket)
    waiting, ticket._waiting = ticket._waiting, None
    for call in waiting or ():
        call(ticket)


Recorded = asyncio.Future[Appended] | None  # of a change: done when it is on disk; None: there is nothing to wait for
