"""Share groups against those of Apache Kafka.

A topic is filled once and worked off by every repetition, each with a group of its own.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trunkline.bench.apache_kafka import DEFAULT_VERSION, ApacheKafka
from trunkline.bench.cases import RATE
from trunkline.bench.comparison import Side
from trunkline.bench.load import delete_topic
from trunkline.bench.share_load import ShareJob, measure
from trunkline.bench.trunkline_process import TrunklineProcess


@dataclass(frozen=True, slots=True)
class ShareCase:
    """How many members work off records of which size in how many partitions, and how they accept them."""

    kind: str
    size_bytes: int
    partitions: int
    members: int

    @property
    def name(self) -> str:
        size = f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"
        return f"{self.kind}/{size}/{self.partitions}p/{self.members}m"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def unit(self) -> str:
        return RATE


CASES = (
    ShareCase("work-off", 100, 1, 1),
    ShareCase("work-off", 100, 1, 4),
    ShareCase("work-off", 100, 8, 4),
    ShareCase("work-off", 1000, 8, 4),
    ShareCase("commit", 100, 1, 1),
    ShareCase("commit", 100, 8, 4),
)
WARM_UP_CASES = (ShareCase("work-off", 100, 8, 4),)


@dataclass(frozen=True, slots=True)
class ShareScale:
    small_messages: int
    large_messages: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: ShareCase) -> int:
        return self.small_messages if case.size_bytes < 1000 else self.large_messages


FULL = ShareScale(small_messages=400_000, large_messages=150_000, warm_up_rounds=3, repetitions=5)
QUICK = ShareScale(small_messages=200_000, large_messages=80_000, warm_up_rounds=1, repetitions=1)


@dataclass(slots=True)
class ShareContest:
    scale: ShareScale
    peer_name: str = "Apache Kafka"
    peer_version: str = DEFAULT_VERSION
    cases: tuple[ShareCase, ...] = CASES
    warm_up_cases: tuple[ShareCase, ...] = WARM_UP_CASES
    _filled: dict[tuple[str, int, int], str] = field(default_factory=dict)

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: ShareCase) -> int:
        return 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess()

    def start_peer(self) -> AbstractContextManager[Side]:
        return ApacheKafka(quiet=True)

    def measure(self, case: ShareCase, side: Side) -> list[float]:
        place = (side.address, case.size_bytes, case.partitions)
        if place not in self._filled:
            self._filled[place] = f"bench-share-{secrets.token_hex(4)}"
            measure(self._job("prefill", case, side))
        return [measure(self._job(case.kind, case, side))]

    def _job(self, kind: str, case: ShareCase, side: Side) -> ShareJob:
        topic = self._filled[side.address, case.size_bytes, case.partitions]
        messages = self.scale.messages(case)
        return ShareJob(kind, side.address, topic, case.size_bytes, case.partitions, case.members, messages)

    def clean_up(self) -> None:
        for (address, _, _), topic in self._filled.items():
            delete_topic(address, topic)
        self._filled.clear()
