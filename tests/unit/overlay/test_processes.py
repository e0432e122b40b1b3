"""Fifty processes that send each other datagrams do what fifty machines on the simulated network do.

What is compared does not depend on how long messages take, which on a busy machine nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

import pytest

from tests.unit.overlay.processes import run_processes
from tests.unit.overlay.test_agreement import assert_same_mean
from trunkline.clock import Clock
from trunkline.overlay.gossip.forwarding import BlindCounter, Copy, Flooding, Forwarder
from trunkline.overlay.lab.graphs import barabasi_albert
from trunkline.overlay.lab.network import SimulatedNetwork
from trunkline.overlay.machine import Peer, Send

NODES = 50
MESSAGES = [f"m{number}" for number in range(8)]
GRAPH = barabasi_albert(NODES, 3, Random(1))


@dataclass(frozen=True)
class Spreading:
    """Each of the first nodes publishes one message; a node finds how much it sent and what it has."""

    blind: bool

    def build(self, addresses: list[Peer], number: int, random: Random, clock: Clock) -> Forwarder:
        neighbours = [addresses[peer] for peer in GRAPH[number]]
        return BlindCounter(neighbours, random, fanout=2, bound=2) if self.blind else Flooding(neighbours, random)

    def begin(self, machine: Forwarder, number: int) -> Sequence[Send[Copy]]:
        return machine.publish(MESSAGES[number]) if number < len(MESSAGES) else []

    def read(self, machine: Forwarder) -> tuple[int, int]:
        return machine.sent, sum(machine.has(message) for message in MESSAGES)


def in_processes(script: Spreading, seed: int) -> tuple[float, float]:
    """Messages sent, and nodes reached, for each message that was published."""
    found = run_processes(NODES, script, seed)
    return sum(sent for sent, _ in found) / len(MESSAGES), sum(has for _, has in found) / len(MESSAGES)


def simulated(script: Spreading, seed: int) -> tuple[float, float]:
    random = Random(seed)
    network: SimulatedNetwork[Copy] = SimulatedNetwork(random, delay_ms=lambda source: source.expovariate(1.0))
    addresses = [str(number) for number in range(NODES)]
    nodes = [script.build(addresses, number, random, network.clock) for number in range(NODES)]
    for address, node in zip(addresses, nodes, strict=True):
        network.add(address, node)
    for number, (address, node) in enumerate(zip(addresses, nodes, strict=True)):
        network.post(address, script.begin(node, number))
    network.run()
    found = [script.read(node) for node in nodes]
    return sum(sent for sent, _ in found) / len(MESSAGES), sum(has for _, has in found) / len(MESSAGES)


def test_a_flood_costs_the_same_to_the_message() -> None:
    links = sum(map(len, GRAPH))
    assert in_processes(Spreading(blind=False), 0) == simulated(Spreading(blind=False), 0) == (links - NODES + 1, NODES)


@pytest.mark.slow
def test_blind_counters_cost_and_reach_as_much_as_simulated() -> None:
    script = Spreading(blind=True)
    ours = [in_processes(script, seed) for seed in range(5)]
    expected = [simulated(script, seed) for seed in range(100)]
    assert_same_mean([cost for cost, _ in ours], [cost for cost, _ in expected])
    assert_same_mean([reach for _, reach in ours], [reach for _, reach in expected])
    assert fmean(reach for _, reach in ours) > 0.85 * NODES
