"""The Kafka listener against Apache Kafka.

A topic to be consumed is filled once and read by every repetition; every other case has a topic of its own. Many short
measurements in turn tell more on a machine that is not alone than a few long ones.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from trunkline.bench.apache_kafka import DEFAULT_VERSION, ApacheKafka
from trunkline.bench.cases import Case, all_cases
from trunkline.bench.comparison import Side
from trunkline.bench.load import Job, delete_topic, measure
from trunkline.bench.trunkline_process import TrunklineProcess

WARM_UP_CASES = (Case("end-to-end", 100, "1", 8), Case("end-to-end", 1000, "all", 1), Case("latency", 100, "1", 1))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a measurement is."""

    small_messages: int
    large_messages: int
    latency_messages: int
    latency_rounds: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: Case) -> int:
        if case.kind == "latency":
            return self.latency_messages
        return self.small_messages if case.size_bytes < 1000 else self.large_messages


FULL = Scale(
    small_messages=1_000_000, large_messages=250_000, latency_messages=1_000, latency_rounds=3, warm_up_rounds=3, repetitions=11
)  # fmt: skip
QUICK = Scale(
    small_messages=600_000, large_messages=150_000, latency_messages=1_000, latency_rounds=1, warm_up_rounds=1, repetitions=1
)  # fmt: skip


@dataclass(slots=True)
class KafkaContest:
    scale: Scale
    peer_name: str = "Apache Kafka"
    peer_version: str = DEFAULT_VERSION
    cases: tuple[Case, ...] = field(default_factory=all_cases)
    warm_up_cases: tuple[Case, ...] = WARM_UP_CASES
    certificates: Path | None = None  # over TLS, with these
    _prefilled: dict[tuple[str, Case], str] = field(default_factory=dict)

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: Case) -> int:
        return self.scale.latency_rounds if case.kind == "latency" else 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess("kafka" if self.certificates is None else "kafka-tls", self.certificates)

    def start_peer(self) -> AbstractContextManager[Side]:
        return ApacheKafka(quiet=True, certificates=self.certificates)

    def measure(self, case: Case, side: Side) -> list[float]:
        topic = self._prefill(case, side) if case.kind == "consume" else _fresh_topic(case)
        return measure(self._job(case.kind, case, side, topic))

    def clean_up(self) -> None:
        for (address, _), topic in self._prefilled.items():
            delete_topic(address, topic, self._ca)
        self._prefilled.clear()

    def _prefill(self, case: Case, side: Side) -> str:
        """The topic to be consumed, written once and read by every repetition."""
        place = (side.address, case)
        if place not in self._prefilled:
            topic = _fresh_topic(case)
            measure(self._job("prefill", case, side, topic))
            self._prefilled[place] = topic
        return self._prefilled[place]

    @property
    def _ca(self) -> str:
        return "" if self.certificates is None else str(self.certificates / "ca.pem")

    def _job(self, kind: str, case: Case, side: Side, topic: str) -> Job:
        acks = case.acks or "1"
        messages = self.scale.messages(case)
        return Job(kind, side.address, topic, case.size_bytes, acks, case.partitions, messages, self._ca)


def _fresh_topic(case: Case) -> str:
    return f"bench-{case.kind}-{secrets.token_hex(4)}"
