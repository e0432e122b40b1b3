"""The fold of `__queue_state`: what is known of each queue when the broker starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from trunkline.cursors.queue import state
from trunkline.cursors.queue.journal import QueueJournal, StateRecord

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RestoredQueue:
    head: state.Head | None = None
    chunks: dict[int, state.Chunk] = field(default_factory=dict)
    scheduled: dict[int, tuple[int, int]] = field(default_factory=dict)  # id -> due, offset of its record

    committed: dict[int, state.Committed] = field(default_factory=dict)

    def committed_keys(self, queue_id: str) -> list[StateRecord]:
        return [(state.encode_key(state.COMMITTED, queue_id, number), None) for number in self.committed]

    def keys(self, queue_id: str) -> list[StateRecord]:
        """Tombstones for all of it: the queue is gone."""
        records: list[StateRecord] = []
        if self.head is not None:
            records.append((state.encode_key(state.HEAD, queue_id), None))
        records += [(state.encode_key(state.CHUNK, queue_id, number), None) for number in self.chunks]
        records += [(state.encode_key(state.SCHEDULED, queue_id, number), None) for number in self.scheduled]
        return records + self.committed_keys(queue_id)


async def restore_queues(journal: QueueJournal) -> dict[str, RestoredQueue]:
    """Read the journal from end to end. A record that cannot be understood is reported and passed over."""
    queues: dict[str, RestoredQueue] = {}
    async for records in journal.replay():
        for offset, _, key, value, _ in records:
            found = None if key is None else state.decode_key(key)
            if found is None:
                continue
            kind, queue_id, number = found
            try:
                _fold(queues.setdefault(queue_id, RestoredQueue()), kind, number, value, offset)
            except ValueError as error:
                _logger.error(
                    "a record of queue %s at offset %d of the queue state is passed over: %s", queue_id, offset, error
                )
    return {queue_id: queue for queue_id, queue in queues.items() if queue != RestoredQueue()}


def _fold(queue: RestoredQueue, kind: bytes, number: int, value: bytes | None, offset: int) -> None:
    if kind == state.HEAD:
        queue.head = None if value is None else state.decode_head(value)
    elif kind == state.CHUNK:
        queue.chunks.pop(number, None)
        if value is not None:
            queue.chunks[number] = state.decode_chunk(value)
    elif kind == state.COMMITTED:
        queue.committed.pop(number, None)
        if value is not None:
            queue.committed[number] = state.decode_committed(value)
    else:
        queue.scheduled.pop(number, None)
        if value is not None:
            queue.scheduled[number] = (state.decode_due(value), offset)
