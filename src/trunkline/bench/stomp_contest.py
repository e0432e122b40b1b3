"""The STOMP listener against RabbitMQ's STOMP plugin."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trunkline.bench.comparison import Side
from trunkline.bench.rabbitmq import RabbitMQ, version
from trunkline.bench.stomp_cases import PERSISTENT, TRANSIENT, StompCase, all_stomp_cases
from trunkline.bench.stomp_load import Job, measure
from trunkline.bench.trunkline_process import TrunklineProcess

WARM_UP_CASES = (StompCase(TRANSIENT, 100), StompCase(PERSISTENT, 1000))


@dataclass(frozen=True, slots=True)
class StompScale:
    """How much work a measurement is; half as many messages of 1 KB."""

    transient_messages: int
    persistent_messages: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: StompCase) -> int:
        messages = self.persistent_messages if case.persistent else self.transient_messages
        return messages if case.size_bytes < 1000 else messages // 2


FULL = StompScale(transient_messages=100_000, persistent_messages=60_000, warm_up_rounds=2, repetitions=3)
QUICK = StompScale(transient_messages=40_000, persistent_messages=20_000, warm_up_rounds=1, repetitions=1)


class RabbitMQWithStomp(RabbitMQ):
    def __init__(self) -> None:
        super().__init__(plugins=("rabbitmq_stomp",))

    @property
    def address(self) -> str:
        return self.stomp_address


@dataclass(slots=True)
class StompContest:
    scale: StompScale
    peer_name: str = "RabbitMQ"
    peer_version: str = field(default_factory=version)
    cases: tuple[StompCase, ...] = field(default_factory=all_stomp_cases)
    warm_up_cases: tuple[StompCase, ...] = WARM_UP_CASES

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: StompCase) -> int:
        return 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess("stomp")

    def start_peer(self) -> AbstractContextManager[Side]:
        return RabbitMQWithStomp()

    def measure(self, case: StompCase, side: Side) -> list[float]:
        return measure(Job(case.kind, side.address, case.size_bytes, self.scale.messages(case)))

    def clean_up(self) -> None:
        """The queues go with the brokers."""
