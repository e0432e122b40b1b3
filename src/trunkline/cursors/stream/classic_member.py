"""A member of a classic group, and what its requests are answered with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.records import ClassicMemberValue
from trunkline.cursors.stream.statement import Statement
from trunkline.cursors.stream.timers import Timer

Protocol = tuple[str, bytes]  # name of an assignment strategy and the member's metadata for it


class JoinRequest(NamedTuple):
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Sequence[Protocol]
    require_known_member_id: bool = True
    supports_skipping_assignment: bool = True
    reason: str = ""


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    member_id: str
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    members: Sequence[JoinedMember] = ()  # only the leader is told
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class LeavingMember(NamedTuple):
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: GroupErrorName | None


@dataclass(slots=True, eq=False)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    session: Timer | None = None
    statement: Statement | None = field(default=None, repr=False)
    join_waiter: asyncio.Future[JoinResult] | None = field(default=None, repr=False)
    sync_waiter: asyncio.Future[SyncResult] | None = field(default=None, repr=False)

    @property
    def awaiting_join(self) -> bool:
        return self.join_waiter is not None

    @property
    def metadata_bytes(self) -> int:
        return size_of(self.protocols)

    def tell_size(self) -> None:
        """Tell the budget how much is kept of this member."""
        if self.statement is not None:
            ids = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
            self.statement.has(self.metadata_bytes + len(self.assignment) + ids)

    def unsay(self) -> None:
        """The member is gone, and what it said."""
        if self.statement is not None:
            self.statement.has(0)
            self.statement = None

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    def answer_join(self, outcome: JoinResult | GroupError) -> None:
        waiter, self.join_waiter = self.join_waiter, None
        if waiter is not None:
            settle(waiter, outcome)

    def answer_sync(self, outcome: SyncResult | GroupError) -> None:
        waiter, self.sync_waiter = self.sync_waiter, None
        if waiter is not None:
            settle(waiter, outcome)

    @classmethod
    def restore(cls, value: ClassicMemberValue, protocol_name: str | None) -> ClassicMember:
        """A member as its record tells: of its protocols only the chosen one is kept there."""
        return cls(
            value.member_id,
            value.instance_id,
            value.client_id,
            value.client_host,
            value.session_timeout_ms,
            value.rebalance_timeout_ms,
            ((protocol_name or "", value.subscription),),
            value.assignment,
        )

    def stored(self, protocol_name: str | None, assignment: bytes) -> ClassicMemberValue:
        return ClassicMemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            assignment,
        )


class PendingMember(NamedTuple):
    """One that was told an id and has not joined with it."""

    timer: Timer
    statement: Statement

    def end(self) -> None:
        self.timer.cancel()
        self.statement.has(0)


def size_of(protocols: Sequence[Protocol]) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def settle(waiter: asyncio.Future[JoinResult] | asyncio.Future[SyncResult], outcome: object) -> None:
    """Complete a waiter that may have gone away with its connection."""
    if waiter.done():
        return
    if isinstance(outcome, GroupError):
        waiter.set_exception(outcome)
        waiter.exception()  # nobody may be there to retrieve it
    else:
        waiter.set_result(outcome)  # type: ignore[arg-type]
