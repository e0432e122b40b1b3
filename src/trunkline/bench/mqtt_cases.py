"""What the MQTT benchmark measures.

`1to1`, `100to1` and `1to8` are publishers and subscribers of one topic; the unit is messages received a second, by all
subscribers together. `idle` is the broker's memory for a client that is connected and subscribed and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from trunkline.bench.cases import RATE

BYTES = "B"
SIZES_BYTES = (100, 1000)


@dataclass(frozen=True, slots=True)
class MqttCase:
    kind: str
    qos: int = 0
    size_bytes: int = 0
    publishers: int = 1
    subscribers: int = 1

    @property
    def name(self) -> str:
        if self.kind == "idle":
            return "idle/connection"
        size = f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"
        return f"{self.publishers}to{self.subscribers}/qos{self.qos}/{size}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def unit(self) -> str:
        return BYTES if self.kind == "idle" else RATE


def stream(qos: int, size_bytes: int, publishers: int = 1, subscribers: int = 1) -> MqttCase:
    return MqttCase("stream", qos, size_bytes, publishers, subscribers)


def all_mqtt_cases() -> tuple[MqttCase, ...]:
    return (
        MqttCase("idle"),
        *(stream(qos, size) for qos in (0, 1, 2) for size in SIZES_BYTES),
        *(stream(qos, size, publishers=100) for qos in (0, 1) for size in SIZES_BYTES),
        *(stream(qos, size, subscribers=8) for qos in (0, 1) for size in SIZES_BYTES),
    )
