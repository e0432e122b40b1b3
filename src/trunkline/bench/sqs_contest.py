"""The SQS listener against ElasticMQ.

What an answer promises is not the same on both sides: ours comes when a message, or that it was deleted, is on disk; ElasticMQ
keeps everything in memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trunkline.bench import elasticmq
from trunkline.bench.cases import RATE
from trunkline.bench.comparison import Side
from trunkline.bench.sqs_load import measure
from trunkline.bench.trunkline_process import TrunklineProcess

CONNECTIONS = 64
CYCLE = ("send", "receive", "delete")


@dataclass(frozen=True, slots=True)
class SqsCase:
    """A cycle of requests on each of `CONNECTIONS`; the unit is messages a second through all of it."""

    cycle: tuple[str, ...]
    batch: int
    size_bytes: int

    @property
    def name(self) -> str:
        kind = "cycle" if self.cycle == CYCLE else "-".join(self.cycle)
        size = f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"
        return f"{kind}/{'single' if self.batch == 1 else f'batch{self.batch}'}/{size}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def unit(self) -> str:
        return RATE


CASES = tuple(
    SqsCase(cycle, batch, size)
    for cycle in (("send",), ("receive", "delete"), CYCLE)
    for batch in (1, 10)
    for size in (100, 1000)
)


@dataclass(frozen=True, slots=True)
class SqsScale:
    single_messages: int
    batch_messages: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: SqsCase) -> int:
        return self.single_messages if case.batch == 1 else self.batch_messages


FULL = SqsScale(single_messages=20_000, batch_messages=60_000, warm_up_rounds=2, repetitions=3)
QUICK = SqsScale(single_messages=6_000, batch_messages=20_000, warm_up_rounds=2, repetitions=1)


@dataclass(slots=True)
class SqsContest:
    scale: SqsScale
    peer_name: str = "ElasticMQ"
    peer_version: str = elasticmq.DEFAULT_VERSION
    cases: tuple[SqsCase, ...] = CASES
    warm_up_cases: tuple[SqsCase, ...] = field(default=(SqsCase(CYCLE, 1, 100), SqsCase(CYCLE, 10, 100)))

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: SqsCase) -> int:
        return 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess("aws")

    def start_peer(self) -> AbstractContextManager[Side]:
        return elasticmq.ElasticMQ()

    def measure(self, case: SqsCase, side: Side) -> list[float]:
        messages = self.scale.messages(case)
        return [measure(side.address, case.cycle, case.batch, case.size_bytes, CONNECTIONS, messages)]

    def clean_up(self) -> None:
        """Nothing is kept: each measurement deletes its queue."""
