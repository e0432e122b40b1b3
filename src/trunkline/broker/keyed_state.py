"""KeyedState: a state topic whose changes are collected during a turn and written at its end.

The last value of a key wins. `flush` appends what was put as one batch (more when it is large), so that a turn costs one
write however many keys it touched. A batch is whole or absent after a crash, so keys that are put in one turn are stored
together (up to `_BATCH_TARGET_BYTES`; what must be atomic is put under one key).

Values are read back with `topic`, before anything is put.
"""

from __future__ import annotations

from trunkline.clock import Clock
from trunkline.log.records import NO_HEADERS, LightNewRecord
from trunkline.log.state_topic import StateTopic
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Ticket

_BATCH_TARGET_BYTES = 4 << 20
_RECORD_OVERHEAD_BYTES = 32
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "max.message.bytes": str(300 << 20),  # one record may be as large as the largest message a protocol takes
    "segment.bytes": str(100 << 20),
}


class KeyedState:
    def __init__(self, store: LogStore, clock: Clock, name: str) -> None:
        self.topic = StateTopic(store, clock, name, _TOPIC_CONFIG)
        self._pending: dict[bytes, LightNewRecord] = {}

    @property
    def dirty(self) -> bool:
        return bool(self._pending)

    def put(self, key: bytes, value: bytes | None, headers: bytes = NO_HEADERS) -> None:
        """Set the key's value, or remove it with None, at the next flush."""
        self._pending[key] = (key, value, headers, -1)

    def flush(self, durability: Durability) -> Ticket:
        """Append what was put. The ticket completes when all of it is as durable as asked for. Needs `dirty`."""
        pending, self._pending = self._pending, {}
        batch: list[LightNewRecord] = []
        size = 0
        for record in pending.values():
            record_bytes = len(record[0] or b"") + len(record[1] or b"") + len(record[2]) + _RECORD_OVERHEAD_BYTES
            if batch and size + record_bytes > _BATCH_TARGET_BYTES:
                self.topic.put(batch, Durability.OS)
                batch, size = [], 0
            batch.append(record)
            size += record_bytes
        # One partition's appends become durable in order, so the last one speaks for all.
        return self.topic.put(batch, durability)
