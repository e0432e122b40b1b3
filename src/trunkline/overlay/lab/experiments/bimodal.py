"""Bimodal multicast: delivery is to almost all or almost none, and latency has two modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting
from trunkline.overlay.lab.repair import repair

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A sender that dies with its message at itself only, on a network bad enough for the message to die out now and then.
FEW_LOSS, FEW_ROUNDS = 0.4, 20
LOST = 0.2
ROUND_MS = 100.0
BINS = 20


def dies_out(loss: float, max_rounds: int) -> float:
    """The probability that one holder's message ends with it and all who got it from it, in a large group.

    In each round it is handed on with (1-loss)³, the probability that digest, request and answer arrive.
    """
    handed_on = (1 - loss) ** 3
    extinct = 0.0
    for _ in range(10_000):
        extinct = (1 - handed_on + handed_on * extinct) ** max_rounds
    return extinct


def repaired_at_once(got: float, loss: float) -> float:
    """Of those the multicast missed, the part that the first round reaches: a digest comes from each holder with 1/N."""
    return 1 - math.exp(-got * (1 - loss) ** 3)


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for nodes in scale.sizes([500], [500, 5_000]):
        messages = max(10, 500_000 // nodes) // (10 if scale.quick else 1)
        settings.append(
            Setting(
                f"dying sender n={nodes}",
                {"nodes": nodes, "messages": messages, "sender dies": 1},
                (
                    Figure(f"delivered to under 10 %, N={nodes:,}", "none", dies_out(FEW_LOSS, FEW_ROUNDS)),
                    Figure(f"delivered to 10 to 90 %, N={nodes:,}", "between", 0.0, 0.001),
                ),
                large=nodes > 1_000,
            )
        )
        settings.append(
            Setting(
                f"two modes n={nodes}",
                {"nodes": nodes, "messages": max(2, 20_000 // nodes), "sender dies": 0},
                (
                    Figure(f"delivered by the multicast, N={nodes:,}", "first mode", 1 - LOST),
                    Figure(
                        f"of the missed, repaired in the first round, N={nodes:,}",
                        "second mode",
                        repaired_at_once(1 - LOST, 0.0),
                        0.5 / nodes,  # the limit of a large group
                    ),
                    Figure(f"mean time of a repair (ms), N={nodes:,}", "repair ms", None),
                    Figure(f"delivered in the end, N={nodes:,}", "all", 1.0, 1e-4),
                ),
            )
        )
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    shape = int(parameters["messages"]), int(parameters["nodes"])
    if parameters["sender dies"]:
        got = np.zeros(shape, dtype=bool)
        got[:, 0] = True
        reached = (repair(got, FEW_LOSS, FEW_ROUNDS, random) >= 0).mean(axis=1)
        none, most = float((reached < 0.1).mean()), float((reached > 0.9).mean())
        shares = np.histogram(reached, bins=BINS, range=(0, 1))[0] / len(reached)
        return Outcome({"none": none, "between": 1 - none - most}, shares.tolist())
    rounds = repair(random.random(shape) >= LOST, 0.0, 10, random)
    late = rounds[rounds != 0]
    return Outcome(
        {
            "first mode": float((rounds == 0).mean()),
            "second mode": float((late == 1).mean()),
            "repair ms": float(late[late > 0].mean()) * ROUND_MS,
            "all": float((rounds >= 0).mean()),
        }
    )


def draw(axes: Axes, results: Sequence[Result]) -> None:
    for result in results:
        if result.setting.parameters["sender dies"]:
            shares = np.mean([outcome.curve for outcome in result.outcomes], axis=0)
            nodes = int(result.setting.parameters["nodes"])
            axes.stairs(np.maximum(shares, 1e-6), np.linspace(0, 1, BINS + 1), label=f"N={nodes:,}", baseline=1e-6)
    axes.axhline(dies_out(FEW_LOSS, FEW_ROUNDS), color="black", linewidth=0.5, label="dies out, by theory")
    axes.set(yscale="log", xlabel="fraction of the members that got it", ylabel="part of the messages")
    axes.legend()


EXPERIMENT = Experiment(
    "bimodal",
    "Bimodal multicast: almost all or almost none, and two modes of latency",
    "Birman et al. 1999 (the shape); branching process and digests by chance (the figures)",
    plan,
    simulate,
    draw,
)
