"""When the coordinator must act by itself: which transaction is due next.

A heap with at most a few entries per transactional id. A transaction's deadline may move later without touching the
heap: an entry that comes up too early is put back. Only an earlier deadline costs a push. Reading the next deadline
is O(1), a change O(log n).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from itertools import count

from trunkline.broker.transaction_completion import Transaction


class TransactionTimers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Transaction]] = []
        self._order = count()  # breaks ties, as transactions do not compare
        self.earlier = asyncio.Event()  # set when something became due sooner than whoever sleeps knows

    def set(self, transaction: Transaction, deadline_ms: float | None) -> None:
        transaction.deadline_ms = deadline_ms
        if deadline_ms is None or (transaction.timer_ms is not None and transaction.timer_ms <= deadline_ms):
            return
        transaction.timer_ms = deadline_ms
        if not self._heap or deadline_ms < self._heap[0][0]:
            self.earlier.set()
        heapq.heappush(self._heap, (deadline_ms, next(self._order), transaction))

    def next_ms(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: float) -> Iterator[Transaction]:
        """Take out every transaction whose deadline has come."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, transaction = heapq.heappop(self._heap)
            if transaction.timer_ms != at_ms:
                continue  # an entry with an earlier time has stood in for this one
            transaction.timer_ms = None
            deadline_ms = transaction.deadline_ms
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self.set(transaction, deadline_ms)
            else:
                transaction.deadline_ms = None
                yield transaction
