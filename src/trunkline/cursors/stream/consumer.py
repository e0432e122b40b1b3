"""The consumer group protocol (KIP-848): one heartbeat does it all, and the broker divides the partitions.

The group has an epoch, raised by every change that calls for another division: a member joins, leaves, dies or subscribes
to something else, or the topics change. At the next heartbeat the assignor computes targets for that epoch. Each member
then moves to its target on its own (`ConsumerMember.reconcile`): first it gives up what is not in its target, then it
gets what others have given up. No one ever waits for all.

    group state   when
    Empty         no members
    Assigning     the group epoch is ahead of the targets
    Reconciling   some member is not at its target yet
    Stable        all are

Rules it keeps:

- `_holder` names the one member that holds a partition (assigned, or told to give up and not confirmed). A partition is
  handed out only when it has no holder: asserted at every change.
- A member proves itself by its epoch. One ahead of ours is fenced; the one before is let in if what it owns is what we
  gave it, as then only our reply was lost.
- A member is removed when it leaves (-1), when its session ends, or when it does not give up partitions in its rebalance
  timeout. A static member that leaves with -2 keeps its partitions until its session ends, and another process with the
  same instance id takes its place without a rebalance.

Changes are made in memory and marked dirty; the coordinator writes what is dirty and answers when that is on disk. When a
write fails the marks stay, so the next heartbeat writes again before anything is told. After a crash the group is what
the log says; a member that knows of a later epoch is fenced and joins again, having been told nothing that was not kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from uuid import UUID

from trunkline.cursors.stream.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    AssignorMember,
    TopicIdPartition,
)
from trunkline.cursors.stream.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    HeartbeatRequest,
    HeartbeatResult,
    MemberState,
    integer,
)
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.journal import JournalRecord
from trunkline.cursors.stream.records import (
    JsonObject,
    UnreadableRecord,
    consumer_group_key,
    consumer_member_key,
    json_value,
)
from trunkline.cursors.stream.runtime import GroupRuntime
from trunkline.cursors.stream.topic_view import TopicView
from trunkline.log.store import TopicInfo


class ConsumerState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup:
    def __init__(self, group_id: str, runtime: GroupRuntime, topics: Mapping[str, TopicInfo], epoch: int = 0) -> None:
        self.group_id = group_id
        self.epoch = epoch
        self.target_epoch = epoch
        self.assignor = DEFAULT_ASSIGNOR
        self.empty_since_ms = runtime.clock.wall_ms()
        self.members: dict[str, ConsumerMember] = {}
        self._runtime = runtime
        self._topics = TopicView(topics, runtime.limits.max_pattern_chars)
        self._static: dict[str, str] = {}
        self._holder: dict[TopicIdPartition, str] = {}
        self._metadata_hash = ""
        self._metadata_due_ms = 0.0
        self._dirty_members: set[str] = set()
        self._dirty = True
        self._last_write: asyncio.Future[int] | None = None

    # -- replay --------------------------------------------------------------------------------------------------

    def restore(self, value: JsonObject | None, members: Mapping[str, JsonObject]) -> None:
        """Be what the log says. Every session starts afresh."""
        if value is not None:
            try:
                self.epoch = integer(value, "epoch")
                self.target_epoch = integer(value, "target_epoch")
            except (KeyError, ValueError) as error:
                raise UnreadableRecord(f"group {self.group_id}: {error!r}") from None
            self.assignor = str(value.get("assignor", DEFAULT_ASSIGNOR))
            self._metadata_hash = str(value.get("metadata", ""))
            since_ms = value.get("empty_since_ms")
            self.empty_since_ms = since_ms if isinstance(since_ms, int) else self.empty_since_ms
        for member_id, stored in members.items():
            member = ConsumerMember.from_json(member_id, stored)
            self.members[member_id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member_id
            for tp in member.holds:
                if self._holder.setdefault(tp, member_id) != member_id:
                    raise UnreadableRecord(f"group {self.group_id}: {tp} is held twice")
            if member.topic_regex:
                self._topics.restore(member.topic_regex)
            self._listen_to(member)
            self._arm(member)
            self._time_revocation(member)
        self._dirty = False

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        settled = all(
            member.away or (member.state is MemberState.STABLE and member.epoch == self.target_epoch)
            for member in self.members.values()
        )
        return ConsumerState.STABLE if settled else ConsumerState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(self._subscription(member) for member in self.members.values()))

    def holder(self, tp: TopicIdPartition) -> str | None:
        return self._holder.get(tp)

    # -- heartbeat -----------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request)
        member = self._joining(request) if request.member_epoch == JOIN_EPOCH else self._known(request)
        caught_up = request.member_epoch == member.epoch
        self._apply_request(member, request)
        self._check_metadata()
        if self.epoch > self.target_epoch:
            self._assign()
        assigned_before = member.assigned
        self._reconcile(member, request)
        self._arm(member)
        tell = request.is_full or not caught_up or member.assigned != assigned_before
        return self._result(member, member.assigned if tell else None)

    def _result(self, member: ConsumerMember, assignment: frozenset[TopicIdPartition] | None) -> HeartbeatResult:
        interval_ms = self._runtime.settings.heartbeat_interval_ms(self.group_id)
        return HeartbeatResult(member.member_id, member.epoch, interval_ms, assignment)

    def _joining(self, request: HeartbeatRequest) -> ConsumerMember:
        instance_id = request.instance_id
        if request.member_id in self.members:
            member = self.members[request.member_id]
            if member.instance_id != instance_id:
                raise GroupError(GroupErrorName.INVALID_REQUEST, "the member is known by another instance id")
            return member
        if instance_id is not None and instance_id in self._static:
            return self._take_over(request, self.members[self._static[instance_id]])
        if len(self.members) >= self._runtime.limits.max_members_per_group:
            raise GroupError(GroupErrorName.GROUP_MAX_SIZE_REACHED, f"group {self.group_id} has its most members")
        self._check_subscription(request)
        member = ConsumerMember(request.member_id or self._runtime.new_id(), instance_id)
        self.members[member.member_id] = member
        if instance_id is not None:
            self._static[instance_id] = member.member_id
        self._bump()
        return member

    def _take_over(self, request: HeartbeatRequest, gone: ConsumerMember) -> ConsumerMember:
        """A new process with the instance id of a static member that left for a while: it gets all that was kept."""
        if not gone.away:
            raise GroupError(GroupErrorName.UNRELEASED_INSTANCE_ID, f"{request.instance_id} is held by a live member")
        self._check_subscription(request)
        self._forget(gone)
        member = ConsumerMember(
            request.member_id or self._runtime.new_id(),
            gone.instance_id,
            gone.rack_id,
            rebalance_timeout_ms=gone.rebalance_timeout_ms,
            topic_names=gone.topic_names,
            topic_regex=gone.topic_regex,
            server_assignor=gone.server_assignor,
            state=gone.state,
            target=gone.target,
        )
        self.members[member.member_id] = member
        assert member.instance_id is not None
        self._static[member.instance_id] = member.member_id
        self._hold(member, gone.assigned, NO_PARTITIONS)
        self._dirty_members.add(member.member_id)
        return member

    def _known(self, request: HeartbeatRequest) -> ConsumerMember:
        member = self._checked_member(request.member_id, request.instance_id)
        epoch = request.member_epoch
        if epoch == member.epoch:
            return member
        lost_reply = epoch == member.previous_epoch and (request.topic_partitions or NO_PARTITIONS) <= member.assigned
        if epoch > member.epoch or not lost_reply:
            raise GroupError(GroupErrorName.FENCED_MEMBER_EPOCH, f"epoch {epoch}, the member is at {member.epoch}")
        return member

    def _checked_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            known_as = self._static.get(instance_id)
            if known_as is None:
                raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
            if known_as != member_id:
                raise GroupError(GroupErrorName.FENCED_INSTANCE_ID, f"{instance_id} is now another member")
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(
                GroupErrorName.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of group {self.group_id}"
            )
        return member

    def _leave(self, request: HeartbeatRequest) -> HeartbeatResult:
        member = self._checked_member(request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            if member.instance_id is None:
                raise GroupError(GroupErrorName.INVALID_REQUEST, "only a static member leaves with -2")
            self._hold(member, member.assigned, NO_PARTITIONS)
            member.previous_epoch, member.epoch = member.epoch, STATIC_LEAVE_EPOCH
            self._time_revocation(member)
            self._arm(member)
            self._dirty_members.add(member.member_id)
        else:
            self.remove(member)
        return HeartbeatResult(member.member_id, request.member_epoch, 0)

    # -- subscription --------------------------------------------------------------------------------------------

    def _check_subscription(self, request: HeartbeatRequest) -> None:
        if request.subscribed_topic_regex:
            self._topics.matching(request.subscribed_topic_regex)

    def _apply_request(self, member: ConsumerMember, request: HeartbeatRequest) -> None:
        self._check_subscription(request)
        before = (member.topic_names, member.topic_regex)
        told = (
            member.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.server_assignor,
        )
        if request.subscribed_topic_names is not None:
            member.topic_names = frozenset(request.subscribed_topic_names)
        if request.subscribed_topic_regex is not None:
            member.topic_regex = request.subscribed_topic_regex
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.server_assignor is not None:
            member.server_assignor = request.server_assignor
        if request.rebalance_timeout_ms != -1:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        if member.statement is None:
            self._listen_to(member)
        if before != (member.topic_names, member.topic_regex):
            member.tell_size()
            self._bump()
            self._dirty_members.add(member.member_id)
            self._drop_unused_patterns()
        if told != (
            member.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.server_assignor,
        ):
            self._dirty_members.add(member.member_id)

    def _listen_to(self, member: ConsumerMember) -> None:
        """What the member says of itself counts from now on."""
        expel = partial(self._expired, member)
        member.statement = self._runtime.statement(self.group_id, member.client_host, expel)
        member.tell_size()

    def _drop_unused_patterns(self) -> None:
        self._topics.keep_only({member.topic_regex for member in self.members.values()})

    def _subscription(self, member: ConsumerMember) -> frozenset[str]:
        return (
            member.topic_names | self._topics.matching(member.topic_regex) if member.topic_regex else member.topic_names
        )

    def topics_changed(self) -> None:
        """Look at the topics again at the next heartbeat."""
        self._metadata_due_ms = 0.0

    def _check_metadata(self) -> None:
        """Raise the epoch when a subscribed topic appeared, grew or went."""
        now_ms = self._runtime.clock.monotonic_ms()
        if now_ms < self._metadata_due_ms:
            return
        self._metadata_due_ms = now_ms + self._runtime.limits.consumer_metadata_refresh_ms
        self._topics.refresh()
        digest = self._topics.digest(self.subscribed_topics())
        if digest != self._metadata_hash:
            self._metadata_hash = digest
            self._bump()

    def _bump(self) -> None:
        """At most one epoch ahead of the targets: nobody has seen the epochs in between."""
        self.epoch = self.target_epoch + 1
        self._dirty = True

    # -- targets -------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        self._metadata_hash = self._topics.digest(self.subscribed_topics())
        self.assignor = self._preferred_assignor()
        counts: dict[UUID, int] = {}
        members: dict[str, AssignorMember] = {}
        for member_id, member in self.members.items():
            infos = self._topics.existing(self._subscription(member))
            counts.update((info.id, info.partitions) for info in infos)
            members[member_id] = AssignorMember(
                member_id, member.instance_id, frozenset(info.id for info in infos), member.target
            )
        for member_id, target in ASSIGNORS[self.assignor](members, counts).items():
            member = self.members[member_id]
            if member.target != target:
                member.target = target
                self._dirty_members.add(member_id)
        self.target_epoch = self.epoch
        self._dirty = True

    def _preferred_assignor(self) -> str:
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        if not votes:
            return DEFAULT_ASSIGNOR
        return min(votes, key=lambda name: (-votes[name], name != self.assignor, name))

    def _reconcile(self, member: ConsumerMember, request: HeartbeatRequest) -> None:
        assigned, pending = member.assigned, member.pending_revocation

        def is_free(tp: TopicIdPartition) -> bool:
            return self._holder.get(tp, member.member_id) == member.member_id

        if not member.reconcile(self.target_epoch, request.topic_partitions, is_free):
            return
        self._dirty_members.add(member.member_id)
        if (assigned, pending) != (member.assigned, member.pending_revocation):
            self._rehold(member, assigned | pending)
        self._time_revocation(member)

    def _hold(
        self, member: ConsumerMember, assigned: frozenset[TopicIdPartition], pending: frozenset[TopicIdPartition]
    ) -> None:
        held = member.holds
        member.assigned, member.pending_revocation = assigned, pending
        self._rehold(member, held)

    def _rehold(self, member: ConsumerMember, held: frozenset[TopicIdPartition]) -> None:
        """Bring `_holder` in line with what the member holds now, having held `held`."""
        holds = member.holds
        for tp in held - holds:
            if self._holder.get(tp) == member.member_id:
                del self._holder[tp]
        for tp in holds:
            holder = self._holder.setdefault(tp, member.member_id)
            assert holder == member.member_id, f"{tp} belongs to {holder} and {member.member_id}"

    # -- sessions ------------------------------------------------------------------------------------------------

    def _arm(self, member: ConsumerMember) -> None:
        limit_ms = self._runtime.settings.session_timeout_ms(self.group_id)
        member.session = self._runtime.timers.reset(member.session, limit_ms, partial(self._expired, member))

    def _time_revocation(self, member: ConsumerMember) -> None:
        """A member that was told to give partitions up has its rebalance timeout to do so."""
        if member.state is MemberState.UNREVOKED_PARTITIONS and not member.away:
            if member.revocation is None:
                limit_ms = max(member.rebalance_timeout_ms, 0)
                member.revocation = self._runtime.timers.after(limit_ms, partial(self._expired, member))
        elif member.revocation is not None:
            member.revocation.cancel()
            member.revocation = None

    def _expired(self, member: ConsumerMember) -> None:
        """A session or a revocation came to its deadline: fence the member, and write that it is gone."""
        if self.members.get(member.member_id) is not member:
            return
        self.remove(member)
        self.store()

    def remove(self, member: ConsumerMember) -> None:
        self._forget(member)
        if not self.members:
            self.empty_since_ms = self._runtime.clock.wall_ms()
        self._bump()
        self._drop_unused_patterns()

    def _forget(self, member: ConsumerMember) -> None:
        for timer in (member.session, member.revocation):
            if timer is not None:
                timer.cancel()
        member.session = member.revocation = None
        if member.statement is not None:
            member.statement.has(0)
            member.statement = None
        for tp in member.holds:
            if self._holder.get(tp) == member.member_id:
                del self._holder[tp]
        del self.members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        self._dirty_members.add(member.member_id)

    # -- commits -------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, epoch: int, instance_id: str | None, *, transactional: bool) -> None:
        """Raise unless this member may commit (or, with an epoch, fetch) offsets now."""
        if epoch < 0 and (not self.members or transactional):
            return
        member = self._checked_member(member_id, instance_id)
        if epoch != member.epoch:
            raise GroupError(GroupErrorName.STALE_MEMBER_EPOCH, f"epoch {epoch}, the member is at {member.epoch}")

    # -- the record ----------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        return self._dirty or bool(self._dirty_members)

    def store(self) -> asyncio.Future[int] | None:
        """Write what is dirty; the marks come back if that fails. Returns the last write, None when none is under way.

        A reply that changes nothing still waits for an earlier write, as it may tell of what that one holds.
        """
        if not self.dirty:
            return self._last_write
        members, self._dirty_members, self._dirty = self._dirty_members, set(), False
        records: list[JournalRecord] = []
        for member_id in sorted(members):
            member = self.members.get(member_id)
            value = None if member is None else json_value(member.to_json())
            records.append((consumer_member_key(self.group_id, member_id), value))
        records.append((consumer_group_key(self.group_id), json_value(self.to_json())))
        done = self._runtime.journal.write(records)

        def written(_: object) -> None:
            if done.cancelled() or done.exception() is not None:
                self._dirty_members |= members
                self._dirty = True

            if self._last_write is done:
                self._last_write = None

        self._last_write = done
        done.add_done_callback(written)
        return done

    def to_json(self) -> JsonObject:
        return {
            "epoch": self.epoch,
            "target_epoch": self.target_epoch,
            "assignor": self.assignor,
            "metadata": self._metadata_hash,
            "empty_since_ms": self.empty_since_ms,
        }

    def die(self) -> list[JournalRecord]:
        """The group is deleted or becomes one of another type; returns the tombstones to write. Only an empty one dies."""
        assert not self.members
        gone, self._dirty_members, self._dirty = self._dirty_members, set(), False
        keys = [consumer_member_key(self.group_id, member_id) for member_id in sorted(gone)]
        return [(key, None) for key in (*keys, consumer_group_key(self.group_id))]
