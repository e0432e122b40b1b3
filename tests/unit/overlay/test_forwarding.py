"""Flooding, blind counter and random walk over graphs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.overlay.gossip.forwarding import MAX_TTL, BlindCounter, Copy, Flooding, Forwarder, RandomWalk
from trunkline.overlay.lab.network import SimulatedNetwork

RING = {f"n{at}": [f"n{(at - 1) % 10}", f"n{(at + 1) % 10}"] for at in range(10)}


def spread(nodes: dict[str, Forwarder], ttl: int = MAX_TTL) -> int:
    network: SimulatedNetwork[Copy] = SimulatedNetwork(Random(1), delay_ms=lambda _random: 1.0)
    for peer, node in nodes.items():
        network.add(peer, node)
    network.post("n0", nodes["n0"].publish("m", ttl))
    network.run()
    return network.sent


def test_flooding_reaches_all_with_one_message_less_than_two_a_link_and_node() -> None:
    nodes: dict[str, Forwarder] = {peer: Flooding(links, Random(1)) for peer, links in RING.items()}
    assert spread(nodes) == 2 * 10 - 10 + 1
    assert all(node.has("m") for node in nodes.values())


@pytest.mark.parametrize("ttl", [1, 2, 3])
def test_a_flood_goes_as_far_as_its_time_to_live(ttl: int) -> None:
    nodes: dict[str, Forwarder] = {peer: Flooding(links, Random(1)) for peer, links in RING.items()}
    assert spread(nodes, ttl) == 2 * ttl
    assert sum(node.has("m") for node in nodes.values()) == 1 + 2 * ttl


def test_a_walk_takes_as_many_steps_as_its_time_to_live() -> None:
    nodes: dict[str, Forwarder] = {peer: RandomWalk(links, Random(at)) for at, (peer, links) in enumerate(RING.items())}
    assert spread(nodes, 25) == 25


def test_a_blind_counter_spares_those_who_are_known_to_have_it_and_stops_at_its_bound() -> None:
    node = BlindCounter(["a", "b", "c", "d", "e", "f"], Random(1), fanout=2, bound=2)
    first = {send.to for send in node.receive("a", Copy("m", 9))}
    second = {send.to for send in node.receive("b", Copy("m", 9))}
    assert len(first) == len(second) == 2
    assert not first & second
    assert "a" not in first | second
    assert node.receive("c", Copy("m", 9)) == []


@given(st.integers(), st.text(max_size=5))
def test_no_time_to_live_is_believed_beyond_its_bounds(ttl: int, identity: str) -> None:
    node = Flooding(["a", "b"], Random(1))
    sends = node.receive("a", Copy(identity, ttl))
    assert bool(sends) == (2 <= ttl <= MAX_TTL)
    assert node.dropped == (not 1 <= ttl <= MAX_TTL)
