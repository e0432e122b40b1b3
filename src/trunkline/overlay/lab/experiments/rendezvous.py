"""Rendezvous by consistent hashing: how evenly topics are spread over the nodes that are responsible for them.

A node has `points` places on the ring and all that lies before each. Its share of the ring is then Gamma-distributed with
that shape: with one place exponentially, so the busiest hundredth of the nodes has at least ln 100 = 4.6 times the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = (1, 20)


def gamma_quantile(shape: int, part: float) -> float:
    """Of a Gamma distribution with this whole shape and mean 1, by bisection of its distribution function."""
    low, high = 0.0, 50.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        rate = shape * middle
        below = 1 - math.exp(-rate) * sum(rate**term / math.factorial(term) for term in range(shape))
        low, high = (middle, high) if below < part else (low, middle)
    return low


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for nodes in scale.sizes([10_000], [100_000]):
        for points in POINTS:
            figures = [
                # The quantile of N shares differs from the distribution's by less than this in the mean.
                Figure(
                    f"{name} of the shares / mean, {points} places, N={nodes:,}",
                    name,
                    gamma_quantile(points, part),
                    50 / nodes,
                )
                for name, part in (("99th percentile", 0.99), ("1st percentile", 0.01))
            ]
            settings.append(Setting(f"points={points} n={nodes}", {"nodes": nodes, "points": points}, tuple(figures)))
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    nodes, points = int(parameters["nodes"]), int(parameters["points"])
    places = random.random(nodes * points)
    owners = np.repeat(np.arange(nodes), points)
    order = np.argsort(places)
    ring = places[order]
    shares = np.bincount(owners[order], weights=np.diff(ring, prepend=ring[-1] - 1), minlength=nodes) * nodes
    high, low = np.quantile(shares, [0.99, 0.01])
    curve = np.histogram(shares, bins=60, range=(0, 6))[0] / nodes * 10
    return Outcome({"99th percentile": float(high), "1st percentile": float(low)}, curve.tolist())


def draw(axes: Axes, results: Sequence[Result]) -> None:
    for result in results:
        density = np.mean([outcome.curve for outcome in result.outcomes], axis=0)
        axes.stairs(density, np.linspace(0, 6, 61), label=f"{result.setting.parameters['points']} places a node")
    axes.set(xlabel="a node's share / mean", ylabel="density")
    axes.legend()


EXPERIMENT = Experiment(
    "rendezvous",
    "Rendezvous by consistent hashing: balance of load",
    "Karger et al. 1997, Stoica et al. 2001; shares are Gamma-distributed",
    plan,
    simulate,
    draw,
)
