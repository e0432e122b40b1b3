"""What every protocol of the overlay is: a machine that is given messages and time, and answers with messages to send.

Nothing here opens a socket, sleeps or draws its own random numbers. Whoever runs a machine, a socket or a simulated network,
gives it a clock and a random source, hands it what arrives, and wakes it when it asks to be woken. So the code that runs
between brokers is the code that is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

Peer: TypeAlias = str
"""A node's address, as whoever carries the messages understands it."""

M = TypeVar("M")
MessageT = TypeVar("MessageT")


class Send(NamedTuple, Generic[M]):
    to: Peer
    message: M


class Machine(Protocol[MessageT]):
    def receive(self, sender: Peer, message: MessageT) -> Sequence[Send[MessageT]]:
        """Take in a message; what is to be sent now."""
        ...

    def wake(self) -> Sequence[Send[MessageT]]:
        """Do what is due by the clock; what is to be sent now."""
        ...

    def next_ms(self) -> float | None:
        """When to wake it, in the clock's monotonic time; None: only a message changes anything."""
        ...
