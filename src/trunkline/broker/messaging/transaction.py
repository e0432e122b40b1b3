"""Publications and settlements that wait for a commit: AMQP's channel in tx mode, STOMP's BEGIN.

Publications are routed when they arrive, as in RabbitMQ, and kept in memory until the commit, bounded by
`max_transaction_messages` and `max_transaction_bytes`; the session counts the bytes of all its transactions (`note`). A
settlement takes its delivery off the client's hands at once, so that it cannot be settled twice; a rollback puts it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.envelope import Envelope
from trunkline.broker.messaging.queue import Queue
from trunkline.cursors.queue import Delivery, Message

_PUBLICATION_BYTES = 256  # of memory, whatever its size

E = TypeVar("E", bound=Envelope)
Taken = tuple[int, Delivery]  # with the number by which the client knows it
Letters = list[tuple[Queue, Message]]


class TransactionBounds(Protocol):
    @property
    def max_transaction_messages(self) -> int: ...

    @property
    def max_transaction_bytes(self) -> int: ...


class Publication(NamedTuple, Generic[E]):
    envelope: E
    body: bytes
    queues: tuple[Queue, ...]
    mandatory: bool


class Transaction(Generic[E]):
    __slots__ = ("_bounds", "_note", "_size_bytes", "acknowledged", "publications", "refused")

    def __init__(self, bounds: TransactionBounds, note: Callable[[int], None]) -> None:
        self._bounds = bounds
        self._note = note
        self._size_bytes = 0
        self.publications: list[Publication[E]] = []
        self.acknowledged: list[Taken] = []
        self.refused: list[tuple[Taken, bool]] = []

    def publish(self, envelope: E, body: bytes, queues: tuple[Queue, ...], mandatory: bool = False) -> None:
        size_bytes = len(body) + len(envelope.section) + _PUBLICATION_BYTES
        self._size_bytes += size_bytes
        self._note(size_bytes)
        self.publications.append(Publication(envelope, body, queues, mandatory))
        bounds = self._bounds
        if len(self.publications) > bounds.max_transaction_messages or self._size_bytes > bounds.max_transaction_bytes:
            raise refusals.precondition(
                f"transaction is larger than {bounds.max_transaction_messages} messages "
                f"or {bounds.max_transaction_bytes} bytes"
            )

    def acknowledge(self, taken: list[Taken]) -> None:
        self.acknowledged += taken

    def refuse(self, taken: list[Taken], requeue: bool) -> None:
        self.refused += [(entry, requeue) for entry in taken]

    def settled(self) -> list[Taken]:
        """Deliveries whose settlement waits here."""
        return self.acknowledged + [entry for entry, _ in self.refused]

    def take_letters(self, now_ms: int) -> tuple[Letters, list[Publication[E]]]:
        """The publications as what is to be stored, and those that no queue is there for any more."""
        publications, self.publications = self.publications, []
        self._forget_size()
        letters: Letters = []
        unroutable: list[Publication[E]] = []
        for publication in publications:
            queues = [queue for queue in publication.queues if not queue.cursor.deleted]
            if not queues:
                unroutable.append(publication)
                continue
            message = publication.envelope.message(publication.body, now_ms)
            keyed = message._replace(key=publication.envelope.order_key)
            letters += [(queue, keyed if queue.orders_by_key else message) for queue in queues]
        return letters, unroutable

    def clear(self) -> None:
        """What waited here is carried out, put back, or gone with its session."""
        self.publications = []
        self.acknowledged = []
        self.refused = []
        self._forget_size()

    def _forget_size(self) -> None:
        self._note(-self._size_bytes)
        self._size_bytes = 0
