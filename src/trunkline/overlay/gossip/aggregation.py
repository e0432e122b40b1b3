"""Aggregation: every node comes to know the mean of all values, or how many nodes there are, and nobody asks them all.

Jelasity, Montresor, Babaoglu, "Gossip-based aggregation in large dynamic networks" (2005). Two nodes exchange their values
and each moves half-way towards the other. The sum stays, the variance shrinks by the same factor in each cycle:

    1/e        when pairs are drawn at random
    1/(2√e)    when each node begins one exchange a cycle, with a random peer
    1/4        when each node takes part in exactly two exchanges (perfect matchings)

A node may take part in another exchange while it waits for an answer. So the one who began moves by half the difference
of what it *sent* and what it heard, which is what the other moved by: the sum is kept whatever overlaps. A lost answer
does change the sum, and so does one that comes after the next two exchanges have begun. That is why there are epochs: with a new one everybody starts again from its own value, and an
exchange between two epochs brings the older node up to the newer one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from trunkline.overlay.machine import Peer

MAX_EPOCH_STEP = 1_000
"""By how much an epoch may be ahead of ours and still be believed."""


class Estimate(NamedTuple):
    epoch: int
    value: float


class Averaging:
    """The four functions of one node. `own` tells its value whenever an epoch begins."""

    max_legs = 2
    max_open = 2

    def __init__(self, peers: Sequence[Peer], own: Callable[[], float]) -> None:
        self._peers = peers
        self._own = own
        self.epoch = 0
        self.value = own()

    def restart(self) -> None:
        """Begin the next epoch; the others follow when they hear of it."""
        self._enter(self.epoch + 1)

    def select_peer(self, random: Random) -> Peer | None:
        return random.choice(self._peers) if self._peers else None

    def select_to_send(self, peer: Peer, heard: Estimate | None) -> Estimate | None:
        if heard is None:
            return Estimate(self.epoch, self.value)
        if heard.epoch > self.epoch:
            self._enter(heard.epoch)  # before our value of that epoch is told
        return Estimate(self.epoch, self.value)

    def select_to_keep(self, peer: Peer, received: Estimate) -> Estimate | None:
        if not math.isfinite(received.value) or not 0 <= received.epoch <= self.epoch + MAX_EPOCH_STEP:
            return None
        return received

    def process_data(self, peer: Peer, heard: Estimate, sent: Estimate | None) -> None:
        if sent is None:
            if heard.epoch == self.epoch:
                self.value += (heard.value - self.value) / 2
        elif heard.epoch == sent.epoch == self.epoch:
            self.value += (heard.value - sent.value) / 2
        elif heard.epoch > self.epoch:
            self._enter(heard.epoch)

    def _enter(self, epoch: int) -> None:
        self.epoch = epoch
        self.value = self._own()


class Counting(Averaging):
    """How many nodes there are: one of them holds 1, the others 0, and the mean is 1/N."""

    def __init__(self, peers: Sequence[Peer], *, counts: Callable[[], bool]) -> None:
        """`counts` says whether this is the node that holds 1 in the epoch that begins."""
        super().__init__(peers, lambda: 1.0 if counts() else 0.0)

    def size(self) -> float:
        """The estimate; infinite as long as nothing has arrived."""
        return 1 / self.value if self.value > 0 else math.inf
