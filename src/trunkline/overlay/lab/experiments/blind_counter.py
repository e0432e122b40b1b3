"""Blind-counter rumor mongering beside flooding, on Barabási graphs: cost, reach and time.

Here every node is a machine of `gossip.forwarding` on the simulated network: the code that would run between brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from trunkline.overlay.gossip.forwarding import BlindCounter, Copy, Flooding, Forwarder
from trunkline.overlay.lab.experiment import Experiment, Figure, Kind, Outcome, Parameters, Result, Scale, Setting
from trunkline.overlay.lab.graphs import barabasi_albert
from trunkline.overlay.lab.network import SimulatedNetwork

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINKS = 3
FANOUT = 2
BOUND = 2
MEAN_DELAY = 1.15
TIMES = "message delays are not stated: Erlang-2 with mean 1.15, chosen so that flooding takes the published 8.94"
START = "the first four nodes are linked to each other; the source does not say"
# Of N = 100, 1,000, 10,000: cost, reach and time of rumors as parts of flooding's.
RATIOS = {100: (0.526, 0.937, 1.98), 1_000: (0.512, 0.911, 2.40), 10_000: (0.500, 0.923, 2.90)}
ABSOLUTE = {
    "flooding cost": (4990, 1, START),
    "flooding reach": (1000, 0, ""),
    "flooding time": (8.94, 0.005, TIMES),
    "rumor cost": (2555, 0.5, ""),
    "rumor reach": (918, 0.5, ""),
    "rumor time": (21.3, 0.05, TIMES),
}


def plan(scale: Scale) -> list[Setting]:
    settings = []
    for nodes in scale.sizes([100, 1_000], [100, 1_000, 10_000]):
        figures = []
        if nodes == 1_000:
            figures += [
                Figure(f"{name}, N=1,000", name, value, tolerance, Kind.RUN, assumption)
                for name, (value, tolerance, assumption) in ABSOLUTE.items()
            ]
        ratios = RATIOS.get(nodes, (None, None, None))
        for name, ratio in zip(("cost", "reach", "time"), ratios, strict=True):
            assumption = TIMES if name == "time" else ""
            tolerance = 0.005 if name == "time" else 0.0005
            figures.append(
                Figure(f"{name} of rumor / flooding, N={nodes:,}", name, ratio, tolerance, Kind.RUN, assumption)
            )
        settings.append(Setting(f"n={nodes}", {"nodes": nodes}, tuple(figures), large=nodes > 5_000))
    return settings


def simulate(parameters: Parameters, seed: int) -> Outcome:
    random = Random(seed)
    graph = barabasi_albert(int(parameters["nodes"]), LINKS, random)
    names = [str(node) for node in range(len(graph))]
    start = random.choice(names)
    flooding: dict[str, Forwarder] = {
        names[at]: Flooding([names[peer] for peer in peers], random) for at, peers in enumerate(graph)
    }
    rumors: dict[str, Forwarder] = {
        names[at]: BlindCounter([names[peer] for peer in peers], random, fanout=FANOUT, bound=BOUND)
        for at, peers in enumerate(graph)
    }
    flood_cost, flood_reach, flood_time = _spread(flooding, start, random)
    cost, reach, time = _spread(rumors, start, random)
    return Outcome(
        {
            "flooding cost": flood_cost,
            "flooding reach": flood_reach,
            "flooding time": flood_time,
            "rumor cost": cost,
            "rumor reach": reach,
            "rumor time": time,
            "cost": cost / flood_cost,
            "reach": reach / flood_reach,
            "time": time / flood_time,
        }
    )


def _spread(nodes: dict[str, Forwarder], start: str, random: Random) -> tuple[int, int, float]:
    """Messages, nodes that have it, and when the last message arrived, also a needless one."""
    network: SimulatedNetwork[Copy] = SimulatedNetwork(random, delay_ms=_delay)
    for name, node in nodes.items():
        network.add(name, node)
    network.post(start, nodes[start].publish("m"))
    network.run()
    return network.sent, sum(node.has("m") for node in nodes.values()), network.last_arrival_ms


def _delay(random: Random) -> float:
    return random.gammavariate(2, MEAN_DELAY / 2)


def draw(axes: Axes, results: Sequence[Result]) -> None:
    sizes = [int(result.setting.parameters["nodes"]) for result in results]
    for at, name in enumerate(("cost", "reach", "time")):
        (line,) = axes.plot(sizes, [result.mean(name) for result in results], "o-", fillstyle="none", label=name)
        known = [(size, RATIOS[size][at]) for size in sizes if size in RATIOS]
        if known:
            axes.plot(*zip(*known, strict=True), "x", color=line.get_color(), label=f"{name}, published")
    axes.set(xscale="log", xlabel="nodes", ylabel="blind counter / flooding", ylim=(0, None))
    axes.legend()


EXPERIMENT = Experiment(
    "blind-counter",
    "Blind counter (F=2, B=2) beside flooding on Barabási graphs of mean degree 6",
    "Portmann, Seneviratne 2002",
    plan,
    simulate,
    draw,
)
