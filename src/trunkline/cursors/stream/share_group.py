"""A share group (KIP-932) as its coordinator sees it: who its members are, and which partitions each of them reads.

What becomes of the records is not decided here but by the share partitions (`cursors/share`). Several members may read one
partition, so nobody waits for anybody to give one up: a member is told its new partitions with its next heartbeat.

The group has an epoch, raised by every change that calls for another division: a member joins, leaves, dies or subscribes to
something else, or the topics change. The division is made at once, and a member takes over the epoch with it.

    group state   when
    Empty         no members
    Stable        members

A member chooses its own id. It proves itself by its epoch: one ahead of ours is fenced; the one before is let in, as then only
our reply was lost. Changes are marked dirty and written before they are told, as in `consumer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from trunkline.cursors.stream.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    HeartbeatResult,
    Partitions,
    integer,
    partitions_from_json,
    partitions_to_json,
)
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.journal import JournalRecord
from trunkline.cursors.stream.records import JsonObject, UnreadableRecord, json_value, share_group_key, share_member_key
from trunkline.cursors.stream.runtime import GroupRuntime
from trunkline.cursors.stream.share_assignor import assign_shares
from trunkline.cursors.stream.statement import Statement
from trunkline.cursors.stream.timers import Timer
from trunkline.cursors.stream.topic_view import TopicView
from trunkline.log.store import TopicInfo


class ShareGroupState(StrEnum):
    EMPTY = "Empty"
    STABLE = "Stable"


class ShareHeartbeat(NamedTuple):
    """ShareGroupHeartbeat: None means "as before"."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(slots=True, eq=False)
class ShareMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Partitions = NO_PARTITIONS
    told: Partitions | None = field(default=None, repr=False)  # what it was told last, by this process
    session: Timer | None = field(default=None, repr=False)
    statement: Statement | None = field(default=None, repr=False)

    def tell_size(self) -> None:
        """Tell the budget how much is kept of this member."""
        if self.statement is not None:
            ids = len(self.member_id) + len(self.client_id) + len(self.rack_id or "")
            self.statement.has(sum(map(len, self.topic_names)) + ids)

    def to_json(self) -> JsonObject:
        return {
            "rack": self.rack_id,
            "client": self.client_id,
            "host": self.client_host,
            "topics": sorted(self.topic_names),
            "epoch": self.epoch,
            "previous_epoch": self.previous_epoch,
            "assigned": partitions_to_json(self.assigned),
        }

    @classmethod
    def from_json(cls, member_id: str, value: JsonObject) -> ShareMember:
        try:
            topics, rack = value["topics"], value["rack"]
            if not isinstance(topics, list):
                raise ValueError("topics are not a list")
            return cls(
                member_id,
                None if rack is None else str(rack),
                str(value["client"]),
                str(value["host"]),
                frozenset(map(str, topics)),
                integer(value, "epoch"),
                integer(value, "previous_epoch"),
                partitions_from_json(value["assigned"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise UnreadableRecord(f"share member {member_id}: {error!r}") from None


class ShareGroup:
    def __init__(self, group_id: str, runtime: GroupRuntime, topics: Mapping[str, TopicInfo]) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.members: dict[str, ShareMember] = {}
        self._runtime = runtime
        self._topics = TopicView(topics, runtime.limits.max_pattern_chars)
        self._metadata_hash = ""
        self._metadata_due_ms = 0.0
        self._dirty_members: set[str] = set()
        self._dirty = True
        self._last_write: asyncio.Future[int] | None = None

    def restore(self, value: JsonObject, members: Mapping[str, JsonObject]) -> None:
        """Be what the log says. Every session starts afresh."""
        try:
            self.epoch = integer(value, "epoch")
        except (KeyError, ValueError) as error:
            raise UnreadableRecord(f"share group {self.group_id}: {error!r}") from None
        self._metadata_hash = str(value.get("metadata", ""))
        for member_id, stored in members.items():
            member = self.members[member_id] = ShareMember.from_json(member_id, stored)
            self._listen_to(member)
            self._arm(member)
        self._dirty = False

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_empty(self) -> bool:
        return not self.members

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(member.topic_names for member in self.members.values()))

    def check_commit(self, member_id: str, epoch: int, instance_id: str | None, *, transactional: bool) -> None:
        """Offsets are not committed to a share group."""
        raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    # -- heartbeat -----------------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat) -> HeartbeatResult:
        if request.member_epoch == LEAVE_EPOCH:
            self.remove(self._checked_member(request.member_id))
            return HeartbeatResult(request.member_id, LEAVE_EPOCH, 0)
        member = self._joining(request) if request.member_epoch == JOIN_EPOCH else self._known(request)
        self._apply_request(member, request)
        self._check_metadata()
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
            self._dirty_members.add(member.member_id)
        self._arm(member)
        interval_ms = self._runtime.settings.share_heartbeat_interval_ms(self.group_id)
        tell = request.member_epoch != member.epoch or member.told != member.assigned
        member.told = member.assigned
        return HeartbeatResult(member.member_id, member.epoch, interval_ms, member.assigned if tell else None)

    def _joining(self, request: ShareHeartbeat) -> ShareMember:
        known = self.members.get(request.member_id)
        if known is not None:
            known.told = None
            return known
        most = self._runtime.limits.max_share_group_members
        if len(self.members) >= most:
            raise GroupError(
                GroupErrorName.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {most} members.",
            )
        member = self.members[request.member_id] = ShareMember(request.member_id)
        return member

    def _known(self, request: ShareHeartbeat) -> ShareMember:
        member = self._checked_member(request.member_id)
        if request.member_epoch not in (member.epoch, member.previous_epoch):
            raise GroupError(
                GroupErrorName.FENCED_MEMBER_EPOCH, f"epoch {request.member_epoch}, the member is at {member.epoch}"
            )
        return member

    def _checked_member(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(
                GroupErrorName.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _apply_request(self, member: ShareMember, request: ShareHeartbeat) -> None:
        told = (member.rack_id, member.client_id, member.client_host)
        before = member.topic_names
        if request.subscribed_topic_names is not None:
            member.topic_names = frozenset(request.subscribed_topic_names)
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        member.client_id, member.client_host = request.client_id, request.client_host
        if member.statement is None:
            self._listen_to(member)
        if before != member.topic_names or member.epoch == 0:
            member.tell_size()
            self._divide()
        if told != (member.rack_id, member.client_id, member.client_host):
            self._dirty_members.add(member.member_id)

    def _listen_to(self, member: ShareMember) -> None:
        expel = partial(self._expired, member)
        member.statement = self._runtime.statement(self.group_id, member.client_host, expel)
        member.tell_size()

    # -- who reads what ------------------------------------------------------------------------------------------

    def topics_changed(self) -> None:
        """Look at the topics again at the next heartbeat."""
        self._metadata_due_ms = 0.0

    def _check_metadata(self) -> None:
        """Divide anew when a subscribed topic appeared, grew or went."""
        now_ms = self._runtime.clock.monotonic_ms()
        if now_ms < self._metadata_due_ms:
            return
        self._metadata_due_ms = now_ms + self._runtime.limits.consumer_metadata_refresh_ms
        if self._topics.digest(self.subscribed_topics()) != self._metadata_hash:
            self._divide()

    def _divide(self) -> None:
        self.epoch += 1
        self._dirty = True
        self._metadata_hash = self._topics.digest(self.subscribed_topics())
        infos = {info.name: info for info in self._topics.existing(self.subscribed_topics())}
        subscriptions = {
            member_id: [infos[name].id for name in member.topic_names if name in infos]
            for member_id, member in self.members.items()
        }
        counts = {info.id: info.partitions for info in infos.values()}
        current = {member_id: member.assigned for member_id, member in self.members.items()}
        for member_id, partitions in assign_shares(subscriptions, counts, current).items():
            member = self.members[member_id]
            if member.assigned != partitions:
                member.assigned = partitions
                self._dirty_members.add(member_id)

    # -- sessions ------------------------------------------------------------------------------------------------

    def _arm(self, member: ShareMember) -> None:
        limit_ms = self._runtime.settings.share_session_timeout_ms(self.group_id)
        member.session = self._runtime.timers.reset(member.session, limit_ms, partial(self._expired, member))

    def _expired(self, member: ShareMember) -> None:
        if self.members.get(member.member_id) is member:
            self.remove(member)
            self.store()

    def remove(self, member: ShareMember) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None
        if member.statement is not None:
            member.statement.has(0)
            member.statement = None
        del self.members[member.member_id]
        self._dirty_members.add(member.member_id)
        self._divide()

    # -- the record ----------------------------------------------------------------------------------------------

    def store(self) -> asyncio.Future[int] | None:
        """Write what is dirty; the marks come back if that fails. Returns the last write, None when none is under way."""
        if not self._dirty and not self._dirty_members:
            return self._last_write
        members, self._dirty_members, self._dirty = self._dirty_members, set(), False
        records: list[JournalRecord] = []
        for member_id in sorted(members):
            member = self.members.get(member_id)
            value = None if member is None else json_value(member.to_json())
            records.append((share_member_key(self.group_id, member_id), value))
        own: JsonObject = {"epoch": self.epoch, "metadata": self._metadata_hash}
        records.append((share_group_key(self.group_id), json_value(own)))
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

    def die(self) -> list[JournalRecord]:
        """The group is deleted; returns the tombstones to write. Only an empty one dies."""
        assert not self.members
        gone, self._dirty_members, self._dirty = self._dirty_members, set(), False
        keys = [share_member_key(self.group_id, member_id) for member_id in sorted(gone)]
        return [(key, None) for key in (*keys, share_group_key(self.group_id))]
