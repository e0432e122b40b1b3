"""The AMQP listener against RabbitMQ."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trunkline.bench.amqp_cases import ACK_EACH, REQUEST_REPLY, TRANSIENT, AmqpCase, all_amqp_cases
from trunkline.bench.amqp_load import Job, measure
from trunkline.bench.comparison import Side
from trunkline.bench.rabbitmq import RabbitMQ, version
from trunkline.bench.trunkline_process import TrunklineProcess

WARM_UP_CASES = (AmqpCase(TRANSIENT, 100), AmqpCase(ACK_EACH, 1000), AmqpCase(REQUEST_REPLY, 100))


@dataclass(frozen=True, slots=True)
class AmqpScale:
    """How much work a measurement is; half as many messages of 1 KB."""

    transient_messages: int
    durable_messages: int
    requests: int
    request_rounds: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: AmqpCase) -> int:
        if case.kind == REQUEST_REPLY:
            return self.requests
        messages = self.durable_messages if case.durable else self.transient_messages // case.queues
        return messages if case.size_bytes < 1000 else messages // 2


FULL = AmqpScale(
    transient_messages=300_000, durable_messages=100_000, requests=2_000, request_rounds=5, warm_up_rounds=2, repetitions=3
)  # fmt: skip
QUICK = AmqpScale(
    transient_messages=100_000, durable_messages=40_000, requests=2_000, request_rounds=1, warm_up_rounds=1, repetitions=1
)  # fmt: skip


@dataclass(slots=True)
class AmqpContest:
    scale: AmqpScale
    peer_name: str = "RabbitMQ"
    peer_version: str = field(default_factory=version)
    cases: tuple[AmqpCase, ...] = field(default_factory=all_amqp_cases)
    warm_up_cases: tuple[AmqpCase, ...] = WARM_UP_CASES

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: AmqpCase) -> int:
        return self.scale.request_rounds if case.kind == REQUEST_REPLY else 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess("amqp")

    def start_peer(self) -> AbstractContextManager[Side]:
        return RabbitMQ()

    def measure(self, case: AmqpCase, side: Side) -> list[float]:
        return measure(Job(case.kind, side.address, case.size_bytes, self.scale.messages(case)))

    def clean_up(self) -> None:
        """Each measurement removes its own queues."""
