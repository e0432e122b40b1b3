"""SWIM's probes over whole groups: what is found of a crash, and who is accused wrongly when messages are lost."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from trunkline.overlay.lab.spreading import others

MAX_PERIODS = 1_000


def periods_to_first_detection(nodes: int, random: Generator) -> int:
    """After the crash of one of them, each other probes a random member a period: in which one the crash is met."""
    for period in range(1, MAX_PERIODS):
        probed = random.integers(
            0, nodes - 1, nodes - 1
        )  # for each living member, one of its n - 1 others: 0 is the dead
        if np.any(probed == 0):
            return period
    raise RuntimeError("nobody probes it")


def accused(nodes: int, loss: float, indirect: int, random: Generator) -> int:
    """How many probes of one period, all of living members, stay without an ack."""
    arrives = 1 - loss
    direct = random.random((2, nodes)) < arrives  # ping, ack
    failed = np.flatnonzero(~direct.all(axis=0))
    # Through each of the others that are asked: request, ping, ack, ack.
    paths = random.random((4, indirect, len(failed))) < arrives
    return int(np.count_nonzero(~paths.all(axis=0).any(axis=0)))


def periods_to_all(nodes: int, random: Generator) -> int:
    """News that rides on every ping and its ack: in how many periods it is everywhere (push-pull)."""
    has = np.zeros(nodes, dtype=bool)
    has[0] = True
    for period in range(1, MAX_PERIODS):
        peers = others(nodes, random)
        before = has.copy()
        has[peers[before]] = True
        has |= before[peers]
        if has.all():
            return period
    raise RuntimeError("it does not spread")
