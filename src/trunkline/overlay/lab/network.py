"""A network in memory: machines, messages on their way, and a clock that jumps to the next event.

Everything is drawn from one random source in the order of events, so a run is repeated by its seed. Events at the same
time happen in the order in which they were caused. Messages are lost with a probability, on a cut link, and at a node that
crashed; a crashed node is not woken either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import Generic, TypeVar

from trunkline.clock import ManualClock
from trunkline.overlay.machine import Machine, Peer, Send

M = TypeVar("M")
Delay = Callable[[Random], float]


def at_once(_random: Random) -> float:
    return 0.0


class SimulatedNetwork(Generic[M]):
    def __init__(self, random: Random, *, delay_ms: Delay = at_once, loss: float = 0.0) -> None:
        if not 0 <= loss <= 1:
            raise ValueError("loss is a probability")
        self.clock = ManualClock()
        self.sent = 0
        self.last_arrival_ms = 0.0
        self._random = random
        self._delay_ms = delay_ms
        self._loss = loss
        self._nodes: dict[Peer, Machine[M]] = {}
        self._crashed: set[Peer] = set()
        self._cut: set[frozenset[Peer]] = set()
        self._serial = 0
        self._events: list[tuple[float, int, Peer, Send[M] | None]] = []  # a message of the peer's, or its waking
        self._waking_ms: dict[Peer, float] = {}

    def add(self, peer: Peer, node: Machine[M]) -> None:
        self._nodes[peer] = node
        self._crashed.discard(peer)
        self._waking_ms.pop(peer, None)
        self._schedule(peer)

    def crash(self, peer: Peer) -> None:
        self._crashed.add(peer)

    def cut(self, one: Peer, other: Peer) -> None:
        self._cut.add(frozenset((one, other)))

    def heal(self, one: Peer, other: Peer) -> None:
        self._cut.discard(frozenset((one, other)))

    def post(self, sender: Peer, sends: Iterable[Send[M]]) -> None:
        """Take messages on their way: what a node said outside of `receive` and `wake`."""
        now_ms = self.clock.monotonic_ms()
        for send in sends:
            self.sent += 1
            if self._loss and self._random.random() < self._loss:
                continue
            if self._cut and frozenset((sender, send.to)) in self._cut:
                continue
            self._push(now_ms + self._delay_ms(self._random), sender, send)
        if sender in self._nodes:
            self._schedule(sender)

    def run(self, until_ms: float | None = None, *, stop: Callable[[], bool] | None = None) -> None:
        """Let things happen until this time, until `stop` says so (asked after each event), or until nothing is left."""
        while self._events and (until_ms is None or self._events[0][0] <= until_ms):
            at_ms, _, peer, send = heappop(self._events)
            self._move_to(at_ms)
            if send is None:
                self._wake(peer, at_ms)
            elif send.to not in self._crashed and send.to in self._nodes:
                self.last_arrival_ms = at_ms
                self.post(send.to, self._nodes[send.to].receive(peer, send.message))
            if stop is not None and stop():
                return
        if until_ms is not None:
            self._move_to(until_ms)

    def _wake(self, peer: Peer, at_ms: float) -> None:
        if self._waking_ms.get(peer) != at_ms:
            return  # it has asked for another time since
        del self._waking_ms[peer]
        if peer not in self._crashed:
            self.post(peer, self._nodes[peer].wake())

    def _schedule(self, peer: Peer) -> None:
        next_ms = self._nodes[peer].next_ms()
        if next_ms is None:
            self._waking_ms.pop(peer, None)
        elif self._waking_ms.get(peer) != next_ms:
            self._waking_ms[peer] = next_ms
            self._push(max(next_ms, self.clock.monotonic_ms()), peer, None)

    def _push(self, at_ms: float, peer: Peer, send: Send[M] | None) -> None:
        self._serial += 1
        heappush(self._events, (at_ms, self._serial, peer, send))

    def _move_to(self, at_ms: float) -> None:
        passed_ms = at_ms - self.clock.monotonic_ms()
        if passed_ms > 0:
            self.clock.advance(passed_ms)
