"""Looking into batches: how far.

Kafka clients' batches are stored without being looked into; who works with records (queues, MQTT, compaction) looks into no
more than this. What is beyond it is passed over (see passed_over).
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_MAX_DECOMPRESSED_BYTES = 64 << 20
DEFAULT_MAX_BATCH_RECORDS = 500_000


class DecodingLimits(NamedTuple):
    """Of one batch. A few kilobytes can decompress to gigabytes, and hold millions of records."""

    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    max_batch_records: int = DEFAULT_MAX_BATCH_RECORDS
