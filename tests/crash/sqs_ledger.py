"""What SQS clients were promised, and whether it was kept.

1. A message that was answered with 200 is received.
2. A message whose deletion was answered with 200 is never received again.
3. In a FIFO queue, what was sent with one deduplication id, however often, is one message; and the messages of a group are first
   received in the order in which they were sent.

`generation` counts the brokers. A deletion with a handle of an earlier broker is answered with 200, too, if somebody else has the
message by then, and it stays theirs: such deletions promise nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class SqsLedger:
    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.generation = 0
        self.confirmed: set[str] = set()
        self.received: dict[str, str] = {}  # body -> message id
        self.deleted: set[str] = set()
        self.redeliveries = 0
        self._last: dict[str, int] = {}  # by group: the last number that was new
        self._lock = threading.Lock()

    def sent(self, bodies: Iterable[str]) -> None:
        with self._lock:
            self.confirmed.update(bodies)

    def got(self, body: str, message_id: str, group: str | None = None) -> None:
        with self._lock:
            if body in self.deleted:
                self.complaints.append(f"{body} was received after its deletion")
            first = self.received.setdefault(body, message_id)
            if first != message_id:
                self.complaints.append(f"{body} is there twice, as {first} and as {message_id}")
            elif group is not None:
                number = int(body.rpartition("-")[2])
                if number <= self._last.get(group, -1):
                    self.redeliveries += 1
                elif number == self._last.get(group, -1) + 1:
                    self._last[group] = number
                else:
                    self.complaints.append(f"{body} came before what was sent before it to its group")

    def gone(self, body: str, received_from: int) -> None:
        """Its deletion was answered with 200; the handle was given by this generation of the broker."""
        with self._lock:
            if received_from == self.generation:
                self.deleted.add(body)

    def check_all_received(self) -> None:
        lost = sorted(self.confirmed - self.received.keys())
        if lost:
            self.complaints.append(f"{len(lost)} messages are lost, e.g. {lost[:3]}")
