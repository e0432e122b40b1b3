"""What the broker refuses, under the names that Kafka gives these refusals.

The names are shared by every protocol; only the Kafka layer knows the numbers that belong to them.
"""

from __future__ import annotations

from enum import StrEnum


class TransactionErrorName(StrEnum):
    """Every refusal of the transaction coordinator. `NONE` stands for success where errors are given per partition."""

    NONE = "NONE"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    INVALID_REQUEST = "INVALID_REQUEST"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    INVALID_PRODUCER_ID_MAPPING = "INVALID_PRODUCER_ID_MAPPING"
    INVALID_TRANSACTION_TIMEOUT = "INVALID_TRANSACTION_TIMEOUT"
    CONCURRENT_TRANSACTIONS = "CONCURRENT_TRANSACTIONS"
    OPERATION_NOT_ATTEMPTED = "OPERATION_NOT_ATTEMPTED"
    PRODUCER_FENCED = "PRODUCER_FENCED"
    TRANSACTIONAL_ID_NOT_FOUND = "TRANSACTIONAL_ID_NOT_FOUND"
    TRANSACTION_ABORTABLE = "TRANSACTION_ABORTABLE"


class TransactionError(Exception):
    """A refusal by the transaction coordinator. `name` is Kafka's; the text says what happened."""

    def __init__(self, name: TransactionErrorName, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail
