"""Opening a partition: what its directory holds, made whole.

After a clean shutdown nothing is read but the directory's list and one producer snapshot: end offset and size stand in the
checkpoint, and they must agree with the last segment or the partition is treated as after a crash.

After a crash, from the segment of the recovery point on (everything before it was fsynced) and always in the last segment,
each batch is checked against its CRC and the indexes are built anew. At the first batch that is not whole the log ends: the
file is cut there and later segments are removed. But when the recovery point says that the damaged place had been fsynced,
this is not a torn tail: nothing is cut, and the partition fails, naming file and position. Zeros behind the last batch are no
damage (see partition): they are cut off without a word, also from a segment that was closed as the machine went down.

Then producers' state is folded: from the newest snapshot that is whole and not past the end, over the headers after it.

Files that an interrupted step left behind: `.cleaned`, `.tmp` and `.deleted` are removed; a `.swap` is complete and takes its
place (see compaction).
"""

from __future__ import annotations

import logging
import os

from trunkline.log.batch import HEADER_BYTES, iter_file, only_zeros, read_marker
from trunkline.log.embedded.aborted import AbortedEntry
from trunkline.log.embedded.checkpoint import PartitionMark
from trunkline.log.embedded.compaction import SWAP_SUFFIX
from trunkline.log.embedded.files import make_directory
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.producers import ProducerTable
from trunkline.log.embedded.segment import OFFSET_DIGITS, Segment, TornLog, check_batches, offset_name
from trunkline.log.errors import CorruptBatch, StorageFailure

_logger = logging.getLogger(__name__)
_LEFTOVERS = (".cleaned", ".tmp", ".deleted")


def open_partition(partition: Partition, mark: PartitionMark, *, clean: bool) -> None:
    """Fill a new Partition from its directory. Problems fail the partition; they do not stop the store."""
    try:
        _open(partition, mark, clean=clean)
    except StorageFailure as failure:
        _give_up(partition, mark, failure)
    except CorruptBatch as error:
        _give_up(partition, mark, StorageFailure(partition.directory, str(error)))
    except OSError as error:
        path = error.filename if isinstance(error.filename, str) else partition.directory
        _give_up(partition, mark, StorageFailure(path, error.strerror or str(error)))


def _give_up(partition: Partition, mark: PartitionMark, failure: StorageFailure) -> None:
    if not partition.segments:
        partition.segments.append(_new_segment(partition, mark.active_base_offset))
    partition.log_start_offset, partition.recovery_point = mark.log_start_offset, mark.recovery_point
    partition.end_offset = max(mark.end_offset, partition.end_offset)
    partition.fail(failure)


def _open(partition: Partition, mark: PartitionMark, *, clean: bool) -> None:
    snapshots = _list(partition)
    segments = partition.segments
    if not segments:
        base = max(mark.end_offset, mark.log_start_offset)
        segments.append(_new_segment(partition, base))
        partition.end_offset = partition.log_start_offset = partition.recovery_point = base
        if base:
            partition.pool.fd(segments[0].log_path, create=True)
        return
    active = segments[-1]
    trusted = clean and mark.active_base_offset == active.base_offset and mark.active_size_bytes == active.size
    if trusted:
        partition.end_offset = partition.recovery_point = mark.end_offset
        if mark.end_offset in snapshots:
            table = _load_snapshot(partition, mark.end_offset)
            trusted = table is not None
            if table is not None:
                partition.producers = table
                partition.snapshot_offset = mark.end_offset
    if not trusted:
        partition.recovery_point = mark.recovery_point
        _recover_log(partition)
        _recover_producers(partition, snapshots)
        # What was only in the page cache still is: the next commit must take it.
        partition.dirty_files.update(segment.log_path for segment in segments if segment.loaded)
        partition.dirty_directory = True
    partition.cleaned_to = mark.cleaned_to
    partition.log_start_offset = min(max(mark.log_start_offset, segments[0].base_offset), partition.end_offset)


def _new_segment(partition: Partition, base_offset: int) -> Segment:
    return Segment(partition.directory, base_offset, size=0, created_ms=partition.clock.wall_ms(), new=True)


