"""Completing a transaction: telling every partition how it ended, then remembering that all have been told.

A transaction gets here when its Prepare record is durable: the outcome can no longer change, whatever fails.

1. `place` appends a marker to every partition of the transaction, and waits until each has its place, which comes after
   that of everything in the transaction; for `__consumer_offsets` it then tells the groups, so that the offsets count.
   Both are visible at once. A client's EndTxn is answered here.
2. `settle` waits until the markers are on disk, then writes the Complete record and makes it the state.

Crashes: a start finds Prepare and does it all again. A marker that is written twice is harmless, because the producer
cannot have begun anything new: it has to write Ongoing to the same log after Complete, so when Ongoing is durable,
Complete is too. This is also why Complete need not wait for an fsync of its own.

Failures: a partition that was deleted, or that has already seen a newer epoch, is skipped. Any other refusal leaves the
transaction in Prepare, with the partitions that are still to be told in `unmarked`; it is tried again after a back-off
that doubles from `retry_backoff_ms` to `retry_backoff_max_ms`. Other transactions do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from trunkline.broker.transactions.log import TransactionLog
from trunkline.broker.transactions.state import Status, TransactionState
from trunkline.clock import Clock
from trunkline.cursors.stream import OFFSETS_PARTITION
from trunkline.log.errors import LogError, ProducerFenced, UnknownTopicOrPartition
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Ticket

_log = logging.getLogger(__name__)


class OffsetSink(Protocol):
    """The groups, as the coordinator sees them: they hold a transaction's offsets back until it ends."""

    async def txn_end(self, producer_id: int, commit: bool) -> None:
        """The marker is in `__consumer_offsets`. Called again after a crash; unknown producers are ignored."""
        ...


class Transaction:
    """One transactional id as it lives in memory. `lock` orders requests; `state` is what is durable."""

    __slots__ = (
        "completion",
        "ending",
        "failures",
        "id",
        "lock",
        "offsets_ended",
        "state",
        "unmarked",
    )

    def __init__(self, transactional_id: str, state: TransactionState) -> None:
        self.id = transactional_id
        self.state = state
        self.lock = asyncio.Lock()
        self.ending = False  # its Prepare record is on the way: nothing more may be appended to the transaction
        self.unmarked: set[TopicPartition] = set()
        self.offsets_ended = False
        self.failures = 0
        self.completion: asyncio.Task[None] | None = None

    def holds(self, tp: TopicPartition) -> bool:
        return self.state.status is Status.ONGOING and not self.ending and tp in self.state.partitions


Placed = dict[TopicPartition, Ticket]


class Completer:
    def __init__(
        self,
        store: LogStore,
        log: TransactionLog,
        groups: OffsetSink,
        clock: Clock,
        *,
        become: Callable[[Transaction, TransactionState], None],
        retry_later: Callable[[Transaction], None],
    ) -> None:
        self._store = store
        self._log = log
        self._groups = groups
        self._clock = clock
        self._become = become
        self._retry_later = retry_later

    async def place(self, transaction: Transaction) -> Placed:
        """Append the markers that are missing, and wait until they stand. What cannot be placed now stays in `unmarked`."""
        state = transaction.state
        assert state.status.preparing
        commit = state.status is Status.PREPARE_COMMIT
        placed: Placed = {}
        for tp in sorted(transaction.unmarked):
            try:
                placed[tp] = self._store.append_marker(tp, state.producer_id, state.producer_epoch, commit=commit)
            except LogError as error:
                self._refused(transaction, tp, error)
        for ticket in placed.values():
            if ticket.place is None:
                await ticket.until_placed()  # refused: `settle` sees why
        offsets = placed.get(OFFSETS_PARTITION)
        if offsets is not None and offsets.place is not None and not transaction.offsets_ended:
            try:
                await self._groups.txn_end(state.producer_id, commit)
                transaction.offsets_ended = True
            except Exception:
                # The transaction must not be forgotten because of a fault elsewhere: it stays in Prepare.
                _log.exception("transaction %s: the groups did not take its end", transaction.id)
        return placed

    async def settle(self, transaction: Transaction, placed: Placed) -> None:
        """Wait for the markers, then write Complete; or leave it for another try."""
        state = transaction.state
        for tp, future in placed.items():
            try:
                await future
            except LogError as error:
                self._refused(transaction, tp, error)
            else:
                if tp != OFFSETS_PARTITION or transaction.offsets_ended:
                    transaction.unmarked.discard(tp)
        if transaction.unmarked:
            self._retry_later(transaction)
            return
        done = state.completed(self._clock.wall_ms())
        try:
            await self._log.write_state(transaction.id, done, Durability.OS)
        except LogError as error:
            _log.warning("transaction %s: cannot write %s: %s", transaction.id, done.status.label, error)
            self._retry_later(transaction)
            return
        self._become(transaction, done)

    @staticmethod
    def _refused(transaction: Transaction, tp: TopicPartition, error: LogError) -> None:
        if isinstance(error, UnknownTopicOrPartition | ProducerFenced):
            transaction.unmarked.discard(tp)
            if tp == OFFSETS_PARTITION:
                transaction.offsets_ended = True
        else:
            _log.warning("transaction %s: no marker in %s yet: %s", transaction.id, tp, error)
