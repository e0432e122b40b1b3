"""How often messages were delivered, for those of which it matters: handed out again, or out of order.

By chunk, as the journal writes them (see state). What is in no chunk was delivered once if it lies before the queue's
delivered-to offset, else never.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from trunkline.cursors.queue.settled import CHUNK_BITS, CHUNK_OFFSETS

_LOW = CHUNK_OFFSETS - 1


class DeliveryCounts:
    __slots__ = ("_chunks", "touched")

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, int]] = {}
        self.touched: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __contains__(self, offset: int) -> bool:
        return (offset & _LOW) in self._chunks.get(offset >> CHUNK_BITS, ())

    def restore(self, number: int, counts: dict[int, int]) -> None:
        if counts:
            self._chunks[number] = dict(counts)

    def get(self, offset: int, default: int) -> int:
        chunk = self._chunks.get(offset >> CHUNK_BITS)
        return default if chunk is None else chunk.get(offset & _LOW, default)

    def set(self, offset: int, count: int) -> None:
        number = offset >> CHUNK_BITS
        self._chunks.setdefault(number, {})[offset & _LOW] = count
        self.touched.add(number)

    def remove(self, offsets: Iterable[int]) -> None:
        """Of settled messages. Not worth a record: that they are settled is written, and decides."""
        for offset in offsets:
            chunk = self._chunks.get(offset >> CHUNK_BITS)
            if chunk is not None and chunk.pop(offset & _LOW, None) is not None and not chunk:
                del self._chunks[offset >> CHUNK_BITS]
                self.touched.add(offset >> CHUNK_BITS)

    def keep(self, offsets: Container[int]) -> None:
        """Forget all but these."""
        for number, chunk in list(self._chunks.items()):
            self.remove([offset for place in list(chunk) if (offset := (number << CHUNK_BITS) + place) not in offsets])

    def cut(self, end: int) -> None:
        """Forget everything from `end` on."""
        for number, chunk in list(self._chunks.items()):
            self.remove([offset for place in list(chunk) if (offset := (number << CHUNK_BITS) + place) >= end])

    def forget_before(self, head: int) -> None:
        """Chunks that the head has passed."""
        if self._chunks:
            for number in [number for number in self._chunks if (number + 1) << CHUNK_BITS <= head]:
                del self._chunks[number]
                self.touched.add(number)

    def of_chunk(self, number: int) -> dict[int, int]:
        return self._chunks.get(number, {})

    def chunks(self) -> Iterable[int]:
        return self._chunks.keys()
