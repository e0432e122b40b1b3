"""What a partition remembers of its idempotent and transactional producers.

Per producer id: the epoch, the sequence ranges and offsets of its last five batches, the epoch of the coordinator that ended
its last transaction, and the first offset of the transaction that is open. From this follow

- duplicates: a batch that equals one of the last five is answered with the offsets it has; in a transaction only those of
  that transaction count, because nobody repeats what belongs to one that has ended: such numbers are a client's mistake,
  and to call its records stored would lose them;
- order: any other batch must begin where the last one ended (sequence numbers wrap at 2^31-1); a producer that the
  partition does not know may begin anywhere, since its state may have expired; a new epoch begins at 0;
- fencing: a lower epoch is refused;
- the last stable offset: the smallest first offset of an open transaction.

On disk: `<20-digit offset>.snapshot`, the state after every batch before that offset: 4 bytes CRC-32C of the rest, then JSON.
Written when a segment is rolled and when the store is closed. It is a shortcut, never the truth: recovery takes
the newest one that is whole and not past the log's end, and reads the batch headers after it. After a crash state is
therefore exactly what the batches in the log say.

A producer that was idle for `producer_expiry_ms` outside of a transaction is forgotten. So are, when `MAX_PRODUCERS` are known,
those that were silent for longest: anyone can ask for a new producer id for each record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple

from trunkline.log.aborted import AbortedEntry
from trunkline.log.batch import (
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Marker,
    advance_sequence,
)
from trunkline.log.checksum import crc32c_of
from trunkline.log.errors import (
    InvalidTransactionState,
    OutOfOrderSequence,
    ProducerFenced,
)
from trunkline.log.store import ProducerState

REMEMBERED_BATCHES = 5
MAX_PRODUCERS = 50_000  # of one partition; an eighth of them is forgotten at a time
_CRC = struct.Struct(">I")
_FORMAT = 1
_NO_COORDINATOR = -1


class SequenceRange(NamedTuple):
    """One stored batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp_ms", "transaction_start_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[SequenceRange] = []
        self.coordinator_epoch = _NO_COORDINATOR
        self.last_timestamp_ms = 0
        self.transaction_start_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def expected_sequence(self, epoch: int) -> int:
        """Where the next batch begins: after the last one, or at 0 in a new epoch."""
        if epoch != self.epoch or not self.batches:
            return 0
        return advance_sequence(self.batches[-1].last_sequence, 1)

    def find(self, header: BatchHeader) -> SequenceRange | None:
        """The stored batch that this one repeats."""
        if header.producer_epoch != self.epoch:
            return None
        first_offset = 0
        if header.attributes & TRANSACTIONAL:
            if self.transaction_start_offset is None:
                return None
            first_offset = self.transaction_start_offset
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == last and batch.base_offset >= first_offset:
                return batch
        return None


