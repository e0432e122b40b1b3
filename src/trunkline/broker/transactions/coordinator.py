"""The transaction coordinator: producer ids, and transactions across partitions and group offsets.

The states of a transactional id, and what moves it between them (the rules are in `transaction_state`):

    Empty           a producer has an id and epoch, nothing is open
    Ongoing         partitions have been added; it is aborted when it outlives its timeout
    PrepareCommit   the outcome is durable; markers are on their way (`transaction_completion`)
    PrepareAbort    likewise
    CompleteCommit  every partition knows; the next transaction may begin
    CompleteAbort   likewise
    Dead            idle for `transactional_id_expiration_ms`; forgotten
    PrepareEpochFence  never written: fencing an open transaction is one record here, PrepareAbort under the next epoch

Rules:

- Memory is the fold of `__transaction_state`. A reply is given only when the record behind it is on disk; the new state
  counts in memory from then on. Only Complete records are not waited for; see `transaction_completion` for why.
- Requests for one transactional id are taken one after the other. Where Kafka turns a request away with
  CONCURRENT_TRANSACTIONS because the last transaction is being completed, we first wait for that attempt, which takes an
  fsync, and turn it away only if the attempt failed. InitProducerId that finds an open transaction aborts it and answers
  in the same call.
- A request that was cancelled (its connection closed) is carried through, so that memory never falls behind the log.
- `in_transaction` and `check_append` answer at once: asked in the same turn of the loop as the append, nothing can get
  into a partition after its transaction's end.

Crashes: whatever was Prepare is completed by `start`, before the first request. An Ongoing transaction keeps what is left
of its timeout. `start` of the groups comes first, for they rebuild what they hold back from their own log.

Limits are in `TransactionLimits`. Differences from Kafka: an epoch bump retried across a restart is recognised;
a producer with a stale epoch cannot abort a newer producer's transaction through InitProducerId.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from trunkline.broker.transactions.carried_work import CarriedWork
from trunkline.broker.transactions.completion import Completer, OffsetSink, Placed, Transaction
from trunkline.broker.transactions.errors import TransactionError, TransactionErrorName
from trunkline.broker.transactions.limits import TransactionLimits
from trunkline.broker.transactions.listing import (
    TransactionDescription,
    TransactionListing,
    describe_transaction,
    list_transactions,
)
from trunkline.broker.transactions.log import TransactionLog
from trunkline.broker.transactions.producer_ids import ProducerIds
from trunkline.broker.transactions.state import (
    MAX_TRANSACTIONAL_ID_BYTES,
    NO_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    Status,
    TransactionState,
)
from trunkline.clock import Clock
from trunkline.cursors.stream import OFFSETS_PARTITION
from trunkline.deadlines import AwaitedDeadlines
from trunkline.log.errors import LogError
from trunkline.log.store import LogStore, ProducerState, TopicPartition

__all__ = [
    "OffsetSink",
    "ProducerIdentity",
    "TransactionCoordinator",
    "TransactionDescription",
    "TransactionLimits",
    "TransactionListing",
]

_Name = TransactionErrorName
_log = logging.getLogger(__name__)

# KIP-890's second version: the epoch grows with every transaction and partitions are added by producing to them.
TRANSACTIONS_V2 = 2


class TransactionCoordinator:
    def __init__(
        self, store: LogStore, groups: OffsetSink, clock: Clock, *, limits: TransactionLimits | None = None
    ) -> None:
        self.limits = limits or TransactionLimits()
        self._store = store
        self._groups = groups
        self._clock = clock
        self._log = TransactionLog(store, clock)
        self._ids = ProducerIds(self._log.write, block_size=self.limits.producer_id_block_size)
        self._completer = Completer(store, self._log, groups, clock, become=self._become, retry_later=self._retry_later)
        # When to abort a transaction, or to try again to complete it.
        self._deadlines: AwaitedDeadlines[Transaction] = AwaitedDeadlines(clock)
        self._transactions: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._work = CarriedWork(TransactionError)
        self._next_expiration_ms = clock.monotonic_ms() + self.limits.expiration_interval_ms
        self._open = False

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay the log and complete what a crash left half done. The store and the groups have started before."""
        remembered = await self._log.open()
        self._ids.resume(remembered.next_producer_id_block)
        for transactional_id, state in remembered.states.items():
            transaction = self._transactions[transactional_id] = Transaction(transactional_id, state)
            self._become(transaction, state)
        unfinished = [found for found in self._transactions.values() if found.state.status.preparing]
        for transaction in unfinished:
            await self._complete(transaction)
        await self._make_up_for_losses(remembered.incomplete)
        self._open = True
        await self.settle()

    async def _make_up_for_losses(self, incomplete: bool) -> None:
        """End the transactions that partitions have open and nobody will end, and give no producer id again.

        Partitions know producers and transactions, too. A transaction that only they know lost its marker or its state with
        damage to a file. It is ended as its producer's last one was, else aborted: read_committed consumers wait for it.
        """
        highest = -1
        for info in list(self._store.topics().values()):
            for number in range(info.partitions):
                tp = TopicPartition(info.name, number)
                try:
                    bounds = self._store.bounds(tp)
                    if not incomplete and bounds.last_stable_offset == bounds.high_watermark:
                        continue
                    for producer in await self._store.producers(tp):
                        highest = max(highest, producer.producer_id)
                        if producer.transaction_start_offset is not None:
                            await self._end_if_lost(tp, producer)
                except LogError as error:
                    _log.error("transactions of %s cannot be looked at: %s", tp, error)
        self._ids.resume(highest + 1)

    async def _end_if_lost(self, tp: TopicPartition, producer: ProducerState) -> None:
        known = self._by_producer.get(producer.producer_id)
        if known is not None and known.state.is_open and tp in known.state.partitions:
            return
        commit = known is not None and known.state.status is Status.COMPLETE_COMMIT
        _log.error(
            "%s has a transaction of producer %d open since offset %s, the end of which was lost: it is %s",
            tp,
            producer.producer_id,
            producer.transaction_start_offset,
            "committed, as that producer's last one" if commit else "aborted",
        )
        await self._store.append_marker(tp, producer.producer_id, producer.producer_epoch, commit=commit)
        if tp == OFFSETS_PARTITION:
            await self._groups.txn_end(producer.producer_id, commit)

    async def close(self) -> None:
        """Refuse new requests and carry through those that are under way. What stays in Prepare is left to a start."""
        self._open = False
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing is under way: every request answered, every completion done or put off."""
        await self._work.settle()

    # -- timers ----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> float:
        """The monotonic time at which `expire` has something to do."""
        next_ms = self._deadlines.next_ms()
        return self._next_expiration_ms if next_ms is None else min(next_ms, self._next_expiration_ms)

    def expire(self) -> None:
        """Start everything that is due. `settle` waits for it."""
        now_ms = self._clock.monotonic_ms()
        for transaction in self._deadlines.due(now_ms):
            if transaction.state.status is Status.ONGOING:
                self._work.spawn(self._abort_timed_out(transaction, transaction.state))
            elif transaction.state.status.preparing:
                self._work.spawn(self._complete(transaction))
        if now_ms >= self._next_expiration_ms:
            self._next_expiration_ms = now_ms + self.limits.expiration_interval_ms
            idle = [found for found in self._transactions.values() if self._is_idle(found.state)]
            if idle:
                self._work.spawn(self._forget(idle))

    async def run_timers(self) -> None:
        """Call `expire` whenever it is time. Runs until it is cancelled."""
        while True:
            self._deadlines.arm()
            self.expire()
            await self._deadlines.sleep(self.next_deadline_ms())

    # -- producers -------------------------------------------------------------------------------------------------

    async def init_producer_id(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
    ) -> ProducerIdentity:
        """Give a producer its id and epoch; for a transactional one, shut out whoever had the transactional id.

        A producer that names the id and epoch that it holds asks for the next epoch (KIP-360).
        """
        self._check_open()
        if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_EPOCH):
            raise TransactionError(_Name.INVALID_REQUEST, "producer id and epoch come together or not at all")
        if transactional_id is None:
            return ProducerIdentity(await self._work.run(self._fresh_id()), 0)
        if not 0 < len(transactional_id.encode()) <= MAX_TRANSACTIONAL_ID_BYTES:
            raise TransactionError(_Name.INVALID_REQUEST, "a transactional id has 1 to 32767 bytes")
        if not 0 < transaction_timeout_ms <= self.limits.max_timeout_ms:
            raise TransactionError(
                _Name.INVALID_TRANSACTION_TIMEOUT,
                f"{transaction_timeout_ms} ms is not between 1 and {self.limits.max_timeout_ms}",
            )
        held = None if producer_id == NO_PRODUCER_ID else ProducerIdentity(producer_id, producer_epoch)
        return await self._work.run(self._init(transactional_id, transaction_timeout_ms, held))

    async def _init(self, transactional_id: str, timeout_ms: int, held: ProducerIdentity | None) -> ProducerIdentity:
        while True:
            transaction = self._transactions.get(transactional_id) or self._introduce(transactional_id)
            async with transaction.lock:
                # While this request waited for the lock, the transactional id may have been forgotten.
                if self._transactions.get(transactional_id) is not transaction:
                    continue
                try:
                    return await self._initialize(transaction, timeout_ms, held)
                finally:
                    if not transaction.state.is_known:
                        del self._transactions[transactional_id]

    def _introduce(self, transactional_id: str) -> Transaction:
        if len(self._transactions) >= self.limits.max_transactional_ids:
            raise TransactionError(
                _Name.POLICY_VIOLATION,
                f"{self.limits.max_transactional_ids} transactional ids are in use; reuse ids instead of making new ones",
            )
        transaction = self._transactions[transactional_id] = Transaction(transactional_id, TransactionState())
        return transaction

    async def _initialize(
        self, transaction: Transaction, timeout_ms: int, held: ProducerIdentity | None
    ) -> ProducerIdentity:
        await self._attempt_over(transaction)
        state = transaction.state
        known = state.is_known
        if known and held is not None and held != state.identity and not state.is_retry(held):
            raise _fenced(transaction)
        if state.status is Status.ONGOING:
            if held is None:
                await self._end_as(transaction, state.fenced(self._clock.wall_ms()))
            elif held == state.identity:
                await self._end_as(transaction, await self._bumped_end(state, commit=False))
            else:
                raise _fenced(transaction)  # the epoch after the one that is named has begun a transaction
            await self._attempt_over(transaction)
            state = transaction.state
        if state.status.preparing:
            raise _concurrent(transaction)
        last_epoch = NO_EPOCH if held is None or not known else held.producer_epoch
        if not known:
            identity = ProducerIdentity(await self._fresh_id(), 0)
        elif held is not None and state.is_retry(held):
            identity = state.identity
        elif state.epoch_exhausted:
            identity = ProducerIdentity(await self._fresh_id(), 0)
        else:
            identity = ProducerIdentity(state.producer_id, state.producer_epoch + 1)
        await self._write(transaction, state.initialized(identity, last_epoch, timeout_ms, self._clock.wall_ms()))
        return identity

    # -- partitions ------------------------------------------------------------------------------------------------

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, TransactionErrorName]:
        """Add partitions to the transaction, beginning one if none is open: all of them or none."""
        self._check_open()
        wanted = frozenset(partitions)
        unknown = {tp for tp in wanted if not self._exists(tp)}
        if unknown:
            return {
                tp: _Name.UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else _Name.OPERATION_NOT_ATTEMPTED
                for tp in wanted
            }
        await self._work.run(self._add(transactional_id, ProducerIdentity(producer_id, producer_epoch), wanted, 0))
        return dict.fromkeys(wanted, _Name.NONE)

    async def add_offsets(self, transactional_id: str, producer_id: int, producer_epoch: int, group: str) -> None:
        """Add a group's offsets to the transaction. All groups share one partition, so the name makes no difference."""
        self._check_open()
        identity = ProducerIdentity(producer_id, producer_epoch)
        await self._work.run(self._add(transactional_id, identity, frozenset((OFFSETS_PARTITION,)), 0))

    async def ensure_partition(
        self, transactional_id: str, producer_id: int, producer_epoch: int, tp: TopicPartition
    ) -> None:
        """Add one partition that is about to be written to, unless it is in already (TxnOffsetCommit v5).

        When this returns, the append may be made in the same turn of the loop.
        """
        refused = await self.ensure_partitions(transactional_id, producer_id, producer_epoch, (tp,))
        if refused:
            raise refused[tp]
        # Between the durable record and this turn of the loop the transaction may have been aborted.
        self.check_append(producer_id, producer_epoch, tp)

    async def ensure_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, TransactionError]:
        """Add the partitions that are about to be produced to and are not in yet (Produce v12), with one record.

        Returns the refusals. It may have waited: `check_append` says whether an append may be made now.
        """
        transaction = self._transactions.get(transactional_id)
        identity = ProducerIdentity(producer_id, producer_epoch)
        if transaction is not None and transaction.state.identity == identity:
            missing = [tp for tp in partitions if not transaction.holds(tp)]
        else:
            missing = list(partitions)
        wanted = frozenset(tp for tp in missing if tp == OFFSETS_PARTITION or self._exists(tp))
        refused = {
            tp: TransactionError(_Name.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {tp}")
            for tp in missing
            if tp not in wanted
        }
        if wanted:
            try:
                self._check_open()
                await self._work.run(self._add(transactional_id, identity, wanted, TRANSACTIONS_V2))
            except TransactionError as error:
                refused |= dict.fromkeys(wanted, error)
        return refused

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, TransactionErrorName]:
        """Which partitions are in the open transaction. Adds nothing. Before v5 TRANSACTION_ABORTABLE is INVALID_TXN_STATE."""
        self._check_open()
        transaction = self._find(transactional_id)
        _check_identity(transaction, ProducerIdentity(producer_id, producer_epoch))
        if transaction.state.status.preparing or transaction.ending:
            raise _concurrent(transaction)
        return {tp: _Name.NONE if transaction.holds(tp) else _Name.TRANSACTION_ABORTABLE for tp in partitions}

    def in_transaction(self, producer_id: int, tp: TopicPartition) -> bool:
        """Whether the producer has a transaction open that holds this partition."""
        transaction = self._by_producer.get(producer_id)
        return transaction is not None and transaction.holds(tp)

    def check_append(self, producer_id: int, producer_epoch: int, tp: TopicPartition) -> None:
        """Raise unless this producer may append to this partition now, that is, in this turn of the loop.

        Unlike `in_transaction` it also catches a fenced producer whose successor has the partition in a transaction, of
        which the partition itself knows nothing before the successor's first batch.
        """
        transaction = self._by_producer.get(producer_id)
        if transaction is None:
            raise TransactionError(
                _Name.INVALID_PRODUCER_ID_MAPPING, f"producer id {producer_id} has no transactional id"
            )
        if transaction.state.producer_epoch != producer_epoch:
            raise TransactionError(
                _Name.INVALID_PRODUCER_EPOCH, f"{transaction.id!r} does not have epoch {producer_epoch}"
            )
        if not transaction.holds(tp):
            raise TransactionError(_Name.INVALID_TXN_STATE, f"{tp} is not in an open transaction of {transaction.id!r}")

    async def _add(
        self, transactional_id: str, identity: ProducerIdentity, wanted: frozenset[TopicPartition], client_version: int
    ) -> None:
        async with self._hold(transactional_id) as transaction:
            _check_identity(transaction, identity)
            await self._attempt_over(transaction)
            _check_identity(transaction, identity)
            state = transaction.state
            if state.status.preparing:
                raise _concurrent(transaction)
            if state.status is Status.ONGOING and wanted <= state.partitions:
                return
            if len(wanted | state.partitions) > self.limits.max_partitions_per_transaction:
                raise TransactionError(
                    _Name.INVALID_REQUEST,
                    f"a transaction takes at most {self.limits.max_partitions_per_transaction} partitions",
                )
            await self._write(transaction, state.with_partitions(wanted, client_version, self._clock.wall_ms()))

    # -- the end ---------------------------------------------------------------------------------------------------

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool, *, bump_epoch: bool = False
    ) -> ProducerIdentity:
        """Commit or abort. Returns the id and epoch to go on with: with `bump_epoch` (EndTxn v5) the next ones.

        When this returns the outcome is durable and readers see it.
        """
        self._check_open()
        asked = ProducerIdentity(producer_id, producer_epoch)
        return await self._work.run(self._end(transactional_id, asked, commit, bump_epoch))

    async def _end(
        self, transactional_id: str, asked: ProducerIdentity, commit: bool, bump_epoch: bool
    ) -> ProducerIdentity:
        async with self._hold(transactional_id) as transaction:
            await self._attempt_over(transaction)
            state = transaction.state
            if self._ended_already(transaction, asked, commit, bump_epoch):
                return state.client_identity
            now_ms = self._clock.wall_ms()
            ended = await self._bumped_end(state, commit) if bump_epoch else state.prepared(commit, now_ms)
            await self._end_as(transaction, ended)
            return ended.client_identity

    @staticmethod
    def _ended_already(transaction: Transaction, asked: ProducerIdentity, commit: bool, bump_epoch: bool) -> bool:
        """True for the retry of a request that succeeded, False for one that may go ahead; otherwise raises."""
        state = transaction.state
        retry = bump_epoch and state.is_retry(asked) and state.status not in (Status.EMPTY, Status.ONGOING)
        if not retry:
            _check_identity(transaction, asked)
        if state.status is Status.ONGOING:
            return False
        if state.status.preparing and (retry or not bump_epoch):
            if commit == (state.status is Status.PREPARE_COMMIT):
                raise _concurrent(transaction)
        elif state.status.preparing:
            raise _fenced(transaction)
        elif retry or not bump_epoch:
            if state.status is (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT):
                return True
        elif not commit:
            return False  # under KIP-890 a producer may abort before anything reached the coordinator
        raise TransactionError(
            _Name.INVALID_TXN_STATE,
            f"{transaction.id} cannot {'commit' if commit else 'abort'} when it is {state.status.label}",
        )

    async def _bumped_end(self, state: TransactionState, commit: bool) -> TransactionState:
        next_id = await self._fresh_id() if state.epoch_exhausted else NO_PRODUCER_ID
        return state.prepared_with_bump(commit, self._clock.wall_ms(), next_id)

    async def _end_as(self, transaction: Transaction, ended: TransactionState) -> None:
        transaction.ending = True
        try:
            await self._write(transaction, ended)
        finally:
            transaction.ending = False
        await self._complete(transaction)

    async def _complete(self, transaction: Transaction) -> None:
        """Return when the markers are in place; the rest goes on behind, as `transaction.completion`."""
        placed = await self._completer.place(transaction)
        transaction.completion = self._work.spawn(self._finish(transaction, placed))

    async def _finish(self, transaction: Transaction, placed: Placed) -> None:
        try:
            await self._completer.settle(transaction, placed)
        except Exception:
            _log.exception("transaction %s: completing it failed", transaction.id)
            self._retry_later(transaction)
        finally:
            transaction.completion = None

    async def _attempt_over(self, transaction: Transaction) -> None:
        """Wait for the completion that is under way. It does not raise: if it fails, the state stays Prepare."""
        if transaction.completion is not None:
            await asyncio.wait((transaction.completion,))

    async def _abort_timed_out(self, transaction: Transaction, overdue: TransactionState) -> None:
        async with transaction.lock:
            state = transaction.state
            same = state.identity == overdue.identity and state.start_ms == overdue.start_ms
            if state.status is not Status.ONGOING or not same:
                return  # it ended while this waited for the lock; the next one has a deadline of its own
            try:
                await self._end_as(transaction, state.fenced(self._clock.wall_ms()))
            except TransactionError as error:
                _log.warning("transaction %s: cannot abort it after its timeout: %s", transaction.id, error)
                self._retry_later(transaction)

    # -- idle transactional ids ------------------------------------------------------------------------------------

    def _is_idle(self, state: TransactionState) -> bool:
        if state.is_open or not state.is_known:
            return False
        return self._clock.wall_ms() - state.last_update_ms >= self.limits.transactional_id_expiration_ms

    async def _forget(self, idle: Iterable[Transaction]) -> None:
        for transaction in idle:
            async with transaction.lock:
                state = transaction.state
                if not self._is_idle(state):
                    continue
                try:
                    await self._log.forget(transaction.id)
                except LogError as error:
                    _log.warning("transaction %s: cannot forget it yet: %s", transaction.id, error)
                    return
                transaction.state = state.dead()
                del self._by_producer[state.producer_id]
                del self._transactions[transaction.id]

    # -- admin -----------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.state.is_known:
            raise TransactionError(_Name.TRANSACTIONAL_ID_NOT_FOUND, f"there is no {transactional_id!r}")
        return describe_transaction(transaction)

    def list(
        self, states: Collection[str] = (), producer_ids: Collection[int] = (), duration_ms: int = -1
    ) -> Sequence[TransactionListing]:
        """Every transactional id that passes the filters; an empty filter passes all. `duration_ms` asks for
        transactions that have been open for longer. A state name that is not in `STATUS_BY_LABEL` matches nothing.
        """
        return list_transactions(self._transactions.values(), states, producer_ids, duration_ms, self._clock.wall_ms())

    # -- within ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._open:
            raise TransactionError(_Name.COORDINATOR_NOT_AVAILABLE, "the transaction coordinator is not running")

    def _exists(self, tp: TopicPartition) -> bool:
        topic = self._store.topic(tp.topic)
        return topic is not None and 0 <= tp.partition < topic.partitions

    def _find(self, transactional_id: str) -> Transaction:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise TransactionError(_Name.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id!r} has no producer id")
        return transaction

    @asynccontextmanager
    async def _hold(self, transactional_id: str) -> AsyncIterator[Transaction]:
        transaction = self._find(transactional_id)
        async with transaction.lock:
            if self._find(transactional_id) is not transaction:  # forgotten, and known again, while this waited
                raise TransactionError(_Name.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id!r} was idle for too long")
            yield transaction

    async def _fresh_id(self) -> int:
        try:
            return await self._ids.take()
        except LogError as error:
            raise TransactionError(_Name.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    async def _write(self, transaction: Transaction, state: TransactionState) -> None:
        try:
            await self._log.write_state(transaction.id, state)
        except LogError as error:
            raise TransactionError(_Name.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        self._become(transaction, state)

    def _become(self, transaction: Transaction, state: TransactionState) -> None:
        """Make what is durable the state in memory, with all that follows from it."""
        replaced = transaction.state.producer_id
        if replaced not in (NO_PRODUCER_ID, state.producer_id):
            del self._by_producer[replaced]
        self._by_producer[state.producer_id] = transaction
        transaction.state = state
        if state.status is Status.ONGOING:
            if transaction not in self._deadlines:
                left_ms = state.start_ms + state.timeout_ms - self._clock.wall_ms()
                # A wall clock that was set back between two starts must not keep a transaction open for ever.
                left_ms = min(max(0, left_ms), state.timeout_ms)
                self._deadlines.set(transaction, self._clock.monotonic_ms() + left_ms)
            return
        self._deadlines.cancel(transaction)
        transaction.failures = 0
        transaction.offsets_ended = False
        transaction.unmarked = set(state.partitions)

    def _retry_later(self, transaction: Transaction) -> None:
        delay_ms = self.limits.retry_backoff_ms << min(transaction.failures, 20)
        transaction.failures += 1
        self._deadlines.set(transaction, self._clock.monotonic_ms() + min(delay_ms, self.limits.retry_backoff_max_ms))


def _check_identity(transaction: Transaction, asked: ProducerIdentity) -> None:
    if transaction.state.producer_id != asked.producer_id:
        raise TransactionError(
            _Name.INVALID_PRODUCER_ID_MAPPING, f"{transaction.id!r} does not have producer id {asked.producer_id}"
        )
    if transaction.state.producer_epoch != asked.producer_epoch:
        raise _fenced(transaction)


def _fenced(transaction: Transaction) -> TransactionError:
    return TransactionError(_Name.PRODUCER_FENCED, f"there is a newer producer for {transaction.id!r}")


def _concurrent(transaction: Transaction) -> TransactionError:
    return TransactionError(
        _Name.CONCURRENT_TRANSACTIONS, f"{transaction.id!r} has a transaction that is being completed"
    )
