"""Damage in a segment file: where it begins and ends, what of the file is whole, and how the whole part is served again.

A batch is whole when its bytes match its CRC, and in its place when its base offset, which the CRC does not cover, fits
the segment's own base, the batches around it and the base of the next segment. Where a batch is not whole, the file is searched
for the next one that is: first where the damaged batch says that it ends, then byte by byte for a header that could be one,
with a CRC that holds. Of batches that contradict each other in their offsets, those stay that leave the most of them.

A batch that is whole and has a wrong base offset gets the right one back when only one offset fits between its neighbours and
one damaged byte explains the difference. Everything else that is not whole and in its place is damage.

Mending sets damage aside and makes the file whole. First each damaged range is written to a file of its own beside the segment,

    <base>.<position>.damaged     the bytes that stood at this position of <base>.log

and fsynced; these files are never read again and never removed. Then the segment is written anew without them, as `.tmp`, and
takes the place of the old file, or is cut where only its end is damaged. So after a crash there is the old file or the new one, and in both cases every byte. In
place of what is missing there is an empty batch over its offsets, as compaction leaves them too: readers go on behind it, and
offsets stay without unexplained gaps. Where a transaction's end was lost that the aborted index knows, its marker is written anew.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trunkline.log.aborted import AbortedEntry
from trunkline.log.batch import (
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PREFIX,
    BatchHeader,
    build_marker,
    only_zeros,
    seal_batch,
)
from trunkline.log.embedded.files import DAMAGED_SUFFIX, FILE_MODE, fsync_directory
from trunkline.log.embedded.segment import MAX_RELATIVE_OFFSET, TornLog, check_batches

_WINDOW_BYTES = 4 << 20
_MAGIC = b"\x02"
_MENDED_SUFFIX = ".mended.tmp"  # a crash leaves it behind; recovery removes it


class Damage(NamedTuple):
    """A range of the file that is not served, and the offsets that are missing with it (none when last < first)."""

    position: int
    end: int
    first_offset: int
    last_offset: int
    reason: str

    def __str__(self) -> str:
        where = f"position {self.position}"
        if self.end > self.position:
            where += f" to {self.end}"
        lost = ""
        if self.last_offset >= self.first_offset:
            lost = f"; offsets {self.first_offset} to {self.last_offset} are missing"
        return f"{where}: {self.reason}{lost}"


class _Whole(NamedTuple):
    """A batch whose bytes match its CRC."""

    position: int
    end: int
    base_offset: int
    offsets: int  # how many it has
    producer_id: int
    producer_epoch: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.offsets


class _Broken(NamedTuple):
    """A range that holds no whole batch."""

    position: int
    end: int
    reason: str


@dataclass(slots=True)
class Examination:
    """What was found in a file: what is to be set aside, and the pieces of which a whole file is made."""

    base_offset: int
    next_offset: int  # behind the last batch
    damages: list[Damage] = field(default_factory=list)
    pieces: list[bytes | tuple[int, int]] = field(default_factory=list)  # new bytes, or a range of the old file
    torn: bool = False  # nothing whole follows the damage, and nothing is known to be missing

    @property
    def size(self) -> int:
        """Of the file when it is mended."""
        return sum(len(piece) if isinstance(piece, bytes) else piece[1] - piece[0] for piece in self.pieces)


def examine(
    fd: int,
    size: int,
    base_offset: int,
    limit: int | None,
    *,
    gaps: bool,
    floor: int = 0,
    aborted: Sequence[AbortedEntry] = (),
    zeros: bool = False,
) -> Examination:
    """Look at every byte of a segment.

    `limit` is the base offset of the next segment, None for the last one. With `gaps`, offsets may be missing, as after
    compaction. `floor` is an offset that the log had reached for certain. `aborted` is what the aborted index says.
    Zeros at the end are no damage, unless `zeros` says so: of a segment that was closed and cut to its batches.
    """
    bound = base_offset + MAX_RELATIVE_OFFSET + 1 if limit is None else limit
    whole, broken = _walk(fd, size, base_offset, bound, zeros=zeros)
    placed = _place(whole, broken, base_offset, limit, gaps=gaps)
    bad = _joined(
        broken
        + [
            _Broken(batch.position, batch.end, f"a batch with base offset {batch.base_offset}, which does not fit here")
            for batch in whole
            if batch.position not in placed
        ]
    )
    epochs = {batch.producer_id: batch.producer_epoch for batch in whole if batch.producer_id >= 0}
    fillers = _Fillers(base_offset, aborted, epochs)
    found = Examination(base_offset, base_offset)
    end = 0
    used = 0
    for batch in whole:
        base = placed.get(batch.position)
        if base is None:
            continue
        first = used
        while used < len(bad) and bad[used].position < batch.position:
            used += 1
        _note_missing(found, bad[first:used], batch.position, base, fillers, gaps=gaps)
        if base == batch.base_offset:
            _copy(found, batch.position, batch.end)
        else:
            reason = f"a batch with base offset {batch.base_offset}, put right to {base}"
            found.damages.append(Damage(batch.position, batch.position + PREFIX.size, base, base - 1, reason))
            found.pieces.append(PREFIX.pack(base, batch.end - batch.position - LENGTH_PREFIX_BYTES, 0))
            _copy(found, batch.position + PREFIX.size, batch.end)
        found.next_offset = base + batch.offsets
        end = batch.end
    reached = max(found.next_offset, floor) if limit is None else limit
    found.torn = not found.damages and used < len(bad) and reached == found.next_offset
    _note_missing(found, bad[used:], end, reached, fillers, gaps=gaps and limit is not None)
    if limit is None:
        found.next_offset = reached
    return found


def _joined(bad: list[_Broken]) -> list[_Broken]:
    """Neighbouring ranges as one, under the reason of the first."""
    joined: list[_Broken] = []
    for item in sorted(bad):
        if joined and joined[-1].end == item.position:
            joined[-1] = joined[-1]._replace(end=item.end)
        else:
            joined.append(item)
    return joined


def _copy(found: Examination, start: int, end: int) -> None:
    last = found.pieces[-1] if found.pieces else None
    if isinstance(last, tuple) and last[1] == start:
        found.pieces[-1] = (last[0], end)
    else:
        found.pieces.append((start, end))


def _note_missing(
    found: Examination, bad: Sequence[_Broken], position: int, until: int, fillers: _Fillers, *, gaps: bool
) -> None:
    """Account for what lies between two batches that are in their place."""
    first, last = found.next_offset, until - 1
    if not bad:
        if last >= first and not gaps:
            found.damages.append(
                Damage(position, position, first, last, "no batch holds the offsets that are expected")
            )
            found.pieces += fillers.over(first, last)
        return
    for number, (start, end, reason) in enumerate(bad):
        lost = (first, last) if not number else (0, -1)  # which of several ranges held them is not known
        found.damages.append(Damage(start, end, *lost, reason))
    if last >= first:
        found.pieces += fillers.over(first, last)


class _Fillers:
    """Batches that stand for what is missing."""

    def __init__(self, base_offset: int, aborted: Sequence[AbortedEntry], epochs: dict[int, int]) -> None:
        self._base_offset = base_offset
        self._markers = {entry.last_offset: entry.producer_id for entry in aborted}
        self._epochs = epochs

    def over(self, first: int, last: int) -> Iterator[bytes]:
        if last - self._base_offset > MAX_RELATIVE_OFFSET:
            return  # more than one segment can hold
        for offset in sorted(offset for offset in self._markers if first <= offset <= last):
            if offset > first:
                yield _empty_batch(first, offset - 1)
            producer_id = self._markers[offset]
            epoch = self._epochs.get(producer_id, 0)
            yield build_marker(
                producer_id, epoch, commit=False, coordinator_epoch=0, timestamp_ms=NO_TIMESTAMP, base_offset=offset
            )
            first = offset + 1
        if first <= last:
            yield _empty_batch(first, last)


def _empty_batch(first: int, last: int) -> bytes:
    return seal_batch(
        b"",
        base_offset=first,
        attributes=0,
        last_offset_delta=last - first,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )


# -- whole batches ---------------------------------------------------------------------------------------------------


def _walk(fd: int, size: int, base_offset: int, bound: int, *, zeros: bool) -> tuple[list[_Whole], list[_Broken]]:
    """The batches that match their CRC, and what lies between them. Zeros at the end are neither unless `zeros`."""
    whole: list[_Whole] = []
    broken: list[_Broken] = []
    begin = 0
    while begin < size:
        try:
            for position, header, _ in check_batches(fd, size, begin):
                whole.append(
                    _Whole(
                        position,
                        position + header.size_bytes,
                        header.base_offset,
                        header.last_offset_delta + 1,
                        header.producer_id,
                        header.producer_epoch,
                    )
                )
            break
        except TornLog as torn:
            if only_zeros(fd, torn.position, size):
                if zeros:
                    broken.append(_Broken(torn.position, size, "zeros where batches were"))
                break
            begin = _next_whole(fd, torn.position, size, base_offset, bound)
            broken.append(_Broken(torn.position, begin, torn.reason))
    return whole, broken


def _next_whole(fd: int, position: int, size: int, base_offset: int, bound: int) -> int:
    """Where the next whole batch begins after the damage at `position`; the end of the file when there is none."""
    head = os.pread(fd, LENGTH_PREFIX_BYTES, position)
    if len(head) == LENGTH_PREFIX_BYTES:
        length = int.from_bytes(head[8:], "big", signed=True)
        claimed = position + LENGTH_PREFIX_BYTES + length
        if (
            length >= MIN_BATCH_LENGTH
            and claimed <= size
            and (only_zeros(fd, claimed, size) or _is_whole(fd, claimed, size))
        ):
            return claimed
    start = position + 1
    while start + HEADER_BYTES <= size:
        window = os.pread(fd, _WINDOW_BYTES + HEADER_BYTES, start)
        at = window.find(_MAGIC, MAGIC_POSITION)
        while 0 <= at < len(window) - (HEADER_BYTES - MAGIC_POSITION) + 1:
            header = BatchHeader._make(HEADER.unpack_from(window, at - MAGIC_POSITION))
            candidate = start + at - MAGIC_POSITION
            if (
                base_offset <= header.base_offset <= header.last_offset < bound
                and header.record_count >= 0
                and HEADER_BYTES <= header.size_bytes <= size - candidate
                and _is_whole(fd, candidate, size)
            ):
                return candidate
            at = window.find(_MAGIC, at + 1)
        start += _WINDOW_BYTES
    return size


def _is_whole(fd: int, position: int, size: int) -> bool:
    try:
        next(check_batches(fd, size, position))
    except (TornLog, StopIteration):
        return False
    return True


# -- places ----------------------------------------------------------------------------------------------------------


def _place(
    whole: Sequence[_Whole], broken: Sequence[_Broken], base_offset: int, limit: int | None, *, gaps: bool
) -> dict[int, int]:
    """The base offset of each batch that has a place, by its position."""
    bound = base_offset + MAX_RELATIVE_OFFSET + 1 if limit is None else limit
    claims: dict[int, _Whole] = {}
    before = base_offset
    for number, batch in enumerate(whole):
        if batch.offsets > 0 and base_offset <= batch.base_offset <= bound - batch.offsets:
            followed = number + 1 < len(whole) and whole[number + 1].base_offset == batch.next_offset
            # Of two that claim the same offset, the one that fits its neighbours is believed.
            if batch.base_offset not in claims or batch.base_offset == before or followed:
                claims[batch.base_offset] = batch
        before = batch.next_offset
    inside = sorted(claims.values())
    placed = {batch.position: batch.base_offset for batch in _without_overlaps(_ascending(inside), base_offset)}
    broken_at = [item.position for item in broken]
    expected, begin = base_offset, 0
    for number, batch in enumerate(whole):
        base = placed.get(batch.position)
        contiguous = bisect_left(broken_at, batch.position) == bisect_left(broken_at, begin)
        # In a file in which no batch is in its place, not one byte is wrong but the file.
        trusted = bool(placed) or len(whole) == 1
        if base != expected and trusted and contiguous and _differ_in_one_byte(batch.base_offset, expected):
            # The one place that is left between its neighbours, or the end of a log without gaps.
            following = whole[number + 1] if number + 1 < len(whole) else None
            if following is None and bisect_left(broken_at, batch.position) == len(broken_at):
                fits = not gaps if limit is None else expected + batch.offsets == limit
            else:
                fits = following is not None and placed.get(following.position) == expected + batch.offsets
            if fits:
                base = placed[batch.position] = expected
        if base is not None:
            expected, begin = base + batch.offsets, batch.end
    return placed


def _ascending(batches: Sequence[_Whole]) -> list[_Whole]:
    """The most batches whose base offsets ascend, in the order of the file. O(n log n)."""
    ends: list[int] = []  # base offset of the last batch of the best chain of each length
    numbers: list[int] = []
    before: list[int] = []
    for number, batch in enumerate(batches):
        length = bisect_left(ends, batch.base_offset)
        before.append(numbers[length - 1] if length else -1)
        if length == len(ends):
            ends.append(batch.base_offset)
            numbers.append(number)
        else:
            ends[length], numbers[length] = batch.base_offset, number
    chain: list[_Whole] = []
    number = numbers[-1] if numbers else -1
    while number >= 0:
        chain.append(batches[number])
        number = before[number]
    return chain[::-1]


def _without_overlaps(chain: Sequence[_Whole], base_offset: int) -> list[_Whole]:
    """Of two batches that claim the same offset, the one goes that does not follow what is before it."""
    kept: list[_Whole] = []
    for batch in chain:
        while kept and kept[-1].next_offset > batch.base_offset:
            expected = kept[-2].next_offset if len(kept) > 1 else base_offset
            if kept[-1].base_offset == expected:
                break
            kept.pop()
        if not kept or kept[-1].next_offset <= batch.base_offset:
            kept.append(batch)
    return kept


def _differ_in_one_byte(one: int, other: int) -> bool:
    return sum(a != b for a, b in zip(one.to_bytes(8, "big", signed=True), other.to_bytes(8, "big"), strict=True)) == 1


# -- mending ---------------------------------------------------------------------------------------------------------


def set_aside(path: str, fd: int, found: Examination) -> list[str]:
    """Copy what is damaged to files of their own, durably; returns their paths."""
    stem = os.path.splitext(path)[0]
    files: list[str] = []
    for damage in found.damages:
        if damage.end > damage.position:
            target = f"{stem}.{damage.position}{DAMAGED_SUFFIX}"
            number = 1
            while os.path.exists(target):
                number += 1
                target = f"{stem}.{damage.position}.{number}{DAMAGED_SUFFIX}"
            _write_file(target, fd, [(damage.position, damage.end)])
            files.append(target)
    if files:
        fsync_directory(os.path.dirname(path))
    return files


def cut(fd: int, found: Examination) -> bool:
    """Mend a file in place if only its end changes, where nobody reads it meanwhile."""
    first = found.pieces[0] if found.pieces else (0, 0)
    kept = 0 if isinstance(first, bytes) or first[0] else first[1]
    added = [piece for piece in found.pieces[bool(kept) :] if isinstance(piece, bytes)]
    if len(added) + bool(kept) < len(found.pieces):
        return False
    os.ftruncate(fd, kept)
    rest = memoryview(b"".join(added))
    while rest:
        kept += os.pwrite(fd, rest, kept)
        rest = rest[len(rest) - (found.size - kept) :]
    os.fsync(fd)
    return True


def write_mended(path: str, fd: int, found: Examination) -> None:
    """Write the segment anew, durably, to a file that `take_place` lets take its place."""
    _write_pieces(path + _MENDED_SUFFIX, fd, found.pieces)


def take_place(path: str) -> None:
    os.replace(path + _MENDED_SUFFIX, path)


def leave_place(path: str) -> None:
    """Remove what `write_mended` wrote: the segment is not what it was made from any more."""
    os.unlink(path + _MENDED_SUFFIX)


def drop_indexes(path: str) -> None:
    """Remove the indexes of a segment that was mended: they are built anew from the log."""
    for suffix in (".index", ".timeindex"):
        if os.path.exists(os.path.splitext(path)[0] + suffix):
            os.unlink(os.path.splitext(path)[0] + suffix)


def _write_file(path: str, fd: int, pieces: Sequence[bytes | tuple[int, int]]) -> None:
    _write_pieces(path + ".tmp", fd, pieces)
    os.replace(path + ".tmp", path)


def _write_pieces(path: str, fd: int, pieces: Sequence[bytes | tuple[int, int]]) -> None:
    """Write a file of these pieces, some of them ranges of the file that is open as `fd`; durable but for its name."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        for piece in pieces:
            for chunk in [piece] if isinstance(piece, bytes) else _chunks(fd, *piece):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(out, view) :]
        os.fsync(out)
    finally:
        os.close(out)


def _chunks(fd: int, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        chunk = os.pread(fd, min(_WINDOW_BYTES, end - position), position)
        if not chunk:
            raise OSError(5, "the file became shorter while it was read")
        yield chunk
        position += len(chunk)
