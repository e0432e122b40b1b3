"""One process per data directory.

On disk: `<data>/.lock`, holding the pid of the owner as text. The lock is a `flock`, so the kernel drops it when the owner
dies, however it dies; the file itself stays and means nothing without the lock.
"""

from __future__ import annotations

import fcntl
import os

from trunkline.log.embedded.files import FILE_MODE
from trunkline.log.errors import DataDirectoryInUse, StorageFailure


class DirectoryLock:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._fd = -1

    def acquire(self) -> None:
        path = os.path.join(self._directory, ".lock")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise StorageFailure(self._directory, f"cannot write to the data directory: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise DataDirectoryInUse(
                self._directory, f"the data directory is in use by the process with pid {holder}"
            ) from None
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(fd)
            raise StorageFailure(self._directory, f"cannot write to the data directory: {error.strerror}") from None
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
