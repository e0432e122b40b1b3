"""What the AMQP benchmark measures: ways of using queues, at two message sizes.

A case is named as it is printed (`durable-ack-each/1KB`); request/reply yields two figures, with `/p50` and `/p99` at the
end.
"""

from __future__ import annotations

from dataclasses import dataclass

from trunkline.bench.cases import MILLISECONDS, RATE, SIZES_BYTES

CONFIRM_WINDOW = 1000
PREFETCH = 1000
ACK_EVERY = 100
FAN_OUT = 8
TOPIC_BINDINGS = 1000

TRANSIENT = "transient"
FANNED_OUT = f"fan-out-{FAN_OUT}"
ACK_EACH = "durable-ack-each"
ACK_MULTIPLE = "durable-ack-multiple"
FILL = "fill"
TOPIC = f"topic-{TOPIC_BINDINGS}-bindings"
REQUEST_REPLY = "request-reply"
KINDS = (TRANSIENT, FANNED_OUT, ACK_EACH, ACK_MULTIPLE, FILL, TOPIC, REQUEST_REPLY)


@dataclass(frozen=True, slots=True)
class AmqpCase:
    kind: str
    size_bytes: int

    @property
    def name(self) -> str:
        size = f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"
        return f"{self.kind}/{size}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (f"{self.name}/p50", f"{self.name}/p99") if self.kind == REQUEST_REPLY else (self.name,)

    @property
    def unit(self) -> str:
        return MILLISECONDS if self.kind == REQUEST_REPLY else RATE

    @property
    def durable(self) -> bool:
        """Whether the queue is durable and its messages persistent and confirmed."""
        return self.kind in {ACK_EACH, ACK_MULTIPLE, FILL}

    @property
    def queues(self) -> int:
        return FAN_OUT if self.kind == FANNED_OUT else 1

    @property
    def exchange_kind(self) -> str:
        """Empty for the default exchange."""
        return {FANNED_OUT: "fanout", TOPIC: "topic"}.get(self.kind, "")


def all_amqp_cases() -> tuple[AmqpCase, ...]:
    return tuple(AmqpCase(kind, size_bytes) for kind in KINDS for size_bytes in SIZES_BYTES)