class ProducerTable:
    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        # By producer id. A transaction is entered when it begins, so the values ascend and the first is the oldest.
        self._open_transactions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def first_unstable_offset(self) -> int | None:
        return next(iter(self._open_transactions.values()), None)

    # -- checks: raise or answer, change nothing ---------------------------------------------------------------------

    def check(self, header: BatchHeader) -> SequenceRange | None:
        """Refuse a client's batch that does not follow what its producer sent before.

        Returns the stored batch that this one repeats, if it is one of the last five; None when it is new.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} has epoch {header.producer_epoch}; epoch {producer.epoch} was seen"
            )
        expected = producer.expected_sequence(header.producer_epoch)
        # Offsets committed in a transaction come without a sequence: the groups write them, not the producer.
        if header.base_sequence not in (expected, NO_SEQUENCE):
            duplicate = producer.find(header)
            if duplicate is None:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id}, epoch {header.producer_epoch}, sent sequence {header.base_sequence}; "
                    f"{expected} was expected"
                )
            return duplicate
        if producer.transaction_start_offset is not None and not header.attributes & TRANSACTIONAL:
            raise InvalidTransactionState(
                f"producer {header.producer_id} sent a non-transactional batch inside a transaction"
            )
        return None

    def drop_duplicates(
        self, batches: list[tuple[BatchHeader, memoryview]], end_offset: int, now_ms: int
    ) -> list[SequenceRange]:
        """Check batches that shall stand from `end_offset` on, each in the light of those before it.

        Takes those that are stored already out of the list, and returns where they are.
        """
        trial = self.fork({header.producer_id for header, _ in batches})
        repeated: list[SequenceRange] = []
        fresh: list[tuple[BatchHeader, memoryview]] = []
        for header, batch in batches:
            if header.producer_id >= 0:
                duplicate = trial.check(header)
                if duplicate is not None:
                    repeated.append(duplicate)
                    continue
                trial.apply(header, end_offset, now_ms)
            fresh.append((header, batch))
            end_offset += header.last_offset_delta + 1
        batches[:] = fresh
        return repeated

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        if producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"marker of producer {producer_id} has epoch {producer_epoch}; epoch {producer.epoch} was seen"
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise InvalidTransactionState(
                f"marker of producer {producer_id} comes from coordinator epoch {coordinator_epoch}; "
                f"epoch {producer.coordinator_epoch} was seen"
            )

    # -- changes: what is in the log is taken as it is ---------------------------------------------------------------

    def apply(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Take in a data batch that stands in the log at `base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if len(self._producers) >= MAX_PRODUCERS:
                self._forget_silent()
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        if header.base_sequence >= 0:
            batches = producer.batches
            batches.append(
                SequenceRange(
                    header.base_sequence, header.last_sequence, base_offset, base_offset + header.last_offset_delta
                )
            )
            if len(batches) > REMEMBERED_BATCHES:
                del batches[0]
        producer.last_timestamp_ms = now_ms
        if header.attributes & TRANSACTIONAL and producer.transaction_start_offset is None:
            producer.transaction_start_offset = base_offset
            self._open_transactions[header.producer_id] = base_offset

    def apply_marker(self, header: BatchHeader, marker: Marker, offset: int, now_ms: int) -> AbortedEntry | None:
        """Take in a marker that stands in the log; returns what the aborted index must learn."""
        producer_id = header.producer_id
        aborted = None if marker.commit else self.aborted_by(producer_id, offset)
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = now_ms
        if producer.transaction_start_offset is not None:
            producer.transaction_start_offset = None
            del self._open_transactions[producer_id]
        return aborted

    def aborted_by(self, producer_id: int, offset: int) -> AbortedEntry | None:
        """What the aborted index must learn of an abort marker at `offset`; None when no transaction is open."""
        first_offset = self._open_transactions.get(producer_id)
        if first_offset is None:
            return None
        others = (start for other, start in self._open_transactions.items() if other != producer_id)
        return AbortedEntry(producer_id, first_offset, offset, next(others, offset + 1))

    def expire(self, before_ms: int) -> None:
        """Forget producers that were last heard of before this time and have no open transaction."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start_offset is None and producer.last_timestamp_ms < before_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]

    def _forget_silent(self) -> None:
        idle = [item for item in self._producers.items() if item[1].transaction_start_offset is None]
        idle.sort(key=lambda item: item[1].last_timestamp_ms)
        for producer_id, _ in idle[: MAX_PRODUCERS // 8]:
            del self._producers[producer_id]

    def fork(self, producer_ids: set[int]) -> ProducerTable:
        """A copy that knows these producers only, to try batches on."""
        copy = ProducerTable()
        for producer_id in producer_ids & self._producers.keys():
            old = self._producers[producer_id]
            new = copy._producers[producer_id] = Producer(old.epoch)
            new.batches = list(old.batches)
            new.coordinator_epoch = old.coordinator_epoch
            new.transaction_start_offset = old.transaction_start_offset
        return copy

    def last_kept_offsets(self) -> set[int]:
        """The last offset of each producer: compaction keeps these batches, though empty, for their sequence numbers."""
        return {producer.batches[-1].last_offset for producer in self._producers.values() if producer.batches}

    def describe(self) -> list[ProducerState]:
        return list(self._describe())

    def _describe(self) -> Iterator[ProducerState]:
        for producer_id, producer in self._producers.items():
            yield ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp_ms=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                transaction_start_offset=producer.transaction_start_offset,
            )

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        rows = [
            [producer_id, p.epoch, p.coordinator_epoch, p.last_timestamp_ms, p.transaction_start_offset, p.batches]
            for producer_id, p in self._producers.items()
        ]
        body = json.dumps({"format": _FORMAT, "producers": rows}, separators=(",", ":")).encode()
        return _CRC.pack(crc32c_of(body)) + body

    @classmethod
    def decode(cls, raw: bytes) -> ProducerTable:
        """ValueError unless the snapshot is whole."""
        body = raw[_CRC.size :]
        if len(raw) < _CRC.size or _CRC.unpack_from(raw)[0] != crc32c_of(body):
            raise ValueError("checksum does not match")
        document = json.loads(body)
        if document["format"] != _FORMAT:
            raise ValueError(f"unknown format {document['format']}")
        table = cls()
        for producer_id, epoch, coordinator_epoch, last_timestamp_ms, start, batches in document["producers"]:
            producer = table._producers[producer_id] = Producer(epoch)
            producer.coordinator_epoch = coordinator_epoch
            producer.last_timestamp_ms = last_timestamp_ms
            producer.transaction_start_offset = start
            producer.batches = [SequenceRange(*batch) for batch in batches]
        started = [(p.transaction_start_offset, key) for key, p in table._producers.items()]
        table._open_transactions = {key: start for start, key in sorted((s, k) for s, k in started if s is not None)}
        return table
