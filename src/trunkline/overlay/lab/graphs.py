"""Graphs to spread things over: neighbours as lists, and the same as arrays of links."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Neighbours: TypeAlias = list[list[int]]


def barabasi_albert(nodes: int, links: int, random: Random) -> Neighbours:
    """Preferential attachment: a newcomer links to `links` nodes, each chosen in proportion to its degree.

    The first `links` + 1 nodes are all linked to each other. The mean degree is about 2 · `links`.
    """
    if nodes <= links:
        raise ValueError("more nodes than links of one, please")
    neighbours: Neighbours = [[] for _ in range(nodes)]
    ends: list[int] = []  # every node as often as it has links

    def link(one: int, other: int) -> None:
        neighbours[one].append(other)
        neighbours[other].append(one)
        ends.extend((one, other))

    for one in range(links + 1):
        for other in range(one):
            link(one, other)
    for newcomer in range(links + 1, nodes):
        chosen: set[int] = set()
        while len(chosen) < links:
            chosen.add(random.choice(ends))
        for other in sorted(chosen):
            link(newcomer, other)
    return neighbours


def random_regular(nodes: int, degree: int, random: Generator) -> NDArray[np.int64]:
    """For each node its `degree` neighbours, by random pairing of the ends; pairs that would be a loop or a second link
    are drawn again among each other and a few that are good."""
    if nodes * degree % 2 or nodes <= degree:
        raise ValueError("nodes times degree is even, and there are more nodes than that")
    ends = random.permutation(np.repeat(np.arange(nodes), degree)).reshape(-1, 2)
    while True:
        ends.sort(axis=1)
        keys = ends[:, 0] * nodes + ends[:, 1]
        (
            _,
            firsts,
        ) = np.unique(keys, return_index=True)
        bad = np.ones(len(ends), dtype=bool)
        bad[firsts] = False
        bad |= ends[:, 0] == ends[:, 1]
        if not bad.any():
            break
        again = np.union1d(np.flatnonzero(bad), random.integers(0, len(ends), 4 * np.count_nonzero(bad) + 4))
        ends[again] = random.permutation(ends[again].ravel()).reshape(-1, 2)
    directed = np.concatenate([ends, ends[:, ::-1]])
    directed = directed[np.argsort(directed[:, 0], kind="stable")]
    return directed[:, 1].reshape(nodes, degree)


def reach_by_flooding(neighbours: NDArray[np.int64], start: int, max_ttl: int) -> list[int]:
    """How many nodes a flood has reached with each time to live, 0 (only the start) and on."""
    seen = np.zeros(len(neighbours), dtype=bool)
    seen[start] = True
    frontier = np.array([start])
    reached = [1]
    for _ in range(max_ttl):
        ahead = np.unique(neighbours[frontier].ravel())
        frontier = ahead[~seen[ahead]]
        seen[frontier] = True
        reached.append(reached[-1] + len(frontier))
    return reached


def reach_by_walking(neighbours: NDArray[np.int64], start: int, steps: int, random: Generator) -> list[int]:
    """How many different nodes a random walk has met after each step."""
    links = neighbours.tolist()
    choices = random.integers(0, neighbours.shape[1], steps).tolist()
    seen = bytearray(len(links))
    seen[start] = 1
    at, count, reached = start, 1, [1]
    for choice in choices:
        at = links[at][choice]
        if not seen[at]:
            seen[at] = 1
            count += 1
        reached.append(count)
    return reached
