"""The classic group protocol: members join, a leader among them divides the partitions, all fetch their share.

    state                on                                             next
    Empty                first member joins                             PreparingRebalance
    PreparingRebalance   all members have (re)joined, or time is up     CompletingRebalance; Empty when none is left
    CompletingRebalance  the leader's assignment is on disk             Stable
    CompletingRebalance  member joins, leaves, changes, does not sync   PreparingRebalance
    Stable               member joins, leaves, changes, dies            PreparingRebalance
    Empty                deleted, or its last offset expired            Dead

Rules it keeps:

- Each completed join makes a new generation; requests of an older one are refused with ILLEGAL_GENERATION.
- A join is answered when every member has joined, so no two generations overlap. Who does not rejoin within the longest
  rebalance timeout is dropped; a static member stays until its session ends.
- An assignment is handed out only once it is on disk. Join replies need nothing on disk: after a crash members rejoin.
- A member lives by its session: heartbeats, commits, joins and syncs renew it, and it stands still while the member waits
  for us. A closed connection means nothing.
- A static member (one with an instance id) that comes back without its member id takes its old place, and whoever holds
  the old member id is fenced. In a stable group, with the same protocol chosen, that needs no rebalance.
- Eager and cooperative differ only in what the members do. All the coordinator owes a cooperative member is to
  let it commit and heartbeat under its generation while a rebalance is being prepared.

After a restart a group is what its last record says, Stable with the members and assignments of then (or Empty), with
every session started afresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from trunkline.cursors.stream.classic_member import (
    ClassicMember,
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    PendingMember,
    SyncResult,
    settle,
    size_of,
)
from trunkline.cursors.stream.classic_state import NEXT_STATES, ClassicState
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.journal import JournalRecord
from trunkline.cursors.stream.records import ClassicValue, classic_key, classic_value
from trunkline.cursors.stream.roster import Roster
from trunkline.cursors.stream.runtime import GroupRuntime
from trunkline.cursors.stream.timers import Timer

CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicGroup:
    def __init__(self, group_id: str, runtime: GroupRuntime) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.state_timestamp_ms = runtime.clock.wall_ms()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members = Roster(group_id)
        self._runtime = runtime
        self._pending_members: dict[str, PendingMember] = {}  # told an id, not joined yet
        self._pending_sync: set[str] = set()
        self._join_timer: Timer | None = None
        self._sync_timer: Timer | None = None
        self._initial_delay_left_ms: float = 0
        self._joined_during_delay = False

    @classmethod
    def restore(cls, group_id: str, runtime: GroupRuntime, value: ClassicValue) -> ClassicGroup:
        group = cls(group_id, runtime)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol_name
        group.leader = value.leader
        if value.state_timestamp_ms >= 0:
            group.state_timestamp_ms = value.state_timestamp_ms
        for stored in value.members:
            member = ClassicMember.restore(stored, value.protocol_name)
            group.members.add(member)
            group._listen_to(member)
            group._arm_session(member)
        if group.members:
            group.state = ClassicState.STABLE
            if group.leader not in group.members:
                group.leader = group.members.ids()[0]
        return group

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY and not self._pending_members

    @property
    def is_simple(self) -> bool:
        """Never joined: only offsets were committed to it by consumers that assign themselves."""
        return self.protocol_type is None and not self.members

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members read; None when that cannot be known (another kind of group, or no protocol yet)."""
        if self.state is ClassicState.EMPTY:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return None
        return self.members.subscribed_topics(self.protocol_name)

    # -- join ----------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> asyncio.Future[JoinResult]:
        if self._is_full(request.member_id):
            self._drop_refused(request.member_id)
            raise GroupError(GroupErrorName.GROUP_MAX_SIZE_REACHED, f"group {self.group_id} has its most members")
        known = self.members.get(request.member_id)
        others_bytes = self.members.metadata_bytes - (0 if known is None else known.metadata_bytes)
        if others_bytes + size_of(request.protocols) > self._runtime.limits.max_group_metadata_bytes:
            raise GroupError(
                GroupErrorName.GROUP_MAX_SIZE_REACHED,
                f"the members of group {self.group_id} say too much of themselves",
            )
        if not self._supports(request.protocol_type, request.protocols):
            raise GroupError(
                GroupErrorName.INCONSISTENT_GROUP_PROTOCOL, "no protocol in common with the members of the group"
            )
        if not request.member_id:
            return self._join_new(request)
        if request.member_id in self._pending_members:
            if request.group_instance_id is not None:
                raise GroupError(
                    GroupErrorName.INVALID_REQUEST, "a static member is never told to come back with an id"
                )
            return self._add(request, request.member_id)
        return self._join_known(request)

    def _join_new(self, request: JoinRequest) -> asyncio.Future[JoinResult]:
        prefix = request.group_instance_id if request.group_instance_id is not None else request.client_id
        member_id = f"{prefix}-{self._runtime.new_id()}"
        if request.group_instance_id is not None:
            if self.members.static_id(request.group_instance_id) is not None:
                return self._replace_static(request, member_id)
            return self._add(request, member_id)
        if request.require_known_member_id:
            if len(self._pending_members) >= self._runtime.limits.max_members_per_group:
                raise GroupError(
                    GroupErrorName.GROUP_MAX_SIZE_REACHED, "too many members were told an id and did not join"
                )
            expire = partial(self._pending_member_expired, member_id)
            statement = self._runtime.statement(self.group_id, request.client_host, expire)
            timer = self._runtime.timers.after(request.session_timeout_ms, expire)
            self._pending_members[member_id] = PendingMember(timer, statement)
            statement.has(len(member_id))
            raise GroupError(GroupErrorName.MEMBER_ID_REQUIRED, "join again with this member id", member_id=member_id)
        return self._add(request, member_id)

    def _join_known(self, request: JoinRequest) -> asyncio.Future[JoinResult]:
        member = self.members.checked(request.member_id, request.group_instance_id)
        changed = member.protocols != tuple(request.protocols)
        state = self.state
        if state is ClassicState.COMPLETING_REBALANCE and not changed:
            # The reply of the join was lost; the generation stands.
            return self._answered(self._join_result(member))
        if state is ClassicState.STABLE and not changed and member.member_id != self.leader:
            return self._answered(self._join_result(member))
        if state in (ClassicState.EMPTY, ClassicState.DEAD):
            raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID)
        waiter = self._await_join(member, request)
        self._rebalance()
        return waiter

    def _add(self, request: JoinRequest, member_id: str) -> asyncio.Future[JoinResult]:
        pending = self._pending_members.pop(member_id, None)
        if pending is not None:
            pending.end()
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            tuple(request.protocols),
            is_new=True,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        if self.leader is None:
            self.leader = member_id
        self._joined_during_delay = True
        waiter = self._await_join(member, request)
        self._listen_to(member)
        self._rebalance()
        return waiter

    def _listen_to(self, member: ClassicMember) -> None:
        """What the member says of itself counts from now on."""
        expel = partial(self._session_expired, member)
        member.statement = self._runtime.statement(self.group_id, member.client_host, expel)
        member.tell_size()

    def _replace_static(self, request: JoinRequest, member_id: str) -> asyncio.Future[JoinResult]:
        instance_id = request.group_instance_id
        assert instance_id is not None
        old_id = self.members.static_id(instance_id)
        assert old_id is not None
        member = self.members.checked(old_id, instance_id)
        fenced = GroupError(GroupErrorName.FENCED_INSTANCE_ID, f"{instance_id} joined again as {member_id}")
        member.answer_join(fenced)
        member.answer_sync(fenced)
        self._disarm_session(member)
        self.members.rename(member, member_id)
        member.client_id, member.client_host = request.client_id, request.client_host
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = member_id
        if old_id in self._pending_sync:
            self._pending_sync.discard(old_id)
            self._pending_sync.add(member_id)
        if self.state is not ClassicState.STABLE:
            waiter = self._await_join(member, request)
            self._rebalance()
            return waiter
        self._update(member, request)
        if self.members.vote() != self.protocol_name:
            waiter = self._await_join(member, request)
            self._rebalance()
            return waiter
        self._arm_session(member)
        result = self._join_result(member, skip_assignment=was_leader)
        if was_leader and not request.supports_skipping_assignment:
            # Such a client would divide the partitions again if it heard that it leads; the old id tells it not to.
            result = JoinResult(member_id, self.generation, self.protocol_type, self.protocol_name, old_id)
        waiter = asyncio.get_running_loop().create_future()
        stored = self._runtime.journal.write([self.record()])
        stored.add_done_callback(lambda done: self._static_replaced(done, waiter, result))
        return waiter

    @staticmethod
    def _static_replaced(done: asyncio.Future[int], waiter: asyncio.Future[JoinResult], result: JoinResult) -> None:
        # When it could not be stored, the member is told so and comes again, without an id as before.
        error = None if done.cancelled() else done.exception()
        settle(waiter, error if isinstance(error, GroupError) else result)

    def _await_join(self, member: ClassicMember, request: JoinRequest) -> asyncio.Future[JoinResult]:
        self._update(member, request)
        member.answer_join(GroupError(GroupErrorName.REBALANCE_IN_PROGRESS, "the member joined again"))
        member.join_waiter = asyncio.get_running_loop().create_future()
        if member.is_new:
            limit_ms = self._runtime.limits.new_member_join_timeout_ms
            member.session = self._runtime.timers.reset(
                member.session, limit_ms, partial(self._session_expired, member)
            )
        else:
            self._disarm_session(member)
        return member.join_waiter

    def _update(self, member: ClassicMember, request: JoinRequest) -> None:
        self.members.teach(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.tell_size()

    def _join_result(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinResult:
        leads = member.member_id == self.leader
        members = self.members.joined_members(self.protocol_name) if leads else []
        return JoinResult(
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            members,
            skip_assignment,
        )

    @staticmethod
    def _answered(result: JoinResult) -> asyncio.Future[JoinResult]:
        waiter: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        waiter.set_result(result)
        return waiter

    # -- rebalance -----------------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """Start a rebalance if none is being prepared, and complete it if everybody is there."""
        if self.state in (ClassicState.EMPTY, ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            was_empty = self.state is ClassicState.EMPTY
            self._fail_syncs(GroupErrorName.REBALANCE_IN_PROGRESS)
            self._cancel_sync_timer()
            self._move(ClassicState.PREPARING_REBALANCE)
            limit_ms = self.members.rebalance_timeout_ms
            delay_ms = self._runtime.limits.initial_rebalance_delay_ms if was_empty else 0
            if delay_ms:
                self._joined_during_delay = False
                self._initial_delay_left_ms = max(limit_ms - delay_ms, 0)
                self._join_timer = self._runtime.timers.after(min(delay_ms, limit_ms), self._initial_delay_over)
                return
            self._initial_delay_left_ms = -1
            self._join_timer = self._runtime.timers.after(limit_ms, self._complete_join)
        if self._initial_delay_left_ms < 0:
            self._complete_join_if_all_joined()

    def _initial_delay_over(self) -> None:
        """The first join of an empty group waits as long as members keep coming, up to the rebalance timeout."""
        delay_ms = min(self._runtime.limits.initial_rebalance_delay_ms, self._initial_delay_left_ms)
        if self._joined_during_delay and delay_ms > 0:
            self._joined_during_delay = False
            self._initial_delay_left_ms -= delay_ms
            self._join_timer = self._runtime.timers.after(delay_ms, self._initial_delay_over)
            return
        self._initial_delay_left_ms = -1
        self._complete_join()

    def _complete_join_if_all_joined(self) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE or self._initial_delay_left_ms >= 0:
            return
        if not self._pending_members and self.members.all_joined:
            self._complete_join()

    def _complete_join(self) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE:
            return
        self._cancel_join_timer()
        for member in list(self.members):
            if not member.awaiting_join and member.instance_id is None:
                self._forget(member)
        if self.members and not self._elect_joined_leader():
            # Only static members are left and none has come back; their sessions decide.
            self._join_timer = self._runtime.timers.after(self.members.rebalance_timeout_ms, self._complete_join)
            return
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        self.protocol_name = self.members.vote()
        self._move(ClassicState.COMPLETING_REBALANCE)
        # An absent static member has nothing to sync: its session decides about it, not this timer.
        self._pending_sync = {member.member_id for member in self.members if member.awaiting_join}
        self._sync_timer = self._runtime.timers.after(self.members.rebalance_timeout_ms, self._sync_overdue)
        for member in self.members:
            if member.awaiting_join:
                member.is_new = False
                self._arm_session(member)
                member.answer_join(self._join_result(member))

    def _become_empty(self) -> None:
        self.protocol_name = None
        self.leader = None
        self._move(ClassicState.EMPTY)
        self._runtime.journal.write([self.record()])

    def _elect_joined_leader(self) -> bool:
        leader = self.members.get(self.leader)
        if leader is not None and leader.awaiting_join:
            return True
        joined = next((member for member in self.members if member.awaiting_join), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    def _supports(self, protocol_type: str, protocols: Sequence[tuple[str, bytes]]) -> bool:
        if not protocol_type or not protocols:
            return False
        return not self.members or (protocol_type == self.protocol_type and self.members.shares_a_protocol(protocols))

    # -- sync ----------------------------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
    ) -> asyncio.Future[SyncResult]:
        member = self.members.checked(member_id, instance_id)
        self._check_generation(generation)
        if (protocol_type is not None and protocol_type != self.protocol_type) or (
            protocol_name is not None and protocol_name != self.protocol_name
        ):
            raise GroupError(GroupErrorName.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise GroupError(GroupErrorName.REBALANCE_IN_PROGRESS)
        if self.state not in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID)
        self._pending_sync.discard(member_id)
        if not self._pending_sync:
            self._cancel_sync_timer()
        waiter: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        if self.state is ClassicState.STABLE:
            self._arm_session(member)
            waiter.set_result(self._sync_result(member))
            return waiter
        member.answer_sync(GroupError(GroupErrorName.REBALANCE_IN_PROGRESS, "the member synced again"))
        member.sync_waiter = waiter
        self._disarm_session(member)
        if member_id == self.leader:
            self._store_assignment({each: assignments.get(each, b"") for each in self.members.ids()})
        return waiter

    def _store_assignment(self, assignments: Mapping[str, bytes]) -> None:
        generation = self.generation
        stored = self._runtime.journal.write([self.record(assignments)])
        stored.add_done_callback(lambda done: self._assignment_stored(done, generation, assignments))

    def _assignment_stored(self, done: asyncio.Future[int], generation: int, assignments: Mapping[str, bytes]) -> None:
        if self.state is not ClassicState.COMPLETING_REBALANCE or self.generation != generation:
            return  # a rebalance came in between and has told the members
        if done.cancelled() or done.exception() is not None:
            self._fail_syncs(GroupErrorName.COORDINATOR_NOT_AVAILABLE)
            self._rebalance()
            return
        self._move(ClassicState.STABLE)
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            member.tell_size()
            if member.sync_waiter is not None:
                self._arm_session(member)
                member.answer_sync(self._sync_result(member))

    def _sync_result(self, member: ClassicMember) -> SyncResult:
        return SyncResult(self.protocol_type, self.protocol_name, member.assignment)

    def _sync_overdue(self) -> None:
        """Members that joined and then did not sync within the rebalance timeout are gone."""
        self._sync_timer = None
        late = [member for member in self.members if member.member_id in self._pending_sync]
        if self.state not in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE) or not late:
            return
        for member in late:
            self._forget(member)
        self._rebalance()

    def _fail_syncs(self, name: GroupErrorName) -> None:
        for member in self.members:
            if self.state is ClassicState.COMPLETING_REBALANCE:
                member.assignment = b""
            if member.sync_waiter is not None:
                self._arm_session(member)
                member.answer_sync(GroupError(name))
        self._pending_sync.clear()

    # -- heartbeat, leave ----------------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None) -> None:
        member = self.members.checked(member_id, instance_id)
        self._check_generation(generation)
        if self.state in (ClassicState.EMPTY, ClassicState.DEAD):
            raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID)
        self.touch(member)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise GroupError(GroupErrorName.REBALANCE_IN_PROGRESS)

    def leave(self, leaving: Sequence[LeavingMember]) -> list[LeftMember]:
        count_before = len(self.members)
        left = [LeftMember(each.member_id, each.group_instance_id, self._leave_one(each)) for each in leaving]
        if len(self.members) < count_before:
            self._members_gone()
        else:
            self._complete_join_if_all_joined()
        return left

    def _leave_one(self, leaving: LeavingMember) -> GroupErrorName | None:
        pending = self._pending_members.pop(leaving.member_id, None) if leaving.group_instance_id is None else None
        if pending is not None:
            pending.end()
            return None
        member_id = leaving.member_id
        if leaving.group_instance_id is not None and not member_id:
            member_id = self.members.static_id(leaving.group_instance_id) or ""
        try:
            member = self.members.checked(member_id, leaving.group_instance_id)
        except GroupError as error:
            return error.name
        self._forget(member)
        return None

    def _members_gone(self) -> None:
        if self.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self._rebalance()
        else:
            self._complete_join_if_all_joined()

    # -- commits -------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool) -> None:
        """Raise unless this member may commit offsets now."""
        if generation < 0 and self.state is ClassicState.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            member = self.members.checked(member_id, instance_id)
            self._check_generation(generation)
            if not transactional and self.state is ClassicState.COMPLETING_REBALANCE:
                raise GroupError(GroupErrorName.REBALANCE_IN_PROGRESS)
            self.touch(member)
        elif not transactional:
            raise GroupError(
                GroupErrorName.UNKNOWN_MEMBER_ID, "the group has members; commits must come from one of them"
            )

    # -- sessions ------------------------------------------------------------------------------------------------

    def touch(self, member: ClassicMember) -> None:
        """Renew a session, unless it stands still because the member waits for us."""
        if not member.awaiting_join and member.sync_waiter is None:
            self._arm_session(member)

    def _arm_session(self, member: ClassicMember) -> None:
        timers = self._runtime.timers
        member.session = timers.reset(member.session, member.session_timeout_ms, partial(self._session_expired, member))

    @staticmethod
    def _disarm_session(member: ClassicMember) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None

    def _session_expired(self, member: ClassicMember) -> None:
        if self.members.get(member.member_id) is member:
            self._forget(member)
            self._members_gone()

    def _pending_member_expired(self, member_id: str) -> None:
        pending = self._pending_members.pop(member_id, None)
        if pending is not None:
            pending.end()
            self._complete_join_if_all_joined()

    def _forget(self, member: ClassicMember) -> None:
        gone = GroupError(GroupErrorName.UNKNOWN_MEMBER_ID, "the member is no longer in the group")
        member.answer_join(gone)
        member.answer_sync(gone)
        self._disarm_session(member)
        member.unsay()
        self.members.remove(member)
        self._pending_sync.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members.ids()), None)

    # -- the end, the record -------------------------------------------------------------------------------------

    def die(self) -> list[JournalRecord]:
        """The group is deleted or becomes one of another type; returns the tombstones to write. Only an empty one dies."""
        assert not self.members
        for pending in self._pending_members.values():
            pending.end()
        self._pending_members.clear()
        self._cancel_join_timer()
        self._cancel_sync_timer()
        self._move(ClassicState.DEAD)
        return [] if self.is_simple else [(classic_key(self.group_id), None)]

    def abandon(self) -> None:
        """The broker stops: whoever waits is told to look for a coordinator again."""
        gone = GroupError(GroupErrorName.COORDINATOR_NOT_AVAILABLE, "the broker is shutting down")
        for member in self.members:
            member.answer_join(gone)
            member.answer_sync(gone)

    def record(self, assignments: Mapping[str, bytes] | None = None) -> JournalRecord:
        members = tuple(
            member.stored(
                self.protocol_name,
                member.assignment if assignments is None else assignments.get(member.member_id, b""),
            )
            for member in self.members
        )
        value = ClassicValue(
            self.protocol_type or "", self.generation, self.protocol_name, self.leader, self.state_timestamp_ms, members
        )
        return classic_key(self.group_id), classic_value(value)

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise GroupError(
                GroupErrorName.ILLEGAL_GENERATION, f"generation {generation}, the group is at {self.generation}"
            )

    def _is_full(self, member_id: str) -> bool:
        limit = self._runtime.limits.max_members_per_group
        if self.state is ClassicState.PREPARING_REBALANCE:
            known = self.members.get(member_id)
            if known is not None and known.awaiting_join:
                return False
            return sum(member.awaiting_join for member in self.members) >= limit
        if member_id in self.members:
            return False
        return len(self.members) >= limit

    def _drop_refused(self, member_id: str) -> None:
        pending = self._pending_members.pop(member_id, None)
        if pending is not None:
            pending.end()
        member = self.members.get(member_id)
        if member is not None:
            self._forget(member)
        self._complete_join_if_all_joined()

    def _move(self, state: ClassicState) -> None:
        assert state in NEXT_STATES[self.state], f"{self.state} -> {state}"
        self.state = state
        self.state_timestamp_ms = self._runtime.clock.wall_ms()

    def _cancel_join_timer(self) -> None:
        if self._join_timer is not None:
            self._join_timer.cancel()
            self._join_timer = None

    def _cancel_sync_timer(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
