"""What a cursor leaves to whoever owns it: it knows neither the names of queues nor where dead letters go."""

from __future__ import annotations

from typing import Protocol

from trunkline.cursors.queue.message import Delivery

# Why a queue gives up a message.
REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT = "rejected", "expired", "maxlen", "delivery_limit"
UNDELIVERABLE = "undeliverable"


class QueueOwner(Protocol):
    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """The queue gives up a message, and its settings say where such messages go."""

    def unused(self) -> None:
        """The last consumer is gone."""

    def expired(self) -> None:
        """The queue was not used for as long as it may be."""

    def gone(self) -> None:
        """The topic was deleted, or cannot be written: the cursor serves nobody any more."""
