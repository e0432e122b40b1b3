"""What the STOMP benchmark measures: ways of using a queue, at two message sizes, named as they are printed (`persistent/1KB`)."""

from __future__ import annotations

from dataclasses import dataclass

from trunkline.bench.cases import RATE, SIZES_BYTES

RECEIPT_WINDOW = 1_000
PREFETCH = 1_000
ACK_EVERY = 100

TRANSIENT = "transient"
PERSISTENT = "persistent"
PERSISTENT_MULTIPLE = "persistent-ack-multiple"
FILL = "fill"
KINDS = (TRANSIENT, PERSISTENT, PERSISTENT_MULTIPLE, FILL)


@dataclass(frozen=True, slots=True)
class StompCase:
    kind: str
    size_bytes: int

    @property
    def name(self) -> str:
        size = f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"
        return f"{self.kind}/{size}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def unit(self) -> str:
        return RATE

    @property
    def persistent(self) -> bool:
        """Whether messages are persistent, and each has a receipt."""
        return self.kind != TRANSIENT


def all_stomp_cases() -> tuple[StompCase, ...]:
    return tuple(StompCase(kind, size_bytes) for kind in KINDS for size_bytes in SIZES_BYTES)
