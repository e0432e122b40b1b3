"""The group coordinator: the one door to consumer and share groups, whatever protocol a client speaks.

Theory of operation: all state is a fold of `__consumer_offsets`. `start` replays it; afterwards every change is a record
that is appended first and told to a client only when it is on disk. Everything runs on one event loop; between two
awaits a group does not change. Time is the injected clock's: `run_timers` sleeps to the next deadline and
fires what is due, and tests call `expire` instead.

A refusal is a raised `GroupError` with Kafka's name; calls on several partitions or members answer for each. Before
`start` has replayed the log every call is refused with COORDINATOR_LOAD_IN_PROGRESS.

A caller whose connection dies may be cancelled while it waits: what it asked for still happens, and a group member is
missed only when its session ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import uuid4

from trunkline.budget import Budget
from trunkline.clock import Clock
from trunkline.cursors.stream.assignors import ASSIGNORS
from trunkline.cursors.stream.classic import ClassicGroup
from trunkline.cursors.stream.classic_member import (
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    Protocol,
    SyncResult,
)
from trunkline.cursors.stream.commits import EntryResults, OffsetCommits
from trunkline.cursors.stream.consumer import ConsumerGroup
from trunkline.cursors.stream.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatRequest,
    HeartbeatResult,
)
from trunkline.cursors.stream.descriptions import Description, GroupListing, describe, list_one
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.group_settings import GroupSettings, Overrides
from trunkline.cursors.stream.journal import Journal
from trunkline.cursors.stream.limits import GroupLimits
from trunkline.cursors.stream.offsets import FetchedOffset, OffsetBook, OffsetEntry
from trunkline.cursors.stream.records import group_settings_key, json_value
from trunkline.cursors.stream.registry import GroupRegistry
from trunkline.cursors.stream.runtime import GroupRuntime, GroupType
from trunkline.cursors.stream.share_group import ShareGroup, ShareHeartbeat
from trunkline.cursors.stream.timers import Timers
from trunkline.log.store import LogStore, TopicPartition


def _random_id() -> str:
    return str(uuid4())


class GroupCoordinator:
    def __init__(
        self, store: LogStore, clock: Clock, *, limits: GroupLimits | None = None, held: Budget | None = None
    ) -> None:
        """`held` is the budget that what members say of themselves counts against."""
        self._limits = limits or GroupLimits()
        self._timers = Timers(clock)
        self._journal = Journal(store, clock, self._limits)
        self.settings = GroupSettings(self._limits)
        self._runtime = GroupRuntime(
            clock,
            self._timers,
            self._journal,
            self._limits,
            self.settings,
            _random_id,
            held or Budget(self._limits.max_group_metadata_bytes),
        )
        self._book = OffsetBook()
        self._groups = GroupRegistry(store, self._runtime)
        self._commits = OffsetCommits(store, self._runtime, self._groups, self._book)
        self._refusal: GroupErrorName | None = GroupErrorName.COORDINATOR_LOAD_IN_PROGRESS

    @property
    def limits(self) -> GroupLimits:
        return self._limits

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._journal.open()
        await self._groups.replay(self._book)
        await self._commits.forget_unknown_topics()
        self._commits.schedule_expiry()
        self._refusal = None

    async def close(self) -> None:
        self._refusal = GroupErrorName.COORDINATOR_NOT_AVAILABLE
        self._timers.clear()
        for group in self._groups:
            if isinstance(group, ClassicGroup):
                group.abandon()
        await self._journal.settle()

    def next_deadline_ms(self) -> float | None:
        """When `expire` next has something to do, on the monotonic clock."""
        return self._timers.next_deadline_ms()

    def expire(self) -> None:
        """Fire everything that is due."""
        self._timers.expire()

    async def run_timers(self) -> None:
        """Fire timers as they fall due, until cancelled."""
        await self._timers.run()

    # -- the classic protocol ------------------------------------------------------------------------------------

    async def join(
        self,
        group_id: str,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        protocol_type: str,
        protocols: Sequence[Protocol],
        require_known_member_id: bool = True,
        supports_skipping_assignment: bool = True,
        reason: str = "",
    ) -> JoinResult:
        """JoinGroup. Answers when the whole group has joined, which may take the rebalance timeout."""
        self._check_ready()
        self._check_group_id(group_id)
        if not self._limits.min_session_timeout_ms <= session_timeout_ms <= self._limits.max_session_timeout_ms:
            raise GroupError(
                GroupErrorName.INVALID_SESSION_TIMEOUT,
                f"session timeout must be {self._limits.min_session_timeout_ms} to {self._limits.max_session_timeout_ms} ms",
            )
        self._check_lengths(member_id, group_instance_id, client_id, protocol_type, *(name for name, _ in protocols))
        if sum(len(name) + len(metadata) for name, metadata in protocols) > self._limits.max_member_metadata_bytes:
            raise GroupError(GroupErrorName.INVALID_REQUEST, "the member's metadata is too large")
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = session_timeout_ms  # JoinGroup v0 has no timeout of its own
        request = JoinRequest(
            group_id,
            session_timeout_ms,
            min(rebalance_timeout_ms, self._limits.max_rebalance_timeout_ms),
            member_id,
            group_instance_id,
            client_id,
            client_host,
            protocol_type,
            tuple(protocols),
            require_known_member_id,
            supports_skipping_assignment,
            reason,
        )
        if member_id and self._groups.get(group_id) is None:
            raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID, f"there is no group {group_id}")
        is_new = self._groups.get(group_id) is None
        try:
            joining = self._groups.classic_to_join(group_id).join(request)
        except GroupError:
            if is_new:
                self._groups.discard_unused(group_id)
            raise
        return await asyncio.shield(joining)

    async def sync(
        self,
        group_id: str,
        *,
        generation: int,
        member_id: str,
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignments: Mapping[str, bytes] | None = None,
    ) -> SyncResult:
        """SyncGroup. Answers when the leader's assignment is on disk."""
        group = self._classic(group_id)
        assignments = assignments or {}
        if sum(map(len, assignments.values())) > self._limits.max_assignment_bytes:
            raise GroupError(GroupErrorName.INVALID_REQUEST, "the group's assignment is too large")
        return await asyncio.shield(
            group.sync(
                member_id,
                generation,
                group_instance_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=assignments,
            )
        )

    def heartbeat(
        self, group_id: str, *, generation: int, member_id: str, group_instance_id: str | None = None
    ) -> None:
        """Heartbeat. Raises REBALANCE_IN_PROGRESS when the member is to join again."""
        self._classic(group_id).heartbeat(member_id, generation, group_instance_id)

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[LeftMember]:
        """LeaveGroup, one answer per member."""
        self._check_ready()
        self._check_group_id(group_id)
        group = self._groups.classic(group_id)
        if group is None:
            unknown = GroupErrorName.UNKNOWN_MEMBER_ID
            return [LeftMember(each.member_id, each.group_instance_id, unknown) for each in members]
        left = group.leave(members)
        # Written before the answer: a broker killed after it must not wait for the session of one who said goodbye.
        self._journal.flush()
        return left

    def _classic(self, group_id: str) -> ClassicGroup:
        self._check_ready()
        self._check_group_id(group_id)
        group = self._groups.classic(group_id)
        if group is None:
            raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID, f"there is no classic group {group_id}")
        return group

    # -- the consumer protocol -----------------------------------------------------------------------------------

    async def consumer_heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        """ConsumerGroupHeartbeat: join with epoch 0, leave with -1 (or -2, to come back), else stay."""
        self._check_ready()
        self._check_heartbeat(request)
        is_new = self._groups.get(request.group_id) is None
        if request.member_epoch == JOIN_EPOCH:
            group = self._groups.consumer_to_join(request.group_id)
        else:
            known = self._groups.consumer(request.group_id)
            if known is None:
                raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id}")
            group = known
        try:
            result = group.heartbeat(request)
        except GroupError:
            if is_new:
                self._groups.discard_unused(request.group_id)
            raise
        await self._stored(group)
        return result

    @staticmethod
    async def _stored(group: ConsumerGroup | ShareGroup) -> None:
        write = group.store()
        if write is not None:
            await asyncio.shield(write)

    def _check_heartbeat(self, request: HeartbeatRequest) -> None:
        def invalid(why: str) -> GroupError:
            return GroupError(GroupErrorName.INVALID_REQUEST, why)

        if not request.group_id:
            raise invalid("GroupId can't be empty")
        self._check_lengths(
            request.group_id, request.member_id, request.instance_id, request.rack_id, request.client_id
        )
        if request.instance_id == "" or request.rack_id == "":
            raise invalid("InstanceId and RackId can't be empty")
        if request.member_epoch < STATIC_LEAVE_EPOCH:
            raise invalid(f"MemberEpoch is {request.member_epoch}")
        if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
            raise invalid("InstanceId can't be null when leaving for a while")
        if request.member_epoch != JOIN_EPOCH and not request.member_id:
            raise invalid("MemberId can't be empty")
        if request.member_epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms == -1:
                raise invalid("RebalanceTimeoutMs must be given when (re-)joining")
            if request.topic_partitions is None or request.topic_partitions:
                raise invalid("TopicPartitions must be empty when (re-)joining")
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                raise invalid("SubscribedTopicNames or SubscribedTopicRegex must be given when (re-)joining")
        if request.rebalance_timeout_ms < -1 or request.rebalance_timeout_ms > self._limits.max_rebalance_timeout_ms:
            raise invalid(f"RebalanceTimeoutMs is {request.rebalance_timeout_ms}")
        if len(request.subscribed_topic_names or ()) > self._limits.max_subscribed_topics:
            raise invalid(f"at most {self._limits.max_subscribed_topics} topics can be subscribed to by name")
        if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
            raise GroupError(
                GroupErrorName.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported; supported are {', '.join(ASSIGNORS)}",
            )

    def topics_changed(self) -> None:
        """A topic was created, deleted or has grown: groups look again at their next heartbeat, not some seconds later."""
        for group in self._groups:
            if isinstance(group, ConsumerGroup | ShareGroup):
                group.topics_changed()

    # -- share groups --------------------------------------------------------------------------------------------

    async def share_heartbeat(self, request: ShareHeartbeat) -> HeartbeatResult:
        """ShareGroupHeartbeat: join with epoch 0, leave with -1, else stay."""
        self._check_ready()
        self._check_share_heartbeat(request)
        is_new = self._groups.get(request.group_id) is None
        joins = request.member_epoch == JOIN_EPOCH
        group = (self._groups.share_to_join if joins else self._groups.share)(request.group_id)
        try:
            result = group.heartbeat(request)
        except GroupError:
            if is_new:
                self._groups.discard_unused(request.group_id)
            raise
        await self._stored(group)
        return result

    def _check_share_heartbeat(self, request: ShareHeartbeat) -> None:
        def invalid(why: str) -> GroupError:
            return GroupError(GroupErrorName.INVALID_REQUEST, why)

        if not request.group_id.strip():
            raise invalid("GroupId can't be empty.")
        if not request.member_id:
            raise invalid("MemberId can't be empty.")
        self._check_lengths(request.group_id, request.member_id, request.rack_id, request.client_id)
        if request.rack_id == "":
            raise invalid("RackId can't be empty.")
        if request.member_epoch < LEAVE_EPOCH:
            raise invalid(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1.")
        if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
            raise invalid("SubscribedTopicNames must be set in first request.")
        if len(request.subscribed_topic_names or ()) > self._limits.max_subscribed_topics:
            raise invalid(f"at most {self._limits.max_subscribed_topics} topics can be subscribed to by name")

    def check_share_group(self, group_id: str) -> None:
        """Raise GROUP_ID_NOT_FOUND unless there is such a share group."""
        self._check_ready()
        self._groups.share(group_id)

    def share_groups(self) -> frozenset[str]:
        return frozenset(group.group_id for group in self._groups if isinstance(group, ShareGroup))

    async def empty_share_group(self, group_id: str, *, create: bool = False) -> None:
        """Raise unless there is a share group of this name, without members; with `create`, make it so."""
        self._check_ready()
        self._check_group_id(group_id)
        group = (self._groups.share_to_join if create else self._groups.share)(group_id)
        if not group.is_empty:
            raise GroupError(GroupErrorName.NON_EMPTY_GROUP, f"group {group_id} has members")
        await self._stored(group)

    # -- offsets -------------------------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        member_id: str,
        generation_or_epoch: int,
        group_instance_id: str | None,
        entries: Sequence[OffsetEntry],
    ) -> EntryResults:
        """OffsetCommit. Answers when the offsets are on disk."""
        self._check_ready()
        self._check_group_id(group_id, may_be_empty=True)
        return await self._commits.commit(group_id, member_id, generation_or_epoch, group_instance_id, entries)

    async def txn_commit(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        entries: Sequence[OffsetEntry],
        *,
        member_id: str = "",
        generation_or_epoch: int = -1,
        group_instance_id: str | None = None,
    ) -> EntryResults:
        """TxnOffsetCommit: the offsets count once `txn_end` says that the transaction was committed."""
        self._check_ready()
        self._check_group_id(group_id)
        return await self._commits.txn_commit(
            group_id,
            producer_id,
            producer_epoch,
            entries,
            member_id=member_id,
            generation=generation_or_epoch,
            instance_id=group_instance_id,
        )

    async def txn_end(self, producer_id: int, commit: bool) -> None:
        """The transaction coordinator has written this producer's marker to `__consumer_offsets`."""
        self._commits.txn_end(producer_id, commit=commit)

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> dict[TopicPartition, FetchedOffset]:
        """OffsetFetch; None asks for every partition that has an offset."""
        self._check_ready()
        return self._commits.fetch(
            group_id, partitions, require_stable=require_stable, member_id=member_id, member_epoch=member_epoch
        )

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> EntryResults:
        """OffsetDelete: not of topics that the group reads."""
        self._check_ready()
        return await self._commits.delete(group_id, partitions)

    def topic_deleted(self, topic: str) -> asyncio.Future[None]:
        """Forget the topic's offsets in every group. Need not be awaited; the future completes when it is on disk."""
        self.topics_changed()
        return self._commits.topic_deleted(topic)

    # -- admin ---------------------------------------------------------------------------------------------------

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """ListGroups; empty filters let everything through. Names are compared without regard to case."""
        self._check_ready()
        wanted_states = {state.lower() for state in states}
        wanted_types = {each.lower() for each in types}
        listings = (list_one(group) for group in self._groups)
        return [
            each
            for each in listings
            if (not wanted_states or each.state.lower() in wanted_states)
            and (not wanted_types or each.type.value in wanted_types)
        ]

    def describe(self, group_id: str, group_type: GroupType | None = None) -> Description:
        """DescribeGroups and ConsumerGroupDescribe: a group of another type than asked for is not found."""
        self._check_ready()
        group = self._groups.get(group_id)
        if group is None or (group_type is not None and list_one(group).type is not group_type):
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"there is no such group {group_id}")
        return describe(group)

    async def delete_group(self, group_id: str) -> None:
        """DeleteGroups, for one: only an empty group goes, with its offsets."""
        self._check_ready()
        await self._commits.delete_group(group_id)

    async def configure(self, group_id: str, overrides: Overrides, *, validate_only: bool = False) -> None:
        """Give a group, which need not be there yet, these settings of its own and no others."""
        self._check_ready()
        self._check_group_id(group_id)
        self.settings.check(overrides)
        known = self.settings.groups()
        if overrides and group_id not in known and len(known) >= self._limits.max_groups:
            raise GroupError(GroupErrorName.GROUP_MAX_SIZE_REACHED, "too many groups have settings of their own")
        if not validate_only:
            value = json_value(dict(overrides)) if overrides else None
            record = (group_settings_key(group_id), value)
            await asyncio.shield(self._journal.write([record], lambda _: self.settings.put(group_id, overrides)))

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_ready(self) -> None:
        if self._refusal is not None:
            raise GroupError(self._refusal)

    def _check_group_id(self, group_id: str, *, may_be_empty: bool = False) -> None:
        if (not group_id and not may_be_empty) or len(group_id) > self._limits.max_id_chars:
            raise GroupError(GroupErrorName.INVALID_GROUP_ID)

    def _check_lengths(self, *texts: str | None) -> None:
        """Ids end up in records, where a string has a 16-bit length."""
        limit = self._limits.max_id_chars
        if any(text is not None and len(text) > limit for text in texts):
            raise GroupError(GroupErrorName.INVALID_REQUEST, f"an id or a name is longer than {limit} characters")
