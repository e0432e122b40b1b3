"""Averaging over whole networks: a cycle is a list of pairs, applied in its order, many at a time.

Two exchanges can be done together if they have no node in common. So, of the exchanges that are left, all are done at once
that come first for both of their nodes: the result is the same as one after the other, to the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from trunkline.overlay.lab.spreading import others

Pairs = NDArray[np.int64]
"""Two columns: the nodes of each exchange."""


def sequential(nodes: int, random: Generator) -> Pairs:
    """Each node begins one exchange, with a random other one. The order is another in each cycle: with always the same,
    the cycles are not independent of each other, and the variance shrinks faster than published, by 0.295."""
    return np.stack([np.arange(nodes), others(nodes, random)], axis=1)[random.permutation(nodes)]


def random_pairs(nodes: int, random: Generator) -> Pairs:
    """As many exchanges as nodes, each of two random nodes."""
    one = random.integers(0, nodes, nodes)
    other = random.integers(0, nodes - 1, nodes)
    return np.stack([one, other + (other >= one)], axis=1)


def perfect_matchings(nodes: int, random: Generator) -> Pairs:
    """Two matchings, so that each node takes part in exactly two exchanges (one may stay alone if their number is odd)."""
    halves = [random.permutation(nodes)[: nodes // 2 * 2].reshape(-1, 2) for _ in range(2)]
    return np.concatenate(halves)


def apply(values: NDArray[np.float64], pairs: Pairs) -> None:
    """Do the exchanges, in place."""
    first = np.empty(len(values), dtype=np.int64)
    while len(pairs):
        backwards = pairs[::-1]
        order = np.arange(len(pairs) - 1, -1, -1)
        # Of writes to the same place the last one stays: going backwards, that is the first exchange of each node.
        first[backwards.ravel()] = np.repeat(order, 2)
        here = np.arange(len(pairs))
        ready = (first[pairs[:, 0]] == here) & (first[pairs[:, 1]] == here)
        one, other = pairs[ready, 0], pairs[ready, 1]
        mean = (values[one] + values[other]) / 2
        values[one] = mean
        values[other] = mean
        pairs = pairs[~ready]
