"""The door to a store's files for other processes on its machine: record batches straight from its segments.

Only what this module says of the files is promised to who reads them; the rest is the store's own.

- The store's `.lock` names the process that has the directory open. Whether that runs here is asked of the kernel, so a copy
  of the directory, or one of the same name on another machine, is never taken for the store's own.
- Segments are never changed in place. What lies below the end that the store has reported is complete; what follows may be
  half written, or zeros.
- Retention removes a segment and compaction replaces it under a reader: a file that is open stays as it was. One that cannot
  be opened any more raises OSError, and one that was cut off CorruptBatch.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator

from trunkline.log.batch import HEADER_BYTES, BatchHeader, iter_file, iter_records, parse_header, whole_batches
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.store import TopicPartition

READ_BYTES = 8 << 20
MAX_BATCH_BYTES = 128 << 20
_LOG_SUFFIX = ".log"

Run = list[tuple[BatchHeader, memoryview]]


def is_open_here(directory: str) -> bool:
    """Whether the process that holds the directory's lock runs on this machine. Asking for the lock would disturb it."""
    try:
        with open(os.path.join(directory, ".lock"), encoding="ascii") as file:
            pid = int(file.read(32).strip() or "0")
        return pid > 0 and os.path.samefile(os.path.join(f"/proc/{pid}/root", directory.lstrip("/")), directory)
    except (OSError, ValueError):
        return False


def topology_value(directory: str, key: bytes) -> bytes | None:
    """The latest value of a key of `__topology`."""
    found: bytes | None = None
    for _base, path in _segments(os.path.join(directory, str(TopicPartition(TOPOLOGY_TOPIC, 0)))):
        for _position, _header, batch in iter_file(path):
            for record in iter_records(batch):
                if record.key == key:
                    found = record.value
    return found


def batch_runs(directory: str, tp: TopicPartition, start: int, end: int) -> Iterator[Run]:
    """Batches that overlap the offsets from `start` to before `end`, in order, as many at a time as one read gives.

    Finding the first means walking over the headers before it in its segment. Nothing if the log begins after `start`.
    """
    segments = _segments(os.path.join(directory, str(tp)))
    first = bisect_right([base for base, _ in segments], start) - 1
    if first < 0:
        return
    for base, path in segments[first:]:
        if base >= end:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from _runs(fd, start, end)
        finally:
            os.close(fd)


def _runs(fd: int, start: int, end: int) -> Iterator[Run]:
    position = _find(fd, start)
    size = READ_BYTES
    while True:
        data = os.pread(fd, size, position)
        run: Run = []
        used = 0
        for batch in whole_batches(data):
            header = parse_header(batch)
            if header.base_offset >= end:
                if run:
                    yield run
                return
            used += len(batch)
            if header.last_offset >= start:
                run.append((header, batch))
            if header.last_offset + 1 >= end:
                yield run
                return  # what follows may be zeros on which nothing was written yet
        if run:
            yield run
        if used == 0:
            if len(data) < size or size >= MAX_BATCH_BYTES:
                return
            size = min(MAX_BATCH_BYTES, 2 * size)  # one batch is larger than what was read
            continue
        position += used
        size = READ_BYTES


def _find(fd: int, offset: int) -> int:
    """Where the first batch begins that may hold the offset."""
    position = 0
    while True:
        head = os.pread(fd, HEADER_BYTES, position)
        if len(head) < HEADER_BYTES:
            return position
        header = parse_header(head)
        if header.last_offset >= offset:
            return position
        position += header.size_bytes


def _segments(directory: str) -> list[tuple[int, str]]:
    """Base offset and path of each segment, in order."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if suffix == _LOG_SUFFIX and stem.isdecimal():
                found.append((int(stem), entry.path))
    return sorted(found)
