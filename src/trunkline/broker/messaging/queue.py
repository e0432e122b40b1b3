"""A queue: what publishers, consumers and administrators see of it, over its cursor.

What it was declared as is data (`QueueDeclaration`); its messages, leases and consumers are the cursor's; which queues there
are is the registry's (`queues`). A queue tells the registry what becomes of it, through `QueueEvents`.

The fields that publishing works on: `pending` has the publications of this turn, which `Publishing` appends at its end;
`stored` is then what their append will complete, and `failed` says that it could not be made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.deduplication import Deduplication
from trunkline.broker.messaging.stream_reader import StreamReader
from trunkline.broker.messaging.streams import find_place, is_stream
from trunkline.broker.state.arguments import Arguments
from trunkline.cursors.queue import (
    Delivery,
    Message,
    QueueConsumer,
    QueueCursor,
    QueueRuntime,
    QueueSettings,
    RestoredQueue,
    Selector,
)
from trunkline.log.store import TopicInfo, TopicPartition

if TYPE_CHECKING:
    import asyncio

    from trunkline.log.ticket import Appended

# What declarations of one queue must agree on, beside its flags. RabbitMQ compares these arguments and no others.
_COMPARED = (
    "x-expires",
    "x-message-ttl",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-queue-type",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-retain",
    "x-order-by-key",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-lease-ms",
    "x-backoff-ms",
    "x-max-backoff-ms",
)


class Publisher(Protocol):
    def stored(self) -> None:
        """The turn's publications were appended; the queues say how."""

    def rejected(self, sequence: int) -> None:
        """A queue at its maximum refused this publication of the turn. Comes before `stored`."""


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """What somebody declares. `settings` is what the cursor makes of it, `arguments` the protocol's own words for it."""

    name: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Arguments = field(default_factory=dict)


class QueueEvents(Protocol):
    """What a queue tells the registry that it is in."""

    def dead_letter(self, queue: Queue, delivery: Delivery, reason: str) -> None: ...

    def unused(self, queue: Queue) -> None: ...

    def expired(self, queue: Queue) -> None: ...

    def gone(self, queue: Queue) -> None: ...


class Queue:
    """Is a `QueueOwner`: its cursor's."""

    __slots__ = (
        "_events", "_readers", "_runtime", "adopted", "cursor", "declaration", "deduplication", "durable", "exclusive_owner", "failed", "is_stream", "may_reject", "name",
        "needs_disk", "orders_by_key", "origins", "pending", "stored", "vhost",
    )  # fmt: skip

    def __init__(
        self,
        vhost: str,
        declaration: QueueDeclaration,
        topic: TopicInfo,
        runtime: QueueRuntime,
        events: QueueEvents,
        *,
        durable: bool = True,
        adopted: bool = False,
        exclusive_owner: object | None = None,
        restored: RestoredQueue | None = None,
        deduplication: Deduplication | None = None,
    ) -> None:
        """Open it on its topic. `restored` is what the journal knows of it."""
        self.name = declaration.name
        self.vhost = vhost
        self.declaration = declaration
        self.durable = durable  # an exclusive queue may be declared durable, but never is
        self.adopted = adopted  # the topic was there before the queue, and stays after it
        self.exclusive_owner = exclusive_owner
        self._events = events
        settings = declaration.settings
        self.orders_by_key = settings.order_by_key
        self.may_reject = settings.overflow != "drop-head"
        self.pending: list[Message] = []
        self.origins: list[tuple[Publisher, int] | None] = []  # only for queues that may reject
        self.needs_disk = False
        self.stored: asyncio.Future[Appended] | None = None
        self.failed = False
        self.is_stream = is_stream(declaration.arguments)
        self._runtime = runtime
        self._readers: dict[QueueConsumer, StreamReader] = {}
        self.cursor = QueueCursor(
            topic.name, self.name, topic, settings, runtime, self, durable=durable, restored=restored
        )
        self.deduplication = deduplication
        if deduplication is not None:
            self.cursor.keep_from(deduplication.floor)

    @property
    def topic(self) -> str:
        return self.cursor.topic

    @property
    def settings(self) -> QueueSettings:
        return self.declaration.settings

    @property
    def arguments(self) -> Arguments:
        return self.declaration.arguments

    @property
    def auto_delete(self) -> bool:
        return self.declaration.auto_delete

    @property
    def exclusive(self) -> bool:
        return self.exclusive_owner is not None

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, vhost={self.vhost!r})"

    def change(self, declaration: QueueDeclaration) -> None:
        """Be declared otherwise from now on. Who calls it writes the record."""
        self.declaration = declaration
        self.may_reject = declaration.settings.overflow != "drop-head"
        self.cursor.change(declaration.settings)

    # -- who may use it, and as what ------------------------------------------------------------------------------

    def check_owner(self, asker: object) -> None:
        if self.exclusive_owner is not None and self.exclusive_owner is not asker:
            raise refusals.locked(self.name, self.vhost)

    def check_equivalent(self, wish: QueueDeclaration, asker: object) -> None:
        """Refused unless the queue is declared again just as it is."""
        self.check_owner(asker)
        for argument, received, current in (
            ("durable", wish.durable, self.declaration.durable),
            ("auto_delete", wish.auto_delete, self.auto_delete),
        ):
            if received != current:
                shown = (f"'{str(received).lower()}'", f"'{str(current).lower()}'")
                raise refusals.inequivalent(argument, "queue", self.name, self.vhost, *shown)
        if wish.exclusive != self.exclusive:
            raise refusals.locked(self.name, self.vhost)
        given, held = wish.arguments, self.arguments
        for argument in _COMPARED:
            default = "classic" if argument == "x-queue-type" else None
            value, other = given.get(argument, default), held.get(argument, default)
            if value != other or (value is None and argument in given):
                shown = (refusals.shown(value, other), refusals.shown(other, value))
                raise refusals.inequivalent(argument, "queue", self.name, self.vhost, *shown)

    # -- consumers ------------------------------------------------------------------------------------------------

    def add_consumer(
        self,
        consumer: QueueConsumer,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        selector: Selector | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """Push messages to a consumer, as the cursor says. Of a stream, see `add_reader`."""
        self.cursor.add_consumer(consumer, no_ack=no_ack, exclusive=exclusive, selector=selector, lease_ms=lease_ms)

    async def place_of(self, asked: object) -> int:
        """Where a consumer of this stream begins that asks for it so."""
        tp = TopicPartition(self.topic, 0)
        return await find_place(self._runtime.store, tp, asked, self._runtime.clock.wall_ms())

    def add_reader(self, consumer: QueueConsumer, begin: int, *, exclusive: bool = False) -> None:
        """Push what is in this stream from an offset on, and what will be."""
        reader = StreamReader(self.name, self._runtime.store, TopicPartition(self.topic, 0), consumer, begin)
        self.cursor.add_consumer(reader, exclusive=exclusive)
        self._readers[consumer] = reader
        reader.start()

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        reader = self._readers.pop(consumer, None)
        if reader is not None:
            reader.close()
        self.cursor.remove_consumer(consumer if reader is None else reader)

    def wake(self) -> None:
        """There may be credit again."""
        for reader in self._readers.values():
            reader.wake()
        self.cursor.wake()

    # -- what the cursor tells its owner --------------------------------------------------------------------------

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        self._events.dead_letter(self, delivery, reason)

    def unused(self) -> None:
        self._events.unused(self)

    def expired(self) -> None:
        self._events.expired(self)

    def gone(self) -> None:
        self._events.gone(self)
