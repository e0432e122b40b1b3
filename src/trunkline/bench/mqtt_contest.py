"""The MQTT listener against Mosquitto.

What QoS 1 and 2 promise is not the same on both sides: ours are acknowledged when they are on disk, Mosquitto's when
they are in its memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trunkline.bench import mosquitto
from trunkline.bench.comparison import Side
from trunkline.bench.mqtt_cases import MqttCase, all_mqtt_cases, stream
from trunkline.bench.mqtt_load import idle_connection_bytes, measure
from trunkline.bench.trunkline_process import TrunklineProcess

# By default it closes the connection of a publisher with more than 20 messages of QoS 2 under way.
PEER_SETTINGS = {"max_inflight_messages": "1000"}
MAX_DIVISOR = 4  # more subscribers get more in all, or what they get would be over in an instant
WARM_UP_CASES = (stream(0, 100), stream(2, 100))


@dataclass(frozen=True, slots=True)
class MqttScale:
    """How much work a measurement is: messages received, by up to `MAX_DIVISOR` subscribers together."""

    small_messages: int
    large_messages: int
    idle_connections: int
    warm_up_rounds: int
    repetitions: int

    def messages(self, case: MqttCase) -> int:
        """To be published."""
        received = self.small_messages if case.size_bytes < 1000 else self.large_messages
        return max(case.publishers, received // min(case.subscribers, MAX_DIVISOR))


FULL = MqttScale(
    small_messages=300_000, large_messages=100_000, idle_connections=5_000, warm_up_rounds=1, repetitions=3
)
QUICK = MqttScale(
    small_messages=100_000, large_messages=40_000, idle_connections=1_000, warm_up_rounds=1, repetitions=1
)


def cases_for(*, is_ours: bool) -> tuple[MqttCase, ...]:
    """All cases; without those that weigh the broker, if it is not a process that we started."""
    return tuple(case for case in all_mqtt_cases() if is_ours or case.kind != "idle")


@dataclass(slots=True)
class MqttContest:
    scale: MqttScale
    peer_name: str = "Mosquitto"
    peer_version: str = field(default_factory=mosquitto.version)
    cases: tuple[MqttCase, ...] = field(default_factory=all_mqtt_cases)
    warm_up_cases: tuple[MqttCase, ...] = WARM_UP_CASES

    @property
    def warm_up_rounds(self) -> int:
        return self.scale.warm_up_rounds

    @property
    def repetitions(self) -> int:
        return self.scale.repetitions

    def rounds(self, case: MqttCase) -> int:
        return 1

    def start_ours(self) -> AbstractContextManager[Side]:
        return TrunklineProcess("mqtt")

    def start_peer(self) -> AbstractContextManager[Side]:
        return mosquitto.Mosquitto(settings=PEER_SETTINGS)

    def measure(self, case: MqttCase, side: Side) -> list[float]:
        if case.kind == "idle":
            return [self._idle_connection_bytes(side)]
        messages = self.scale.messages(case)
        return [measure(side.address, case.qos, case.size_bytes, case.publishers, case.subscribers, messages)]

    def _idle_connection_bytes(self, side: Side) -> float:
        """On a broker of its own: one that has been loaded has memory to spare, and connections would cost nothing."""
        fresh = self.start_ours() if isinstance(side, TrunklineProcess) else self.start_peer()
        with fresh as broker:
            return idle_connection_bytes(broker.address, self.scale.idle_connections, broker.resident_bytes)

    def clean_up(self) -> None:
        """Nothing is kept: sessions end with their connections."""
