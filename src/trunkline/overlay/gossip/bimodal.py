"""Bimodal multicast: an unreliable multicast, and gossip that repairs what it lost.

Birman et al., "Bimodal Multicast" (1999). A message goes once to everybody, and some do not get it. Every period a node sends
a random peer the identities of what it got lately; the peer asks for what it misses, newest first; the node sends it
again. Delivery is almost certainly to almost all or to almost none: a message that reached few before its sender died may
die out, one that reached some reaches everybody. Latency has two modes, the network's and that of a repair.

Bounds: a digest has `MAX_DIGEST` identities, of messages that came at most `max_rounds` rounds ago; a request asks for
`MAX_REQUESTED`; what is sent again has `MAX_REPAIR_BYTES` in all. So a node that is far behind does not slow down the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from trunkline.overlay.gossip.recent import Recent
from trunkline.overlay.machine import Peer

MAX_DIGEST = 256
MAX_REQUESTED = 64
MAX_REPAIR_BYTES = 1 << 18
MAX_BODY_BYTES = 1 << 17
MAX_REMEMBERED = 10_000


class Multicast(NamedTuple):
    """A message as it goes out to everybody, without any promise."""

    identity: str
    body: bytes


class Repair(NamedTuple):
    """One leg of a repair: what the sender has, what it asks for, what it was asked for."""

    digest: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    messages: tuple[Multicast, ...] = ()


class _Kept(NamedTuple):
    body: bytes
    round: int


class BimodalMulticast:
    """The four functions of one node, and `accept` for what the multicast brings."""

    max_legs = 3
    max_open = 16

    def __init__(
        self,
        peers: Sequence[Peer],
        deliver: Callable[[Multicast], None],
        *,
        max_rounds: int = 10,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        self._peers = peers
        self._deliver = deliver
        self._max_rounds = max_rounds
        self._kept: Recent[str, _Kept] = Recent(max_remembered)
        self._round = 0
        self.repaired = 0
        """Messages that came by gossip first."""

    def has(self, identity: str) -> bool:
        return identity in self._kept

    def accept(self, message: Multicast) -> bool:
        """A message that the multicast brought, or this node's own; whether it was new."""
        if len(message.body) > MAX_BODY_BYTES or message.identity in self._kept:
            return False
        self._kept.put(message.identity, _Kept(message.body, self._round))
        self._deliver(message)
        return True

    def select_peer(self, random: Random) -> Peer | None:
        self._round += 1
        return random.choice(self._peers) if self._peers else None

    def select_to_send(self, peer: Peer, heard: Repair | None) -> Repair | None:
        if heard is None:
            digest = tuple(identity for identity in self._kept.newest(MAX_DIGEST) if self._is_fresh(identity))
            return Repair(digest=digest) if digest else None
        if heard.digest:
            missing = [identity for identity in heard.digest if identity not in self._kept]
            return Repair(requested=tuple(missing[:MAX_REQUESTED])) if missing else None
        if heard.requested:
            return self._again(heard.requested)
        return None

    def select_to_keep(self, peer: Peer, received: Repair) -> Repair | None:
        if len(received.digest) > MAX_DIGEST or len(received.requested) > MAX_REQUESTED:
            return None
        if len(received.messages) > MAX_REQUESTED:
            return None
        if sum(len(message.body) for message in received.messages) > MAX_REPAIR_BYTES:
            return None
        return received

    def process_data(self, peer: Peer, heard: Repair, sent: Repair | None) -> None:
        for message in heard.messages:
            self.repaired += self.accept(message)

    def _is_fresh(self, identity: str) -> bool:
        kept = self._kept.get(identity)
        return kept is not None and self._round - kept.round <= self._max_rounds

    def _again(self, requested: Sequence[str]) -> Repair | None:
        messages: list[Multicast] = []
        left_bytes = MAX_REPAIR_BYTES
        for identity in requested:
            kept = self._kept.get(identity)
            if kept is None or not self._is_fresh(identity):
                continue
            left_bytes -= len(kept.body)
            if left_bytes < 0:
                break
            messages.append(Multicast(identity, kept.body))
        return Repair(messages=tuple(messages)) if messages else None
