"""What the benchmark measures: a case is a kind of work with a message size, an acks setting and a number of partitions.

A case is named as it is printed (`produce/100B/acks=all/8p`); a latency case yields two figures, named with `/p50` and
`/p99` at the end. `--case` globs match the names of figures. Figures whose unit is a rate are better when larger, all
others when smaller; `ratio` turns both into "above 1 means that we are better".
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

RATE = "msg/s"
ROWS = "rows/s"
MEGABYTES = "MB/s"
RATES = frozenset({RATE, ROWS, MEGABYTES})
MILLISECONDS = "ms"
SECONDS = "s"
MEBIBYTES = "MiB"

SIZES_BYTES = (100, 1000)
ACKS = ("1", "all")
PARTITIONS = (1, 8)

START_UP = "start-up"
MEMORY_IDLE = "memory/idle"
MEMORY_AFTER_LOAD = "memory/after-load"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of work. `acks` is empty where nothing is produced while the clock runs."""

    kind: str
    size_bytes: int
    acks: str
    partitions: int

    @property
    def name(self) -> str:
        size = f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"
        acks = f"acks={self.acks}/" if self.acks else ""
        return f"{self.kind}/{size}/{acks}{self.partitions}p"

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of what it yields."""
        return (f"{self.name}/p50", f"{self.name}/p99") if self.kind == "latency" else (self.name,)

    @property
    def unit(self) -> str:
        return MILLISECONDS if self.kind == "latency" else RATE


class Measured(Protocol):
    """A case of any protocol."""

    @property
    def name(self) -> str: ...
    @property
    def figures(self) -> tuple[str, ...]: ...
    @property
    def unit(self) -> str: ...


CaseT = TypeVar("CaseT", bound=Measured)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result. `peer` and `ratio` are None when only we were measured."""

    case: str
    unit: str
    ours: float
    peer: float | None

    @property
    def ratio(self) -> float | None:
        if self.peer is None or self.peer <= 0 or self.ours <= 0:
            return None
        return self.ours / self.peer if self.unit in RATES else self.peer / self.ours


def all_cases() -> tuple[Case, ...]:
    shapes = [(size, acks, partitions) for size in SIZES_BYTES for acks in ACKS for partitions in PARTITIONS]
    return (
        *(Case("produce", *shape) for shape in shapes),
        *(Case("consume", size, "", partitions) for size in SIZES_BYTES for partitions in PARTITIONS),
        *(Case("end-to-end", *shape) for shape in shapes),
        *(Case("latency", *shape) for shape in shapes),
    )


def is_selected(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def select(cases: Iterable[CaseT], globs: Sequence[str]) -> list[CaseT]:
    """The cases of which at least one figure was asked for."""
    return [case for case in cases if any(is_selected(figure, globs) for figure in case.figures)]


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The smallest sample that at least `fraction` of all samples do not exceed."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = -int(-fraction * len(ordered) // 1)
    return ordered[min(len(ordered), max(1, rank)) - 1]


def median(samples: Sequence[float]) -> float:
    return float(statistics.median(samples))
