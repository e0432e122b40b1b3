"""What the members of a share group were promised, and whether the broker kept it.

- a record whose acceptance was answered is never delivered again;
- a record that was stored is delivered until it is accepted, or until its acceptance was asked for and the answer lost (no member
  here lets one go after its last delivery);
- how often a record was delivered only grows;
- a record is held by one member at a time.

A generation is the life of one broker process: what is read late from the connection to a dead one says nothing of the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

Offset = tuple[int, int]  # partition, offset
SHOWN_MAX = 5


@dataclass
class ShareLedger:
    accepted: dict[Offset, int] = field(default_factory=dict)  # and in which generation
    asked: set[Offset] = field(default_factory=set)  # to be accepted, whatever came of it
    deliveries: dict[Offset, int] = field(default_factory=dict)
    holders: dict[Offset, tuple[str, int]] = field(default_factory=dict)
    redelivered: int = 0
    generation: int = 0
    complaints: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def complain(self, text: str) -> None:
        with self.lock:
            self.complaints.append(text)

    def was_delivered(self, offsets: Iterable[Offset], count: int, member: str, generation: int) -> None:
        with self.lock:
            for offset in offsets:
                if generation >= self.accepted.get(offset, generation + 1):
                    self.complaints.append(f"{offset} was delivered again after it was accepted")
                before = self.deliveries.get(offset, 0)
                if count < before:
                    self.complaints.append(f"{offset} was delivered {before} times, and now {count} times")
                self.redelivered += before > 0
                self.deliveries[offset] = max(count, before)
                holder = self.holders.get(offset)
                if holder is not None and holder[1] == generation and holder[0] != member:
                    self.complaints.append(f"{offset} is held by {holder[0]} and {member}")
                self.holders[offset] = (member, generation)

    def will_be_let_go(self, offsets: Iterable[Offset]) -> None:
        """Before it is asked for: another may have them before the answer is here."""
        with self.lock:
            for offset in offsets:
                self.holders.pop(offset, None)

    def will_be_accepted(self, offsets: Iterable[Offset]) -> None:
        """Before it is asked for: the answer may be lost."""
        with self.lock:
            self.asked.update(offsets)

    def was_accepted(self, offsets: Iterable[Offset], generation: int) -> None:
        with self.lock:
            for offset in offsets:
                self.accepted.setdefault(offset, generation)

    def check_accepted(self, stored: Iterable[Offset]) -> None:
        lost = [offset for offset in stored if offset not in self.asked]
        if lost:
            self.complain(f"{len(lost)} records are lost to the group, e.g. {lost[:SHOWN_MAX]}")
