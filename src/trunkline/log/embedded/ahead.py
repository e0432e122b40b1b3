"""Reading ahead: what a consumer will ask for next is copied out of the page cache while it works on what it has.

A consumer that catches up asks, takes an answer of some megabytes, works on it and asks for what follows. Copying an
answer out of the page cache takes about as long as sending it, and the broker has nothing to do for this consumer while
it works. So a read that goes on where an earlier one ended is followed, in a later turn of the event loop, by a read of
as much again, which `take` then has ready.

What always holds: a window is of a segment's committed bytes, which never change, and is found by the segment itself, so
one that was removed or replaced is not found. A window is handed out once. At most `max_bytes` are kept, none longer than
`_KEEP_S` after it was read; with no room left nothing is read ahead, rather than in another's place. Only what is in the
page cache is read, one window in each turn of the loop.
"""

from __future__ import annotations

import asyncio
import os

from trunkline.log.embedded.files import FilePool
from trunkline.log.embedded.segment import Segment

_LEAST_BYTES = 64 << 10  # below this a read costs less than keeping account of it
_KEEP_S = 1.0

_Key = tuple[Segment, int]  # and the position in it


class ReadAhead:
    def __init__(self, pool: FilePool, max_bytes: int) -> None:
        self._pool = pool
        self._max_bytes = max_bytes if hasattr(os, "RWF_NOWAIT") else 0
        self.kept_bytes = 0
        self._wanted: dict[_Key, int] = {}
        self._windows: dict[_Key, tuple[bytearray, float]] = {}  # with when it is to be forgotten, oldest first
        self._timer: asyncio.TimerHandle | None = None

    def take(self, segment: Segment, position: int, size: int) -> memoryview | None:
        """The bytes at `position`, if they were read ahead."""
        key = (segment, position)
        self._wanted.pop(key, None)  # it is too late for that
        if key not in self._windows:
            return None
        window = self._forget(key)
        return memoryview(window)[:size] if len(window) >= size else None

    def expect(self, segment: Segment, position: int, size: int) -> None:
        """Read these bytes, all of them committed, when the loop has done what it has to do now."""
        if size < _LEAST_BYTES or self.kept_bytes + size > self._max_bytes:
            return
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._read_one)
        self._wanted[(segment, position)] = size

    def close(self) -> None:
        self._wanted.clear()
        self._windows.clear()
        self.kept_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read_one(self) -> None:
        if not self._wanted:
            return
        key = next(iter(self._wanted))
        size = self._wanted.pop(key)
        loop = asyncio.get_running_loop()
        if self._wanted:
            loop.call_soon(self._read_one)
        if self.kept_bytes + size > self._max_bytes or key in self._windows:
            return
        segment, position = key
        file = self._pool.pin_if_open(segment.log_path)
        if file is None:
            return  # it is being removed, or was put aside for others
        window = bytearray(size)
        try:
            if os.preadv(file.fd, [window], position, os.RWF_NOWAIT) != size:
                return
        except OSError:
            return  # not in the page cache, or unreadable: whoever asks for it is told
        finally:
            self._pool.unpin(file)
        self._windows[key] = (window, loop.time() + _KEEP_S)
        self.kept_bytes += size
        if self._timer is None:
            self._timer = loop.call_later(_KEEP_S, self._forget_old)

    def _forget_old(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for key, (_, until) in list(self._windows.items()):
            if until > loop.time():
                self._timer = loop.call_at(until, self._forget_old)
                return
            self._forget(key)

    def _forget(self, key: _Key) -> bytearray:
        window, _ = self._windows.pop(key)
        self.kept_bytes -= len(window)
        return window
