"""Messages for several queues that appear all or not at all, also across a crash.

Messages for one durable queue that fit one record batch are one append, which is whole or absent. All others go through a
transaction of the log:

    1. the queues' partitions are added to a transaction of one of our own transactional ids
    2. the batches are appended under its producer id, and fsynced: no reader sees them yet
    3. the coordinator's decision is recorded: from here on they will be seen, whatever happens
    4. each partition gets its marker; the queues' cursors notice, and deliver

A crash before 3 leaves batches that `start` has aborted before a client comes; one after 3 is completed by the coordinator's own
start. Queues that are not durable do not survive a crash, and get their messages after 3.

A queue that rejects publications at its maximum refuses the transaction as a whole if its part does not fit. One that is
deleted before the decision takes its part with it, and the others get theirs.

Bounded: `MAX_CONCURRENT` transactions at a time; others wait. Each transactional id is used again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import Refused
from trunkline.broker.transactions.coordinator import TransactionCoordinator
from trunkline.broker.transactions.errors import TransactionError, TransactionErrorName
from trunkline.broker.transactions.state import ProducerIdentity
from trunkline.clock import Clock
from trunkline.cursors.queue import Message
from trunkline.cursors.queue.errors import QueueGone
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import LogError
from trunkline.log.records import decode_headers
from trunkline.log.store import Durability, LogStore, TopicPartition

logger = logging.getLogger(__name__)

MAX_CONCURRENT: Final = 64
ID_PREFIX: Final = "trunkline.queues."
_TIMEOUT_MS: Final = 60_000
# Stays below the cursor's own bound, so that one append is one batch.
_ONE_BATCH_BYTES: Final = 1 << 19
_BATCH_BYTES: Final = 1 << 20
_RECORD_OVERHEAD_BYTES: Final = 64


class AtomicPublication:
    def __init__(self, store: LogStore, transactions: TransactionCoordinator, clock: Clock) -> None:
        self._store = store
        self._transactions = transactions
        self._clock = clock
        self._idle: dict[str, ProducerIdentity] = {}
        self._made = 0
        self._places = asyncio.Semaphore(MAX_CONCURRENT)

    async def start(self) -> None:
        """End what the last run left open: else its queues would wait for the time-out."""
        for listing in self._transactions.list():
            if listing.transactional_id.startswith(ID_PREFIX):
                try:
                    identity = await self._transactions.init_producer_id(listing.transactional_id, _TIMEOUT_MS)
                except (TransactionError, LogError) as error:
                    logger.error("transaction %s could not be ended: %s", listing.transactional_id, error)
                else:
                    self._idle[listing.transactional_id] = identity
                number = listing.transactional_id.removeprefix(ID_PREFIX)
                self._made = max(self._made, int(number) + 1 if number.isdecimal() else 0)

    async def publish(self, parts: dict[Queue, list[Message]]) -> None:
        """Returns when all of it is stored. Refused, LogError or TransactionError: none of it is."""
        for queue, messages in parts.items():
            _check_room(queue, messages)
        durable = {queue: messages for queue, messages in parts.items() if queue.durable}
        while durable and not await self._store_durable(durable):
            durable = _left_of(durable)
        for queue, messages in parts.items():
            if not queue.durable and not queue.cursor.gone:
                queue.cursor.put(messages, Durability.NONE)

    async def _store_durable(self, parts: dict[Queue, list[Message]]) -> bool:
        """False: none of it is stored, because one of the queues was deleted meanwhile."""
        decided = False
        try:
            if len(parts) == 1 and all(_bytes_of(messages) <= _ONE_BATCH_BYTES for messages in parts.values()):
                ((queue, messages),) = parts.items()
                await queue.cursor.put(messages, Durability.DISK)
                return True
            async with self._places:
                name, identity = await self._take_identity()
                ends = await self._append_all(parts, name, identity)
                decided = True
                self._idle[name] = await self._end(name, identity, commit=True)
        except (Refused, QueueGone, LogError, TransactionError):
            if decided or len(_left_of(parts)) == len(parts):
                raise
            return False
        for queue, end in ends.items():
            await queue.cursor.catch_up(end)
        return True

    async def _append_all(
        self, parts: dict[Queue, list[Message]], name: str, identity: ProducerIdentity
    ) -> dict[Queue, int]:
        """Append the parts in a transaction, to be seen once it is committed; returns where each ends.

        If that fails, the transaction is aborted.
        """
        by_partition = {TopicPartition(queue.cursor.topic, 0): messages for queue, messages in parts.items()}
        try:
            added = await self._transactions.add_partitions(
                name, identity.producer_id, identity.producer_epoch, by_partition
            )
            missing = [tp for tp, error in added.items() if error is TransactionErrorName.UNKNOWN_TOPIC_OR_PARTITION]
            if missing:
                raise refusals.precondition(f"the queue of topic '{missing[0].topic}' was deleted")
            stored = [
                self._store.append(tp, self._batches(messages, identity), Durability.DISK)
                for tp, messages in by_partition.items()
            ]
            places = await asyncio.gather(*stored)
            return {queue: place.last_offset + 1 for queue, place in zip(parts, places, strict=True)}
        except BaseException:
            await self._abort(name, identity)
            raise

    async def _take_identity(self) -> tuple[str, ProducerIdentity]:
        if self._idle:
            return self._idle.popitem()
        name = f"{ID_PREFIX}{self._made}"
        self._made += 1
        return name, await self._transactions.init_producer_id(name, _TIMEOUT_MS)

    async def _abort(self, name: str, identity: ProducerIdentity) -> None:
        try:
            self._idle[name] = await self._end(name, identity, commit=False)
        except (TransactionError, LogError) as error:
            logger.error("transaction %s was not aborted and will time out: %s", name, error)

    async def _end(self, name: str, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        producer_id, producer_epoch = identity.producer_id, identity.producer_epoch
        return await self._transactions.end(name, producer_id, producer_epoch, commit, bump_epoch=True)

    def _batches(self, messages: Sequence[Message], identity: ProducerIdentity) -> bytes:
        """The epoch is new with every transaction, so sequence numbers begin at 0."""
        now_ms = self._clock.wall_ms()
        batches: list[bytes] = []
        first = size = 0
        for number, message in enumerate(messages):
            own_bytes = _bytes_of((message,))
            if size and size + own_bytes > _BATCH_BYTES:
                batches.append(self._batch(messages[first:number], identity, first, now_ms))
                first, size = number, 0
            size += own_bytes
        batches.append(self._batch(messages[first:], identity, first, now_ms))
        return b"".join(batches)

    @staticmethod
    def _batch(messages: Sequence[Message], identity: ProducerIdentity, sequence: int, now_ms: int) -> bytes:
        return build_batch(
            [NewRecord(m.key, m.value, tuple(decode_headers(m.headers)), m.timestamp_ms) for m in messages],
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
            timestamp_ms=now_ms,
        )


def _left_of(parts: dict[Queue, list[Message]]) -> dict[Queue, list[Message]]:
    return {queue: messages for queue, messages in parts.items() if not queue.cursor.deleted}


def _bytes_of(messages: Sequence[Message]) -> int:
    return sum(len(m.value) + len(m.headers) + _RECORD_OVERHEAD_BYTES for m in messages)


def _check_room(queue: Queue, messages: Sequence[Message]) -> None:
    if not queue.may_reject or queue.cursor.gone:
        return
    settings, stats = queue.cursor.settings, queue.cursor.stats()
    size = sum(len(message.value) for message in messages)
    if (settings.max_length is not None and stats.ready + len(messages) > settings.max_length) or (
        settings.max_bytes is not None and stats.ready_bytes + size > settings.max_bytes
    ):
        raise refusals.precondition(f"queue '{queue.name}' in vhost '{queue.vhost}' is full")
