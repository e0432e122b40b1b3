"""The classes that a JVM has read, kept for the next JVM: Spark starts seconds sooner with them.

Java writes such an archive as it exits (`-XX:ArchiveClassesAtExit`) and uses it only with the same Java and the same class
path, so an archive is named after both: another release of either has another one. Java does not write in one step, and two
processes may start at the same time. So each writes a file of its own name, and the next process that starts takes a
file that has not changed for a while as the archive, by a rename. Before that it has Java read the file once, because one
that was cut off, by a full disk or a killed JVM, would kill every JVM that uses it: such a file is removed.

An archive that Java refuses for another reason is of no use and of no harm: the JVM starts as without one.

Limits: `MAX_ARCHIVES` of about 170 MB; the ones that were not used for longest go when there is a new one. While a file is
being written no other process writes one. A file that nobody took for `ABANDONED_S`, as its installation is gone, is removed.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

MAX_ARCHIVES = 2
SETTLED_S = 10.0
ABANDONED_S = 3600.0
_PREFIX = "spark-classes-"
_SUFFIX, _NEW_SUFFIX = ".jsa", ".new"


class ClassArchive:
    """The archive of one installation of Spark on one Java."""

    def __init__(self, directory: Path, spark: Path, java_version: str, loads: Callable[[Path], bool]) -> None:
        """`loads` says whether Java can start with a file."""
        self._directory = directory
        self._loads = loads
        jars = spark / "jars"
        installed_ns = jars.stat().st_mtime_ns if jars.is_dir() else 0
        key = zlib.crc32(f"{spark}\n{installed_ns}\n{java_version}".encode())
        self._name = f"{_PREFIX}{key:08x}"
        self.path = directory / (self._name + _SUFFIX)

    def java_options(self) -> list[str]:
        """Use the archive, or write it, or neither while another process may be writing it."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            writing = self._settle()
            if self.path.exists():
                os.utime(self.path)  # the time of its last use; Java looks at what is in it
                return [f"-XX:SharedArchiveFile={self.path}"]
        except OSError:
            return []  # a cache that cannot be used: start without
        if writing:
            return []
        new = f"{self._name}-{uuid.uuid4().hex[:12]}{_NEW_SUFFIX}"
        return [f"-XX:ArchiveClassesAtExit={self._directory / new}"]

    def _settle(self) -> bool:
        """Make the archive of a file that was written, remove the others; whether one is being written now."""
        writing = False
        for new in self._directory.glob(f"{_PREFIX}*{_NEW_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                age_s = time.time() - new.stat().st_mtime
                if not new.name.startswith(f"{self._name}-"):
                    if age_s > ABANDONED_S:
                        new.unlink()
                elif age_s < SETTLED_S:
                    writing = True
                elif self.path.exists() or not (new.stat().st_size and self._loads(new)):
                    new.unlink()
                else:
                    new.replace(self.path)
                    self._forget_oldest()
        return writing

    def _forget_oldest(self) -> None:
        found = sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in found[:-MAX_ARCHIVES]:
            if path != self.path:
                path.unlink()
