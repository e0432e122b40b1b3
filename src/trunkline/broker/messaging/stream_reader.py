"""One consumer of a stream: it reads the log at a place of its own, as far as its credit goes, and takes nothing off it.

To the queue's cursor a reader is a consumer that never wants anything, so that it is counted, and told when the queue goes. To its
consumer it is the lessor of what it delivers: an acknowledgement is credit, and nothing else; nothing comes twice, and nothing is
remembered of it. Who comes back says by itself where to begin.

Reading is a task that runs while there is credit and something to read; an append, an acknowledgement, or a client that takes its
output again wakes it. What was read and is not delivered yet is at most one portion of `_READ_BYTES`. What retention removes before
it was read is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from trunkline.cursors.queue import Delivery, Message, QueueConsumer
from trunkline.cursors.queue.traits import messages_of
from trunkline.log.errors import LogError, OffsetOutOfRange
from trunkline.log.portions import read_portion
from trunkline.log.store import LogStore, TopicPartition
from trunkline.log.ticket import Appended

_logger = logging.getLogger(__name__)

_READ_BYTES = 256 * 1024


class StreamReader:
    """Is a `QueueConsumer` to the cursor and a `Lessor` to the consumer."""

    __slots__ = (
        "_closed", "_consumer", "_messages", "_next", "_offsets", "_store", "_task", "_tp", "_woken", "gone", "name",
        "pool", "priority",
    )  # fmt: skip

    def __init__(self, name: str, store: LogStore, tp: TopicPartition, consumer: QueueConsumer, begin: int) -> None:
        self.name = name
        self.gone = False
        self.priority = 0
        self.pool = None
        self._store = store
        self._tp = tp
        self._consumer = consumer
        self._next = begin
        self._offsets: list[int] = []  # read, and not delivered yet
        self._messages: list[Message] = []
        self._task: asyncio.Task[None] | None = None
        self._woken = False
        self._closed = False

    def start(self) -> None:
        self._store.watch(self._tp, self.wake, decodes=True)
        self.wake()

    def close(self) -> None:
        self._closed = True
        self._store.unwatch(self._tp, self.wake)
        self._offsets, self._messages = [], []

    # -- reading -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to read, or credit for it."""
        self._woken = True
        if self._task is None and not self._closed and self._consumer.credit() > 0:
            self._task = asyncio.get_running_loop().create_task(self._serve(), name=f"stream {self.name}")

    async def _serve(self) -> None:
        try:
            while self._woken and not self._closed:
                self._woken = False
                await self._deliver_what_is_there()
        except LogError as error:
            if not self._closed:  # else the topic is gone, and the queue's cursor tells of it
                _logger.warning("a consumer of stream %s reads no further: %s", self.name, error)
        finally:
            self._task = None

    async def _deliver_what_is_there(self) -> None:
        while not self._closed:
            credit = self._consumer.credit()
            if credit <= 0:
                return
            if self._offsets:
                self._deliver(credit)
                await asyncio.sleep(0)
                continue
            try:
                portion = await read_portion(self._store, self._tp, self._next, _READ_BYTES)
            except OffsetOutOfRange:
                self._next = self._store.bounds(self._tp).log_start_offset
                continue
            if self._closed or portion.following == self._next:
                return
            self._next = portion.following
            self._offsets, self._messages = messages_of(portion.records)

    def _deliver(self, credit: int) -> None:
        offsets, self._offsets = self._offsets[:credit], self._offsets[credit:]
        messages, self._messages = self._messages[:credit], self._messages[credit:]
        consumer = self._consumer
        consumer.deliver(
            [Delivery(*each, False, 1, self, consumer) for each in zip(offsets, messages, strict=True)]
        )  # fmt: skip

    # -- for the cursor ------------------------------------------------------------------------------------------------

    def credit(self) -> int:
        return 0

    def deliver(self, deliveries: list[Delivery]) -> None:
        raise AssertionError("a reader has no credit")

    def cancelled(self, reason: str) -> None:
        self.gone = True
        self.close()
        self._consumer.cancelled(reason)

    # -- for the consumer ----------------------------------------------------------------------------------------------

    def acknowledge(self, offsets: Iterable[int]) -> int:
        self.wake()
        return 0

    def release(self, offsets: Iterable[int], *, redelivered: bool = True) -> int:
        return self.acknowledge(offsets)

    def retry(self, offsets: Iterable[int], delay_ms: int | None = None) -> int:
        return self.acknowledge(offsets)

    def reject(self, offsets: Iterable[int]) -> int:
        return self.acknowledge(offsets)

    def held_by(self, consumer: object) -> list[int]:
        return []

    def holds(self, delivery: Delivery) -> bool:
        return True

    def keep(self, delivery: Delivery) -> bool:
        return True

    def committing(self, offsets: Sequence[int]) -> tuple[bytes, bytes | None] | None:
        return None

    def forget_committed(self, record: tuple[bytes, bytes | None]) -> None:
        raise AssertionError("nothing of a stream is committed")

    def give_up(self, delivery: Delivery, why: object) -> None:
        _logger.warning("offset %d of stream %s cannot be delivered: %s", delivery.offset, self.name, why)

    def extend(self, offset: int, lease_ms: int) -> bool:
        return True

    def committed(self) -> asyncio.Future[Appended] | None:
        return None
