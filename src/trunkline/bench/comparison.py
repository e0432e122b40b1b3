"""Runs the cases against one broker or two, in turn, and reduces the repetitions to figures.

The machine is assumed to be small and noisy. So only one broker is under load at a time; the other is up but idle. A
case is measured on both before the next case begins, in the order ours, peer, then peer, ours, and so on, so that a slow
minute hits both alike; and the figure is the **median** of the repetitions, for latency the median of each repetition's
percentile. Before each measurement dirty pages are written out, so that nobody pays for what another wrote. Before the first case both brokers get the
same warm-up load, which is not counted: a JVM needs it to compile its hot paths.

Start-up time and idle memory are taken first, on an empty data directory, `SETTLE_S` after the broker served; memory
once more after all cases.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from trunkline.bench.apache_kafka import ApacheKafka
from trunkline.bench.cases import (
    MEBIBYTES,
    MEMORY_AFTER_LOAD,
    MEMORY_IDLE,
    SECONDS,
    START_UP,
    Case,
    Figure,
    all_cases,
    is_selected,
    median,
    select,
)
from trunkline.bench.load import Job, delete_topic, measure
from trunkline.bench.trunkline_process import TrunklineProcess

SETTLE_S = 2.0
WARM_UP_CASES = (Case("end-to-end", 100, "1", 8), Case("end-to-end", 1000, "all", 1), Case("latency", 100, "1", 1))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a measurement is."""

    small_messages: int
    large_messages: int
    latency_messages: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: Case) -> int:
        if case.kind == "latency":
            return self.latency_messages
        return self.small_messages if case.size_bytes < 1000 else self.large_messages


FULL = Scale(small_messages=3_000_000, large_messages=600_000, latency_messages=5_000, warm_up_rounds=3, repetitions=3)
QUICK = Scale(small_messages=600_000, large_messages=150_000, latency_messages=1_000, warm_up_rounds=1, repetitions=1)


class Side(Protocol):
    """A broker under test. `start_up_s` is 0 and memory unknown for one that someone else started."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def start_up_s(self) -> float: ...
    def resident_bytes(self) -> int: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that was already there: it is loaded, but neither started, weighed nor stopped."""

    bootstrap: str
    start_up_s: float = 0.0

    def resident_bytes(self) -> int:
        return 0

    def stop(self) -> None:
        return


@dataclass(slots=True)
class _Samples:
    """The repetitions of one figure."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Comparison:
    """One benchmark. `run` returns the figures; `on_step` hears what is about to be measured and of how many steps."""

    scale: Scale
    with_peer: bool
    globs: Sequence[str] = ()
    bootstrap: str | None = None
    on_step: Callable[[str, int], None] = lambda _description, _steps: None
    _samples: dict[str, tuple[str, _Samples]] = field(default_factory=dict)
    _prefilled: dict[tuple[str, Case], str] = field(default_factory=dict)
    _steps: int = 0

    def run(self) -> list[Figure]:
        cases = select(all_cases(), self.globs)
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

    def _count_steps(self, cases: Sequence[Case]) -> int:
        sides = 2 if self.with_peer else 1
        starts = self._start_repetitions() * (sides if self.bootstrap is None else sides - 1)
        warm_ups = self.scale.warm_up_rounds * len(WARM_UP_CASES) if cases else 0
        return starts + sides * (warm_ups + self.scale.repetitions * len(cases))

    def _start_repetitions(self) -> int:
        return self.scale.repetitions if is_selected(START_UP, self.globs) else 1

    @contextmanager
    def _side(self, *, ours: bool) -> Iterator[Side]:
        """Start a broker as often as start-up is to be measured, and leave the last one running."""
        if ours and self.bootstrap is not None:
            yield Running(self.bootstrap)
            return
        if ours and is_selected(START_UP, self.globs):
            # Not counted: it may compile bytecode. The peer's jars were read when its storage was formatted.
            with TrunklineProcess():
                pass
        for _ in range(self._start_repetitions() - 1):
            self._announce(f"start {_side_name(ours)}")
            with TrunklineProcess() if ours else ApacheKafka(quiet=True) as once:
                self._record(START_UP, SECONDS, once.start_up_s, ours=ours)
        self._announce(f"start {_side_name(ours)}")
        with TrunklineProcess() if ours else ApacheKafka(quiet=True) as side:
            self._record(START_UP, SECONDS, side.start_up_s, ours=ours)
            time.sleep(SETTLE_S)
            self._record(MEMORY_IDLE, MEBIBYTES, side.resident_bytes() / 2**20, ours=ours)
            yield side

    def _measure_all(self, cases: Sequence[Case], sides: Sequence[Side]) -> None:
        for _ in range(self.scale.warm_up_rounds if cases else 0):
            for case in WARM_UP_CASES:
                for side in sides:
                    self._announce("warm up")
                    self._measure(case, side)
        try:
            for case in cases:
                for repetition in range(self.scale.repetitions):
                    for side in sides if repetition % 2 == 0 else reversed(sides):
                        self._announce(f"{case.name} · {_side_name(side is sides[0])}")
                        for name, value in zip(case.figures, self._measure(case, side), strict=True):
                            self._record(name, case.unit, value, ours=side is sides[0])
        finally:
            for (bootstrap, _), topic in self._prefilled.items():
                delete_topic(bootstrap, topic)
            self._prefilled.clear()
        if cases:
            for side in sides:
                resident_mib = side.resident_bytes() / 2**20
                if resident_mib:
                    self._record(MEMORY_AFTER_LOAD, MEBIBYTES, resident_mib, ours=side is sides[0])

    def _measure(self, case: Case, side: Side) -> list[float]:
        topic = self._prefill(case, side) if case.kind == "consume" else _fresh_topic(case)
        os.sync()
        return measure(_job(case.kind, case, side, topic, self.scale.messages(case)))

    def _prefill(self, case: Case, side: Side) -> str:
        """The topic to be consumed, written once and read by every repetition."""
        place = (side.bootstrap, case)
        if place not in self._prefilled:
            topic = _fresh_topic(case)
            measure(_job("prefill", case, side, topic, self.scale.messages(case)))
            self._prefilled[place] = topic
        return self._prefilled[place]

    def _record(self, name: str, unit: str, value: float, *, ours: bool) -> None:
        samples = self._samples.setdefault(name, (unit, _Samples()))[1]
        (samples.ours if ours else samples.peer).append(value)

    def _announce(self, description: str) -> None:
        self.on_step(description, self._steps)


def _side_name(ours: bool) -> str:
    return "trunkline" if ours else "Apache Kafka"


def _fresh_topic(case: Case) -> str:
    return f"bench-{case.kind}-{secrets.token_hex(4)}"


def _job(kind: str, case: Case, side: Side, topic: str, messages: int) -> Job:
    return Job(kind, side.bootstrap, topic, case.size_bytes, case.acks or "1", case.partitions, messages)
