"""The internal topic `__transaction_state`: what the coordinator remembers across restarts.

One partition, compacted: the newest record per transactional id is its state, a tombstone forgets it, and one key of our
own holds the producer ids that are spoken for (see `producer_ids`). Records are written alone in their batch and share
their fsync with everything else that waits for one. Keys of a version that is not known are skipped, so that a newer
version's additions do no harm; a known key with a value that cannot be read stops the start and names the offset,
because guessing at the outcome of a transaction would break its promise.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from trunkline.broker.transactions.producer_ids import PRODUCER_IDS_KEY_VERSION, decode_next_block
from trunkline.broker.transactions.state import (
    TRANSACTION_KEY_VERSION,
    Status,
    TransactionState,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    key_version,
)
from trunkline.clock import Clock
from trunkline.log.batch import NewRecord, Record, build_batch, iter_batches, iter_records
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended

TRANSACTION_STATE_TOPIC = "__transaction_state"
TRANSACTION_STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
REPLAY_READ_BYTES = 1 << 20

_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": str(100 << 20),
    # A transaction over the largest number of partitions, each of a topic with the longest name, fits in one record.
    "max.message.bytes": str(8 << 20),
}


@dataclass(slots=True)
class Remembered:
    """The fold of the log."""

    states: dict[str, TransactionState] = field(default_factory=dict)
    next_producer_id_block: int = 0
    incomplete: bool = False  # some of its records were lost: an empty batch stands for them, or the log begins later


class TransactionLog:
    def __init__(self, store: LogStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def open(self) -> Remembered:
        """Create the topic if this is the first start; otherwise replay it."""
        if self._store.topic(TRANSACTION_STATE_TOPIC) is None:
            await self._store.create_topic(TRANSACTION_STATE_TOPIC, 1, _TOPIC_CONFIG)
        remembered = Remembered()
        offset = self._store.bounds(TRANSACTION_STATE).log_start_offset
        remembered.incomplete = offset > 0
        while offset < self._store.bounds(TRANSACTION_STATE).high_watermark:
            found = await self._store.read(TRANSACTION_STATE, offset, REPLAY_READ_BYTES, verified=True)
            if not len(found.records):
                break
            for header, batch in iter_batches(found.records):
                if not header.record_count:
                    remembered.incomplete = True
                for record in iter_records(batch):
                    self._fold(remembered, record)
                offset = header.last_offset + 1
        return remembered

    def write_state(
        self, transactional_id: str, state: TransactionState, durability: Durability = Durability.DISK
    ) -> asyncio.Future[Appended]:
        return self._append(encode_key(transactional_id), encode_value(state), durability)

    def forget(self, transactional_id: str) -> asyncio.Future[Appended]:
        return self._append(encode_key(transactional_id), None, Durability.DISK)

    async def write(self, key: bytes, value: bytes) -> None:
        """Make a record under a key of another kind durable."""
        await self._append(key, value, Durability.DISK)

    def _append(self, key: bytes, value: bytes | None, durability: Durability) -> asyncio.Future[Appended]:
        batch = build_batch([NewRecord(key, value)], timestamp_ms=self._clock.wall_ms())
        return self._store.append(TRANSACTION_STATE, batch, durability)

    @staticmethod
    def _fold(remembered: Remembered, record: Record) -> None:
        if record.key is None or record.control:
            return
        try:
            version = key_version(record.key)
            if version == PRODUCER_IDS_KEY_VERSION and record.value is not None:
                remembered.next_producer_id_block = decode_next_block(record.value)
            elif version == TRANSACTION_KEY_VERSION:
                transactional_id = decode_key(record.key)
                state = None if record.value is None else decode_value(record.value)
                if state is None or state.status is Status.DEAD:
                    remembered.states.pop(transactional_id, None)
                else:
                    remembered.states[transactional_id] = state
        except ValueError as error:
            raise CorruptBatch(f"{TRANSACTION_STATE} at offset {record.offset}: {error}") from None
