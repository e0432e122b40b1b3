"""Anti-entropy: two replicas compare what they have, and one or both take over what they lack.

    push        A: vector    B: vector    A: what B lacks
    pull        A: vector    B: what A lacks
    push-pull   A: vector    B: what A lacks, and its vector    A: what B lacks

It is slow and certain: a node that was cut off for days catches up, in as many exchanges as the bound on a message makes
necessary. From one node to N, in rounds where each node begins one exchange: push log2 N + ln N, pull about log2 N, push-pull
about log3 N.

A message has at most `MAX_ENTRIES` entries and `MAX_VALUE_BYTES` of values in all, and a vector of `MAX_WRITERS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from trunkline.overlay.gossip.versions import Entry, Replica
from trunkline.overlay.machine import Peer

MAX_ENTRIES = 256
MAX_VALUE_BYTES = 1 << 18
MAX_WRITERS = 1_000
MAX_KEY_CHARACTERS = 512
MAX_NUMBER = 1 << 62


class Direction(Enum):
    PUSH = "push"
    PULL = "pull"
    PUSH_PULL = "push-pull"


class Comparison(NamedTuple):
    vector: Mapping[str, int] | None = None
    """What the sender has; None once the receiver needs to send nothing more."""
    entries: tuple[Entry, ...] = ()
    reached: Mapping[str, int] | None = None
    """What the receiver has once it took the entries; None: there is more that did not fit."""
    direction: Direction = Direction.PUSH_PULL
    """What the one who began wants; the other answers accordingly."""
    answer: bool = False


class AntiEntropy:
    """The four functions of one node."""

    max_legs = 3
    max_open = 16

    def __init__(self, replica: Replica, peers: Sequence[Peer], direction: Direction = Direction.PUSH_PULL) -> None:
        self.replica = replica
        self._peers = peers
        self._direction = direction

    def select_peer(self, random: Random) -> Peer | None:
        return random.choice(self._peers) if self._peers else None

    def select_to_send(self, peer: Peer, heard: Comparison | None) -> Comparison | None:
        if heard is None:
            return Comparison(self.replica.vector(), direction=self._direction)
        if heard.vector is None:
            return None
        if heard.answer:  # the third leg: what the peer lacks
            return self._hand_over(heard, None) if self.replica.exceeds(heard.vector) else None
        wants = heard.direction is not Direction.PULL and self.replica.lacks(heard.vector)
        gives = heard.direction is not Direction.PUSH and self.replica.exceeds(heard.vector)
        own = self.replica.vector() if wants else None
        if gives:
            return self._hand_over(heard, own)
        return Comparison(own, direction=heard.direction, answer=True) if wants else None

    def select_to_keep(self, peer: Peer, received: Comparison) -> Comparison | None:
        if any(len(vector) > MAX_WRITERS for vector in (received.vector, received.reached) if vector is not None):
            return None
        if len(received.entries) > MAX_ENTRIES or sum(len(entry.value) for entry in received.entries) > MAX_VALUE_BYTES:
            return None
        if any(
            len(entry.key) > MAX_KEY_CHARACTERS or not 1 <= entry.number <= MAX_NUMBER for entry in received.entries
        ):
            return None
        return received

    def process_data(self, peer: Peer, heard: Comparison, sent: Comparison | None) -> None:
        full: set[str] = set()
        for entry in heard.entries:
            # A later entry of a writer must not overtake one for which there is no room: the vector would lie.
            if entry.writer not in full and not self.replica.take(entry):
                full.add(entry.writer)

        if heard.reached is not None and not full:
            self.replica.reach(heard.reached)

    def _hand_over(self, heard: Comparison, own: Mapping[str, int] | None) -> Comparison:
        """What the peer lacks, as much of it as fits."""
        assert heard.vector is not None
        chosen: list[Entry] = []
        left_bytes = MAX_VALUE_BYTES
        for entry in self.replica.missing_from(heard.vector):
            left_bytes -= len(entry.value)
            if left_bytes < 0 or len(chosen) >= MAX_ENTRIES:
                return Comparison(own, tuple(chosen), None, heard.direction, answer=True)
            chosen.append(entry)
        return Comparison(own, tuple(chosen), self.replica.vector(), heard.direction, answer=True)
