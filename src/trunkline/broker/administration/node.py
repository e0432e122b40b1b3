"""The process that the broker runs in: memory, open files, the disk, since when. Read from the system when somebody asks."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from typing import NamedTuple

from trunkline.log.capabilities import LogDirectory

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Node(NamedTuple):
    memory_bytes: int
    memory_total_bytes: int
    open_files: int
    max_open_files: int
    disk_free_bytes: int
    disk_total_bytes: int
    cpu_s: float
    processors: int
    pid: int
    python: str


def look_at_node(directories: Sequence[LogDirectory]) -> Node:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Node(
        memory_bytes=_resident_bytes(usage.ru_maxrss),
        memory_total_bytes=_total_bytes(),
        open_files=_open_files(),
        max_open_files=min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**31 - 1),
        disk_free_bytes=min((each.usable_bytes for each in directories), default=0),
        disk_total_bytes=max((each.total_bytes for each in directories), default=0),
        cpu_s=usage.ru_utime + usage.ru_stime,
        processors=os.cpu_count() or 1,
        pid=os.getpid(),
        python=sys.version.split()[0],
    )


def _resident_bytes(most_kb: int) -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return most_kb * 1024  # the most that it ever was: another system than Linux


def _total_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    except (OSError, ValueError):
        return 0


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
