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
from trunkline.log.errors import CorruptBatch
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended

TRANSACTION_STATE_TOPIC = "__transaction_state"
TRANSACTION_STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)

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
    incomplete: bool = False  # some of its records were lost


class TransactionLog:
    def __init__(self, store: LogStore, clock: Clock) -> None:
        self._topic = StateTopic(store, clock, TRANSACTION_STATE_TOPIC, _TOPIC_CONFIG)

    async def open(self) -> Remembered:
        """Create the topic if this is the first start; otherwise replay it."""
        await self._topic.open()
        remembered = Remembered()
        async for records in self._topic.replay():
            for offset, _, key, value, _ in records:
                _fold(remembered, offset, key, value)
        remembered.incomplete = self._topic.incomplete
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
        return self._topic.put([state_record(key, value)], durability)


def _fold(remembered: Remembered, offset: int, key: bytes | None, value: bytes | None) -> None:
    if key is None:
        return
    try:
        version = key_version(key)
        if version == PRODUCER_IDS_KEY_VERSION and value is not None:
            remembered.next_producer_id_block = decode_next_block(value)
        elif version == TRANSACTION_KEY_VERSION:
            transactional_id = decode_key(key)
            state = None if value is None else decode_value(value)
            if state is None or state.status is Status.DEAD:
                remembered.states.pop(transactional_id, None)
            else:
                remembered.states[transactional_id] = state
    except ValueError as error:
        raise CorruptBatch(f"{TRANSACTION_STATE} at offset {offset}: {error}") from None
