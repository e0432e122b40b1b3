"""Something that goes on until it is stopped: `notify`, a subscription, a service.

Messages wait in line, at most `concurrency` are with the function at a time, and what the function raises ends nothing but its
own message's turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from trunkline.api.intake import Intake
from trunkline.api.message import Message
from trunkline.api.settlement import Settlement
from trunkline.protocols.amqp.frames import Deliver

logger = logging.getLogger(__name__)


class Handle:
    """What `notify`, `subscribe` and `serve` return. `handled` and `failed` count messages."""

    def __init__(self, handler: Callable[[Message[Any]], Awaitable[None]], concurrency: int, *, no_ack: bool) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._no_ack = no_ack
        self._line: deque[tuple[Deliver, Settlement]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._intake: Intake | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.threads: ThreadPoolExecutor | None = None
        self.handled = 0
        self.failed = 0
        self.stopped = False
        self.on_stop: Callable[[Handle], None] | None = None

    async def start(self, intake: Intake, deadline: float) -> Self:
        self._intake = intake
        await intake.start(deadline)
        return self

    def expire_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(seconds, lambda: loop.create_task(self.stop()))

    # -- messages ------------------------------------------------------------------------------------------------

    def arrived(self, delivered: Deliver, settlement: Settlement) -> None:
        self._line.append((delivered, settlement))
        if len(self._running) < self._concurrency:
            self._run()

    def lost(self) -> None:
        if not self._no_ack:
            self._line.clear()  # they come again

    def _run(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work())
        self._running.add(task)
        self._idle.clear()
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._line and not self.stopped:
            self._run()  # what arrived between the task's last look and its end
        elif not self._running:
            self._idle.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a message could not be handled", exc_info=task.exception())

    async def _work(self) -> None:
        """Handle messages until there is none in line."""
        while self._line and not self.stopped:
            delivered, settlement = self._line.popleft()
            if not self._no_ack:
                settlement.open.add(delivered.tag)
            try:
                await self._handler(Message(delivered, None if self._no_ack else settlement))
                self.handled += 1
            except Exception:
                self.failed += 1
                logger.exception("a callback failed")

    # -- the end -------------------------------------------------------------------------------------------------

    async def stop(self, timeout: float | None = None) -> None:
        """Take nothing more, wait for what runs, give the rest back."""
        if self.stopped:
            return
        self.stopped = True
        if self._expiry is not None:
            self._expiry.cancel()
        intake = self._intake
        if intake is not None:
            settlement = intake.settlement
            await intake.stop(close=False)
            if settlement is not None:
                settlement.give_back([delivered.tag for delivered, _ in self._line])
        self._line.clear()
        current = asyncio.current_task()
        if current not in self._running:
            try:
                async with asyncio.timeout(timeout):
                    await self._idle.wait()
            except TimeoutError:
                for task in self._running:
                    task.cancel()
        if intake is not None:
            await intake.stop()
        if self.threads is not None:
            self.threads.shutdown(wait=False)
        if self.on_stop is not None:
            self.on_stop(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
