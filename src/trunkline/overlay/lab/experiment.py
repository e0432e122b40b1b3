"""An experiment: settings to simulate with many seeds, and the published figures that the outcomes are held against.

A figure is judged by one of two intervals, and the published value has to lie in it, give or take its own rounding:

| kind | interval | for |
|---|---|---|
| `MEAN` | the mean over the seeds, three standard errors to either side | a value that theory gives exactly |
| `RUN` | where 95 of 100 single runs lie | a value that somebody measured, in an unknown number of runs |

A figure without a published value is only reported.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_SEEDS = 30
Value: TypeAlias = int | float | str
Parameters: TypeAlias = Mapping[str, Value]


class Kind(Enum):
    MEAN = "mean"
    RUN = "run"


@dataclass(frozen=True)
class Figure:
    case: str
    measure: str
    """Its name in the outcome of a run."""
    published: float | None = None
    tolerance: float = 0.0
    """Half a unit of the last published digit, or half of a published range."""
    kind: Kind = Kind.MEAN
    assumption: str = ""
    """What the source leaves open and we chose, if the figure depends on it."""


@dataclass(frozen=True)
class Setting:
    """What one run is given, and what is read off it."""

    label: str
    parameters: Parameters
    figures: tuple[Figure, ...]
    large: bool = False


@dataclass(frozen=True)
class Outcome:
    """What one run found."""

    measures: Mapping[str, float]
    curve: Sequence[float] = ()
    """A course over time, for the picture."""


@dataclass(frozen=True)
class Scale:
    """How much to do."""

    seeds: int = 100
    """Runs of a setting; of a large one, which takes seconds each, `large_seeds`."""
    large_seeds: int = MIN_SEEDS
    quick: bool = False
    nodes: int | None = None
    """Instead of the sizes that an experiment would take by itself."""

    def sizes(self, quick: Sequence[int], full: Sequence[int]) -> Sequence[int]:
        if self.nodes is not None:
            return (self.nodes,)
        return quick if self.quick else full


@dataclass(frozen=True)
class Result:
    setting: Setting
    outcomes: Sequence[Outcome]

    def values(self, measure: str) -> list[float]:
        return [outcome.measures[measure] for outcome in self.outcomes]

    def mean(self, measure: str) -> float:
        return fmean(self.values(measure))


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    source: str
    plan: Callable[[Scale], list[Setting]]
    simulate: Callable[[Parameters, int], Outcome]
    """One run, from its parameters and its seed alone."""
    draw: Callable[[Axes, Sequence[Result]], None]
    notes: tuple[str, ...] = field(default=())


class Task(NamedTuple):
    """One run, as it travels to whoever does it."""

    experiment: str
    setting: int
    parameters: dict[str, Value]
    seed: int


def tasks_of(experiment: Experiment, settings: Sequence[Setting], scale: Scale, seed: int) -> list[Task]:
    return [
        Task(experiment.name, at, dict(setting.parameters), seed_of(seed, experiment.name, setting.label, run))
        for at, setting in enumerate(settings)
        for run in range(scale.large_seeds if setting.large else scale.seeds)
    ]


def seed_of(seed: int, experiment: str, label: str, run: int) -> int:
    """Each run has a seed of its own, which does not depend on what else is run or where."""
    text = f"{seed}/{experiment}/{label}/{run}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Judgement:
    """A published figure beside ours."""

    experiment: str
    figure: Figure
    seeds: int
    ours: float
    low: float
    high: float

    @property
    def within(self) -> bool | None:
        """Whether the published figure lies in our interval; None if there is none."""
        published, tolerance = self.figure.published, self.figure.tolerance
        if published is None:
            return None
        return self.low - tolerance <= published + _ROUNDING and published - _ROUNDING <= self.high + tolerance

    @property
    def deviation(self) -> float | None:
        """Relative to the published figure; None where there is none, or it is zero."""
        if not self.figure.published:
            return None
        return self.ours / self.figure.published - 1


_ROUNDING = 1e-12


def judge(experiment: Experiment, result: Result) -> list[Judgement]:
    judgements = []
    for figure in result.setting.figures:
        values = result.values(figure.measure)
        low, high = _interval(values, figure.kind)
        judgements.append(Judgement(experiment.name, figure, len(values), fmean(values), low, high))
    return judgements


def _interval(values: Sequence[float], kind: Kind) -> tuple[float, float]:
    mean = fmean(values)
    if kind is Kind.MEAN:
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return mean - 3 * error, mean + 3 * error
    ordered = sorted(values)
    beyond = int(0.025 * len(ordered))
    return ordered[beyond], ordered[-1 - beyond]
