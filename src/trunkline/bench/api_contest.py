"""The Python API on our broker against aio-pika and FastStream on RabbitMQ."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trunkline.bench.api_cases import AIO_PIKA, PUT_EACH, PUT_MANY, REQUEST_REPLY, ApiCase, all_api_cases
from trunkline.bench.api_load import OURS, measure
from trunkline.bench.comparison import Side
from trunkline.bench.rabbitmq import RabbitMQ, version
from trunkline.bench.trunkline_process import TrunklineProcess


@dataclass(frozen=True, slots=True)
class ApiScale:
    messages: int
    one_by_one: int
    warm_up_rounds: int
    repetitions: int

    def count(self, case: ApiCase) -> int:
        return self.one_by_one if case.kind in (PUT_EACH, REQUEST_REPLY) else self.messages


FULL = ApiScale(messages=20_000, one_by_one=3_000, warm_up_rounds=1, repetitions=3)
QUICK = ApiScale(messages=5_000, one_by_one=1_000, warm_up_rounds=1, repetitions=1)


@dataclass(slots=True)
class ApiContest:
    scale: ApiScale
    peer_name: str = "library on RabbitMQ"
    peer_version: str = field(default_factory=version)
    cases: tuple[ApiCase, ...] = field(default_factory=all_api_cases)
    warm_up_cases: tuple[ApiCase, ...] = (ApiCase(PUT_MANY, AIO_PIKA),)

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: ApiCase) -> int:
        return 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess("amqp")

    def start_peer(self) -> AbstractContextManager[Side]:
        return RabbitMQ()

    def measure(self, case: ApiCase, side: Side) -> list[float]:
        library = case.library if isinstance(side, RabbitMQ) else OURS
        return [measure(case.kind, library, side.address, self.scale.count(case))]

    def clean_up(self) -> None:
        """The queues go with the brokers."""
