"""Trying again where Spark's Python workers came late (see `causes`): a few times, with longer and longer pauses, each said in
one line. A streaming query that is started again goes on from its checkpoint. Any other error is raised as it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from trunkline.pipeline.causes import LATE_WORKER, is_late_worker

MAX_LATE: Final = 6
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0

T = TypeVar("T")


class Patience:
    def __init__(self, say: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._say = say
        self._sleep = sleep
        self._late = 0

    def excuse(self, error: Exception) -> None:
        """Pause if the error passes with time; raise it if it does not, or came too often."""
        if not is_late_worker(error) or self._late >= MAX_LATE:
            raise error
        self._late += 1
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._late - 1))
        self._say(f"{LATE_WORKER}; trying again in {pause_s:g} s ({self._late} of {MAX_LATE})")
        self._sleep(pause_s)

    def run(self, action: Callable[[], T]) -> T:
        while True:
            try:
                return action()
            except Exception as error:
                self.excuse(error)
