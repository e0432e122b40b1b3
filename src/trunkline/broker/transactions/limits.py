"""The bounds of the transaction coordinator, with Kafka's defaults where Kafka has the setting."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.broker.transactions.producer_ids import DEFAULT_BLOCK_SIZE


class TransactionLimits(NamedTuple):
    max_timeout_ms: int = 15 * 60_000  # transaction.max.timeout.ms
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000  # transactional.id.expiration.ms
    expiration_interval_ms: int = 3_600_000  # how often idle transactional ids are looked for
    max_transactional_ids: int = 100_000
    max_partitions_per_transaction: int = 10_000
    producer_id_block_size: int = DEFAULT_BLOCK_SIZE
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
