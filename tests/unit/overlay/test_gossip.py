"""Rumors, anti-entropy, aggregation, bimodal multicast and peer sampling, each between machines on a simulated network."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.overlay.gossip import anti_entropy, bimodal, rumor
from trunkline.overlay.gossip.aggregation import Averaging, Counting, Estimate
from trunkline.overlay.gossip.anti_entropy import AntiEntropy, Comparison, Direction
from trunkline.overlay.gossip.bimodal import BimodalMulticast, Multicast, Repair
from trunkline.overlay.gossip.exchange import Exchanger, Gossip, Leg, at_random, every
from trunkline.overlay.gossip.rumor import Interest, Rumor, RumorMongering, Tidings
from trunkline.overlay.gossip.sampling import Descriptor, PeerSampling, Views
from trunkline.overlay.gossip.versions import Entry, Replica
from trunkline.overlay.lab.network import SimulatedNetwork, at_once
from trunkline.overlay.machine import Peer

D = TypeVar("D")


def names(count: int) -> list[Peer]:
    return [f"n{number}" for number in range(count)]


def connected(
    protocols: dict[Peer, Gossip[D]], random: Random, interval_ms: Callable[[Random], float], loss: float = 0.0
) -> SimulatedNetwork[Leg[D]]:
    network: SimulatedNetwork[Leg[D]] = SimulatedNetwork(random, delay_ms=at_once, loss=loss)
    for peer, protocol in protocols.items():
        network.add(peer, Exchanger(protocol, network.clock, random, interval_ms=interval_ms))
    return network


def others(peers: list[Peer], peer: Peer) -> list[Peer]:
    return [other for other in peers if other != peer]


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("interest", list(Interest))
def test_every_kind_of_rumor_spreads_and_dies_down(interest: Interest, feedback: bool) -> None:
    random, peers = Random(1), names(200)
    nodes = {
        peer: RumorMongering(others(peers, peer), random, k=3, interest=interest, feedback=feedback) for peer in peers
    }
    nodes["n0"].add(Rumor("news", b"!"))
    network = connected(dict(nodes), random, at_random(100))
    network.run(until_ms=20_000)
    assert sum(node.knows("news") for node in nodes.values()) > 150
    assert not any(node.is_hot("news") for node in nodes.values())


def test_a_counter_tells_exactly_k_times_when_blind() -> None:
    node = RumorMongering(["other"], Random(1), k=3, interest=Interest.COUNTER, feedback=False)
    node.add(Rumor("news"))
    told = 0
    while node.select_to_send("other", None) is not None:
        told += 1
    assert told == 3


def test_feedback_counts_only_those_who_knew() -> None:
    node = RumorMongering(["other"], Random(1), k=1, interest=Interest.COUNTER)
    node.add(Rumor("news"))
    sent = node.select_to_send("other", None)
    node.process_data("other", Tidings(known=()), sent)
    assert node.is_hot("news")
    node.process_data("other", Tidings(known=("news",)), sent)
    assert not node.is_hot("news")


def test_messages_beyond_their_bounds_are_dropped() -> None:
    many = tuple(Rumor(str(number)) for number in range(rumor.MAX_RUMORS + 1))
    monger = RumorMongering([], Random(1), k=1)
    assert monger.select_to_keep("peer", Tidings(many)) is None
    assert monger.select_to_keep("peer", Tidings((Rumor("long", bytes(rumor.MAX_BODY_BYTES + 1)),))) is None
    comparer = AntiEntropy(Replica("here"), [])
    entries = tuple(Entry("w", number, "k", b"") for number in range(1, anti_entropy.MAX_ENTRIES + 2))
    assert comparer.select_to_keep("peer", Comparison(None, entries)) is None
    assert comparer.select_to_keep("peer", Comparison(None, (Entry("w", 0, "k", b""),))) is None
    averaging = Averaging([], lambda: 1.0)
    assert averaging.select_to_keep("peer", Estimate(0, float("nan"))) is None
    assert averaging.select_to_keep("peer", Estimate(10**9, 1.0)) is None
    multicast = BimodalMulticast([], lambda _message: None)
    assert multicast.select_to_keep("peer", Repair(digest=("a",) * (bimodal.MAX_DIGEST + 1))) is None
    sampling = PeerSampling("here", [], Random(1), size=4, heal=1, swap=1)
    assert sampling.select_to_keep("peer", Views(tuple(Descriptor(name, 0) for name in names(3)))) is None


def test_a_node_sends_no_more_than_its_peers_accept() -> None:
    monger = RumorMongering(["other"], Random(1), k=1)
    replica, comparer = Replica("here"), AntiEntropy(Replica("there"), [])
    for number in range(600):
        monger.add(Rumor(str(number)))
        replica.put(f"k{number}", bytes(1000))
    tidings = monger.select_to_send("other", None)
    assert tidings is not None
    assert monger.select_to_keep("other", tidings) is not None
    handed = AntiEntropy(replica, []).select_to_send("there", Comparison({}))
    assert handed is not None
    assert comparer.select_to_keep("here", handed) is not None
    assert handed.reached is None


@pytest.mark.parametrize("direction", list(Direction))
def test_anti_entropy_makes_replicas_equal_in_every_direction(direction: Direction) -> None:
    random, peers = Random(2), names(20)
    nodes = {peer: AntiEntropy(Replica(peer), others(peers, peer), direction) for peer in peers}
    for peer, node in nodes.items():
        for key in range(40):
            node.replica.put(f"{peer}-{key}", b"v")
            node.replica.put(f"shared-{key}", peer.encode())
    network = connected(dict(nodes), random, every(100), loss=0.2)
    network.run(until_ms=60_000)
    first = nodes["n0"].replica
    assert len(first) == 20 * 40 + 40
    assert all(node.replica.items() == first.items() for node in nodes.values())
    assert all(not node.replica.lacks(first.vector()) for node in nodes.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)), max_size=60), st.integers())
def test_replicas_agree_after_any_writes_and_exchanges(steps: list[tuple[int, int, int]], seed: int) -> None:
    random, peers = Random(seed), names(4)
    nodes = {peer: AntiEntropy(Replica(peer), others(peers, peer)) for peer in peers}
    network = connected(dict(nodes), random, every(100))
    for writer, key, rounds in steps:
        nodes[peers[writer]].replica.put(f"k{key}", str(random.random()).encode())
        network.run(until_ms=network.clock.monotonic_ms() + 100 * rounds)
    network.run(until_ms=network.clock.monotonic_ms() + 3_000)
    assert len({tuple(sorted(node.replica.items().items())) for node in nodes.values()}) == 1
    assert len({tuple(sorted(node.replica.vector().items())) for node in nodes.values()}) == 1


def test_a_full_replica_refuses_and_its_vector_does_not_lie() -> None:
    replica = Replica("here", max_entries=1)
    node = AntiEntropy(replica, [])
    entries = (Entry("w", 1, "a", b""), Entry("w", 2, "b", b""), Entry("w", 3, "a", b"x"))
    node.process_data("peer", Comparison(None, entries, {"w": 3}), None)
    assert replica.vector() == {"w": 1}
    with pytest.raises(OverflowError):
        replica.put("c", b"")


def test_averages_meet_at_the_mean() -> None:
    random, peers = Random(3), names(100)
    nodes = {peer: Averaging(others(peers, peer), lambda at=at: float(at)) for at, peer in enumerate(peers)}  # type: ignore[misc]
    connected(dict(nodes), random, at_random(100)).run(until_ms=4_000)
    assert all(node.value == pytest.approx(49.5, abs=1e-3) for node in nodes.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.integers())
def test_overlapping_exchanges_keep_the_sum(values: list[float], seed: int) -> None:
    random, peers = Random(seed), names(len(values))
    nodes = {
        peer: Averaging(others(peers, peer), lambda value=value: value)  # type: ignore[misc]
        for peer, value in zip(peers, values, strict=True)
    }
    network: SimulatedNetwork[Leg[Estimate]] = SimulatedNetwork(random, delay_ms=lambda source: source.uniform(0, 30))
    for peer, node in nodes.items():
        network.add(peer, Exchanger(node, network.clock, random, interval_ms=every(100)))
    network.run(until_ms=1_070)  # after the last answer, before the next exchange
    assert sum(node.value for node in nodes.values()) == pytest.approx(
        sum(values), abs=1e-6 * max(map(abs, values), default=1) + 1e-9
    )


def test_a_new_epoch_reaches_everybody_and_counts_anew() -> None:
    random, peers = Random(4), names(50)
    nodes = {peer: Counting(others(peers, peer), counts=lambda peer=peer: peer == "n0") for peer in peers}  # type: ignore[misc]
    network = connected(dict(nodes), random, every(100))
    network.run(until_ms=3_000)
    assert all(node.size() == pytest.approx(50, rel=0.01) for node in nodes.values())
    nodes["n7"].restart()
    network.run(until_ms=8_000)
    assert {node.epoch for node in nodes.values()} == {1}
    assert all(node.size() == pytest.approx(50, rel=0.01) for node in nodes.values())


def test_gossip_repairs_what_the_multicast_lost() -> None:
    random, peers = Random(5), names(60)
    delivered: dict[Peer, list[str]] = {peer: [] for peer in peers}
    nodes = {
        peer: BimodalMulticast(others(peers, peer), lambda message, peer=peer: delivered[peer].append(message.identity))  # type: ignore[misc]
        for peer in peers
    }
    for number in range(20):
        for peer, node in nodes.items():
            if peer == "n0" or random.random() < 0.6:
                node.accept(Multicast(f"m{number}", b"body"))
    connected(dict(nodes), random, every(100), loss=0.05).run(until_ms=1_000)
    assert all(sorted(got) == sorted(f"m{number}" for number in range(20)) for got in delivered.values())
    assert sum(node.repaired for node in nodes.values()) > 300


def test_what_is_old_is_not_gossiped_any_more() -> None:
    node = BimodalMulticast(["other"], lambda _message: None, max_rounds=2)
    node.accept(Multicast("old", b""))
    said = []
    for _ in range(4):
        node.select_peer(Random(1))
        said.append(node.select_to_send("other", None) is not None)
    assert said == [True, True, False, False]
    assert node.select_to_send("other", Repair(requested=("old",))) is None


def test_views_stay_full_mixed_and_free_of_the_dead() -> None:
    random, peers = Random(6), names(150)
    nodes = {
        peer: PeerSampling(peer, [peers[(at + step) % 150] for step in (1, 2, 3)], random, size=10, heal=2, swap=3)
        for at, peer in enumerate(peers)
    }
    network = connected(dict(nodes), random, every(100))
    network.run(until_ms=4_000)
    assert all(len(node.view()) == 10 and peer not in node.view() for peer, node in nodes.items())
    known = {peer: sum(peer in node.view() for node in nodes.values()) for peer in peers}
    assert min(known.values()) >= 1
    assert max(known.values()) <= 40
    dead = set(peers[:30])
    for peer in dead:
        network.crash(peer)
    network.run(until_ms=10_000)
    living = [node for peer, node in nodes.items() if peer not in dead]
    assert sum(len(dead & set(node.view())) for node in living) <= len(living) * 10 * 0.02
