"""Messages for several queues that appear all or not at all, also across a crash.

Messages for one durable queue that fit one record batch are one append, which is whole or absent. All others are a
transaction of the store; the queues' cursors notice its end, and deliver. Queues that are not durable do not survive a
crash, and get their messages when the transaction is committed.

A queue that rejects publications at its maximum refuses the transaction as a whole if its part does not fit. One that is
deleted before the decision takes its part with it, and the others get theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import Refused
from trunkline.cursors.queue import Message
from trunkline.cursors.queue.errors import QueueGone
from trunkline.cursors.queue.journal import QUEUE_STATE, StateRecord
from trunkline.log.batch import NewRecord
from trunkline.log.errors import LogError, OutcomeUnknown, UnknownTopicOrPartition
from trunkline.log.records import decode_headers
from trunkline.log.store import Durability, LogStore, TopicPartition

# Stays below the cursor's own bound, so that one append is one batch.
_ONE_BATCH_BYTES: Final = 1 << 19
_RECORD_OVERHEAD_BYTES: Final = 64


class AtomicPublication:
    def __init__(self, store: LogStore) -> None:
        self._store = store

    async def publish(self, parts: dict[Queue, list[Message]], settled: Sequence[StateRecord] = ()) -> None:
        """Returns when all of it is stored, and with it what says that other messages are settled.

        Refused or LogError: none of it is; OutcomeUnknown: perhaps.
        """
        for queue, messages in parts.items():
            _check_room(queue, messages)
        durable = {queue: messages for queue, messages in parts.items() if queue.durable}
        while durable and not await self._store_durable(durable, settled):
            durable = _left_of(durable)
        for queue, messages in parts.items():
            if not queue.durable and not queue.cursor.gone:
                queue.cursor.put(messages, Durability.NONE)

    async def _store_durable(self, parts: dict[Queue, list[Message]], settled: Sequence[StateRecord]) -> bool:
        """False: none of it is stored, because one of the queues was deleted meanwhile."""
        try:
            if (
                not settled
                and len(parts) == 1
                and all(_bytes_of(messages) <= _ONE_BATCH_BYTES for messages in parts.values())
            ):
                ((queue, messages),) = parts.items()
                await queue.cursor.put(messages, Durability.DISK)
                return True
            ends = await self._transact(parts, settled)
        except OutcomeUnknown:
            raise
        except (Refused, QueueGone, LogError):
            if len(_left_of(parts)) == len(parts):
                raise
            return False
        for queue, end in ends.items():
            await queue.cursor.catch_up(end)
        return True

    async def _transact(self, parts: dict[Queue, list[Message]], settled: Sequence[StateRecord]) -> dict[Queue, int]:
        """Returns where each part ends."""
        by_partition = {TopicPartition(queue.cursor.topic, 0): _records(messages) for queue, messages in parts.items()}
        if settled:
            by_partition[QUEUE_STATE] = [NewRecord(key, value) for key, value in settled]
        try:
            places = await self._store.transact(by_partition)
        except UnknownTopicOrPartition as error:
            raise refusals.precondition(f"a queue was deleted: {error}") from None
        return {queue: places[TopicPartition(queue.cursor.topic, 0)].last_offset + 1 for queue in parts}


def _records(messages: Sequence[Message]) -> list[NewRecord]:
    return [NewRecord(m.key, m.value, tuple(decode_headers(m.headers)), m.timestamp_ms) for m in messages]


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
