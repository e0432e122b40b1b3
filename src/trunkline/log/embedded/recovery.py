"""Opening a partition: what its directory holds, made whole.

After a clean shutdown nothing is read but the directory's list and one producer snapshot: end offset and sizes stand in the
checkpoint, and they must agree with the files or the partition is treated as after a crash.

After a crash, from the segment of the recovery point on (everything before it was fsynced) and always in the last segment,
each batch is checked against its CRC and its neighbours, and the indexes are built anew. Of the segments before, those whose
sizes cleaning does not explain are checked as well. What is damaged is set aside and the rest is served (see damage): a torn
tail, after which no whole batch follows, is cut off so, with a warning; anything else is an error in the log that names file,
position and the offsets that are missing. Zeros behind the last batch are no damage (see partition): they are cut off
without a word, also from a segment that was closed as the machine went down. The end never goes back behind what had been fsynced.

Then producers' state is folded: from the newest snapshot that is whole and not past the end, over the headers after it.

Files that an interrupted step left behind: `.cleaned`, `.tmp` and `.deleted` are removed; a `.swap` is complete and takes its
place (see compaction).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress

from trunkline.log.aborted import AbortedEntry
from trunkline.log.batch import HEADER_BYTES, check_crc, iter_file, only_zeros, read_marker
from trunkline.log.embedded.checkpoint import NO_MARK, PartitionMark
from trunkline.log.embedded.compaction import SWAP_SUFFIX
from trunkline.log.embedded.damage import (
    Examination,
    cut,
    drop_indexes,
    examine,
    set_aside,
    take_place,
    write_mended,
)
from trunkline.log.embedded.files import DAMAGED_SUFFIX, fsync_directory, make_directory
from trunkline.log.embedded.partition import Partition
from trunkline.log.embedded.segment import (
    MAX_RELATIVE_OFFSET,
    OFFSET_DIGITS,
    Segment,
    TornLog,
    check_batches,
    offset_name,
)
from trunkline.log.errors import CorruptBatch, DamagedLog, StorageFailure
from trunkline.log.producers import ProducerTable
from trunkline.log.store import TopicPartition

_logger = logging.getLogger(__name__)
_LEFTOVERS = (".cleaned", ".tmp", ".deleted")
_MAX_TOLD = 20  # damaged places of one file that are named one by one


def open_partition(partition: Partition, mark: PartitionMark, *, clean: bool, thorough: bool = False) -> None:
    """Fill a new Partition from its directory. Problems fail the partition; they do not stop the store.

    With `thorough`, every segment is checked to its last byte and every index is built anew.
    """
    if mark.topic_id not in (0, partition.topic_id):
        mark = NO_MARK  # of a topic of this name that was deleted
    mended: set[str] = set()
    try:
        while True:
            try:
                _open(partition, mark, clean=clean and not thorough and not mended, thorough=thorough)
                return
            except DamagedLog as damage:
                if damage.path in mended or not mend_segment(partition, damage.path):
                    raise
                mended.add(damage.path)
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


def _open(partition: Partition, mark: PartitionMark, *, clean: bool, thorough: bool) -> None:
    snapshots = _list(partition)
    segments = partition.segments
    partition.cleaned_to = mark.cleaned_to
    if not segments:
        base = max(mark.end_offset, mark.log_start_offset)
        if base > mark.log_start_offset:
            _logger.error(
                "%s holds no segment, and offsets %d to %d were there: they are missing",
                partition.directory, mark.log_start_offset, base - 1,
            )  # fmt: skip
        segments.append(_new_segment(partition, base))
        partition.end_offset = partition.log_start_offset = partition.recovery_point = base
        if base:
            partition.pool.fd(segments[0].log_path, create=True)
        return
    active = segments[-1]
    trusted = clean and mark.active_base_offset == active.base_offset and mark.active_size_bytes == active.size
    trusted = trusted and mark.closed_size_bytes in (-1, partition.closed_size_bytes)
    if trusted:
        partition.end_offset = partition.recovery_point = mark.end_offset
        if mark.end_offset in snapshots or mark.producers:
            table = _load_snapshot(partition, mark.end_offset)
            trusted = table is not None
            if table is not None:
                partition.producers = table
                partition.snapshot_offset = mark.end_offset
    if not trusted:
        partition.recovery_point = mark.recovery_point
        _recover_log(partition, mark, clean=clean, thorough=thorough)
        _recover_producers(partition, snapshots)
        if thorough:
            _rebuild_aborted(partition)
        # What was only in the page cache still is: the next commit must take it.
        partition.dirty_files.update(segment.log_path for segment in segments if segment.loaded)
        partition.dirty_directory = True
    if mark.log_start_offset < segments[0].base_offset and mark != NO_MARK:
        _logger.error(
            "%s is the first segment of %s, and its log began at offset %d: what lies between is missing",
            segments[0].log_path, partition.tp, mark.log_start_offset,
        )  # fmt: skip
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


def _recover_log(partition: Partition, mark: PartitionMark, *, clean: bool, thorough: bool) -> None:
    """Check batches from the recovery point on, mend what is damaged, find the end offset."""
    segments = partition.segments
    first = min(partition.segment_number(partition.recovery_point), len(segments) - 1)
    if (
        first
        and segments[first].base_offset == partition.recovery_point
        and _ends_in_zeros(partition, segments[first - 1])
    ):
        first -= 1
    if thorough:
        first = 0
    elif mark.closed_size_bytes >= 0 and mark.closed_size_bytes != partition.closed_before(mark.active_base_offset):
        # Files grew fewer or shorter. After a crash, cleaning may be the reason.
        for number in range(first):
            if clean or not _reaches(partition, number):
                _check(partition, number)
    for number in range(first, len(segments)):
        partition.end_offset = _check(partition, number)
    for segment in segments[:-1]:
        if segment.loaded:
            partition.dirty_files.update(segment.write_indexes())


def _reaches(partition: Partition, number: int) -> bool:
    """Whether a closed segment ends where the next one begins, or earlier where compaction explains it."""
    segment, following = partition.segments[number : number + 2]
    fd = partition.pool.fd(segment.log_path)
    index = segment.load(fd, partition.config.index_interval_bytes)
    end = segment.base_offset
    for location in segment.scan(fd, index.entry(len(index) - 1)[1] if len(index) else 0):
        end = location.header.last_offset + 1
    segment.unload()
    return end == following.base_offset or (end < following.base_offset and partition.may_have_gaps(segment))


def _check(partition: Partition, number: int) -> int:
    """Check the batches of one segment and build its indexes anew; returns the offset behind the last."""
    segment = partition.segments[number]
    size = segment.size
    expected = segment.base_offset
    last = number + 1 == len(partition.segments)
    limit = expected + MAX_RELATIVE_OFFSET + 1 if last else partition.segments[number + 1].base_offset
    gaps = partition.may_have_gaps(segment)
    fd = partition.pool.fd(segment.log_path)
    segment.reset()
    try:
        for position, header, _ in check_batches(fd, size):
            if header.base_offset != expected and (header.base_offset < expected or not gaps):
                raise TornLog(position, f"offset {header.base_offset} where {expected} was expected")
            if header.last_offset_delta < 0 or header.last_offset >= limit:
                raise TornLog(position, f"offsets to {header.last_offset} where {limit} is the limit")
            segment.note(header, header.base_offset, header.size_bytes, partition.config.index_interval_bytes)
            expected = header.last_offset + 1
    except TornLog as torn:
        if not only_zeros(fd, torn.position, size):
            segment.size = size
            raise DamagedLog(segment.log_path, torn.position, torn.reason) from None
        os.ftruncate(fd, torn.position)
    reached = partition.recovery_point if last else limit
    if expected < reached and (last or not gaps):
        if reached - segment.base_offset <= MAX_RELATIVE_OFFSET + 1:
            raise DamagedLog(segment.log_path, segment.size, f"ends before offset {reached}")
        # Too wide a gap for one batch to stand in it.
        _logger.error("%s ends before offset %d: what lies between is missing", segment.log_path, reached)
        expected = reached
    return expected


def _ends_in_zeros(partition: Partition, segment: Segment) -> bool:
    """Whether there may be zeros behind the last batch: none has a header of zeros, but one may end in them."""
    return only_zeros(partition.pool.fd(segment.log_path), max(0, segment.size - HEADER_BYTES), segment.size)


def mend_segment(partition: Partition, path: str) -> bool:
    """Set damage of one segment aside and say so; False when none is found. Not while the partition is served."""
    number = next((n for n, segment in enumerate(partition.segments) if segment.log_path == path), None)
    if number is None:
        return False
    segment = partition.segments[number]
    last = number + 1 == len(partition.segments)
    fd = partition.pool.fd(path)
    found = examine(
        fd,
        os.fstat(fd).st_size,
        segment.base_offset,
        None if last else partition.segments[number + 1].base_offset,
        gaps=partition.may_have_gaps(segment),
        floor=partition.recovery_point if last else 0,
        aborted=segment.aborted,
        zeros=not last,
    )
    if not found.damages:
        return False
    aside = set_aside(path, fd, found)
    if not cut(fd, found):
        write_mended(path, fd, found)
        take_place(path)
        partition.pool.forget(path)
        fsync_directory(partition.directory)
    drop_indexes(path)
    tell(partition.tp, path, found, aside)
    return True


def tell(tp: TopicPartition, path: str, found: Examination, aside: Sequence[str]) -> None:
    """Name what was found damaged and where it is kept."""
    level = logging.WARNING if found.torn else logging.ERROR
    what = "is cut after a crash" if found.torn else "is damaged"
    for damage in found.damages[:_MAX_TOLD]:
        _logger.log(level, "%s of %s %s: %s", path, tp, what, damage)
    if len(found.damages) > _MAX_TOLD:
        _logger.log(level, "%s of %s %s at %d more places", path, tp, what, len(found.damages) - _MAX_TOLD)
    if aside:
        more = f" and {len(aside) - 1} more" if len(aside) > 1 else ""
        _logger.log(level, "%s: what cannot be read is kept in %s%s; the rest is served", tp, aside[0], more)


def _load_snapshot(partition: Partition, offset: int) -> ProducerTable | None:
    path = os.path.join(partition.directory, offset_name(offset) + ".snapshot")
    try:
        with open(path, "rb") as file:
            return ProducerTable.decode(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _logger.warning("producer snapshot %s is damaged: %s; what it said is read from the log", path, error)
        with suppress(OSError):
            os.replace(path, path + DAMAGED_SUFFIX)
        return None


def _recover_producers(partition: Partition, snapshots: list[int]) -> None:
    """Fold producers' state from the newest usable snapshot to the end, and the aborted transactions on the way."""
    table: ProducerTable | None = None
    start_offset = partition.segments[0].base_offset
    for offset in reversed(snapshots):
        if offset > partition.end_offset:
            # Of batches that a crash took: it would be taken for one of those that will get their offsets.
            path = os.path.join(partition.directory, offset_name(offset) + ".snapshot")
            os.replace(path, path + DAMAGED_SUFFIX)
        elif table is None:
            table = _load_snapshot(partition, offset)
            if table is not None:
                start_offset = offset
    partition.producers = table if table is not None else ProducerTable()
    for segment in partition.segments[partition.segment_number(start_offset) :]:
        _fold_segment(partition, segment, start_offset)


def _rebuild_aborted(partition: Partition) -> None:
    """Make every aborted index say what the markers say. An entry whose transaction began before the log stays."""
    producers = ProducerTable()
    for segment in partition.segments:
        fd = partition.pool.fd(segment.log_path)
        entries: dict[int, AbortedEntry] = {}
        known = {entry.last_offset: entry for entry in segment.aborted}
        for position, header in segment.scan(fd, 0):
            if header.producer_id < 0:
                continue
            if not header.control:
                producers.apply(header, header.base_offset, 0)
                continue
            marker = read_marker(os.pread(fd, header.size_bytes, position))
            if marker is None:
                continue
            offset = header.base_offset
            entry = producers.apply_marker(header, marker, offset, 0) or (None if marker.commit else known.get(offset))
            if entry is not None:
                entries[offset] = entry
        if list(entries.values()) != segment.aborted:
            segment.replace_aborted(list(entries.values()))


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
    batch = os.pread(fd, header.size_bytes, position)
    try:
        check_crc(batch)
        marker = read_marker(batch)
    except CorruptBatch as error:
        raise DamagedLog(segment.log_path, position, str(error)) from None
    if marker is None:
        return None
    return partition.producers.apply_marker(header, marker, header.base_offset, partition.clock.wall_ms())
