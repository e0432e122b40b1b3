"""What the clients were promised, and whether the broker kept it.

Every client of a campaign writes down each acknowledgement as it arrives. The ledger outlives the broker's crashes, so a
comparison with what the broker holds later is a comparison with its promises:

- a record acknowledged at an offset is at that offset, whatever crash came after (acks=1 and acks=all);
- a record that any consumer has seen at an offset is the record that stands there at the end;
- an idempotent producer's records stand in the log once each, in the order in which they were sent;
- a transaction whose commit was acknowledged is visible in full, one that was aborted is not visible at all, and one
  whose end the client never learned is visible in full or not at all;
- a group's committed offset is never below one whose commit was acknowledged.

Clients run in threads: each method takes the lock, and each attribute is read by the campaign only under it or when
they have stopped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

SHOWN_MAX = 5  # examples named in one complaint


class Place(NamedTuple):
    topic: str
    partition: int


class Fate(Enum):
    """What a client knows of one of its transactions."""

    OPEN = "open"  # commit was never asked for: nothing of it may be seen
    ENDING = "ending"  # commit was asked for and not answered
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Attempt:
    """One transaction: how many records it holds, and its fate."""

    size: int
    fate: Fate = Fate.OPEN


@dataclass
class Ledger:
    acknowledged: dict[Place, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    sent: dict[str, int] = field(default_factory=dict)  # topic -> how many records its idempotent producer sent
    seen: dict[str, dict[Place, dict[int, bytes]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    commits: dict[str, dict[Place, int]] = field(default_factory=lambda: defaultdict(dict))
    attempts: list[Attempt] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    # -- what clients write down -----------------------------------------------------------------------------------

    def record_acknowledged(self, place: Place, offset: int, value: bytes) -> None:
        with self.lock:
            known = self.acknowledged[place].setdefault(offset, value)
            if known != value:
                self.complaints.append(f"{place} gave offset {offset} to both {known!r} and {value!r}")

    def record_seen(self, group: str, place: Place, offset: int, value: bytes) -> None:
        with self.lock:
            known = self.seen[group][place].setdefault(offset, value)
            if known != value:
                self.complaints.append(f"{place} served {known!r} and later {value!r} at offset {offset}")

    def commit_acknowledged(self, group: str, place: Place, offset: int) -> None:
        with self.lock:
            last = self.commits[group].get(place, 0)
            if offset < last:
                self.complaints.append(f"group {group} went on at {offset} on {place} after it had committed {last}")
            self.commits[group][place] = max(offset, last)

    def attempt_begun(self, size: int) -> int:
        """A new transaction of so many records; its number marks them."""
        with self.lock:
            self.attempts.append(Attempt(size))
            return len(self.attempts) - 1

    def attempt_is(self, number: int, fate: Fate) -> None:
        with self.lock:
            self.attempts[number].fate = fate

    def complain(self, text: str) -> None:
        with self.lock:
            self.complaints.append(text)

    # -- what must be true after any crash ---------------------------------------------------------------------------

    def promised_ends(self) -> dict[Place, int]:
        """For each partition the smallest log end offset that keeps what was acknowledged or seen."""
        with self.lock:
            ends = {place: max(offsets) + 1 for place, offsets in self.acknowledged.items() if offsets}
            for places in self.seen.values():
                for place, offsets in places.items():
                    ends[place] = max(ends.get(place, 0), max(offsets) + 1)
            return ends

    def promised_commits(self) -> dict[str, dict[Place, int]]:
        with self.lock:
            return {group: dict(places) for group, places in self.commits.items()}

    # -- what must be true at the end --------------------------------------------------------------------------------

    def check_acknowledged(self, stored: Mapping[Place, Mapping[int, bytes]]) -> None:
        """Everything acknowledged or seen stands where it stood."""
        promises = [("acknowledged", self.acknowledged), *((f"seen by {g}", p) for g, p in self.seen.items())]
        for how, places in promises:
            for place, offsets in places.items():
                found = stored.get(place, {})
                wrong = [(o, v, found.get(o)) for o, v in offsets.items() if found.get(o) != v]
                self._complain_of(wrong, f"records {how} on {place} that are missing or different (offset, was, is)")

    def check_idempotent(self, topic: str, stored: Mapping[Place, Mapping[int, bytes]]) -> None:
        """Each record once, and in the order sent."""
        counts: Counter[int] = Counter()
        for place, offsets in stored.items():
            if place.topic != topic:
                continue
            numbers = [number_of(offsets[offset]) for offset in sorted(offsets)]
            counts.update(numbers)
            swapped = [(a, b) for a, b in pairwise(numbers) if b < a]
            self._complain_of(swapped, f"records of the idempotent producer out of order on {place}")
        self._complain_of([n for n, c in counts.items() if c > 1], f"idempotent records in {topic} twice")
        self._complain_of(
            [n for n in range(self.sent[topic]) if n not in counts], f"idempotent records missing in {topic}"
        )

    def check_transactions(self, source: str, committed: Iterable[bytes], everything: bool = True) -> None:
        """`committed` is what a read_committed consumer sees: values `source number | attempt | …`.

        With `everything`, each record of the source was processed, and so must be there.
        """
        by_attempt: Counter[int] = Counter()
        by_number: Counter[int] = Counter()
        for value in committed:
            of_source, of_attempt, _ = value.split(b"|", 2)
            by_number[int(of_source)] += 1
            by_attempt[int(of_attempt)] += 1
        for number, attempt in enumerate(self.attempts):
            visible = by_attempt[number]
            allowed = {
                Fate.OPEN: {0},
                Fate.ABORTED: {0},
                Fate.COMMITTED: {attempt.size},
                Fate.ENDING: {0, attempt.size},
            }[attempt.fate]
            if visible not in allowed:
                self.complain(
                    f"transaction {number} is {attempt.fate.value}, but {visible} of its {attempt.size} records show"
                )
        self._complain_of([n for n, c in by_number.items() if c > 1], f"records of {source} processed twice")
        if everything:
            self._complain_of(
                [n for n in range(self.sent[source]) if n not in by_number], f"records of {source} never processed"
            )

    def check_coverage(self, group: str, stored: Mapping[Place, Mapping[int, bytes]], topics: Iterable[str]) -> None:
        """A group that has read to the end has missed nothing."""
        wanted = set(topics)
        for place, offsets in stored.items():
            if place.topic in wanted:
                missed = sorted(set(offsets) - set(self.seen[group].get(place, {})))
                self._complain_of(missed, f"offsets of {place} that group {group} never got")

    def _complain_of(self, wrong: Sequence[object], what: str) -> None:
        if wrong:
            self.complain(f"{len(wrong)} {what}, e.g. {wrong[:SHOWN_MAX]}")


def value_of(number: int, padding: int) -> bytes:
    return b"%d|%s" % (number, b"x" * padding)


def number_of(value: bytes) -> int:
    return int(value.split(b"|", 1)[0])