def _list(partition: Partition) -> list[int]:
    """Fill in the segments; returns the offsets of the snapshots."""
    directory = partition.directory
    snapshots: list[int] = []
    found: list[tuple[int, int, int]] = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        make_directory(directory)
        return []
    if any(entry.name.endswith(SWAP_SUFFIX) for entry in entries):
        _finish_swaps(directory)
        entries = list(os.scandir(directory))
    for entry in entries:
        name = entry.name
        stem, suffix = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
        if name.endswith(_LEFTOVERS):
            os.unlink(entry.path)
        elif suffix == ".log" and stem.isdecimal():
            stat = entry.stat()
            found.append((int(stem), stat.st_size, stat.st_mtime_ns // 1_000_000))
        elif suffix == ".snapshot" and stem.isdecimal():
            snapshots.append(int(stem))
    found.sort()
    partition.segments = [
        Segment(directory, base, size=size, created_ms=changed_ms, new=False) for base, size, changed_ms in found
    ]
    return sorted(snapshots)


def _finish_swaps(directory: str) -> None:
    """Put complete `.swap` files in the place of the segments that they were made from. May itself be interrupted."""
    for name in os.listdir(directory):
        if not name.endswith(SWAP_SUFFIX):
            continue
        base, end = (int(text) for text in name[: -len(SWAP_SUFFIX)].split("-"))
        replaced = sorted(
            int(stem)
            for stem, suffix in map(os.path.splitext, os.listdir(directory))
            if suffix in (".log", ".txnindex") and stem.isdigit() and base <= int(stem) < end
        )
        segments = [Segment(directory, number, size=0, created_ms=0, new=False) for number in dict.fromkeys(replaced)]
        target = Segment(directory, base, size=0, created_ms=0, new=True)
        markers = {header.base_offset for _, header, _ in iter_file(os.path.join(directory, name)) if header.control}
        entries = {entry for segment in segments for entry in segment.aborted if entry.last_offset in markers}
        target.replace_aborted(sorted(entries, key=lambda entry: entry.last_offset))
        for segment in segments:
            kept = (target.log_path, target.stem + ".txnindex")
            for path in segment.paths:
                if path not in kept and os.path.exists(path):
                    os.unlink(path)
        os.replace(os.path.join(directory, name), target.log_path)


def _recover_log(partition: Partition) -> None:
    """Check batches from the recovery point on, cut a torn tail, find the end offset."""
    segments = partition.segments
    first = min(partition.segment_number(partition.recovery_point), len(segments) - 1)
    if (
        first
        and segments[first].base_offset == partition.recovery_point
        and _ends_in_zeros(partition, segments[first - 1])
    ):
        first -= 1
    for number in range(first, len(segments)):
        segment = segments[number]
        expected = segment.base_offset
        size = segment.size
        fd = partition.pool.fd(segment.log_path)
        segment.reset()
        try:
            for position, header, _ in check_batches(fd, size):
                if header.base_offset < expected or header.last_offset_delta < 0:
                    raise TornLog(position, f"offset {header.base_offset} where {expected} was expected")
                segment.note(header, header.base_offset, header.size_bytes, partition.config.index_interval_bytes)
                expected = header.last_offset + 1
        except TornLog as torn:
            if expected < partition.recovery_point:
                segment.size = size
                raise StorageFailure(segment.log_path, f"corrupt where it had been synced: {torn}") from None
            following = segments[number + 1].base_offset if number + 1 < len(segments) else expected
            if expected != following or not only_zeros(fd, torn.position, size):
                _cut(partition, number, torn)
                partition.end_offset = expected
                return
            os.ftruncate(fd, torn.position)
        partition.end_offset = max(expected, segment.base_offset)


def _ends_in_zeros(partition: Partition, segment: Segment) -> bool:
    """Whether there may be zeros behind the last batch: none has a header of zeros, but one may end in them."""
    return only_zeros(partition.pool.fd(segment.log_path), max(0, segment.size - HEADER_BYTES), segment.size)


def _cut(partition: Partition, number: int, torn: TornLog) -> None:
    segment = partition.segments[number]
    _logger.warning("%s is cut at position %d after a crash: %s", segment.log_path, torn.position, torn)
    os.ftruncate(partition.pool.fd(segment.log_path), torn.position)
    partition.dirty_files.add(segment.log_path)
    for later in partition.segments[number + 1 :]:
        _logger.warning("%s is removed after a crash: the log ends before it", later.log_path)
        partition.pool.forget(later.log_path)
        for path in later.paths:
            if os.path.exists(path):
                os.unlink(path)
    del partition.segments[number + 1 :]


def _load_snapshot(partition: Partition, offset: int) -> ProducerTable | None:
    path = os.path.join(partition.directory, offset_name(offset) + ".snapshot")
    try:
        with open(path, "rb") as file:
            return ProducerTable.decode(file.read())
    except (OSError, ValueError, KeyError, TypeError) as error:
        _logger.warning("producer snapshot %s is not used: %s", path, error)
        return None


def _recover_producers(partition: Partition, snapshots: list[int]) -> None:
    """Fold producers' state from the newest usable snapshot to the end, and the aborted transactions on the way."""
    table: ProducerTable | None = None
    start_offset = partition.segments[0].base_offset
    for offset in reversed(snapshots):
        if offset > partition.end_offset:
            os.unlink(os.path.join(partition.directory, offset_name(offset) + ".snapshot"))
        elif table is None:
            table = _load_snapshot(partition, offset)
            if table is not None:
                start_offset = offset
    partition.producers = table if table is not None else ProducerTable()
    for segment in partition.segments[partition.segment_number(start_offset) :]:
        _fold_segment(partition, segment, start_offset)


def _fold_segment(partition: Partition, segment: Segment, start_offset: int) -> None:
    now_ms = partition.clock.wall_ms()
    fd = partition.pool.fd(segment.log_path)
    kept = [entry for entry in segment.aborted if entry.last_offset < start_offset]
    aborted = list(kept)
    position = 0
    if start_offset > segment.base_offset:
        found = segment.find(fd, start_offset, partition.config.index_interval_bytes)
        position = segment.size if found is None else found
    for location in segment.scan(fd, position):
        header = location.header
        if header.producer_id < 0 or header.base_offset < start_offset:
            continue
        if not header.control:
            partition.producers.apply(header, header.base_offset, now_ms)
            continue
        entry = _fold_marker(partition, segment, fd, location.position)
        if entry is not None:
            aborted.append(entry)
    if aborted != segment.aborted:
        segment.replace_aborted(aborted)


def _fold_marker(partition: Partition, segment: Segment, fd: int, position: int) -> AbortedEntry | None:
    location = next(segment.scan(fd, position))
    header = location.header
    try:
        marker = read_marker(os.pread(fd, header.size_bytes, position))
    except CorruptBatch as error:
        raise StorageFailure(segment.log_path, f"corrupt at position {position}: {error}") from None
    if marker is None:
        return None
    return partition.producers.apply_marker(header, marker, header.base_offset, partition.clock.wall_ms())
