"""Committing, fetching, deleting and expiring offsets: who may, and what is written for it.

`OffsetBook` is the state; this is the traffic. A commit is answered when it is on disk and only then seen by fetches.
Offsets of a topic that does not exist are never taken, and are removed when their topic is deleted.

Offsets expire `offsets_retention_ms` after their group became empty; those of simple consumers, and those of topics that
a group with members no longer reads, after their commit. A group without members and without offsets is removed with
them. Offsets with a transaction pending are left alone. The sweep takes `expiry_groups_per_turn` groups at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from trunkline.cursors.stream.classic import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from trunkline.cursors.stream.classic_state import ClassicState
from trunkline.cursors.stream.consumer import ConsumerGroup
from trunkline.cursors.stream.descriptions import Group
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.journal import JournalRecord, Written
from trunkline.cursors.stream.offsets import CommittedOffset, FetchedOffset, OffsetBook, OffsetEntry
from trunkline.cursors.stream.records import OffsetValue, offset_key, offset_value
from trunkline.cursors.stream.registry import GroupRegistry
from trunkline.cursors.stream.runtime import GroupRuntime
from trunkline.cursors.stream.share_group import ShareGroup
from trunkline.log.store import LogStore, TopicPartition

EntryResults = dict[TopicPartition, GroupErrorName | None]
_SWEEP_PAUSE_MS = 10


class OffsetCommits:
    def __init__(self, store: LogStore, runtime: GroupRuntime, registry: GroupRegistry, book: OffsetBook) -> None:
        self._store = store
        self._runtime = runtime
        self._registry = registry
        self._book = book
        self._to_sweep: list[str] = []

    # -- commit --------------------------------------------------------------------------------------------------

    async def commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, entries: Sequence[OffsetEntry]
    ) -> EntryResults:
        self._admit(group_id, member_id, generation, instance_id, transactional=False)
        results, accepted = self._sift(entries)
        if accepted:
            records = [self._record(group_id, tp, value) for tp, value in accepted]

            def apply(position: int) -> None:
                self._registry.adopt_offsets_of(group_id)
                for index, (tp, value) in enumerate(accepted):
                    self._book.put(group_id, tp, value, position + index)

            await asyncio.shield(self._runtime.journal.write(records, apply))
        return results

    async def txn_commit(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        entries: Sequence[OffsetEntry],
        *,
        member_id: str,
        generation: int,
        instance_id: str | None,
    ) -> EntryResults:
        self._admit(group_id, member_id, generation, instance_id, transactional=True)
        results, accepted = self._sift(entries)
        if accepted:
            records = [self._record(group_id, tp, value) for tp, value in accepted]

            def apply(position: int) -> None:
                self._registry.adopt_offsets_of(group_id)
                for index, (tp, value) in enumerate(accepted):
                    self._book.put_pending(producer_id, group_id, tp, value, position + index)

            await self._runtime.journal.write_transactional(records, producer_id, producer_epoch, apply)
        return results

    def txn_end(self, producer_id: int, *, commit: bool) -> None:
        """The transaction's marker is in the log: its offsets count now, or never did."""
        for group_id in self._book.end_transaction(producer_id, commit=commit):
            self._registry.adopt_offsets_of(group_id)

    def _admit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> None:
        group = self._registry.get(group_id)
        if group is None:
            if generation >= 0:
                raise GroupError(GroupErrorName.ILLEGAL_GENERATION, f"there is no group {group_id}")
            self._registry.check_room()  # it is made when the first of its offsets is stored
            return
        group.check_commit(member_id, generation, instance_id, transactional=transactional)

    def _sift(self, entries: Sequence[OffsetEntry]) -> tuple[EntryResults, list[tuple[TopicPartition, OffsetValue]]]:
        now_ms = self._runtime.clock.wall_ms()
        results: EntryResults = {}
        accepted: dict[TopicPartition, OffsetValue] = {}
        for entry in entries:
            tp = TopicPartition(entry.topic, entry.partition)
            results[tp] = self._objection(entry)
            if results[tp] is None:
                accepted[tp] = OffsetValue(entry.offset, entry.leader_epoch, entry.metadata, now_ms)
        return results, list(accepted.items())

    def _objection(self, entry: OffsetEntry) -> GroupErrorName | None:
        info = self._store.topic(entry.topic)
        if info is None or not 0 <= entry.partition < info.partitions:
            return GroupErrorName.UNKNOWN_TOPIC_OR_PARTITION
        if len(entry.metadata.encode()) > self._runtime.limits.max_offset_metadata_bytes:
            return GroupErrorName.OFFSET_METADATA_TOO_LARGE
        return None

    @staticmethod
    def _record(group_id: str, tp: TopicPartition, value: OffsetValue) -> JournalRecord:
        return offset_key(group_id, tp.topic, tp.partition), offset_value(value)

    # -- fetch ---------------------------------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool,
        member_id: str | None,
        member_epoch: int,
    ) -> dict[TopicPartition, FetchedOffset]:
        group = self._registry.consumer(group_id)
        if group is not None and (member_id or member_epoch >= 0):
            group.check_commit(member_id or "", member_epoch, None, transactional=False)
        return self._book.fetch(group_id, partitions, require_stable=require_stable)

    # -- delete --------------------------------------------------------------------------------------------------

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> EntryResults:
        group = self._registry.get(group_id)
        if group is None:
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        if isinstance(group, ShareGroup):
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        subscribed = self._subscribed(group)
        results: EntryResults = {}
        gone: list[TopicPartition] = []
        for tp in partitions:
            info = self._store.topic(tp.topic)
            if info is None or not 0 <= tp.partition < info.partitions:
                results[tp] = GroupErrorName.UNKNOWN_TOPIC_OR_PARTITION
            elif subscribed is None or tp.topic in subscribed:
                results[tp] = GroupErrorName.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                results[tp] = None
                if tp in self._book.committed(group_id):
                    gone.append(tp)
        if gone:
            await asyncio.shield(self._remove(group_id, gone))
        return results

    @staticmethod
    def _subscribed(group: Group) -> frozenset[str] | None:
        """What the group reads; None when it has members and nobody can tell, so that it may be anything."""
        foreign = isinstance(group, ClassicGroup) and group.protocol_type != CONSUMER_PROTOCOL_TYPE
        if foreign and not group.is_empty:
            raise GroupError(GroupErrorName.NON_EMPTY_GROUP, "offsets of a live group of another kind stay")
        return group.subscribed_topics()

    async def delete_group(self, group_id: str) -> None:
        await self._runtime.journal.settle()  # a commit under way belongs to what is deleted
        group = self._registry.get(group_id)
        if group is None:
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        if not group.is_empty:
            raise GroupError(GroupErrorName.NON_EMPTY_GROUP, f"group {group_id} has members")
        self._book.forget_pending(group_id)
        await asyncio.shield(self._remove(group_id, list(self._book.committed(group_id)), group_too=True))

    def topic_deleted(self, topic: str) -> asyncio.Future[None]:
        """Forget every offset of a topic that no longer exists. The future completes when that is on disk."""
        return asyncio.ensure_future(self._forget_topic(topic, self._runtime.journal.written()))

    async def _forget_topic(self, topic: str, written: Written) -> None:
        await self._runtime.journal.settle()
        # A topic of the same name may have been created since; what was committed to it lies after the cutoff.
        cutoff = await written.end_offset()
        writes = []
        for group_id in list(self._book.groups()):
            self._book.forget_pending(group_id, topic)
            committed = self._book.committed(group_id).items()
            gone = [tp for tp, offset in committed if tp.topic == topic and offset.log_position < cutoff]
            if gone:
                writes.append(self._remove(group_id, gone))
        if writes:
            await asyncio.gather(*writes)

    async def forget_unknown_topics(self) -> None:
        """After a start: a crash may have come between the deletion of a topic and that of its offsets."""
        named = {tp.topic for group_id in self._book.groups() for tp in self._book.committed(group_id)}
        written = self._runtime.journal.written()
        for topic in named:
            if self._store.topic(topic) is None:
                await self._forget_topic(topic, written)

    def _remove(self, group_id: str, gone: Sequence[TopicPartition], *, group_too: bool = False) -> asyncio.Future[int]:
        records: list[JournalRecord] = [(offset_key(group_id, tp.topic, tp.partition), None) for tp in gone]
        if group_too:
            records += self._registry.drop(group_id)

        def apply(position: int) -> None:
            for index, tp in enumerate(gone):
                self._book.remove(group_id, tp, position + index)

        if records:
            return self._runtime.journal.write(records, apply)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(-1)
        return done

    # -- expiry --------------------------------------------------------------------------------------------------

    def schedule_expiry(self) -> None:
        self._runtime.timers.after(self._runtime.limits.offsets_retention_check_ms, self._sweep)

    def _sweep(self) -> None:
        limits = self._runtime.limits
        if not self._to_sweep:
            self._to_sweep = self._registry.ids()
        turn, self._to_sweep = (
            self._to_sweep[: limits.expiry_groups_per_turn],
            self._to_sweep[limits.expiry_groups_per_turn :],
        )
        for group_id in turn:
            self._sweep_group(group_id)
        if self._to_sweep:
            self._runtime.timers.after(_SWEEP_PAUSE_MS, self._sweep)
        else:
            self.schedule_expiry()

    def _sweep_group(self, group_id: str) -> None:
        group = self._registry.get(group_id)
        if group is None or isinstance(group, ShareGroup):  # a share group stays until it is deleted
            return
        committed = self._book.committed(group_id)
        oldest_ms = self._runtime.clock.wall_ms() - self._runtime.limits.offsets_retention_ms
        reads = group.subscribed_topics()
        expired = [
            tp
            for tp, offset in committed.items()
            if _counts_from_ms(group, offset) <= oldest_ms
            and (group.is_empty or (reads is not None and tp.topic not in reads))
            and not self._book.is_pending(group_id, tp)
        ]
        nothing_left = len(expired) == len(committed) and not self._book.pending_partitions(group_id)
        if expired or (group.is_empty and nothing_left):
            self._remove(group_id, expired, group_too=group.is_empty and nothing_left)


def _counts_from_ms(group: ClassicGroup | ConsumerGroup, offset: CommittedOffset) -> int:
    """When the retention of an offset began: its commit, or when its group became empty, whichever is later."""
    if isinstance(group, ConsumerGroup):
        return max(group.empty_since_ms, offset.commit_timestamp_ms) if group.is_empty else offset.commit_timestamp_ms
    if group.state is ClassicState.EMPTY and not group.is_simple:
        return max(group.state_timestamp_ms, offset.commit_timestamp_ms)
    return offset.commit_timestamp_ms
