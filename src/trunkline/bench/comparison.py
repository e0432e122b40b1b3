"""Runs the cases of a contest against one broker or two, in turn, and reduces the repetitions to figures.

A `Contest` says what is compared: the cases, the two brokers, and how a case is measured on one of them. There is one per
protocol.

The machine is assumed to be small and noisy. So only one broker runs at a time; the other is paused (SIGSTOP), because an
idle one still takes some of the processor for its timers, its compiler and its collector. A
case is measured on both before the next case begins, in the order ours, peer, then peer, ours, and so on, so that a slow
minute hits both alike; and the figure is the **median** of the repetitions, for latency, of which a contest may have more, the
median of each one's percentile. Before each measurement dirty pages are written out, so that nobody pays for what another wrote. Before the first case both brokers get the
same warm-up load, which is not counted: a virtual machine needs it to compile its hot paths.

Start-up time and idle memory are taken first, on an empty data directory, `SETTLE_S` after the broker served; memory
once more after all cases.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from trunkline.bench.cases import (
    MEBIBYTES,
    MEMORY_AFTER_LOAD,
    MEMORY_IDLE,
    SECONDS,
    START_UP,
    Figure,
    Measured,
    is_selected,
    median,
    select,
)

SETTLE_S = 2.0
RESUME_S = 0.1  # for what a broker does when it finds that time has passed, and when topics are deleted

CaseT = TypeVar("CaseT", bound=Measured)


class Side(Protocol):
    """A broker under test. `start_up_s` is 0 and memory unknown for one that someone else started."""

    @property
    def address(self) -> str: ...
    @property
    def start_up_s(self) -> float: ...
    def resident_bytes(self) -> int: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self) -> None: ...


class Contest(Protocol[CaseT]):
    """What is compared with what."""

    @property
    def peer_name(self) -> str: ...
    @property
    def peer_version(self) -> str: ...
    @property
    def cases(self) -> Sequence[CaseT]: ...
    @property
    def warm_up_cases(self) -> Sequence[CaseT]: ...
    @property
    def warm_up_rounds(self) -> int: ...
    @property
    def repetitions(self) -> int: ...
    def rounds(self, case: CaseT) -> int:
        """How often each repetition measures the case: a percentile varies more than a rate."""

    def start_ours(self) -> AbstractContextManager[Side]: ...
    def start_peer(self) -> AbstractContextManager[Side]: ...
    def measure(self, case: CaseT, side: Side) -> list[float]:
        """One value per figure of the case, which may keep what later repetitions can use again."""

    def clean_up(self) -> None:
        """Remove what `measure` kept, while the brokers are still up."""


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that was already there: it is loaded, but neither started, weighed nor stopped."""

    address: str
    start_up_s: float = 0.0

    def resident_bytes(self) -> int:
        return 0

    def pause(self) -> None:
        return

    def resume(self) -> None:
        return

    def stop(self) -> None:
        return


@dataclass(slots=True)
class _Samples:
    """The repetitions of one figure."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Comparison(Generic[CaseT]):
    """One benchmark. `run` returns the figures; `on_step` hears what is about to be measured and of how many steps."""

    contest: Contest[CaseT]
    with_peer: bool
    globs: Sequence[str] = ()
    address: str | None = None
    on_step: Callable[[str, int], None] = lambda _description, _steps: None
    _samples: dict[str, tuple[str, _Samples]] = field(default_factory=dict)
    _steps: int = 0

    def run(self) -> list[Figure]:
        cases = select(self.contest.cases, self.globs)
        self._steps = self._count_steps(cases)
        with self._side(ours=True) as ours:
            if not self.with_peer:
                self._measure_all(cases, [ours])
            else:
                with self._side(ours=False) as peer:
                    self._measure_all(cases, [ours, peer])
        return [
            Figure(name, unit, median(samples.ours), median(samples.peer) if samples.peer else None)
            for name, (unit, samples) in self._samples.items()
            if samples.ours and is_selected(name, self.globs)
        ]

    def _count_steps(self, cases: Sequence[CaseT]) -> int:
        sides = 2 if self.with_peer else 1
        starts = self._start_repetitions() * (sides if self.address is None else sides - 1)
        warm_ups = self.contest.warm_up_rounds * len(self.contest.warm_up_cases) if cases else 0
        return starts + sides * (warm_ups + sum(map(self._repetitions, cases)))

    def _repetitions(self, case: CaseT) -> int:
        return self.contest.repetitions * self.contest.rounds(case)

    def _start_repetitions(self) -> int:
        return self.contest.repetitions if is_selected(START_UP, self.globs) else 1

    @contextmanager
    def _side(self, *, ours: bool) -> Iterator[Side]:
        """Start a broker as often as start-up is to be measured, and leave the last one running."""
        if ours and self.address is not None:
            yield Running(self.address)
            return
        if ours and is_selected(START_UP, self.globs):
            # Not counted: it may compile bytecode.
            with self.contest.start_ours():
                pass
        for _ in range(self._start_repetitions() - 1):
            self._announce(f"start {self._side_name(ours)}")
            with self._start(ours) as once:
                self._record(START_UP, SECONDS, once.start_up_s, ours=ours)
        self._announce(f"start {self._side_name(ours)}")
        with self._start(ours) as side:
            self._record(START_UP, SECONDS, side.start_up_s, ours=ours)
            time.sleep(SETTLE_S)
            self._record(MEMORY_IDLE, MEBIBYTES, side.resident_bytes() / 2**20, ours=ours)
            yield side

    def _measure_all(self, cases: Sequence[CaseT], sides: Sequence[Side]) -> None:
        for side in sides:
            side.pause()
        for _ in range(self.contest.warm_up_rounds if cases else 0):
            for case in self.contest.warm_up_cases:
                for side in sides:
                    self._announce("warm up")
                    self._measure(case, side)
        try:
            for case in cases:
                for repetition in range(self._repetitions(case)):
                    for side in sides if repetition % 2 == 0 else reversed(sides):
                        self._announce(f"{case.name} · {self._side_name(side is sides[0])}")
                        for name, value in zip(case.figures, self._measure(case, side), strict=True):
                            self._record(name, case.unit, value, ours=side is sides[0])
        finally:
            for side in sides:
                side.resume()
            self.contest.clean_up()
        if cases:
            for side in sides:
                resident_mib = side.resident_bytes() / 2**20
                if resident_mib:
                    self._record(MEMORY_AFTER_LOAD, MEBIBYTES, resident_mib, ours=side is sides[0])

    def _measure(self, case: CaseT, side: Side) -> list[float]:
        side.resume()
        try:
            time.sleep(RESUME_S)
            os.sync()
            return self.contest.measure(case, side)
        finally:
            time.sleep(RESUME_S)
            side.pause()

    def _record(self, name: str, unit: str, value: float, *, ours: bool) -> None:
        samples = self._samples.setdefault(name, (unit, _Samples()))[1]
        (samples.ours if ours else samples.peer).append(value)

    def _announce(self, description: str) -> None:
        self.on_step(description, self._steps)

    def _start(self, ours: bool) -> AbstractContextManager[Side]:
        return self.contest.start_ours() if ours else self.contest.start_peer()

    def _side_name(self, ours: bool) -> str:
        return "trunkline" if ours else self.contest.peer_name
