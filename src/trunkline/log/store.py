"""LogStore: the only door to storage.

A store holds topics; a topic has partitions; a partition is a numbered sequence of Kafka v2 record batches, kept byte
for byte. Everything above speaks to this interface alone and knows nothing of files or clusters.

What every store promises:

- `append` returns a ticket. The batch has its place when the ticket says so, and the ticket completes when the durability
  that was asked for is reached. Nobody need wait before appending again: the order of the calls is the order in the log, and
  their places are told in that order. Others may append in between.
- `bounds` is what this process has seen of a partition. It covers what stood there when the store was started, every place
  that a ticket told and every read; what others did, and how far the log is stable, may be noticed later. It never goes back.
- A record is readable once its append has completed (`Durability.OS`), and stays readable at its offset until retention,
  compaction or `trim` removes it. Offsets never go back and are never given twice. A read may return less than what is there,
  but not nothing where there is something.
- `watch` callbacks run on the event loop, after every change that can turn a waiting read into a result: an append, a
  transaction marker, a trim, the topic's deletion; some time after it, and `bounds` knows of it then. They must be quick and
  must not call back into the store.
- Every refusal is a `LogError`, raised at once or set on the ticket.

What only some stores can do is no part of this: see `capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from trunkline.log.buffer import Buffer
from trunkline.log.decoding import DecodingLimits
from trunkline.log.passed_over import PassedOver
from trunkline.log.ticket import Appended, Ticket
from trunkline.log.topic import TopicInfo, TopicPartition

if TYPE_CHECKING:
    from trunkline.log.batch import NewRecord
    from trunkline.log.capabilities import ClientWatches, EphemeralTopics, LogDirectories

__all__ = [
    "AbortedTransaction",
    "Bounds",
    "Buffer",
    "Durability",
    "LogStore",
    "OffsetAndTimestamp",
    "ProducerState",
    "Slice",
    "TopicInfo",
    "TopicPartition",
]


class Durability(IntEnum):
    """What must have happened before an append counts as acknowledged."""

    NONE = 0  # handed over; nothing is promised
    OS = 1  # written to the operating system: survives a killed process
    DISK = 2  # fsynced: survives power loss


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class Bounds(NamedTuple):
    """The ends of a partition. `last_stable_offset` is the first offset of the oldest open transaction, else the end."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int = 0


@dataclass(slots=True)
class Slice:
    """Whole batches from a read, the first of which contains the offset that was asked for.

    `aborted` lists, for a committed read, the transactions whose records in this slice must be skipped.
    """

    records: Buffer
    bounds: Bounds
    aborted: Sequence[AbortedTransaction] = ()


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp_ms: int


class ProducerState(NamedTuple):
    """What a partition remembers of one idempotent or transactional producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int | None


class LogStore(ABC):
    decoding = DecodingLimits()
    """How far the broker looks into a batch."""

    @cached_property
    def passed_over(self) -> PassedOver:
        """The batches that could not be decoded when somebody had to."""
        return PassedOver()

    # -- life ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def start(self) -> None:
        """Recover what is stored and be ready to serve."""

    @abstractmethod
    async def close(self) -> None:
        """Flush, mark the shutdown as clean, let go of everything. Waiting watchers are woken."""

    # -- topics --------------------------------------------------------------------------------------------------

    @abstractmethod
    def topics(self) -> Mapping[str, TopicInfo]:
        """Every topic, internal ones included. A live, read-only view."""

    @abstractmethod
    def topic(self, name: str) -> TopicInfo | None: ...

    @abstractmethod
    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None: ...

    @abstractmethod
    def colliding_topic(self, name: str) -> str | None:
        """A topic of another name that differs from this one only in '.' and '_'; Kafka allows no such pair."""

    @abstractmethod
    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> TopicInfo:
        """Durable when it returns. `config` holds only what differs from the broker's defaults."""

    @abstractmethod
    async def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    async def grow_topic(self, name: str, partitions: int) -> TopicInfo: ...

    @abstractmethod
    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        """Replace the topic's own settings by these; what is left out goes back to the default."""

    # -- append --------------------------------------------------------------------------------------------------

    @abstractmethod
    def append(
        self,
        tp: TopicPartition,
        batches: Buffer,
        durability: Durability = Durability.OS,
        *,
        foreign: bool = False,
    ) -> Ticket:
        """Append one or more whole v2 batches. The store assigns offsets; it never decodes records to do so.

        `foreign`: the broker did not encode them. Their records are then checked if somebody here will decode them: who
        watches the partition with `decodes`, or compaction.
        """

    @abstractmethod
    def append_marker(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        durability: Durability = Durability.DISK,
    ) -> Ticket:
        """End a producer's transaction on this partition with a control batch."""

    @abstractmethod
    async def transact(self, parts: Mapping[TopicPartition, Sequence[NewRecord]]) -> Mapping[TopicPartition, Appended]:
        """Append these records to all of these partitions, those of state topics among them, or to none, whatever crashes.

        When it returns, with their places, they are on disk and readers of committed records see them. After a LogError
        nobody ever will, except after OutcomeUnknown: then they may or may not. Who ends the transaction is the store's matter.
        """

    # -- read ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def bounds(self, tp: TopicPartition) -> Bounds: ...

    @abstractmethod
    async def read(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        committed: bool = False,
        at_least_one: bool = True,
        verified: bool = False,
    ) -> Slice:
        """Read from `offset` on; never more than `max_bytes`, unless `at_least_one` and the first batch alone is larger.

        At the end of the log the slice is empty. With `committed` it stops at the last stable offset. With `verified` every
        batch of it was checked against its CRC: for who decodes records; a client does that itself. Damaged batches are
        left out of a verified slice, and of any other as far as they are noticed; the store says in its log what is missing.
        """

    @abstractmethod
    async def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is at least this; None when there is none."""

    @abstractmethod
    async def max_timestamp(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        """The record with the largest timestamp; None when the partition is empty."""

    @abstractmethod
    async def producers(self, tp: TopicPartition) -> Sequence[ProducerState]: ...

    # -- wait ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def watch(self, tp: TopicPartition, wake: Callable[[], None], *, decodes: bool = False) -> None:
        """Have `wake` called whenever the partition changes.

        `decodes` if the records will be decoded: from now on batches whose records do not parse are refused.
        """

    @abstractmethod
    def unwatch(self, tp: TopicPartition, wake: Callable[[], None]) -> None: ...

    # -- trim ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        """Delete every record before this offset (-1: all); returns the new log start offset."""

    # -- what only some stores can do ----------------------------------------------------------------------------

    @property
    def ephemeral_topics(self) -> EphemeralTopics | None:
        return None

    @property
    def client_watches(self) -> ClientWatches | None:
        return None

    @property
    def log_directories(self) -> LogDirectories | None:
        return None
