"""Anti-entropy from one node to all, in rounds: push, pull, push-pull, and how the rounds grow with the logarithm of N."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.gossip.anti_entropy import Direction
from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting
from trunkline.overlay.lab.spreading import rounds_to_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDS = {Direction.PUSH: (22, 24), Direction.PULL: (17, 18), Direction.PUSH_PULL: (11, 12)}
# Rounds per unit of ln N, as N grows. Push spreads by doubling and ends by coupons; push-pull triples, and its end is short.
SLOPES = {Direction.PUSH: 1 / math.log(2) + 1, Direction.PULL: None, Direction.PUSH_PULL: None}


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for direction in Direction:
        for nodes in scale.sizes([10_000], [1_000, 10_000, 100_000, 1_000_000]):
            known = ROUNDS[direction] if nodes == 10_000 else None
            published, tolerance = (sum(known) / 2, (known[1] - known[0]) / 2) if known else (None, 0.0)
            figure = Figure(f"rounds, {direction.value}, N={nodes:,}", "rounds", published, tolerance)
            settings.append(
                Setting(
                    f"{direction.value} n={nodes}",
                    {"nodes": nodes, "direction": direction.value},
                    (figure,),
                    large=nodes > 100_000,
                )
            )
        small, large = (1_000, 30_000) if scale.quick else (1_000, 100_000)
        growth = Figure(f"rounds per ln N, {direction.value}, {small:,} to {large:,}", "slope", SLOPES[direction])
        settings.append(
            Setting(
                f"{direction.value} growth", {"nodes": large, "small": small, "direction": direction.value}, (growth,)
            )
        )
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    nodes, direction = int(parameters["nodes"]), Direction(str(parameters["direction"]))
    rounds, course = rounds_to_all(nodes, direction, random)
    if "small" not in parameters:
        return Outcome({"rounds": rounds}, course)
    small = int(parameters["small"])
    before, _ = rounds_to_all(small, direction, random)
    return Outcome({"slope": (rounds - before) / math.log(nodes / small)})


def draw(axes: Axes, results: Sequence[Result]) -> None:
    for direction in Direction:
        points = [
            (int(result.setting.parameters["nodes"]), result.mean("rounds"))
            for result in results
            if result.setting.parameters["direction"] == direction.value and "small" not in result.setting.parameters
        ]
        (line,) = axes.plot(*zip(*points, strict=True), "o-", fillstyle="none", label=direction.value)
        low, high = ROUNDS[direction]
        axes.plot([10_000, 10_000], [low, high], "|-", color=line.get_color(), linewidth=4, alpha=0.4)
    axes.set(
        xscale="log",
        xlabel="nodes (the bars are the published ranges)",
        ylabel="rounds until all have it",
        ylim=(0, None),
    )
    axes.legend()


EXPERIMENT = Experiment(
    "anti-entropy",
    "Anti-entropy: rounds from one node to all",
    "Demers et al. 1987; Pittel 1987: push takes log2 N + ln N + O(1)",
    plan,
    simulate,
    draw,
)
