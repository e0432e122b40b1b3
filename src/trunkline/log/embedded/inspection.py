"""Looking through a stopped store's directory, file by file and byte by byte, without changing anything.

Every segment is examined as recovery would (see damage); every index entry must name a batch that is there; the aborted index must
say what the markers say; snapshots and the checkpoint must match their checksums; every directory must belong to a topic.
What a start would make good by itself, and without a loss, is no finding: zeros behind the last batch, indexes that are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from trunkline.log.aborted import AbortedEntry, decode_aborted
from trunkline.log.batch import read_marker
from trunkline.log.config import TOPOLOGY_CONFIG, TopicConfig
from trunkline.log.embedded.checkpoint import NO_MARK, Checkpoint, DamagedCheckpoint, PartitionMark
from trunkline.log.embedded.damage import examine
from trunkline.log.embedded.index import OffsetIndex, TimeIndex
from trunkline.log.embedded.segment import OFFSET_DIGITS, Segment, TornLog, check_batches
from trunkline.log.embedded.topology import TopicEntry, Topology
from trunkline.log.errors import CorruptBatch, InvalidConfig
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.producers import ProducerTable
from trunkline.log.records import iter_light

Progress = Callable[[int], None]
_TOPOLOGY = f"{TOPOLOGY_TOPIC}-0"


class Finding(NamedTuple):
    """Something that is wrong with a file or a directory."""

    path: str
    position: int | None
    what: str


def log_bytes(directory: str) -> int:
    """How many bytes of segments there are to look through."""
    return sum(
        entry.stat().st_size
        for name in _partitions(directory)
        for entry in os.scandir(os.path.join(directory, name))
        if entry.name.endswith(".log")
    )


def inspect(directory: str, progress: Progress) -> Iterator[Finding]:
    """Everything that is wrong. `progress` is told of the bytes of each segment that was read."""
    marks: Mapping[str, PartitionMark] = {}
    try:
        marks = Checkpoint(directory).read()
    except DamagedCheckpoint as damage:
        yield Finding(damage.path, None, damage.cause)
    names = _partitions(directory)
    if _TOPOLOGY not in names:
        yield Finding(os.path.join(directory, _TOPOLOGY), None, "is missing: what topics there are is not known")
    topology = _topology(directory)
    configs = {TOPOLOGY_TOPIC: TOPOLOGY_CONFIG, **{name: entry.config for name, entry in topology.topics.items()}}
    for name in names:
        topic, _, number = name.rpartition("-")
        entry = topology.topics.get(topic)
        if topic != TOPOLOGY_TOPIC and (entry is None or int(number) >= entry.partitions):
            yield Finding(os.path.join(directory, name), None, "belongs to no topic")
        yield from _inspect_partition(
            os.path.join(directory, name),
            marks.get(name, NO_MARK),
            compacted=_is_compacted(configs.get(topic, {})),
            progress=progress,
        )
    for entry in topology.topics.values():
        yield from _missing(directory, names, entry, marks)


def _partitions(directory: str) -> list[str]:
    found: list[str] = []
    for entry in os.scandir(directory):
        topic, dash, number = entry.name.rpartition("-")
        if dash and topic and number.isdecimal() and entry.is_dir(follow_symlinks=False):
            found.append(entry.name)
    return sorted(found)


def _missing(
    directory: str, names: list[str], entry: TopicEntry, marks: Mapping[str, PartitionMark]
) -> Iterator[Finding]:
    for number in range(entry.partitions):
        name = f"{entry.name}-{number}"
        if name not in names and marks.get(name, NO_MARK).end_offset:
            yield Finding(os.path.join(directory, name), None, "is missing, and there were records in it")


def _topology(directory: str) -> Topology:
    """The topics as far as they can be read; the damage itself is found with the segment."""
    topology = Topology()
    folder = os.path.join(directory, _TOPOLOGY)
    for segment in _segments(folder) if os.path.isdir(folder) else []:
        fd = os.open(segment.log_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for _, header, batch in check_batches(fd, segment.size):
                for _, _, key, value, _ in () if header.control else iter_light(batch):
                    topology.apply(key, value)
        except (TornLog, CorruptBatch, ValueError):
            continue
        finally:
            os.close(fd)
    return topology


def _is_compacted(overrides: Mapping[str, str]) -> bool:
    try:
        return TopicConfig(overrides, {}).compacted
    except InvalidConfig:
        return False


def _segments(folder: str) -> list[Segment]:
    found = [
        (int(entry.name[:OFFSET_DIGITS]), entry.stat().st_size)
        for entry in os.scandir(folder)
        if entry.name[OFFSET_DIGITS:] == ".log" and entry.name[:OFFSET_DIGITS].isdecimal()
    ]
    return [Segment(folder, base, size=size, created_ms=0, new=False) for base, size in sorted(found)]


def _inspect_partition(folder: str, mark: PartitionMark, *, compacted: bool, progress: Progress) -> Iterator[Finding]:
    segments = _segments(folder)
    if not segments:
        if mark.end_offset > mark.log_start_offset:
            yield Finding(folder, None, f"offsets {mark.log_start_offset} to {mark.end_offset - 1} are missing")
        return
    if mark != NO_MARK and mark.log_start_offset < segments[0].base_offset:
        missing = f"offsets {mark.log_start_offset} to {segments[0].base_offset - 1} are missing before it"
        yield Finding(segments[0].log_path, None, missing)
    producers = ProducerTable()
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        gaps = segment.base_offset < mark.cleaned_to or (compacted and not last)
        fd = os.open(segment.log_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = examine(
                fd,
                segment.size,
                segment.base_offset,
                None if last else segments[number + 1].base_offset,
                gaps=gaps,
                floor=mark.recovery_point if last else 0,
                # A power cut may leave zeros in a segment that was closed just before it.
                zeros=not last and segments[number + 1].base_offset < mark.recovery_point,
            )
            for damage in found.damages:
                yield Finding(segment.log_path, damage.position, str(damage).partition(": ")[2])
            if not found.damages:
                segment.size = found.size
                yield from _inspect_indexes(segment, fd, producers)
        finally:
            os.close(fd)
        progress(segment.size)
    yield from _inspect_snapshots(folder)


def _inspect_indexes(segment: Segment, fd: int, producers: ProducerTable) -> Iterator[Finding]:
    last_offsets: dict[int, int] = {}
    newest: dict[int, int] = {}
    markers: set[int] = set()
    aborted: list[AbortedEntry] = []
    for position, header in segment.scan(fd, 0):
        last_offsets[position] = header.last_offset - segment.base_offset
        newest[header.base_offset - segment.base_offset] = header.max_timestamp_ms
        if header.producer_id < 0:
            continue
        if not header.control:
            producers.apply(header, header.base_offset, 0)
            continue
        marker = read_marker(os.pread(fd, header.size_bytes, position))
        if marker is not None:
            entry = producers.apply_marker(header, marker, header.base_offset, 0)
            if not marker.commit:
                markers.add(header.base_offset)
            if entry is not None:
                aborted.append(entry)
    offsets, times = OffsetIndex(_content(segment.stem + ".index")), TimeIndex(_content(segment.stem + ".timeindex"))
    for number in range(len(offsets)):
        relative, position = offsets.entry(number)
        if last_offsets.get(position) != relative:
            yield Finding(segment.stem + ".index", number * 8, "an entry names a batch that is not there")
            break
    for number in range(len(times)):
        stamp, relative = times.entry(number)
        if newest.get(relative) != stamp:
            yield Finding(segment.stem + ".timeindex", number * 12, "an entry names a batch that is not there")
            break
    known = decode_aborted(_content(segment.stem + ".txnindex"))
    if any(entry.last_offset not in markers for entry in known) or not {entry[:3] for entry in aborted} <= {
        entry[:3] for entry in known
    }:
        yield Finding(segment.stem + ".txnindex", None, "does not say what the markers of transactions say")


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _inspect_snapshots(folder: str) -> Iterator[Finding]:
    for name in sorted(os.listdir(folder)):
        if name.endswith(".snapshot"):
            path = os.path.join(folder, name)
            try:
                ProducerTable.decode(_content(path))
            except (ValueError, KeyError, TypeError) as error:
                yield Finding(path, None, f"cannot be read: {error}")
