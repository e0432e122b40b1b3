"""Epidemics in a complete graph, whole networks at a time: what the machines of `gossip` do, as operations on arrays.

Both are exact, not approximations: the same distribution as one machine a node, which the tests compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from trunkline.overlay.gossip.anti_entropy import Direction

MAX_ROUNDS = 10_000


@dataclass(frozen=True)
class RumorEnd:
    oblivious: int
    """Nodes that never heard of it."""
    tellings: int


def spread_rumor(nodes: int, k: int, random: Generator) -> RumorEnd:
    """Rumor mongering with feedback and coin, one hot node after the other telling one random other node.

    Who is hot matters only by their number. While `s` nodes are oblivious, a telling meets one of them with probability
    s/(n-1), so the failures before that are geometric; each costs a hot node with probability 1/k. So the whole course is
    one draw of failures and losses for each s, and the rumor dies in the first stage with more losses than hot nodes.
    """
    oblivious = np.arange(nodes - 1, 0, -1)
    failures = random.geometric(oblivious / (nodes - 1)) - 1
    losses = random.binomial(failures, 1 / k)
    hot_before = 1 + np.arange(nodes - 1) - np.concatenate(([0], np.cumsum(losses)[:-1]))
    dead = np.flatnonzero(hot_before - losses <= 0)
    if len(dead) == 0:
        return RumorEnd(0, int(failures.sum()) + nodes - 1)
    stage = int(dead[0])
    # The failures that cost a hot node are any of them: the rumor dies with the one that costs the last.
    costly = np.sort(random.permutation(int(failures[stage]))[: int(losses[stage])])
    last = int(costly[hot_before[stage] - 1]) + 1
    return RumorEnd(int(oblivious[stage]), int(failures[:stage].sum()) + stage + last)


def others(nodes: int, random: Generator) -> NDArray[np.int64]:
    """For each node a random other one."""
    chosen = random.integers(0, nodes - 1, nodes)
    return chosen + (chosen >= np.arange(nodes))


def rounds_to_all(nodes: int, direction: Direction, random: Generator) -> tuple[int, list[float]]:
    """Anti-entropy from one node in rounds: how many until all have it, and the fraction that has it after each."""
    has = np.zeros(nodes, dtype=bool)
    has[0] = True
    course = [1 / nodes]
    for number in range(1, MAX_ROUNDS):
        peers = others(nodes, random)
        before = has.copy()
        if direction is not Direction.PULL:
            has[peers[before]] = True
        if direction is not Direction.PUSH:
            has |= before[peers]
        course.append(float(np.count_nonzero(has)) / nodes)
        if has.all():
            return number, course
    raise RuntimeError("it does not spread")
