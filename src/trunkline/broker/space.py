"""The space that is left on disk: when it runs low, publishers wait, whatever protocol they speak.

`blocked` says why publications must wait; None: they need not. It is looked at every `CHECK_S` seconds. Who must wait asks
`blocked`, or is told (`subscribe`) whenever it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trunkline.log.capabilities import LogDirectories
from trunkline.log.errors import LogError
from trunkline.log.store import LogStore

logger = logging.getLogger(__name__)

CHECK_S = 1.0


class Space:
    def __init__(self, store: LogStore, *, min_free_bytes: int = 0) -> None:
        """`min_free_bytes` 0, or a store without files: nothing is looked at, and nobody waits."""
        self._files = store.log_directories
        self._min_free_bytes = min_free_bytes
        self.blocked: str | None = None
        self._subscribers: list[Callable[[str | None], None]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._min_free_bytes and self._files is not None:
            self._task = asyncio.get_running_loop().create_task(self._watch(self._files), name="free space")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def subscribe(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with `blocked` whenever it changes."""
        self._subscribers.append(tell)

    async def _watch(self, files: LogDirectories) -> None:
        while True:
            try:
                free = min(directory.usable_bytes for directory in await files.directories())
                self.set_blocked("low on disk" if free < self._min_free_bytes else None)
            except (LogError, OSError, ValueError) as error:
                logger.error("free space cannot be told: %s", error)
            await asyncio.sleep(CHECK_S)

    def set_blocked(self, reason: str | None) -> None:
        """Called by the watch; tests call it too."""
        if reason != self.blocked:
            self.blocked = reason
            logger.warning("publications wait: %s" if reason else "publications go on", *([reason] if reason else []))
            for tell in self._subscribers:
                tell(reason)
