"""Rumor mongering with feedback and coin: how many never hear of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting
from trunkline.overlay.lab.spreading import spread_rumor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED = {1: 0.203188, 2: 0.059520, 3: 0.019827, 4: 0.006977, 5: 0.002516, 6: 0.000918, 7: 0.000336}


def oblivious_fraction(k: int) -> float:
    """The solution below 1 of s = exp(-(k+1)(1-s))."""
    fraction = 0.0
    for _ in range(10_000):
        fraction = math.exp(-(k + 1) * (1 - fraction))
    return fraction


def plan(scale: Scale) -> list[Setting]:
    return [
        Setting(
            f"n={nodes} k={k}",
            {"nodes": nodes, "k": k},
            (
                Figure(f"oblivious, N={nodes:,}, k={k}", "oblivious", published, 5e-7),
                Figure(f"tellings per node, N={nodes:,}, k={k}", "tellings", None),
            ),
            large=nodes > 100_000,
        )
        for nodes in scale.sizes([10_000], [10_000, 1_000_000])
        for k, published in PUBLISHED.items()
    ]


def simulate(parameters: Parameters, seed: int) -> Outcome:
    nodes = int(parameters["nodes"])
    end = spread_rumor(nodes, int(parameters["k"]), np.random.default_rng(seed))
    return Outcome({"oblivious": end.oblivious / nodes, "tellings": end.tellings / nodes})


def draw(axes: Axes, results: Sequence[Result]) -> None:
    ks = sorted(PUBLISHED)
    axes.plot(ks, [oblivious_fraction(k) for k in ks], color="black", label="s = exp(-(k+1)(1-s))")
    for nodes in sorted({int(result.setting.parameters["nodes"]) for result in results}):
        of_size = [result for result in results if result.setting.parameters["nodes"] == nodes]
        points = [(int(result.setting.parameters["k"]), result.mean("oblivious")) for result in of_size]
        axes.plot(*zip(*points, strict=True), "o", fillstyle="none", label=f"simulated, N={nodes:,}")
    axes.set(yscale="log", xlabel="k: interest is lost with probability 1/k", ylabel="fraction that never hears of it")
    axes.legend()


EXPERIMENT = Experiment(
    "rumor",
    "Rumor mongering: who never hears of it",
    "Demers et al. 1987: s = exp(-(k+1)(1-s))",
    plan,
    simulate,
    draw,
)
