"""Work that is carried through once it has begun, whoever stops waiting for it.

A request whose connection closes is cancelled, but its record may be in the log already: memory would fall behind the
log. So the work runs in a task of its own; the request only waits for it. `settle` waits for all of it. The number of
tasks is bounded by the requests that connections may have in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TypeVar

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class CarriedWork:
    def __init__(self, expected: type[Exception]) -> None:
        self._expected = expected  # refusals, which are somebody's answer; any other error is logged
        self._tasks: set[asyncio.Task[object]] = set()

    async def run(self, work: Coroutine[object, object, _T]) -> _T:
        return await asyncio.shield(self.spawn(work))

    def spawn(self, work: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        task: asyncio.Task[_T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    async def settle(self) -> None:
        """Wait until nothing is under way, what is begun meanwhile included."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _over(self, task: asyncio.Task[_T]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self._expected):
            _log.error("unexpected failure", exc_info=error)
