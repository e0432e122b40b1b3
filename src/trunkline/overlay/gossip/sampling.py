"""Peer sampling: a random peer when one is needed, from a partial view that gossip keeps fresh and mixed.

Jelasity et al., "Gossip-based peer sampling" (2007). A node knows `size` peers with the age of what it knows of each. It
exchanges half of its view, with itself as the newest, for half of a random peer's, and of what is then too much drops

    first `heal` of the oldest, so that the dead disappear,
    then `swap` of those it just gave away, so that the views stay mixed,
    then any.

A message has at most half a view and the sender itself: the bound is the size of the view, and a view that is given more
is cut to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from trunkline.overlay.machine import Peer


class Descriptor(NamedTuple):
    peer: Peer
    age: int


class Views(NamedTuple):
    descriptors: tuple[Descriptor, ...]


class PeerSampling:
    """The four functions of one node."""

    max_legs = 2
    max_open = 1

    def __init__(
        self, own: Peer, known: Iterable[Peer], random: Random, *, size: int = 30, heal: int = 1, swap: int = 14
    ) -> None:
        if size < 2 or heal < 0 or swap < 0 or heal + swap > size // 2:
            raise ValueError("a view has two places at least, and drops at most half of them for a reason")
        self._own = own
        self._random = random
        self._size = size
        self._heal = heal
        self._swap = swap
        self._ages: dict[Peer, int] = {}  # the order matters: what is to be given away stands first
        self._given: list[Peer] = []
        for peer in known:
            if peer != own and len(self._ages) < size:
                self._ages[peer] = 0

    def view(self) -> list[Peer]:
        return list(self._ages)

    def sample(self) -> Peer | None:
        return self._random.choice(list(self._ages)) if self._ages else None

    def select_peer(self, random: Random) -> Peer | None:
        """A random one of the view; what is known of everybody is a round older now."""
        self._ages = {peer: age + 1 for peer, age in self._ages.items()}
        return random.choice(list(self._ages)) if self._ages else None

    def select_to_send(self, peer: Peer, heard: Views | None) -> Views | None:
        peers = [known for known in self._ages if known != peer]
        self._random.shuffle(peers)
        if self._heal:  # the oldest are not worth passing on
            oldest = set(sorted(peers, key=self._ages.__getitem__, reverse=True)[: self._heal])
            peers = [known for known in peers if known not in oldest] + [known for known in peers if known in oldest]
        self._given = peers[: self._size // 2 - 1]
        return Views((Descriptor(self._own, 0), *(Descriptor(known, self._ages[known]) for known in self._given)))

    def select_to_keep(self, peer: Peer, received: Views) -> Views | None:
        if len(received.descriptors) > max(self._size // 2, 1):
            return None
        return Views(tuple(one for one in received.descriptors if one.peer != self._own and one.age >= 0))

    def process_data(self, peer: Peer, heard: Views, sent: Views | None) -> None:
        for descriptor in heard.descriptors:
            known = self._ages.get(descriptor.peer)
            if known is None or known > descriptor.age:
                self._ages[descriptor.peer] = descriptor.age
        fresh = {descriptor.peer for descriptor in heard.descriptors}
        self._drop(sorted(self._ages, key=self._ages.__getitem__, reverse=True)[: self._heal])
        self._drop([given for given in self._given if given not in fresh][: self._swap])
        rest = list(self._ages)
        self._random.shuffle(rest)
        self._drop(rest)

    def _drop(self, peers: Iterable[Peer]) -> None:
        """Drop these, as long as the view is too large."""
        for peer in peers:
            if len(self._ages) <= self._size:
                return
            self._ages.pop(peer, None)
