"""What the benchmark of the Python API measures, beside the libraries that people use with RabbitMQ.

Each case is one program written twice: with our API on our broker, with the library on RabbitMQ. Bodies are JSON, queues durable,
messages persistent and confirmed, acknowledged one by one, in both.
"""

from __future__ import annotations

from dataclasses import dataclass

from trunkline.bench.cases import RATE

PUT_EACH = "put-each"  # one after the other, each confirmed before the next
PUT_MANY = "put-many"  # all under way at once
GET = "get"  # taken off one by one, each acknowledged
WORKER = "worker"  # handed to a function
PUBLISH_SUBSCRIBE = "publish-subscribe"  # events by topic, from publisher to subscriber
REQUEST_REPLY = "request-reply"  # one after the other
REQUEST_MANY = "request-many"  # fifty at a time

AIO_PIKA = "aio-pika"
FASTSTREAM = "faststream"
# FastStream has no call that takes one message.
KINDS = {
    AIO_PIKA: (PUT_EACH, PUT_MANY, GET, WORKER, PUBLISH_SUBSCRIBE, REQUEST_REPLY, REQUEST_MANY),
    FASTSTREAM: (PUT_EACH, PUT_MANY, WORKER, PUBLISH_SUBSCRIBE, REQUEST_REPLY, REQUEST_MANY),
}


@dataclass(frozen=True, slots=True)
class ApiCase:
    kind: str
    library: str

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.library}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def unit(self) -> str:
        return RATE


def all_api_cases() -> tuple[ApiCase, ...]:
    return tuple(ApiCase(kind, library) for library, kinds in KINDS.items() for kind in kinds)
