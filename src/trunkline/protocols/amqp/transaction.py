"""A channel in tx mode: publications and settlements that wait for tx.commit.

Publications are routed when they arrive, as in RabbitMQ, and kept in memory until the commit, bounded by
`max_transaction_messages` and `max_transaction_bytes`; the session counts the bytes of all its channels' transactions. A settlement takes its delivery off the channel at once, so that
it cannot be settled twice; a rollback puts it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trunkline.broker.messaging.queue import Queue
from trunkline.cursors.queue import Delivery
from trunkline.protocols.amqp.errors import PRECONDITION_FAILED, FrameError
from trunkline.protocols.amqp.mapping import Envelope

if TYPE_CHECKING:
    from trunkline.protocols.amqp.channel import Channel
    from trunkline.protocols.amqp.session import Session

_PUBLICATION_BYTES = 256  # of memory, whatever its size


class _Publication(NamedTuple):
    envelope: Envelope
    body: bytes
    queues: tuple[Queue, ...]
    mandatory: bool


class Transaction:
    __slots__ = ("_session", "_size_bytes", "acknowledged", "publications", "refused")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._size_bytes = 0
        self.publications: list[_Publication] = []
        self.acknowledged: list[tuple[int, Delivery]] = []
        self.refused: list[tuple[tuple[int, Delivery], bool]] = []

    def publish(self, envelope: Envelope, body: bytes, queues: tuple[Queue, ...], mandatory: bool) -> None:
        size_bytes = len(body) + len(envelope.section) + _PUBLICATION_BYTES
        self._size_bytes += size_bytes
        self._session.transaction_bytes += size_bytes
        self.publications.append(_Publication(envelope, body, queues, mandatory))
        limits = self._session.limits
        if len(self.publications) > limits.max_transaction_messages or self._size_bytes > limits.max_transaction_bytes:
            text = (
                f"transaction is larger than {limits.max_transaction_messages} messages "
                f"or {limits.max_transaction_bytes} bytes"
            )
            raise FrameError(PRECONDITION_FAILED, text, 60, 40)

    def acknowledge(self, taken: list[tuple[int, Delivery]]) -> None:
        self.acknowledged += taken

    def refuse(self, taken: list[tuple[int, Delivery]], requeue: bool) -> None:
        self.refused += [(entry, requeue) for entry in taken]

    def held(self) -> list[Delivery]:
        """Deliveries whose settlement waits here."""
        return [delivery for _, delivery in self.acknowledged] + [entry[1] for entry, _ in self.refused]

    def roll_back(self, channel: Channel) -> None:
        channel.put_back(self.acknowledged + [entry for entry, _ in self.refused])
        self._clear()

    def settle(self, channel: Channel) -> None:
        """Carry out the settlements of a commit."""
        channel.session.acknowledgements.add(channel, self.acknowledged)
        for requeue in (True, False):
            chosen = [entry[1] for entry, asked in self.refused if asked is requeue]
            if chosen:
                channel.settle_refused(chosen, requeue)
        self._clear()

    def take_publications(self) -> list[_Publication]:
        taken, self.publications = self.publications, []
        self._forget_size()
        return taken

    def discard(self) -> None:
        """The channel is gone, and what waited here."""
        self._clear()

    def _clear(self) -> None:
        self.publications = []
        self.acknowledged = []
        self.refused = []
        self._forget_size()

    def _forget_size(self) -> None:
        self._session.transaction_bytes -= self._size_bytes
        self._size_bytes = 0
