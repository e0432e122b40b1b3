"""Bimodal multicast over a whole group, many messages at a time: rows are messages, columns are members.

A round: whoever got a message at most `max_rounds` rounds ago sends its digest to a random other member, which asks for what it
misses and gets it. Each of the three messages is lost with probability `loss`.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

MAX_ROUNDS = 1_000


def repair(got: NDArray[np.bool_], loss: float, max_rounds: int, random: Generator) -> NDArray[np.int64]:
    """From who got what by the multicast, the round in which each member has each message: 0 by multicast, -1 never."""
    messages, members = got.shape
    rounds = np.where(got, 0, -1).astype(np.int64)
    survives = (1 - loss) ** 3
    columns = np.arange(members)
    for number in range(1, MAX_ROUNDS):
        fresh = (rounds >= 0) & (number - rounds <= max_rounds)
        if not fresh.any() or (rounds >= 0).all():
            break
        peers = random.integers(0, members - 1, (messages, members))
        peers += peers >= columns
        arrives = fresh & (random.random((messages, members)) < survives)
        row, column = np.nonzero(arrives)
        told = np.zeros_like(got)
        told[row, peers[row, column]] = True
        rounds[told & (rounds < 0)] = number
    return rounds
