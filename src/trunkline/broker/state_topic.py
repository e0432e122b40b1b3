"""StateTopic: a compacted internal topic that is the memory of one part of the broker.

The latest record of a key is its value; a tombstone removes it. What changes during a turn is collected, the last value
of a key winning, and appended by `flush` as one batch (more when it is large), so that a turn costs one write however
many keys it touched. A batch is whole or absent after a crash, so keys that are put in one turn are stored together
(up to `_BATCH_TARGET_BYTES`; what must be atomic is put under one key).

Values are read back by `replay`, oldest first, before anything is put.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from trunkline.clock import Clock
from trunkline.log.batch import iter_batches
from trunkline.log.errors import TopicExists
from trunkline.log.records import NO_HEADERS, LightNewRecord, LightRecord, encode_records, iter_light
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Appended

_READ_BYTES = 1 << 20
_BATCH_TARGET_BYTES = 4 << 20
_RECORD_OVERHEAD_BYTES = 32
_MAX_BATCH_BYTES = 300 << 20  # one record may be as large as the largest message a protocol takes


class StateTopic:
    def __init__(self, store: LogStore, clock: Clock, name: str) -> None:
        self.tp = TopicPartition(name, 0)
        self._store = store
        self._clock = clock
        self._pending: dict[bytes, LightNewRecord] = {}

    async def open(self) -> None:
        """Create the topic if it is not there."""
        if self._store.topic(self.tp.topic) is None:
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "max.message.bytes": str(_MAX_BATCH_BYTES),
                "segment.bytes": str(100 << 20),
            }
            try:
                await self._store.create_topic(self.tp.topic, 1, settings)
            except TopicExists:
                pass

    async def replay(self) -> AsyncIterator[LightRecord]:
        bounds = self._store.bounds(self.tp)
        offset, end = bounds.log_start_offset, bounds.high_watermark
        while offset < end:
            piece = await self._store.read(self.tp, offset, _READ_BYTES, verified=True)
            before = offset
            for header, batch in iter_batches(piece.records):
                offset = max(offset, header.last_offset + 1)
                if not header.control:
                    for record in iter_light(batch):
                        yield record
            if offset == before:
                break  # compaction may leave nothing between here and the end

    @property
    def dirty(self) -> bool:
        return bool(self._pending)

    def put(self, key: bytes, value: bytes | None, headers: bytes = NO_HEADERS) -> None:
        """Set the key's value, or remove it with None, at the next flush."""
        self._pending[key] = (key, value, headers, -1)

    def flush(self, durability: Durability) -> asyncio.Future[Appended]:
        """Append what was put. The future completes when all of it is as durable as asked for. Needs `dirty`."""
        pending, self._pending = self._pending, {}
        now_ms = self._clock.wall_ms()
        batch: list[LightNewRecord] = []
        size = 0
        for record in pending.values():
            record_bytes = len(record[0] or b"") + len(record[1] or b"") + len(record[2]) + _RECORD_OVERHEAD_BYTES
            if batch and size + record_bytes > _BATCH_TARGET_BYTES:
                self._store.append(self.tp, encode_records(batch, timestamp_ms=now_ms), Durability.OS)
                batch, size = [], 0
            batch.append(record)
            size += record_bytes
        # One partition's appends become durable in order, so the last one speaks for all.
        return self._store.append(self.tp, encode_records(batch, timestamp_ms=now_ms), durability)
