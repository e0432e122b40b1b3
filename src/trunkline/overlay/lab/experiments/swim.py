"""SWIM: how soon a crash is found, how far the news has come, and how often loss accuses the living.

Large groups are simulated as arrays. The setting "machines" runs the members of `overlay.membership` on the simulated network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from trunkline.overlay.lab.experiment import Experiment, Figure, Outcome, Parameters, Result, Scale, Setting
from trunkline.overlay.lab.network import SimulatedNetwork
from trunkline.overlay.lab.probing import accused, periods_to_all, periods_to_first_detection
from trunkline.overlay.membership.members import State
from trunkline.overlay.membership.swim import Message, Probing, Settings, Swim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INDIRECT = 3
LOSSES = (0.05, 0.1, 0.2)
CRASHES = 20
"""Crashes in one run as arrays, of which the mean is taken."""
MACHINES = 50


def first_detection(nodes: int) -> float:
    """Expected periods until one of the others probes the crashed member; e/(e-1) in a large group."""
    return 1 / (1 - (1 - 1 / (nodes - 1)) ** (nodes - 1))


def accusation(loss: float, indirect: int) -> float:
    """The probability that a probe of a living member stays without an ack."""
    arrives = 1 - loss
    return float((1 - arrives**2) * (1 - arrives**4) ** indirect)


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for nodes in scale.sizes([50, 10_000], [50, 10_000, 1_000_000]):
        published = math.e / (math.e - 1) if nodes >= 10_000 else first_detection(nodes)
        settings.append(
            Setting(
                f"crash n={nodes}",
                {"kind": "crash", "nodes": nodes},
                (
                    Figure(f"periods to the first detection, N={nodes:,}", "periods", published),
                    Figure(f"periods until the news is everywhere, N={nodes:,}", "spread", None),
                ),
            )
        )
    nodes = scale.nodes or 10_000
    for loss in LOSSES:
        figure = Figure(
            f"living accused per probe, loss {loss:.0%}, N={nodes:,}", "accused", accusation(loss, INDIRECT)
        )
        settings.append(Setting(f"loss={loss} n={nodes}", {"kind": "loss", "nodes": nodes, "loss": loss}, (figure,)))
    settings.append(
        Setting(
            "machines crash",
            {"kind": "machines crash", "nodes": MACHINES},
            (Figure(f"periods to the first detection, {MACHINES} machines", "periods", first_detection(MACHINES)),),
        )
    )
    loss = LOSSES[-1]
    settings.append(
        Setting(
            "machines loss",
            {"kind": "machines loss", "nodes": MACHINES, "loss": loss, "periods": 10 if scale.quick else 30},
            (
                Figure(
                    f"living accused per probe, loss {loss:.0%}, {MACHINES} machines",
                    "accused",
                    accusation(loss, INDIRECT),
                ),
                Figure(f"living declared dead per probe, loss {loss:.0%}, {MACHINES} machines", "dead", None),
            ),
        )
    )
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    kind, nodes = str(parameters["kind"]), int(parameters["nodes"])
    if kind == "machines crash":
        return Outcome({"periods": detect_by_machines(nodes, Random(seed))})
    if kind == "machines loss":
        accusations, dead = accuse_by_machines(
            nodes, float(parameters["loss"]), int(parameters["periods"]), Random(seed)
        )
        return Outcome({"accused": accusations, "dead": dead})
    random = np.random.default_rng(seed)
    if kind == "crash":
        crashes = max(1, min(CRASHES, 2_000_000 // nodes))
        periods = [periods_to_first_detection(nodes, random) for _ in range(crashes)]
        return Outcome({"periods": float(np.mean(periods)), "spread": periods_to_all(nodes, random)})
    return Outcome({"accused": accused(nodes, float(parameters["loss"]), INDIRECT, random) / nodes})


def _group(nodes: int, random: Random, settings: Settings, loss: float) -> tuple[SimulatedNetwork[Message], list[Swim]]:
    network: SimulatedNetwork[Message] = SimulatedNetwork(
        random, delay_ms=lambda source: source.uniform(1, 20), loss=loss
    )
    names = [f"m{number}" for number in range(nodes)]
    machines = [Swim(name, network.clock, random, settings, names) for name in names]
    for name, machine in zip(names, machines, strict=True):
        network.add(name, machine)
    return network, machines


def detect_by_machines(nodes: int, random: Random) -> int:
    """A member crashes as a period begins: in how manieth period another one finds out."""
    settings = Settings(probing=Probing.RANDOM, suspicion_factor=0, indirect=INDIRECT)
    network, machines = _group(nodes, random, settings, 0.0)
    crashed, *living = machines
    network.crash(crashed.own)
    network.run(stop=lambda: any(machine.state_of(crashed.own) is State.DEAD for machine in living))
    # Probes begin with the first period and fail as it ends.
    return round(network.clock.monotonic_ms() / settings.period_ms) - 1


def accuse_by_machines(nodes: int, loss: float, periods: int, random: Random) -> tuple[float, float]:
    """Per probe: living members accused, and, with time to refute, declared dead by the first to do so."""
    settings = Settings(probing=Probing.RANDOM, indirect=INDIRECT)
    network, machines = _group(nodes, random, settings, loss)
    network.run((periods + 1.5) * settings.period_ms)
    probes = nodes * periods
    dead = {
        (change.member, change.incarnation)
        for machine in machines
        for change in machine.changes()
        if change.state is State.DEAD
    }
    return sum(machine.unanswered for machine in machines) / probes, len(dead) / probes


def draw(axes: Axes, results: Sequence[Result]) -> None:
    losses = np.linspace(0, 0.3, 61)[1:]
    axes.plot(losses, [accusation(loss, INDIRECT) for loss in losses], color="black", label="(1-q²)(1-q⁴)³")
    for kind, mark in (("loss", "o"), ("machines loss", "x")):
        of_kind = [result for result in results if result.setting.parameters["kind"] == kind]
        points = [(float(result.setting.parameters["loss"]), result.mean("accused")) for result in of_kind]
        nodes = int(of_kind[0].setting.parameters["nodes"])
        name = f"{nodes:,} machines" if mark == "x" else f"simulated, N={nodes:,}"
        axes.plot(*zip(*points, strict=True), mark, fillstyle="none", label=name)
    axes.set(yscale="log", xlabel="loss of a message", ylabel="probes that accuse a living member")
    axes.legend()


EXPERIMENT = Experiment(
    "swim",
    "SWIM: detection time, and false positives with loss",
    "Das, Gupta, Motivala 2002: e/(e-1) periods; (1-q²)(1-q⁴)^k per probe",
    plan,
    simulate,
    draw,
)
