"""The exchange under all periodic gossip: legs, bounds, and answers that nobody asked for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.clock import ManualClock
from trunkline.overlay.gossip.exchange import Exchanger, Leg, at_random, every
from trunkline.overlay.gossip.recent import Recent
from trunkline.overlay.machine import Peer


class Telling:
    """Says a number, and answers with one more."""

    def __init__(self, max_legs: int, peer: Peer | None = "other") -> None:
        self.max_legs = max_legs
        self.max_open = 2
        self.peer = peer
        self.processed: list[tuple[int, int | None]] = []

    def select_peer(self, random: Random) -> Peer | None:
        return self.peer

    def select_to_send(self, peer: Peer, heard: int | None) -> int | None:
        return 1 if heard is None else heard + 1

    def select_to_keep(self, peer: Peer, received: int) -> int | None:
        return received if received > 0 else None

    def process_data(self, peer: Peer, heard: int, sent: int | None) -> None:
        self.processed.append((heard, sent))


def exchanger(protocol: Telling, clock: ManualClock | None = None) -> Exchanger[int]:
    return Exchanger(protocol, clock or ManualClock(), Random(1), interval_ms=every(100))


def test_a_node_gossips_once_a_period() -> None:
    clock = ManualClock()
    node = exchanger(Telling(1), clock)
    assert node.wake() == []
    clock.advance(node.next_ms())
    assert [send.to for send in node.wake()] == ["other"]
    assert node.wake() == []
    assert node.next_ms() == 200


@pytest.mark.parametrize("max_legs", [1, 2, 3, 5])
def test_an_exchange_ends_with_its_last_leg(max_legs: int) -> None:
    ours, theirs = Telling(max_legs), Telling(max_legs)
    sides = {"here": exchanger(ours), "other": exchanger(theirs)}
    at, sends, legs = "here", sides["here"].begin(), 0
    while sends:
        legs += 1
        (send,) = sends
        before = at
        at = "other" if at == "here" else "here"
        sends = sides[at].receive(before, send.message)
    assert legs == max_legs
    assert [heard for heard, _ in theirs.processed] == list(range(1, max_legs + 1, 2))
    assert ours.processed == [(number, number - 1) for number in range(2, max_legs + 1, 2)]


def test_only_the_peer_that_was_asked_can_answer_and_only_once() -> None:
    protocol = Telling(2)
    node = exchanger(protocol)
    (send,) = node.begin()
    answer = Leg(send.message.exchange, 2, 7)
    node.receive("stranger", answer)
    node.receive("other", Leg(send.message.exchange + 1, 2, 7))
    assert not protocol.processed
    node.receive("other", answer)
    node.receive("other", answer)
    assert protocol.processed == [(7, 1)]
    assert node.dropped == 3


def test_an_answer_may_come_after_the_next_exchange_has_begun_but_not_after_too_many() -> None:
    protocol = Telling(2)
    node = exchanger(protocol)
    first, second, third = (node.begin()[0].message.exchange for _ in range(3))
    node.receive("other", Leg(first, 2, 5))
    assert not protocol.processed
    node.receive("other", Leg(second, 2, 6))
    node.receive("other", Leg(third, 2, 7))
    assert protocol.processed == [(6, 1), (7, 1)]


@given(st.integers(), st.integers(), st.integers())
def test_no_message_makes_a_node_fail_or_say_more_than_one_thing(exchange: int, number: int, data: int) -> None:
    node = exchanger(Telling(3))
    node.begin()
    assert len(node.receive("other", Leg(exchange, number, data))) <= 1


def test_random_intervals_have_their_mean() -> None:
    random, interval_ms = Random(1), at_random(50)
    assert sum(interval_ms(random) for _ in range(10_000)) / 10_000 == pytest.approx(50, rel=0.05)


def test_the_oldest_is_forgotten() -> None:
    recent: Recent[str, int] = Recent(2)
    for number, key in enumerate("abac"):
        recent.put(key, number)
    assert "a" not in recent
    assert recent.newest(5) == ["c", "b"]
