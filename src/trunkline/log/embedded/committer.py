"""Group commit, without a timer.

Appends that must reach the disk are submitted with the files that they dirtied. As soon as one round of fsyncs has ended, all
that was submitted meanwhile is taken as the next, so under load a round serves everything that waits and when idle an
append waits for its own fsync only. A round ends in one wake-up of the event loop, however many futures it completes.

A round's fsyncs are the kernel's to carry out (see ring) where it has io_uring, all of them side by side; else, and for a round
with names to make durable or with files that are not open, they are done one by one in a thread. Descriptors that are open are
pinned while they are synced (see files).

What always holds: a future completes with success only after every file that its partition had dirtied up to that append
is fsynced, and the directory too when a file in it was new. Rounds end in the order in which they began. A failed fsync is
final: the kernel may have dropped the dirty pages, so a second try could succeed without the data. The partition is failed
instead, and so is everyone that waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

from trunkline.log.embedded.files import OpenFile, fsync_directory
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.ring import Ring, open_ring
from trunkline.log.errors import StorageFailure
from trunkline.log.ticket import Appended

_MANY_FILES = 256
_RING_ENTRIES = 64
_FEW_CLIENTS = 4

_logger = logging.getLogger(__name__)


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


_Round = dict[Partition, _Commit]


class Committer(ABC):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None:
        """Finish what was submitted."""

    @abstractmethod
    def submit(self, partition: Partition, future: asyncio.Future[Appended] | None = None, appended: Appended | None = None) -> None:  # fmt: skip
        """Have everything that the partition wrote so far fsynced; then complete the future. Called on the event loop."""


def new_committer(loop: asyncio.AbstractEventLoop, *, io_uring: bool = True) -> Committer:
    ring = open_ring(_RING_ENTRIES) if io_uring else None
    return _ThreadCommitter(loop) if ring is None else _RingCommitter(loop, ring)


class _ThreadCommitter(Committer):
    """One thread, which takes the next round as soon as it has done one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._lock = threading.Lock()
        self._work = threading.Semaphore(0)
        self._round: _Round = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="trunkline-committer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        with self._lock:
            self._stopping = True
        self._work.release()
        await asyncio.to_thread(self._thread.join)

    def submit(self, partition: Partition, future: asyncio.Future[Appended] | None = None, appended: Appended | None = None) -> None:  # fmt: skip
        with self._lock:
            first = not self._round
            _enter(self._round, partition, future, appended)
        if first:
            self._work.release()

    def _run(self) -> None:
        while True:
            self._work.acquire()
            with self._lock:
                taken, self._round = self._round, {}
                stopping = self._stopping
            if taken:
                commits = list(taken.values())
                _sync_all(commits)
                try:
                    self._loop.call_soon_threadsafe(_complete, commits)
                except RuntimeError:
                    return  # the loop is closed: nobody is left to tell
            if stopping and not taken:
                return
            if stopping:
                self._work.release()


class _RingCommitter(Committer):
    """The kernel syncs.

    An append after an idle time begins a round at once, so that the disk works while the loop delivers; but when a client waits
    for the record, and not too many do, it is served first: telling the kernel takes a tenth of its way to the client.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Ring) -> None:
        super().__init__(loop)
        self._ring = ring
        self._works = True
        self._round: _Round = {}
        self._under_way: list[_Commit] = []
        self._left = 0  # fsyncs of the round under way
        self._paths: list[tuple[_Commit, str]] = []  # by tag
        self._thread = ThreadPoolExecutor(1, "trunkline-committer")  # starts with its first work
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        self._loop.add_reader(self._ring.eventfd, self._collect)

    async def stop(self) -> None:
        await self._idle.wait()
        self._thread.shutdown(wait=False)
        self._loop.remove_reader(self._ring.eventfd)
        self._ring.close()

    def submit(self, partition: Partition, future: asyncio.Future[Appended] | None = None, appended: Appended | None = None) -> None:  # fmt: skip
        first = not self._round
        _enter(self._round, partition, future, appended)
        self._idle.clear()
        if not 0 < partition.waiting_clients <= _FEW_CLIENTS:
            self._begin()
        elif first:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._under_way or not self._round:
            return
        self._under_way, self._round = list(self._round.values()), {}
        if not self._hand_over():
            self._loop.run_in_executor(self._thread, _sync_all, self._under_way).add_done_callback(self._thread_ends)

    def _hand_over(self) -> bool:
        """Have the kernel carry out the round, if it is one of open files alone."""
        files: list[tuple[int, int]] = []
        self._paths.clear()
        for commit in self._under_way:
            if commit.directories or len(commit.pinned) < len(commit.files):
                return False
            for path, file in commit.pinned.items():
                files.append((file.fd, len(files)))
                self._paths.append((commit, path))
        if not self._works or not 0 < len(files) <= self._ring.entries:
            return False
        try:
            self._ring.sync(files)
        except OSError as error:
            _logger.warning("io_uring is not used any more: %s", error)
            self._works = False
            return False
        self._left = len(files)
        return True

    def _collect(self) -> None:
        for tag, error in self._ring.results():
            if not self._works:
                continue  # of a round that the thread took over
            if error:
                commit, path = self._paths[tag]
                commit.error = StorageFailure(path, f"fsync failed: {os.strerror(error)}")
            self._left -= 1
            if not self._left:
                self._end()

    def _thread_ends(self, work: asyncio.Future[None]) -> None:
        if work.cancelled() or work.exception() is not None:
            for commit in self._under_way:
                commit.error = StorageFailure(commit.partition.directory, f"fsync failed: {work}")
        self._end()

    def _end(self) -> None:
        commits, self._under_way = self._under_way, []
        _complete(commits)
        self._begin()
        if not self._under_way:
            self._idle.set()


def _enter(
    pending: _Round, partition: Partition, future: asyncio.Future[Appended] | None, appended: Appended | None
) -> None:
    """Make a partition part of a round, with all that it has dirtied so far."""
    commit = pending.get(partition)
    if commit is None:
        commit = pending[partition] = _Commit(partition)
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


def _sync_all(commits: list[_Commit]) -> None:
    if sum(len(commit.files) for commit in commits) > _MANY_FILES:
        # Lets the file system write all of them in one go. It reports no errors; the fsyncs below do.
        os.sync()
    for commit in commits:
        _sync(commit)


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
