"""Ctrl-C and SIGTERM for a command that sends: what is on its way is finished, so that it can say how far it got.

While the command waits for input, a signal ends that at once; at any other time it waits for the next wait (or `check`).
The second signal always ends the command at once. Exit codes are the shell's: 130 for SIGINT, 143 for SIGTERM.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interruption:
    def __init__(self) -> None:
        self._signum = 0
        self._waiting = False
        self._before: list[object] = []

    def __enter__(self) -> Self:
        self._before = [signal.signal(each, self._take) for each in _SIGNALS]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each, before in zip(_SIGNALS, self._before, strict=True):
            signal.signal(each, before)  # type: ignore[arg-type]  # what `signal.signal` returned is what it takes

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what may take for ever."""
        self._waiting = True
        try:
            self.check()  # a signal from here on is raised where it comes
            yield
        finally:
            self._waiting = False

    def check(self) -> None:
        if self._signum:
            raise Interrupted(self._signum)

    def _take(self, signum: int, _frame: FrameType | None) -> None:
        again, self._signum = bool(self._signum), signum
        if again or self._waiting:
            raise Interrupted(signum)
