"""Record batches straight from the broker's segment files, where these are on this machine.

A broker says where its log is (DescribeLogDirs). That directory is read only if it is here, its log is that of the same
cluster (the cluster's id is a record in its `__topology`), and the process that has it open is running here. So a copy of
the directory, or another broker's directory of the same name on another machine, is never taken for the broker's own.

What is read lies below the end that the broker has reported, so it is complete; segments are never changed in place.
Retention removes a segment and compaction replaces it under a reader: a file that is open stays as it was, and one that
cannot be opened any more ends the direct reading. So does the first transactional batch of a read_committed reader,
because which transactions were aborted is the broker's to say. Whatever was not read here is fetched.

Only ranges of at least `MIN_RECORDS` are read this way: finding the first batch of a range means walking over the headers
before it in its segment, which a short range does not repay.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from trunkline.client.client import Client
from trunkline.client.errors import ClientError
from trunkline.client.reader import whole_batches
from trunkline.log.batch import HEADER_BYTES, BatchHeader, iter_file, iter_records, parse_header
from trunkline.log.errors import CorruptBatch
from trunkline.pipeline.planning import OffsetRange
from trunkline.protocols.kafka.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

MIN_RECORDS = 50_000
READ_BYTES = 8 << 20
MAX_BATCH_BYTES = 128 << 20
_TOPOLOGY = "__topology-0"
_CLUSTER_KEY = b"cluster"
_LOG_SUFFIX = ".log"
_MAX_KNOWN = 16


def find_log(client: Client) -> str | None:
    """The directory of the broker's log, if it is on this machine and ours to read."""
    try:
        cluster = client.metadata([])
        if len(cluster.brokers) != 1 or cluster.id is None:
            return None
        answer = client.any_broker().request(DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse)
        directories = [item.log_dir for item in answer.results if item.error_code == 0]
    except ClientError:
        return None
    for directory in directories:
        if _is_open_here(directory) and _cluster_of(directory) == cluster.id:
            return directory
    return None


def _is_open_here(directory: str) -> bool:
    """Whether the process that holds the directory's lock runs on this machine. Asking for the lock would disturb it."""
    try:
        with open(os.path.join(directory, ".lock"), encoding="ascii") as file:
            pid = int(file.read(32).strip() or "0")
        return pid > 0 and os.path.samefile(os.path.join(f"/proc/{pid}/root", directory.lstrip("/")), directory)
    except (OSError, ValueError):
        return False


@lru_cache(_MAX_KNOWN)
def _cluster_of(directory: str) -> str | None:
    found: str | None = None
    try:
        for _base, path in _segments(os.path.join(directory, _TOPOLOGY)):
            for _position, _header, batch in iter_file(path):
                for record in iter_records(batch):
                    if record.key == _CLUSTER_KEY and record.value is not None:
                        found = str(json.loads(record.value)["id"])
    except (OSError, ValueError, KeyError, CorruptBatch):
        return None
    return found


def local_batches(
    directory: str, wanted: OffsetRange, *, committed: bool
) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
    """Runs of batches that overlap the range, in order, as far as files can give them."""
    if wanted.end - wanted.start < MIN_RECORDS:
        return
    try:
        segments = _segments(os.path.join(directory, str(wanted.tp)))
        first = bisect_right([base for base, _ in segments], wanted.start) - 1
        if first < 0:
            return
        for base, path in segments[first:]:
            if base >= wanted.end:
                return
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for run in _runs(fd, wanted):
                    if committed and any(header.transactional for header, _ in run):
                        plain = _until_transactional(run)
                        if plain:
                            yield plain
                        return
                    yield run
            finally:
                os.close(fd)
    except (OSError, CorruptBatch):
        return  # removed, replaced or cut off under us: the broker knows better


def _runs(fd: int, wanted: OffsetRange) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
    position = _find(fd, wanted.start)
    size = READ_BYTES
    while True:
        data = os.pread(fd, size, position)
        run: list[tuple[BatchHeader, memoryview]] = []
        used = 0
        for batch in whole_batches(data):
            header = parse_header(batch)
            if header.base_offset >= wanted.end:
                if run:
                    yield run
                return
            used += len(batch)
            if header.last_offset >= wanted.start:
                run.append((header, batch))
            if header.last_offset + 1 >= wanted.end:
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


def _until_transactional(run: list[tuple[BatchHeader, memoryview]]) -> list[tuple[BatchHeader, memoryview]]:
    first = next(at for at, (header, _) in enumerate(run) if header.transactional)
    return run[:first]


def _segments(directory: str) -> list[tuple[int, str]]:
    """Base offset and path of each segment, in order."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if suffix == _LOG_SUFFIX and stem.isdecimal():
                found.append((int(stem), entry.path))
    return sorted(found)
