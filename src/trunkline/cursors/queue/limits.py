"""Every bound of the queue cursors, by name, with its default."""

from __future__ import annotations

from typing import NamedTuple


class QueueLimits(NamedTuple):
    max_queues: int = 50_000
    # In memory, per queue: messages that are ready, so that live consumers are served without reading the log.
    buffer_bytes: int = 16 << 20
    buffer_messages: int = 65_536  # also how far priorities and keys look ahead of the oldest message
    # In memory, all queues together: above this a queue buffers only what its consumers take next.
    total_buffer_bytes: int = 256 << 20
    read_bytes: int = 512 << 10  # one read of a backlog
    # Leased and not yet settled, per queue; the queue stops delivering there until something is settled.
    max_leases: int = 200_000
    max_leased_bytes: int = 256 << 20
    turn_messages: int = 2_048  # handed to consumers by one queue in one turn of the event loop
    turn_bytes: int = 2 << 20
    batch_bytes: int = 1 << 20  # a put is split into record batches of about this size, appended as one
    max_scheduled: int = 100_000  # messages that wait for their time, per queue
    max_scheduled_bytes: int = 64 << 20  # of those of queues that are not durable: they are in memory only
    trim_bytes: int = 32 << 20  # an acknowledged prefix is trimmed when about this much is free


# The settings of a queue's topic. Messages stay until they are settled, whatever their age; segments are small so that a
# settled prefix is freed early; a batch may hold the largest message that any protocol takes.
QUEUE_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(520 << 20),
}
# A queue that keeps its messages is a stream, too: retention is what its owner sets on the topic.
RETAINED_TOPIC_CONFIG = {"max.message.bytes": QUEUE_TOPIC_CONFIG["max.message.bytes"]}
EPHEMERAL_TOPIC_CONFIG = {**QUEUE_TOPIC_CONFIG, "flush": "os"}
QUEUE_STATE_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "max.message.bytes": str(520 << 20),
}
