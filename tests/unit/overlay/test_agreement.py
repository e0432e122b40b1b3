"""One machine a node, and whole networks as arrays: the same protocol, so the same figures.

Where the random choices can be given to both, they agree to the last digit; elsewhere in the mean, within what chance allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean, stdev

import numpy as np
import pytest

from trunkline.clock import ManualClock
from trunkline.overlay.gossip.aggregation import Averaging
from trunkline.overlay.gossip.anti_entropy import AntiEntropy, Comparison, Direction
from trunkline.overlay.gossip.bimodal import BimodalMulticast, Multicast, Repair
from trunkline.overlay.gossip.exchange import Exchanger, Leg, at_random, every
from trunkline.overlay.gossip.forwarding import Copy, Flooding, Forwarder, RandomWalk
from trunkline.overlay.gossip.rumor import Rumor, RumorMongering, Tidings
from trunkline.overlay.gossip.versions import Replica
from trunkline.overlay.lab import averaging
from trunkline.overlay.lab.experiments.swim import accusation, accuse_by_machines
from trunkline.overlay.lab.graphs import barabasi_albert, random_regular, reach_by_flooding, reach_by_walking
from trunkline.overlay.lab.network import SimulatedNetwork
from trunkline.overlay.lab.probing import accused
from trunkline.overlay.lab.repair import repair
from trunkline.overlay.lab.spreading import rounds_to_all, spread_rumor
from trunkline.overlay.machine import Peer


def assert_same_mean(one: Sequence[float], other: Sequence[float]) -> None:
    error = math.sqrt(stdev(one) ** 2 / len(one) + stdev(other) ** 2 / len(other))
    assert abs(fmean(one) - fmean(other)) <= 3.5 * error + 1e-12, (fmean(one), fmean(other), error)


def names(count: int) -> list[Peer]:
    return [f"n{number}" for number in range(count)]


def others(peers: list[Peer], at: int) -> list[Peer]:
    return peers[:at] + peers[at + 1 :]


@pytest.mark.parametrize("k", [1, 3])
def test_rumors(k: int) -> None:
    nodes, peers = 100, names(100)
    oblivious, told = [], []
    for seed in range(60):
        random = Random(seed)
        network: SimulatedNetwork[Leg[Tidings]] = SimulatedNetwork(random)
        machines = [RumorMongering(others(peers, at), random, k=k) for at in range(nodes)]
        for peer, machine in zip(peers, machines, strict=True):
            network.add(peer, Exchanger(machine, network.clock, random, interval_ms=at_random(1.0)))
        machines[0].add(Rumor("m"))
        network.run(stop=lambda machines=machines: not any(machine.is_hot("m") for machine in machines))  # type: ignore[misc]
        oblivious.append(sum(not machine.knows("m") for machine in machines))
        told.append(sum(machine.told for machine in machines))
    generator = np.random.default_rng(1)
    ends = [spread_rumor(nodes, k, generator) for _ in range(2_000)]
    assert_same_mean(oblivious, [end.oblivious for end in ends])
    assert_same_mean(told, [end.tellings for end in ends])


@pytest.mark.parametrize("direction", list(Direction))
def test_rounds_of_anti_entropy(direction: Direction) -> None:
    nodes, peers = 60, names(60)
    rounds = []
    for seed in range(60):
        random = Random(seed)
        # All begin together, and an exchange takes less than a round.
        network: SimulatedNetwork[Leg[Comparison]] = SimulatedNetwork(random, delay_ms=lambda _random: 1.0)
        machines = [AntiEntropy(Replica(peer), others(peers, at), direction) for at, peer in enumerate(peers)]
        for peer, machine in zip(peers, machines, strict=True):
            network.add(peer, Exchanger(machine, network.clock, random, interval_ms=every(100)))
        machines[0].replica.put("key", b"value")
        network.run(stop=lambda machines=machines: all(len(machine.replica) for machine in machines))  # type: ignore[misc]
        rounds.append(network.clock.monotonic_ms() // 100)
    generator = np.random.default_rng(1)
    assert_same_mean(rounds, [rounds_to_all(nodes, direction, generator)[0] for _ in range(1_000)])


@pytest.mark.parametrize("pairs", [averaging.sequential, averaging.random_pairs, averaging.perfect_matchings])
def test_averaging_is_the_same_to_the_last_digit(pairs: object) -> None:
    assert callable(pairs)
    generator = np.random.default_rng(2)
    nodes, peers = 50, names(50)
    values = generator.standard_normal(nodes)
    machines = [Averaging([], lambda value=float(value): value) for value in values]  # type: ignore[misc]
    exchangers = [Exchanger(machine, ManualClock(), Random(1), interval_ms=every(1)) for machine in machines]
    for _ in range(5):
        chosen = pairs(nodes, generator)
        averaging.apply(values, chosen)
        for one, other in chosen.tolist():
            machines[one]._peers = [peers[other]]
            (offer,) = exchangers[one].begin()
            (answer,) = exchangers[other].receive(peers[one], offer.message)
            assert exchangers[one].receive(peers[other], answer.message) == []
    assert values.tolist() == pytest.approx([machine.value for machine in machines], rel=1e-12, abs=1e-15)


def test_repairs_of_a_multicast() -> None:
    members, loss, max_rounds, peers = 40, 0.3, 4, names(40)
    reached = []
    for seed in range(150):
        random = Random(seed)
        network: SimulatedNetwork[Leg[Repair]] = SimulatedNetwork(random, delay_ms=lambda _random: 1.0, loss=loss)
        machines = [
            BimodalMulticast(others(peers, at), lambda _message: None, max_rounds=max_rounds) for at in range(members)
        ]
        for peer, machine in zip(peers, machines, strict=True):
            network.add(peer, Exchanger(machine, network.clock, random, interval_ms=every(100)))
        for machine in machines[:4]:
            machine.accept(Multicast("m", b""))
        network.run(until_ms=3_000)
        reached.append(sum(machine.has("m") for machine in machines))
    got = np.zeros((5_000, members), dtype=bool)
    got[:, :4] = True
    rounds = repair(got, loss, max_rounds, np.random.default_rng(3))
    assert_same_mean(reached, (rounds >= 0).sum(axis=1).tolist())


def test_floods_and_walks() -> None:
    generator, random = np.random.default_rng(4), Random(4)
    graph = random_regular(300, 4, generator)
    links = {f"n{at}": [f"n{peer}" for peer in peers] for at, peers in enumerate(graph.tolist())}
    expected = reach_by_flooding(graph, 0, 5)
    for ttl in range(1, 6):
        nodes: dict[Peer, Forwarder] = {peer: Flooding(neighbours, random) for peer, neighbours in links.items()}
        assert _reach(nodes, ttl) == expected[ttl]
    walked = []
    for _ in range(60):
        walkers: dict[Peer, Forwarder] = {peer: RandomWalk(neighbours, random) for peer, neighbours in links.items()}
        walked.append(_reach(walkers, 200))
    assert_same_mean(walked, [reach_by_walking(graph, 0, 200, generator)[-1] for _ in range(500)])


def _reach(nodes: dict[Peer, Forwarder], ttl: int) -> int:
    network: SimulatedNetwork[Copy] = SimulatedNetwork(Random(1), delay_ms=lambda _random: 1.0)
    for peer, node in nodes.items():
        network.add(peer, node)
    network.post("n0", nodes["n0"].publish("m", ttl))
    network.run()
    return sum(node.has("m") for node in nodes.values())


def test_accusations_of_swim() -> None:
    loss, nodes = 0.2, 30
    by_machines = [accuse_by_machines(nodes, loss, 20, Random(seed))[0] for seed in range(8)]
    generator = np.random.default_rng(5)
    as_arrays = [accused(1_000, loss, 3, generator) / 1_000 for _ in range(200)]
    assert_same_mean(by_machines, as_arrays)
    assert fmean(as_arrays) == pytest.approx(accusation(loss, 3), rel=0.03)


def test_graphs_are_what_they_are_called() -> None:
    graph = random_regular(501, 4, np.random.default_rng(6))
    rows = graph.tolist()
    for node, peers in enumerate(rows):
        assert len(set(peers)) == 4
        assert node not in peers
        assert all(node in rows[peer] for peer in peers)
    attached = barabasi_albert(1_000, 3, Random(6))
    assert sum(map(len, attached)) == 2 * (6 + 3 * 996)
    assert max(map(len, attached)) > 40  # hubs
    assert all(len(set(peers)) == len(peers) for peers in attached)
