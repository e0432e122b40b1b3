"""What a queue refuses, and why. Each protocol turns these into its own error codes."""

from __future__ import annotations

from trunkline.log.ticket import Ticket


class QueueError(Exception):
    """A queue refused an operation. Subclasses are the whole list of reasons."""


class QueueFull(QueueError):
    """The queue is at its maximum and rejects publications.

    The first `accepted` messages of the call were taken all the same; `stored` is their ticket (None when there are none).
    """

    def __init__(self, name: str, accepted: int, stored: Ticket | None) -> None:
        super().__init__(f"queue {name!r} is full")
        self.accepted = accepted
        self.stored = stored


class ScheduleFull(QueueError):
    """Too many messages wait for their time."""


class ConsumerRefused(QueueError):
    """The queue has an exclusive consumer, or cannot give one."""


class QueueGone(QueueError):
    """The queue, or the topic under it, was deleted."""


class SelectorRefused(QueueError):
    """The queue cannot be consumed selectively."""
