"""A store whose transactions the broker's coordinator ends: every store that is in this process.

`transact` is an operation of the store, because a cluster has a coordinator of its own, with which nothing above the store
need be concerned. A store of this process has none. Ours is a fold of an internal topic and serves Kafka clients, too, so it
stays in the broker; it is handed to the store when the broker is put together, and called through `Coordinator`, so that
dependencies point down.

    1. the coordinator opens a transaction over the partitions
    2. the records are appended under its producer, and fsynced: no reader of committed records sees them yet
    3. the coordinator records its decision: from here on they will be seen, whatever happens
    4. each partition gets its marker

If 1 or 2 fails, the transaction is aborted. A crash before 3 leaves records that the coordinator's next start aborts, one
after 3 is completed by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import InvalidTransactionState
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended

_BATCH_BYTES = 1 << 20
_RECORD_OVERHEAD_BYTES = 64


class TransactionalProducer(NamedTuple):
    """Whose batches a transaction's are. The epoch is new with every transaction, so sequence numbers begin at 0."""

    producer_id: int
    producer_epoch: int
    began_ms: int


class Coordinator(Protocol):
    def transaction(self, partitions: Collection[TopicPartition]) -> AbstractAsyncContextManager[TransactionalProducer]:
        """A transaction over these partitions: committed if the block ends well, else aborted.

        LogError when it cannot be opened; OutcomeUnknown when it cannot be told whether it is committed.
        """
        ...


class CoordinatedStore(LogStore):
    _coordinator: Coordinator | None = None

    def coordinated_by(self, coordinator: Coordinator) -> None:
        """From now on this one opens and ends the store's transactions."""
        self._coordinator = coordinator

    async def transact(self, parts: Mapping[TopicPartition, Sequence[NewRecord]]) -> Mapping[TopicPartition, Appended]:
        if self._coordinator is None:
            raise InvalidTransactionState("nobody coordinates the transactions of this store")
        async with self._coordinator.transaction(parts.keys()) as producer:
            tickets = {
                tp: self.append(tp, _batches(records, producer), Durability.DISK)
                for tp, records in parts.items()
                if records
            }
            places = await asyncio.gather(*tickets.values())
        return dict(zip(tickets, places, strict=True))


def _batches(records: Sequence[NewRecord], producer: TransactionalProducer) -> bytes:
    batches: list[bytes] = []
    first = size_bytes = 0
    for number, record in enumerate(records):
        own_bytes = _bytes_of(record)
        if size_bytes and size_bytes + own_bytes > _BATCH_BYTES:
            batches.append(_batch(records[first:number], producer, first))
            first, size_bytes = number, 0
        size_bytes += own_bytes
    batches.append(_batch(records[first:], producer, first))
    return b"".join(batches)


def _bytes_of(record: NewRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def _batch(records: Sequence[NewRecord], producer: TransactionalProducer, sequence: int) -> bytes:
    return build_batch(
        records,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
        timestamp_ms=producer.began_ms,
    )
