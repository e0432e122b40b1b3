"""A member of a consumer-protocol group: what it asked for, what it has, and how it gets to its target.

    state                   meaning                                             leaves it when
    STABLE                  at the target epoch with all of its target          the target changes
    UNREVOKED_PARTITIONS    was told to give partitions up; keeps its epoch     it reports owning none of them
    UNRELEASED_PARTITIONS   at the target epoch, waits for other members to     they have let go
                            give up what it is to get

`assigned` is what the member was told to own; `pending_revocation` what it was told to give up and may still own. A
partition is in one of the two for at most one member of a group: that is the promise the whole protocol rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from trunkline.cursors.stream.assignors import TopicIdPartition
from trunkline.cursors.stream.records import JsonObject, UnreadableRecord
from trunkline.cursors.stream.statement import Statement
from trunkline.cursors.stream.timers import Timer

STATIC_LEAVE_EPOCH = -2
LEAVE_EPOCH = -1
JOIN_EPOCH = 0

Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


class MemberState(StrEnum):
    STABLE = "STABLE"
    UNREVOKED_PARTITIONS = "UNREVOKED_PARTITIONS"
    UNRELEASED_PARTITIONS = "UNRELEASED_PARTITIONS"


class HeartbeatRequest(NamedTuple):
    """ConsumerGroupHeartbeat: None and -1 mean "as before"."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Says everything, as a client does when it joins or was cut off; it is then told its assignment again."""
        subscribed = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribed and self.topic_partitions is not None


class HeartbeatResult(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None  # None: unchanged


@dataclass(slots=True, eq=False)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    server_assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS
    target: Partitions = NO_PARTITIONS
    session: Timer | None = field(default=None, repr=False)
    statement: Statement | None = field(default=None, repr=False)
    revocation: Timer | None = field(default=None, repr=False)

    @property
    def holds(self) -> Partitions:
        return self.assigned | self.pending_revocation

    @property
    def away(self) -> bool:
        """A static member that said it will be back."""
        return self.epoch == STATIC_LEAVE_EPOCH

    def tell_size(self) -> None:
        """Tell the budget how much is kept of this member."""
        if self.statement is not None:
            ids = len(self.member_id) + len(self.instance_id or "") + len(self.client_id) + len(self.rack_id or "")
            self.statement.has(sum(map(len, self.topic_names)) + len(self.topic_regex) + ids)

    def reconcile(
        self, target_epoch: int, owned: Partitions | None, is_free: Callable[[TopicIdPartition], bool]
    ) -> bool:
        """Take the next step towards the target; returns whether anything changed.

        `owned` is what the member reports, None when it reports nothing new. `is_free` says whether no other member holds
        a partition.
        """
        if self.state is MemberState.STABLE and self.epoch == target_epoch and self.assigned == self.target:
            return False
        if self.state is MemberState.UNREVOKED_PARTITIONS and (owned is None or owned & self.pending_revocation):
            return False
        before = (self.epoch, self.state, self.assigned, self.pending_revocation)
        kept = self.assigned & self.target
        revoked = self.assigned - self.target
        if revoked and (owned is None or owned & revoked):
            self.state = MemberState.UNREVOKED_PARTITIONS
            self.assigned, self.pending_revocation = kept, revoked
        else:
            missing = self.target - kept
            ready = frozenset(tp for tp in missing if is_free(tp))
            self.state = MemberState.STABLE if len(ready) == len(missing) else MemberState.UNRELEASED_PARTITIONS
            self.assigned, self.pending_revocation = kept | ready, NO_PARTITIONS
            if self.epoch != target_epoch:
                self.previous_epoch, self.epoch = self.epoch, target_epoch
        return before != (self.epoch, self.state, self.assigned, self.pending_revocation)

    # -- the record ----------------------------------------------------------------------------------------------

    def to_json(self) -> JsonObject:
        return {
            "instance": self.instance_id,
            "rack": self.rack_id,
            "client": self.client_id,
            "host": self.client_host,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "topics": sorted(self.topic_names),
            "regex": self.topic_regex,
            "assignor": self.server_assignor,
            "epoch": self.epoch,
            "previous_epoch": self.previous_epoch,
            "state": self.state.value,
            "assigned": partitions_to_json(self.assigned),
            "pending_revocation": partitions_to_json(self.pending_revocation),
            "target": partitions_to_json(self.target),
        }

    @classmethod
    def from_json(cls, member_id: str, value: JsonObject) -> ConsumerMember:
        try:
            topics = value["topics"]
            assert isinstance(topics, list)
            return cls(
                member_id,
                _text_or_none(value["instance"]),
                _text_or_none(value["rack"]),
                str(value["client"]),
                str(value["host"]),
                integer(value, "rebalance_timeout_ms"),
                frozenset(map(str, topics)),
                str(value["regex"]),
                _text_or_none(value["assignor"]),
                integer(value, "epoch"),
                integer(value, "previous_epoch"),
                MemberState(str(value["state"])),
                partitions_from_json(value["assigned"]),
                partitions_from_json(value["pending_revocation"]),
                partitions_from_json(value["target"]),
            )
        except (KeyError, ValueError, TypeError, AssertionError) as error:
            raise UnreadableRecord(f"member {member_id}: {error!r}") from None


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    grouped: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        grouped.setdefault(topic_id, []).append(partition)
    return grouped


def partitions_to_json(partitions: Partitions) -> Mapping[str, list[int]]:
    return {topic_id.hex: numbers for topic_id, numbers in by_topic(partitions).items()}


def partitions_from_json(value: object) -> Partitions:
    if not isinstance(value, dict):
        raise ValueError("partitions are not an object")
    return frozenset(
        TopicIdPartition(UUID(hex=topic), int(number)) for topic, numbers in value.items() for number in numbers
    )


def integer(value: JsonObject, name: str) -> int:
    number = value[name]
    if not isinstance(number, int):
        raise ValueError(f"{name} is not a number")
    return number


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
