"""What anti-entropy keeps equal: keyed entries, each the writer's newest, and the vector that says what a replica has.

Every write has its writer's next number. A replica's vector says, for each writer, up to which number it has everything
that still matters: entries that were overwritten leave gaps, and nobody needs them. To keep that true, a writer's
entries are handed over in the order of their numbers, and a message that has no room for all of them ends early. This is
the reconciliation of Scuttlebutt (van Renesse et al., 2008).

Two writers may write one key. The greater (number, writer) is the newer for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

Vector: TypeAlias = Mapping[str, int]


class Entry(NamedTuple):
    writer: str
    number: int
    key: str
    value: bytes

    @property
    def age(self) -> tuple[int, str]:
        return self.number, self.writer


class Replica:
    """One node's copy. Bounded: `max_entries` keys and `max_writers` writers; what would exceed them is refused."""

    def __init__(self, name: str, *, max_entries: int = 100_000, max_writers: int = 1_000) -> None:
        self.name = name
        self._max_entries = max_entries
        self._max_writers = max_writers
        self._by_key: dict[str, Entry] = {}
        self._by_writer: dict[str, dict[int, Entry]] = {}  # in the order of the numbers
        self._vector: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> bytes | None:
        entry = self._by_key.get(key)
        return None if entry is None else entry.value

    def items(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in self._by_key.items()}

    def vector(self) -> dict[str, int]:
        return dict(self._vector)

    def put(self, key: str, value: bytes) -> Entry:
        """Write as this node. Its number is above every one seen, so that it replaces what is here."""
        entry = Entry(self.name, max(self._vector.values(), default=0) + 1, key, value)
        if not self.take(entry):
            raise OverflowError(f"the replica has its {self._max_entries} entries or {self._max_writers} writers")
        return entry

    def take(self, entry: Entry) -> bool:
        """Keep an entry unless a newer one is there; False if there is no room, and then the vector stays."""
        known = self._vector.get(entry.writer)
        if known is not None and entry.number <= known:
            return True
        if known is None and len(self._vector) >= self._max_writers:
            return False
        present = self._by_key.get(entry.key)
        if present is None and len(self._by_key) >= self._max_entries:
            return False
        self._vector[entry.writer] = entry.number
        if present is None or present.age < entry.age:
            if present is not None:
                del self._by_writer[present.writer][present.number]
            self._by_key[entry.key] = entry
            self._by_writer.setdefault(entry.writer, {})[entry.number] = entry
        return True

    def missing_from(self, vector: Vector) -> Iterator[Entry]:
        """What a replica with this vector lacks, each writer's entries in their order."""
        for writer, entries in self._by_writer.items():
            known = vector.get(writer, 0)
            if self._vector[writer] > known:
                yield from (entry for number, entry in entries.items() if number > known)

    def lacks(self, vector: Vector) -> bool:
        """Whether a replica with this vector has seen writes that this one has not."""
        return any(number > self._vector.get(writer, 0) for writer, number in vector.items())

    def exceeds(self, vector: Vector) -> bool:
        """Whether this one has seen writes that a replica with this vector has not."""
        return any(number > vector.get(writer, 0) for writer, number in self._vector.items())

    def reach(self, vector: Vector) -> None:
        """Believe that everything up to this vector is here: its last writes may have been overwritten by others'."""
        for writer, number in vector.items():
            known = self._vector.get(writer)
            if known is None and len(self._vector) >= self._max_writers:
                continue
            self._vector[writer] = max(number, known or 0)
            self._by_writer.setdefault(writer, {})
