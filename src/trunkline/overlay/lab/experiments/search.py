"""Flooding with a time to live, and random walks, on random regular graphs: how many nodes they meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting
from trunkline.overlay.lab.graphs import random_regular, reach_by_flooding, reach_by_walking

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEGREE = 4
MAX_TTL = 4
WALKS = (0.5, 1.0, 2.0)
"""Lengths, in N steps."""
POINTS = 50


def reached_in_a_tree(degree: int, ttl: int) -> int:
    """What a flood reaches as long as it meets nobody twice."""
    return int(1 + degree * ((degree - 1) ** ttl - 1) // (degree - 2))


def visited(degree: int, steps_per_node: float) -> float:
    """Cooper, Frieze: the fraction that a walk of t steps has visited is 1 - exp(-(r-2)/(r-1) · t/N)."""
    return 1 - math.exp(-(degree - 2) / (degree - 1) * steps_per_node)


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for nodes in scale.sizes([20_000], [20_000, 100_000]):
        figures = [
            Figure(
                f"reached by flooding, TTL {ttl}, N={nodes:,}",
                f"ttl {ttl}",
                reached_in_a_tree(DEGREE, ttl),
                # Two nodes of the tree may be one: that shortens it by pairs of links over N.
                reached_in_a_tree(DEGREE, ttl) ** 2 * DEGREE / nodes,
            )
            for ttl in range(1, MAX_TTL + 1)
        ]
        figures += [
            Figure(
                f"visited by a walk of {length:g} N steps, N={nodes:,}",
                f"walk {length}",
                visited(DEGREE, length),
                10 / nodes,  # the limit of a large graph
            )
            for length in WALKS
        ]
        settings.append(Setting(f"n={nodes}", {"nodes": nodes}, tuple(figures), large=nodes > 50_000))
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    nodes = int(parameters["nodes"])
    graph = random_regular(nodes, DEGREE, random)
    flood = reach_by_flooding(graph, int(random.integers(nodes)), MAX_TTL)
    steps = [int(length * nodes) for length in WALKS]
    walk = reach_by_walking(graph, int(random.integers(nodes)), max(steps), random)
    measures: dict[str, float] = {f"ttl {ttl}": flood[ttl] for ttl in range(1, MAX_TTL + 1)}
    measures |= {f"walk {length}": walk[at] / nodes for length, at in zip(WALKS, steps, strict=True)}
    return Outcome(measures, [walk[at * (len(walk) - 1) // POINTS] / nodes for at in range(POINTS + 1)])


def draw(axes: Axes, results: Sequence[Result]) -> None:
    lengths = np.linspace(0, max(WALKS), POINTS + 1)
    axes.plot(
        lengths, [visited(DEGREE, length) for length in lengths], color="black", label="1 - exp(-(r-2)/(r-1) · t/N)"
    )
    for result in results:
        course = np.mean([outcome.curve for outcome in result.outcomes], axis=0)
        nodes = int(result.setting.parameters["nodes"])
        axes.plot(lengths, course, "o", fillstyle="none", markersize=3, label=f"walks, N={nodes:,}")
    axes.set(xlabel="steps / N", ylabel="fraction of the nodes visited")
    axes.legend()


EXPERIMENT = Experiment(
    "search",
    "Flooding with a time to live, and random walks, on random 4-regular graphs",
    "Cooper, Frieze 2005: a walk of t steps visits 1 - exp(-(r-2)/(r-1) · t/N)",
    plan,
    simulate,
    draw,
)
