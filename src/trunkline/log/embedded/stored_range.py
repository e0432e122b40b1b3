"""A range of a segment file, sent by the kernel from the page cache to a socket.

The file is pinned for as long as the range lives, so a segment that is removed or replaced meanwhile stays readable. Ranges
are made for `MIN_STORED_BYTES` and more, so the bytes that slow clients may leave unsent also bound the pinned files.
"""

from __future__ import annotations

import os
import sys

from trunkline.log.embedded.files import FilePool
from trunkline.log.store import StoredRecords

MIN_STORED_BYTES = 256 * 1024  # less is as quickly copied
CAN_SEND_FILES = sys.platform == "linux"  # elsewhere `sendfile` differs, and the page cache cannot be asked


class StoredRange(StoredRecords):
    __slots__ = ("_end", "_file", "_pool", "_position")

    def __init__(self, pool: FilePool, path: str, position: int, size: int) -> None:
        self._pool = pool
        self._file = pool.pin(path)
        self._position = position
        self._end = position + size

    def __del__(self) -> None:
        # Not a method that the user calls: a response can be dropped in many places, and each must let go of the file.
        self._pool.unpin(self._file)

    def __len__(self) -> int:
        return self._end - self._position

    def send(self, socket_fd: int) -> None:
        while self._position < self._end:
            try:
                sent = os.sendfile(socket_fd, self._file.fd, self._position, self._end - self._position)
            except BlockingIOError:
                return
            if not sent:
                raise OSError(f"{self._file.path} ends at {self._position}, before {self._end}")
            self._position += sent

    def take(self, max_bytes: int) -> bytes:
        size = min(max_bytes, len(self))
        taken = os.pread(self._file.fd, size, self._position)
        if len(taken) != size:
            raise OSError(f"{self._file.path} ends at {self._position + len(taken)}, before {self._end}")
        self._position += size
        return taken
