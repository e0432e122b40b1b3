"""Forwarding over the links of a graph, at once and without rounds: flooding, blind counter, random walk.

| strategy | on receiving a message |
|---|---|
| `Flooding` | the first time, to every neighbour but the one it came from, while its time to live lasts |
| `BlindCounter` | the first `bound` times, to `fanout` random neighbours that are not known to have it (Portmann, Seneviratne) |
| `RandomWalk` | to one random neighbour, as long as its time to live lasts |

A node knows that a neighbour has a message if it sent it there or got it from there. It remembers `max_remembered`
messages. Who sends what is longer than `MAX_BODY_BYTES`, or lives longer than `MAX_TTL`, is not listened to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from trunkline.overlay.gossip.recent import Recent
from trunkline.overlay.machine import Peer, Send

MAX_TTL = 1 << 20
MAX_BODY_BYTES = 1 << 20
MAX_REMEMBERED = 10_000


class Copy(NamedTuple):
    """A message on its way."""

    identity: str
    ttl: int
    """Over how many links it may still travel, this one included."""
    body: bytes = b""


class Forwarder(ABC):
    """What the three have in common: memory, bounds and counting."""

    def __init__(self, neighbours: Sequence[Peer], random: Random, *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._neighbours = neighbours
        self._random = random
        self._times: Recent[str, int] = Recent(max_remembered)
        self.sent = 0
        self.dropped = 0
        """Messages that were out of bounds."""

    def has(self, identity: str) -> bool:
        return identity in self._times

    def times(self, identity: str) -> int:
        """How often a message was received; its publisher may have it and never have received it."""
        return self._times.get(identity) or 0

    def publish(self, identity: str, ttl: int = MAX_TTL, body: bytes = b"") -> list[Send[Copy]]:
        """Begin to spread a message of this node's own."""
        copy = Copy(identity, ttl, body)
        if not _in_bounds(copy):
            raise ValueError(f"a message has at most {MAX_BODY_BYTES} bytes and a time to live of 1 to {MAX_TTL}")
        self._times.put(identity, 0)
        sends = self._forward(None, copy, new=True)
        self.sent += len(sends)
        return sends

    def receive(self, sender: Peer, message: Copy) -> list[Send[Copy]]:
        if not _in_bounds(message):
            self.dropped += 1
            return []
        new = message.identity not in self._times
        self._times.put(message.identity, self.times(message.identity) + 1)
        sends = self._forward(sender, message._replace(ttl=message.ttl - 1), new=new)
        self.sent += len(sends)
        return sends

    def wake(self) -> list[Send[Copy]]:
        return []

    def next_ms(self) -> float | None:
        return None

    @abstractmethod
    def _forward(self, sender: Peer | None, copy: Copy, *, new: bool) -> list[Send[Copy]]: ...


class Flooding(Forwarder):
    def _forward(self, sender: Peer | None, copy: Copy, *, new: bool) -> list[Send[Copy]]:
        if copy.ttl < 1 or not new:
            return []
        return [Send(peer, copy) for peer in self._neighbours if peer != sender]


class BlindCounter(Forwarder):
    def __init__(
        self,
        neighbours: Sequence[Peer],
        random: Random,
        *,
        fanout: int,
        bound: int,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        super().__init__(neighbours, random, max_remembered=max_remembered)
        self._fanout = fanout
        self._bound = bound
        self._informed: Recent[str, set[Peer]] = Recent(max_remembered)

    def _forward(self, sender: Peer | None, copy: Copy, *, new: bool) -> list[Send[Copy]]:
        informed = self._informed.get(copy.identity)
        if informed is None:
            informed = set()
            self._informed.put(copy.identity, informed)
        if sender is not None:
            informed.add(sender)
        if copy.ttl < 1 or self.times(copy.identity) > self._bound:
            return []
        left = [peer for peer in self._neighbours if peer not in informed]
        chosen = self._random.sample(left, min(self._fanout, len(left)))
        informed.update(chosen)
        return [Send(peer, copy) for peer in chosen]


class RandomWalk(Forwarder):
    def _forward(self, sender: Peer | None, copy: Copy, *, new: bool) -> list[Send[Copy]]:
        if copy.ttl < 1 or not self._neighbours:
            return []
        return [Send(self._random.choice(self._neighbours), copy)]


def _in_bounds(copy: Copy) -> bool:
    return 1 <= copy.ttl <= MAX_TTL and len(copy.body) <= MAX_BODY_BYTES
