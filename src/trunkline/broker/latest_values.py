"""A compacted topic as a dictionary: the latest value of every key. It is how a broker's memory is rebuilt at start.

What is read is bounded by what compaction leaves and what was written since; it is held until the caller has folded it.
"""

from __future__ import annotations

from trunkline.log.batch import iter_batches
from trunkline.log.records import iter_light
from trunkline.log.store import LogStore, TopicPartition

_READ_BYTES = 1 << 20


async def latest_values(store: LogStore, partition: TopicPartition) -> dict[bytes, bytes]:
    """The latest value of every key that was not deleted, in the order in which the keys came."""
    found: dict[bytes, bytes] = {}
    offset = store.bounds(partition).log_start_offset
    while True:
        part = await store.read(partition, offset, _READ_BYTES, verified=True)
        if not part.records:
            return found
        for header, batch in iter_batches(part.records):
            offset = header.last_offset + 1
            if header.control:
                continue
            for _, _, key, value, _ in iter_light(batch):
                if key is None:
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
