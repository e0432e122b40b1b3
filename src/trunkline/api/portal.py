"""A loop in a thread of its own, on which the calls of code that is not asynchronous run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from trunkline.api.errors import ConnectionLost

T = TypeVar("T")


class Portal:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trunkline-api", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for what it returns or raises."""
        if self._loop.is_closed() or threading.get_ident() == self._thread.ident:
            work.close()
            if self._loop.is_closed():
                raise ConnectionLost("the connection is closed")
            raise RuntimeError("a call that waits was made on the connection's own loop: use trunkline.aio there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionLost("the connection was closed meanwhile") from None
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits for it any more
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Do it there without waiting."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()
