"""fdatasync without a thread of ours: Linux's io_uring.

A thread that syncs needs the interpreter's lock to begin and again to say that it is done, and gets it late from a busy event
loop. Here the loop hands descriptors to the kernel with one system call that does not block, the kernel's own threads wait
for the disk, and an eventfd in the loop's selector tells that something is done.

On the wire between us and the kernel are two rings of 32-bit words in shared memory (see io_uring_setup(2)): one of requests,
whose tail we move, and one of results, whose head we move. One thread uses a ring. At most `entries` requests are under way,
so neither ring can overflow.

Where the kernel has no io_uring, or forbids it as container runtimes do, `open_ring` returns None.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import struct
import sys
from collections.abc import Sequence

_logger = logging.getLogger(__name__)

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # system calls; these numbers are the same on every architecture that we know
_REGISTER_EVENTFD = 4
_REQUESTS_AT = 0x1000_0000  # where the kernel maps the requests themselves
_SINGLE_MAP = 1  # a feature: both rings are in one map; Linux 5.4
_WORD_MASK = 0xFFFF_FFFF

_PARAMETERS = struct.Struct("=5I I 4I 8I Q 8I Q")  # entries, flags; features; reserved; offsets of both rings
_REQUEST = struct.Struct(
    "=BBHiQQIIQ 24x"
)  # operation, flags, priority, descriptor, offset, address, length, options, tag
_RESULT = struct.Struct("=Qi4x")  # tag, 0 or a negated errno
_FSYNC, _DATA_ONLY = 3, 1


class Ring:
    def __init__(self, entries: int) -> None:
        # PyDLL: the call returns at once, so the interpreter's lock is kept.
        self._system_call = ctypes.PyDLL(None, use_errno=True).syscall
        self._system_call.argtypes = (ctypes.c_long,) * 7
        self._system_call.restype = ctypes.c_long
        raw = ctypes.create_string_buffer(_PARAMETERS.size)
        self._fd = self._call(_SETUP, entries, ctypes.addressof(raw))
        try:
            said = _PARAMETERS.unpack(raw)
            self.entries, results, features = said[0], said[1], said[5]
            if not features & _SINGLE_MAP:
                raise OSError(0, "the kernel is older than 5.4")
            requests_ring, results_ring = said[10:18], said[19:27]
            size = max(requests_ring[6] + 4 * self.entries, results_ring[5] + _RESULT.size * results)
            self._map = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED)
            self._requests = mmap.mmap(
                self._fd, _REQUEST.size * self.entries, flags=mmap.MAP_SHARED, offset=_REQUESTS_AT
            )
            self._words = memoryview(self._map)[: size // 4 * 4].cast("I")
            self._tail_at, self._array_at = requests_ring[1] // 4, requests_ring[6] // 4
            self._head_at, self._end_at, self._results_at = results_ring[0] // 4, results_ring[1] // 4, results_ring[5]
            self._tail, self._head = self._words[self._tail_at], self._words[self._head_at]
            self._results_mask = results - 1
            self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            os.close(self._fd)
            raise
        descriptor = ctypes.c_int(self.eventfd)
        try:
            self._call(_REGISTER, self._fd, _REGISTER_EVENTFD, ctypes.addressof(descriptor), 1)
        except OSError:
            self.close()
            raise

    def sync(self, files: Sequence[tuple[int, int]]) -> None:
        """Begin an fdatasync for each (descriptor, tag)."""
        for fd, tag in files:
            slot = self._tail & (self.entries - 1)
            _REQUEST.pack_into(self._requests, slot * _REQUEST.size, _FSYNC, 0, 0, fd, 0, 0, 0, _DATA_ONLY, tag)
            self._words[self._array_at + slot] = slot
            self._tail = (self._tail + 1) & _WORD_MASK
        self._words[self._tail_at] = self._tail
        taken = self._call(_ENTER, self._fd, len(files), 0, 0)
        if taken != len(files):
            raise OSError(0, f"the kernel took {taken} of {len(files)} requests")

    def results(self) -> list[tuple[int, int]]:
        """What was done since the last call: (tag, 0 or errno)."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            pass
        found: list[tuple[int, int]] = []
        end = self._words[self._end_at]
        while self._head != end:
            tag, result = _RESULT.unpack_from(
                self._map, self._results_at + (self._head & self._results_mask) * _RESULT.size
            )
            found.append((tag, -result))
            self._head = (self._head + 1) & _WORD_MASK
        self._words[self._head_at] = self._head
        return found

    def close(self) -> None:
        self._words.release()
        os.close(self._fd)
        os.close(self.eventfd)
        self._map.close()
        self._requests.close()

    def _call(self, *arguments: int) -> int:
        result = int(self._system_call(*arguments, *(0,) * (7 - len(arguments))))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def open_ring(entries: int) -> Ring | None:
    """A ring for at least so many requests at a time; None where there is no io_uring for us."""
    if sys.platform != "linux":
        return None
    try:
        return Ring(entries)
    except (OSError, AttributeError, ValueError) as error:
        _logger.debug("no io_uring: %s", error)
        return None
