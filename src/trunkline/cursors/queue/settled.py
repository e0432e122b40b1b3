"""Which offsets of a queue are settled: a head, and bitmaps above it.

Everything before `head` is settled. Above it, `chunks` maps the number of a chunk of 4,096 offsets to an integer whose bit i
is offset `chunk * 4096 + i`; bits before the head mean nothing. A chunk goes when the head has passed it. So 10 million
messages with every other one settled cost 1.4 MB, and a consumer that acknowledges in order costs nothing.

Runs, not offsets, are the unit: settling a run is one operation on an integer per chunk it touches, and the head moves over
all ones at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

CHUNK_BITS = 12
CHUNK_OFFSETS = 1 << CHUNK_BITS
_LOW = CHUNK_OFFSETS - 1
_FULL = (1 << CHUNK_OFFSETS) - 1


class SettledOffsets:
    __slots__ = ("above", "chunks", "head", "touched")

    def __init__(self, head: int = 0) -> None:
        self.head = head
        self.chunks: dict[int, int] = {}
        self.above = 0  # settled offsets after the head
        self.touched: set[int] = set()  # chunks that changed, or were passed, since the owner last cleared this

    def __contains__(self, offset: int) -> bool:
        if offset < self.head:
            return True
        bits = self.chunks.get(offset >> CHUNK_BITS)
        return bits is not None and bool(bits >> (offset & _LOW) & 1)

    def settle_run(self, start: int, count: int) -> None:
        """Settle `count` offsets from `start` on, none of which is settled."""
        if start == self.head and not self.chunks:
            self.head = start + count
            return
        offset, end = start, start + count
        chunks = self.chunks
        while offset < end:
            chunk = offset >> CHUNK_BITS
            size = min(end, (chunk + 1) << CHUNK_BITS) - offset
            chunks[chunk] = chunks.get(chunk, 0) | ((1 << size) - 1) << (offset & _LOW)
            self.touched.add(chunk)
            offset += size
        self.above += count
        if start == self.head:
            self._advance()

    def settle(self, offsets: Iterable[int]) -> None:
        """Settle offsets in any order, none of which is settled."""
        for start, count in runs(offsets):
            self.settle_run(start, count)

    def settle_before(self, end: int) -> None:
        """Settle everything before `end`: what retention removed, or a purge without leases."""
        if end <= self.head:
            return
        for chunk in [chunk for chunk in self.chunks if chunk << CHUNK_BITS < end]:
            first = max(self.head - (chunk << CHUNK_BITS), 0)
            below = min(end - (chunk << CHUNK_BITS), CHUNK_OFFSETS)
            self.above -= (self.chunks[chunk] >> first & ((1 << max(below - first, 0)) - 1)).bit_count()
            if below == CHUNK_OFFSETS:
                del self.chunks[chunk]
                self.touched.add(chunk)
        self.head = end
        self._advance()

    def unsettled(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The runs (start, count) between two offsets that are not settled."""
        offset = max(start, self.head)
        if not self.chunks and offset < end:
            yield offset, end - offset
            return
        while offset < end:
            chunk = offset >> CHUNK_BITS
            stop = min(end, (chunk + 1) << CHUNK_BITS)
            bits = self.chunks.get(chunk)
            if bits is None:
                yield offset, stop - offset
                offset = stop
                continue
            free = ~(bits >> (offset & _LOW)) & ((1 << (stop - offset)) - 1)
            while free:
                skip = (free & -free).bit_length() - 1
                free >>= skip
                offset += skip
                length = (~free & (free + 1)).bit_length() - 1
                yield offset, length
                free >>= length
                offset += length
            offset = stop

    def cut(self, end: int) -> bool:
        """Forget everything from `end` on: the log lost it. True if there was something to forget."""
        changed = self.head > end
        self.head = min(self.head, end)
        for chunk in [chunk for chunk in self.chunks if (chunk + 1) << CHUNK_BITS > end]:
            kept = self.chunks[chunk] & ((1 << max(end - (chunk << CHUNK_BITS), 0)) - 1)
            if kept == self.chunks[chunk]:
                continue
            changed = True
            self.touched.add(chunk)
            if kept:
                self.chunks[chunk] = kept
            else:
                del self.chunks[chunk]
        self.recount()
        return changed

    def recount(self) -> None:
        """Derive `above` and the head's place from the bitmaps."""
        self.above = 0
        for chunk in [chunk for chunk in self.chunks if (chunk + 1) << CHUNK_BITS <= self.head]:
            del self.chunks[chunk]
            self.touched.add(chunk)
        for chunk, bits in self.chunks.items():
            self.above += (bits >> max(self.head - (chunk << CHUNK_BITS), 0)).bit_count()
        self._advance()

    def _advance(self) -> None:
        chunks = self.chunks
        while chunks:
            chunk = self.head >> CHUNK_BITS
            bits = chunks.get(chunk)
            if bits is None:
                return
            if bits == _FULL:
                count = ((chunk + 1) << CHUNK_BITS) - self.head
            else:
                shifted = bits >> (self.head & _LOW)
                count = (~shifted & (shifted + 1)).bit_length() - 1
            self.head += count
            self.above -= count
            if self.head >> CHUNK_BITS == chunk:
                return
            del chunks[chunk]
            self.touched.add(chunk)


def runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Distinct offsets, in any order, as (start, count). A contiguous block is seen at once."""
    if isinstance(offsets, range) and offsets.step == 1:
        if offsets:
            yield offsets.start, len(offsets)
        return
    listed = list(offsets)
    if not listed:
        return
    lowest = min(listed)
    if max(listed) - lowest + 1 == len(listed):
        yield lowest, len(listed)
        return
    listed.sort()
    start = previous = listed[0]
    for offset in listed[1:]:
        if offset != previous + 1:
            yield start, previous - start + 1
            start = offset
        previous = offset
    yield start, previous - start + 1
