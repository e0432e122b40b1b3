"""A well-behaved client that keeps working beside the hostile ones, and notices when it is disturbed.

It sends a record and waits for it to come back, over and over, in a thread of its own, and remembers how long each took.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.waiting import wait_until

TOPIC = "canary"
ROUND_TRIP_SECONDS_MAX = 30.0
# Bounds for a machine with two cores that runs other tests at the same time. Undisturbed, a round trip takes about 1 ms.
TYPICAL_SECONDS_MAX = 0.5
WORST_SECONDS_MAX = 5.0
PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class Health:
    round_trips: int
    typical_seconds: float
    worst_seconds: float


class Canary(threading.Thread):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="canary", daemon=True)
        self.bootstrap = bootstrap
        self.failure = ""
        self._times: list[float] = []
        self._stop_asked = threading.Event()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(ROUND_TRIP_SECONDS_MAX)

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "acks": 1})
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": TOPIC, "enable.auto.commit": False})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        number = 0
        try:
            while not self._stop_asked.is_set():
                value = b"%d" % number
                begun = time.monotonic()
                producer.produce(TOPIC, value)
                producer.flush(ROUND_TRIP_SECONDS_MAX)
                message = consumer.poll(ROUND_TRIP_SECONDS_MAX)
                if message is None or message.error() is not None or message.value() != value:
                    self.failure = f"record {number} came back as {message and (message.error() or message.value())}"
                    return
                self._times.append(time.monotonic() - begun)
                number += 1
                self._stop_asked.wait(PAUSE_SECONDS)
        finally:
            consumer.close()

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(ROUND_TRIP_SECONDS_MAX)

    def mark(self) -> int:
        return len(self._times)

    def health_since(self, mark: int) -> Health:
        """How it went since `mark`, ending with a few round trips that begin now."""
        enough = len(self._times) + 3
        wait_until(lambda: len(self._times) >= enough or self.failure, what="the canary's next round trips")
        assert not self.failure, self.failure
        times = self._times[mark:]
        return Health(len(times), statistics.median(times), max(times))
