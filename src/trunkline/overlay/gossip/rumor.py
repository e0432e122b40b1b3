"""Rumor mongering: who knows something new tells random peers, until it is no news to them.

Demers et al., "Epidemic Algorithms for Replicated Database Maintenance" (1987). A node is hot for a rumor while it spreads it,
and loses interest in one of four ways:

             coin: with probability 1/k          counter: after k times
    blind    after each telling                  of telling
    feedback after telling one who knew it       of telling one who knew it

With feedback and coin, asked one at a time, the fraction that never hears of it solves s = exp(-(k+1)(1-s)).

A message is `Tidings` of at most `MAX_RUMORS` rumors, or of as many identities that were known already. A node remembers
`max_remembered` identities; it stays hot only for what it remembers, so its memory is bounded by them and their bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from trunkline.overlay.gossip.recent import Recent
from trunkline.overlay.machine import Peer

MAX_RUMORS = 64
MAX_BODY_BYTES = 1024
MAX_REMEMBERED = 10_000


class Interest(Enum):
    """How interest in a rumor is lost."""

    COIN = "coin"
    COUNTER = "counter"


class Rumor(NamedTuple):
    identity: str
    body: bytes = b""


class Tidings(NamedTuple):
    """What a message carries: rumors one way, and back which of them were known."""

    rumors: tuple[Rumor, ...] = ()
    known: tuple[str, ...] = ()


class RumorMongering:
    """The four functions of one node."""

    max_legs = 2
    max_open = 16

    def __init__(
        self,
        peers: Sequence[Peer],
        random: Random,
        *,
        k: int,
        interest: Interest = Interest.COIN,
        feedback: bool = True,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        if k < 1:
            raise ValueError("k is at least 1")
        self._peers = peers
        self._random = random
        self._k = k
        self._interest = interest
        self._feedback = feedback
        self._heard: Recent[str, bytes] = Recent(max_remembered)
        self._hot: dict[str, int] = {}  # how often it was told, or told to one who knew it
        self.told = 0
        """Rumors that were sent, all tellings counted."""

    def knows(self, identity: str) -> bool:
        return identity in self._heard

    def is_hot(self, identity: str) -> bool:
        return identity in self._hot

    def add(self, rumor: Rumor) -> bool:
        """Hear of a rumor; whether it was new."""
        if rumor.identity in self._heard:
            return False
        if len(rumor.body) > MAX_BODY_BYTES:
            raise ValueError(f"a rumor has at most {MAX_BODY_BYTES} bytes")
        self._heard.put(rumor.identity, rumor.body)
        self._hot[rumor.identity] = 0
        return True

    def select_peer(self, random: Random) -> Peer | None:
        return random.choice(self._peers) if self._hot and self._peers else None

    def select_to_send(self, peer: Peer, heard: Tidings | None) -> Tidings | None:
        if heard is None:
            return self._news()
        if not heard.rumors or not self._feedback:
            return None
        return Tidings(known=tuple(rumor.identity for rumor in heard.rumors if rumor.identity in self._heard))

    def select_to_keep(self, peer: Peer, received: Tidings) -> Tidings | None:
        if len(received.rumors) > MAX_RUMORS or len(received.known) > MAX_RUMORS:
            return None
        if any(len(rumor.body) > MAX_BODY_BYTES for rumor in received.rumors):
            return None
        return received

    def process_data(self, peer: Peer, heard: Tidings, sent: Tidings | None) -> None:
        for rumor in heard.rumors:
            self.add(rumor)
        if sent is None or not self._feedback:
            return
        told = {rumor.identity for rumor in sent.rumors}
        for identity in set(heard.known) & told:
            self._tire(identity)

    def _news(self) -> Tidings | None:
        chosen: list[Rumor] = []
        for identity in list(self._hot)[:MAX_RUMORS]:
            body = self._heard.get(identity)
            if body is None:
                del self._hot[identity]  # forgotten in favour of newer ones
                continue
            chosen.append(Rumor(identity, body))
        self.told += len(chosen)
        if not self._feedback:
            for rumor in chosen:
                self._tire(rumor.identity)
        return Tidings(rumors=tuple(chosen)) if chosen else None

    def _tire(self, identity: str) -> None:
        times = self._hot.get(identity)
        if times is None:
            return
        lost = self._random.random() * self._k < 1 if self._interest is Interest.COIN else times + 1 >= self._k
        if lost:
            del self._hot[identity]
        else:
            self._hot[identity] = times + 1
