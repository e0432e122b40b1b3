"""Files of the log: who may open them, and which are open.

Files and directories are their owner's alone (0600, 0700): the log holds everybody's messages and password hashes. `tighten`
makes that true of what an earlier version, another umask or a copy has left.

`FilePool`: descriptors of segment files, at most `max_open_files` of them, the least recently used closed first.

Only the event loop's thread opens, evicts and forgets. Another thread may use a descriptor while it is pinned: a pinned
file is closed only when its last pin goes, so a read in a thread never meets a descriptor that was closed or used again.
Closing a file does not lose what was written to it: what is closed when it is to be synced is opened again (see
committer).
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import OrderedDict
from typing import Final

from trunkline.log.errors import StorageFailure

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_logger = logging.getLogger(__name__)
DAMAGED_SUFFIX = ".damaged"  # of files in which damage is kept: nothing reads them, nothing removes them


class OpenFile:
    __slots__ = ("fd", "forgotten", "path", "pins")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.pins = 0
        self.forgotten = False


class FilePool:
    def __init__(self, max_open_files: int) -> None:
        self._max_open_files = max(1, max_open_files)
        self._open: OrderedDict[str, OpenFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def fd(self, path: str, *, create: bool = False) -> int:
        """The descriptor of the file at `path`, open for reading and writing."""
        found = self._open.get(path)
        if found is None:
            found = self._add(path, create)
        else:
            self._open.move_to_end(path)
        return found.fd

    def pin(self, path: str) -> OpenFile:
        self.fd(path)
        file = self._open[path]
        file.pins += 1
        return file

    def pin_if_open(self, path: str) -> OpenFile | None:
        file = self._open.get(path)
        if file is not None:
            file.pins += 1
        return file

    def unpin(self, file: OpenFile) -> None:
        file.pins -= 1
        if file.forgotten and file.pins == 0:
            os.close(file.fd)

    def forget(self, path: str) -> None:
        """Close the file, because it is about to be removed or replaced."""
        file = self._open.pop(path, None)
        if file is not None:
            self._let_go(file)

    def close(self) -> None:
        while self._open:
            self._let_go(self._open.popitem()[1])

    def _add(self, path: str, create: bool) -> OpenFile:
        while len(self._open) >= self._max_open_files:
            self._let_go(self._open.popitem(last=False)[1])
        while True:
            try:
                fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | os.O_CLOEXEC, FILE_MODE)
                break
            except OSError as error:
                # Out of descriptors, which connections have taken: make do with fewer files.
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._let_go_of_one():
                    raise StorageFailure(path, error.strerror or "cannot be opened") from None
        file = self._open[path] = OpenFile(path, fd)
        return file

    def _let_go_of_one(self) -> bool:
        """Close the least used file that nobody has pinned; False when there is none."""
        for path, file in self._open.items():
            if file.pins == 0:
                del self._open[path]
                self._let_go(file)
                return True
        return False

    @staticmethod
    def _let_go(file: OpenFile) -> None:
        file.forgotten = True
        if file.pins == 0:
            os.close(file.fd)


def make_directory(path: str) -> None:
    """Make a directory, and the one it is in, if they are not there."""
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
        os.mkdir(path, DIRECTORY_MODE)


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is its owner's alone."""
    return os.open(path, flags, FILE_MODE)


def is_private(path: str) -> bool:
    return not os.stat(path).st_mode & _OTHERS


def tighten(directory: str) -> None:
    """Take every right to a directory and what is in it from others than the owner. Links are not followed.

    The directory itself comes last: as long as others can enter it, there is still something to do.
    Where the files are another user's this cannot be done; then it is said once, and the log is served nevertheless.
    """
    refused: list[str] = []
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        continue
                    _tighten(entry.path, entry.stat(follow_symlinks=False).st_mode, refused)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue  # not ours to look into, or just removed
    _tighten(directory, os.stat(directory).st_mode, refused)
    if refused:
        _logger.warning("others keep their rights to %s and %d more: they are not ours", refused[0], len(refused) - 1)


def _tighten(path: str, mode: int, refused: list[str]) -> None:
    if mode & _OTHERS:
        try:
            os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
        except OSError:
            refused.append(path)


def fsync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_durable_directory(path: str, mode: int = 0o777) -> None:
    """Make a directory, and the ones above it that are missing, so that none of their names is lost with the power."""
    above = os.path.dirname(path)
    if above == path or os.path.isdir(path):
        return
    make_durable_directory(above)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    fsync_directory(above)


def write_atomically(path: str, content: bytes, *, durable: bool) -> None:
    """Replace a file as a whole: a crash leaves the old or the new content, never a mixture."""
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if durable:
        fsync_directory(os.path.dirname(path))
