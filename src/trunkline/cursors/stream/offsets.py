"""Committed offsets: the fold of the offset records of `__consumer_offsets`.

`OffsetBook` holds what is committed and what open transactions will commit. It is changed in the order of the log, while
replaying as while serving:

- An offset remembers at which position of the log its record stands; a later record wins, whatever order they arrive in.
  That matters when a transaction that wrote first ends last.
- A transaction's offsets are pending until its marker. An abort forgets them. While they are pending, a fetch that asks
  for stable offsets is told UNSTABLE_OFFSET_COMMIT for those partitions.
- A group that holds no offset takes no memory here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trunkline.cursors.stream.errors import GroupErrorName
from trunkline.cursors.stream.records import OffsetValue
from trunkline.log.store import TopicPartition


class OffsetEntry(NamedTuple):
    """One offset to commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    log_position: int


class FetchedOffset(NamedTuple):
    """What a fetch answers for a partition; offset -1 when nothing is committed."""

    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: GroupErrorName | None = None


NOTHING_COMMITTED = FetchedOffset()
UNSTABLE = FetchedOffset(error=GroupErrorName.UNSTABLE_OFFSET_COMMIT)

_GroupOffsets = dict[TopicPartition, CommittedOffset]


class OffsetBook:
    def __init__(self) -> None:
        self._committed: dict[str, _GroupOffsets] = {}
        self._pending: dict[int, dict[str, _GroupOffsets]] = {}  # by producer id
        self._pending_counts: dict[str, dict[TopicPartition, int]] = {}  # open transactions per partition

    # -- reading -------------------------------------------------------------------------------------------------

    def groups(self) -> set[str]:
        return self._committed.keys() | self._pending_counts.keys()

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.get(group_id, {})

    def is_pending(self, group_id: str, tp: TopicPartition) -> bool:
        return tp in self._pending_counts.get(group_id, ())

    def pending_partitions(self, group_id: str) -> frozenset[TopicPartition]:
        return frozenset(self._pending_counts.get(group_id, ()))

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        """The offsets of these partitions, or of all that have one."""
        committed = self._committed.get(group_id, {})
        pending = self._pending_counts.get(group_id, {}) if require_stable else {}
        wanted = partitions if partitions is not None else sorted(committed.keys() | pending.keys())
        fetched: dict[TopicPartition, FetchedOffset] = {}
        for tp in wanted:
            found = committed.get(tp)
            if tp in pending:
                fetched[tp] = UNSTABLE
            elif found is None:
                fetched[tp] = NOTHING_COMMITTED
            else:
                fetched[tp] = FetchedOffset(found.offset, found.leader_epoch, found.metadata)
        return fetched

    # -- folding -------------------------------------------------------------------------------------------------

    def put(self, group_id: str, tp: TopicPartition, value: OffsetValue, log_position: int) -> None:
        offsets = self._committed.setdefault(group_id, {})
        known = offsets.get(tp)
        if known is None or known.log_position < log_position:
            offsets[tp] = CommittedOffset(*value, log_position)

    def remove(self, group_id: str, tp: TopicPartition, log_position: int) -> None:
        """A tombstone at `log_position`: forget the offset unless it was committed after that."""
        offsets = self._committed.get(group_id)
        if offsets is None:
            return
        known = offsets.get(tp)
        if known is not None and known.log_position < log_position:
            del offsets[tp]
            if not offsets:
                del self._committed[group_id]

    def put_pending(
        self, producer_id: int, group_id: str, tp: TopicPartition, value: OffsetValue, log_position: int
    ) -> None:
        offsets = self._pending.setdefault(producer_id, {}).setdefault(group_id, {})
        if tp not in offsets:
            counts = self._pending_counts.setdefault(group_id, {})
            counts[tp] = counts.get(tp, 0) + 1
        offsets[tp] = CommittedOffset(*value, log_position)

    def end_transaction(self, producer_id: int, *, commit: bool) -> list[str]:
        """Turn what the producer has pending into commits, or forget it; returns the groups that it concerned."""
        ended = self._pending.pop(producer_id, {})
        for group_id, offsets in ended.items():
            for tp, offset in offsets.items():
                self._count_down(group_id, tp)
                if commit:
                    value = OffsetValue(offset.offset, offset.leader_epoch, offset.metadata, offset.commit_timestamp_ms)
                    self.put(group_id, tp, value, offset.log_position)
        return list(ended)

    def forget_pending(self, group_id: str, topic: str | None = None) -> None:
        """Drop what open transactions hold for a group (that is deleted), or for one topic of it."""
        for producer_id in list(self._pending):
            groups = self._pending[producer_id]
            offsets = groups.get(group_id)
            if offsets is None:
                continue
            for tp in [tp for tp in offsets if topic is None or tp.topic == topic]:
                del offsets[tp]
                self._count_down(group_id, tp)
            if not offsets:
                del groups[group_id]
            if not groups:
                del self._pending[producer_id]

    def _count_down(self, group_id: str, tp: TopicPartition) -> None:
        counts = self._pending_counts[group_id]
        counts[tp] -= 1
        if not counts[tp]:
            del counts[tp]
        if not counts:
            del self._pending_counts[group_id]
