"""The exchange that all periodic gossip shares: a protocol is four functions, this machine is the rest.

    every period:  peer = select_peer()
                   send select_to_send(peer)               ── leg 1 ──>   heard = select_to_keep(message)
                   heard = select_to_keep(message)         <── leg 2 ──   send select_to_send(peer, heard)
                   process_data(heard)                                    process_data(heard)
                   … until one side has nothing more to say, or a leg reaches `max_legs`

Rules:
1. What is answered is chosen before what was heard is processed. So both sides of an averaging see each other's old value.
2. Of its own exchanges a node keeps the last `max_open` open, so that an answer may take longer than a period. An answer that
   belongs to none of them, or that comes from another peer than was asked, is dropped and counted: nobody can push an
   answer onto a node that did not ask.
3. Legs alternate between the two and are bounded. The answering side keeps nothing per exchange: a flood of first legs
   costs an answer each and no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

from trunkline.clock import Clock
from trunkline.overlay.machine import Peer, Send

D = TypeVar("D")


class Gossip(Protocol[D]):
    """A gossip protocol. `D` is what its messages carry; each implementation says how it is bounded."""

    @property
    def max_legs(self) -> int:
        """How many messages an exchange has at most."""
        ...

    @property
    def max_open(self) -> int:
        """How many exchanges may wait for an answer; with one more, the oldest is given up."""
        ...

    def select_peer(self, random: Random) -> Peer | None:
        """Whom to gossip with in this period; None: with nobody."""
        ...

    def select_to_send(self, peer: Peer, heard: D | None) -> D | None:
        """What to tell a peer: `heard` is what it just told us, None when we begin. None: nothing (more) to say."""
        ...

    def select_to_keep(self, peer: Peer, received: D) -> D | None:
        """What of a message to believe: cut to its bounds, or None to drop it."""
        ...

    def process_data(self, peer: Peer, heard: D, sent: D | None) -> None:
        """Take in what was heard. `sent` is what of ours it answers, None when the peer began."""
        ...


class Leg(NamedTuple, Generic[D]):
    exchange: int
    """A number that the side that began gave."""
    number: int
    """1 for the first message of an exchange, then counting."""
    data: D


class _Open(NamedTuple, Generic[D]):
    peer: Peer
    sent: D


class Exchanger(Generic[D]):
    """The machine of one node and one protocol."""

    def __init__(
        self,
        protocol: Gossip[D],
        clock: Clock,
        random: Random,
        *,
        interval_ms: Callable[[Random], float],
    ) -> None:
        self.protocol = protocol
        self._clock = clock
        self._random = random
        self._interval_ms = interval_ms
        self._open: dict[int, _Open[D]] = {}  # by the exchange's number, the oldest first
        self._exchange = random.getrandbits(32)  # a node that starts again does not take answers to its former self
        self._next_ms = clock.monotonic_ms() + interval_ms(random)
        self.dropped = 0
        """Messages that belonged nowhere, or that the protocol would not believe."""

    def next_ms(self) -> float:
        return self._next_ms

    def wake(self) -> list[Send[Leg[D]]]:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return []
        self._next_ms = now_ms + self._interval_ms(self._random)
        return self.begin()

    def begin(self) -> list[Send[Leg[D]]]:
        """Begin an exchange at once, whatever the time."""
        peer = self.protocol.select_peer(self._random)
        if peer is None:
            return []
        data = self.protocol.select_to_send(peer, None)
        if data is None:
            return []
        self._exchange += 1
        self._open[self._exchange] = _Open(peer, data)
        if len(self._open) > self.protocol.max_open:
            del self._open[next(iter(self._open))]
        return [Send(peer, Leg(self._exchange, 1, data))]

    def receive(self, sender: Peer, message: Leg[D]) -> list[Send[Leg[D]]]:
        answers = message.number % 2 == 0
        opened = self._open.get(message.exchange) if answers else None
        known = opened is not None and opened.peer == sender
        if not 1 <= message.number <= self.protocol.max_legs or (answers and not known):
            self.dropped += 1
            return []
        sent = None if opened is None else opened.sent
        heard = self.protocol.select_to_keep(sender, message.data)
        if heard is None:
            self.dropped += 1
            return []
        reply = self.protocol.select_to_send(sender, heard) if message.number < self.protocol.max_legs else None
        if answers:
            # One answer to each leg: a second one would be processed against the same `sent`.
            del self._open[message.exchange]
            if reply is not None and message.number + 2 <= self.protocol.max_legs:
                self._open[message.exchange] = _Open(sender, reply)
        self.protocol.process_data(sender, heard, sent)
        return [] if reply is None else [Send(sender, Leg(message.exchange, message.number + 1, reply))]


def every(period_ms: float) -> Callable[[Random], float]:
    """The same time between two exchanges: nodes that start together stay together, as in the literature's rounds."""
    return lambda _random: period_ms


def at_random(mean_ms: float) -> Callable[[Random], float]:
    """Exponential times: of many nodes, the next to gossip is any of them. It keeps a network from falling into step."""
    return lambda random: random.expovariate(1 / mean_ms)
