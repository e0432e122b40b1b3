"""Transactions as an administrator sees them: one described, many listed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from trunkline.broker.transactions.completion import Transaction
from trunkline.broker.transactions.state import NO_TIMESTAMP
from trunkline.log.store import TopicPartition


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int  # -1 when no transaction is open
    partitions: Sequence[TopicPartition]


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


def describe_transaction(transaction: Transaction) -> TransactionDescription:
    state = transaction.state
    return TransactionDescription(
        transaction.id,
        state.status.label,
        state.producer_id,
        state.producer_epoch,
        state.timeout_ms,
        state.start_ms if state.is_open else NO_TIMESTAMP,
        sorted(state.partitions),
    )


def list_transactions(
    transactions: Iterable[Transaction],
    states: Collection[str],
    producer_ids: Collection[int],
    duration_ms: int,
    now_ms: int,
) -> Sequence[TransactionListing]:
    found = []
    for transaction in transactions:
        state = transaction.state
        if not state.is_known or (states and state.status.label not in states):
            continue
        if producer_ids and state.producer_id not in producer_ids:
            continue
        if duration_ms >= 0 and not (state.is_open and now_ms - state.start_ms > duration_ms):
            continue
        found.append(TransactionListing(transaction.id, state.producer_id, state.status.label))
    return found
