"""Group commit: one thread, no timer.

Appends that must reach the disk are submitted with the files that they dirtied. As soon as the thread has finished one
round of fsyncs it takes all that was submitted meanwhile as the next, so under load a round serves everything that waits
and when idle an append waits for its own fsync only. A round ends in one wake-up of the event loop, however many futures it
completes. The thread works with descriptors that are open already and pinned (see files), where there are: each call that
lets go of the interpreter's lock has to get it back from a busy event loop.

What always holds: a future completes with success only after every file that its partition had dirtied up to that append
is fsynced, and the directory too when a file in it was new. A failed fsync is final: the kernel may have dropped the dirty
pages, so a second try could succeed without the data. The partition is failed instead, and so is everyone that waits for it.
"""

from __future__ import annotations

import asyncio
import os
import threading

from trunkline.log.embedded.files import OpenFile, fsync_directory
from trunkline.log.embedded.partition import Partition
from trunkline.log.errors import StorageFailure
from trunkline.log.store import Appended

_MANY_FILES = 256


class _Commit:
    """What one partition waits for in one round."""

    __slots__ = ("directories", "error", "files", "partition", "pinned", "synced_to", "waiting")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.files: set[str] = set()
        self.pinned: dict[str, OpenFile] = {}  # those of the files that are open
        self.directories: set[str] = set()
        self.waiting: list[tuple[asyncio.Future[Appended], Appended]] = []
        self.synced_to = 0
        self.error: StorageFailure | None = None


class Committer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._work = threading.Semaphore(0)
        self._round: dict[Partition, _Commit] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="trunkline-committer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        with self._lock:
            self._stopping = True
        self._work.release()
        await asyncio.to_thread(self._thread.join)

    def submit(self, partition: Partition, future: asyncio.Future[Appended] | None = None, appended: Appended | None = None) -> None:  # fmt: skip
        """Have everything that the partition wrote so far fsynced; then complete the future. Called on the event loop."""
        with self._lock:
            commit = self._round.get(partition)
            if commit is None:
                first = not self._round
                commit = self._round[partition] = _Commit(partition)
                if first:
                    self._work.release()
            if partition.dirty_files:
                for path in partition.dirty_files:
                    if path not in commit.files:
                        commit.files.add(path)
                        file = partition.pool.pin_if_open(path)
                        if file is not None:
                            commit.pinned[path] = file
                partition.dirty_files.clear()
            if partition.dirty_directory:
                commit.directories.add(partition.directory)
                partition.dirty_directory = False
            commit.synced_to = partition.end_offset
            if future is not None and appended is not None:
                commit.waiting.append((future, appended))

    def _run(self) -> None:
        while True:
            self._work.acquire()
            with self._lock:
                taken, self._round = self._round, {}
                stopping = self._stopping
            if taken:
                commits = list(taken.values())
                if sum(len(commit.files) for commit in commits) > _MANY_FILES:
                    # Lets the file system write all of them in one go. It reports no errors; the fsyncs below do.
                    os.sync()
                for commit in commits:
                    _sync(commit)
                try:
                    self._loop.call_soon_threadsafe(_complete, commits)
                except RuntimeError:
                    return  # the loop is closed: nobody is left to tell
            if stopping and not taken:
                return
            if stopping:
                self._work.release()


def _sync(commit: _Commit) -> None:
    path = commit.partition.directory
    try:
        for path in commit.files:
            file = commit.pinned.get(path)
            if file is not None:
                os.fdatasync(file.fd)
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # retention or a deletion took it meanwhile: nothing is left to keep
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
        for path in commit.directories:
            try:
                fsync_directory(path)
            except FileNotFoundError:
                continue
    except OSError as error:
        commit.error = StorageFailure(path, f"fsync failed: {error.strerror}")


def _complete(commits: list[_Commit]) -> None:
    for commit in commits:
        partition = commit.partition
        for file in commit.pinned.values():
            partition.pool.unpin(file)
        if commit.error is not None:
            partition.fail(commit.error)
        failure = partition.failure
        if failure is None:
            partition.recovery_point = max(partition.recovery_point, commit.synced_to)
        for future, appended in commit.waiting:
            if future.done():
                continue
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(appended)
