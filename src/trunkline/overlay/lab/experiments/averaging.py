"""Averaging: by which factor the variance shrinks in each cycle; and counting the nodes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.lab import averaging
from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CYCLES = 10
COUNTING_CYCLES = 40
WAYS = {
    "sequential": (averaging.sequential, 1 / (2 * math.sqrt(math.e))),
    "random pairs": (averaging.random_pairs, 1 / math.e),
    "perfect matching": (averaging.perfect_matchings, 1 / 4),
}


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for nodes in scale.sizes([10_000], [10_000, 100_000]):
        for way, (_, factor) in WAYS.items():
            figure = Figure(f"variance per cycle, {way}, N={nodes:,}", "factor", factor)
            settings.append(Setting(f"{way} n={nodes}", {"nodes": nodes, "way": way}, (figure,), large=nodes > 50_000))
    counted = scale.nodes or 10_000
    count = Figure(f"nodes counted after {COUNTING_CYCLES} cycles, N={counted:,}", "count", counted, 0.5)
    settings.append(Setting("counting", {"nodes": counted, "way": "sequential", "counting": 1}, (count,)))
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    nodes = int(parameters["nodes"])
    pairs, _ = WAYS[str(parameters["way"])]
    if "counting" in parameters:
        values = np.zeros(nodes)
        values[random.integers(nodes)] = 1.0
        for _ in range(COUNTING_CYCLES):
            averaging.apply(values, pairs(nodes, random))
        return Outcome({"count": float(1 / values[random.integers(nodes)])})
    values = random.standard_normal(nodes)
    course = [float(values.var())]
    for _ in range(CYCLES):
        averaging.apply(values, pairs(nodes, random))
        course.append(float(values.var()))
    return Outcome({"factor": (course[-1] / course[0]) ** (1 / CYCLES)}, course)


def draw(axes: Axes, results: Sequence[Result]) -> None:
    largest = max(int(result.setting.parameters["nodes"]) for result in results)
    for result in results:
        way = str(result.setting.parameters["way"])
        if result.setting.parameters["nodes"] != largest or "counting" in result.setting.parameters:
            continue
        course = np.mean([outcome.curve for outcome in result.outcomes], axis=0)
        (line,) = axes.plot(course, "o", fillstyle="none", label=f"{way}, N={largest:,}")
        factor = WAYS[way][1]
        axes.plot(
            [factor**cycle for cycle in range(CYCLES + 1)], color=line.get_color(), label=f"{factor:.4f} per cycle"
        )
    axes.set(yscale="log", xlabel="cycle", ylabel="variance")
    axes.legend()


EXPERIMENT = Experiment(
    "averaging",
    "Averaging: how fast all nodes come to the mean",
    "Jelasity, Montresor, Babaoglu 2005: 1/(2√e), 1/e, 1/4 per cycle",
    plan,
    simulate,
    draw,
)
