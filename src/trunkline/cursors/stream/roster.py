"""Who is in a classic group: the members by id and by instance id, and what all of them can speak.

A static member has one entry in `_static`, which always names a member that is in `members`. How many members know each
protocol is counted as they come and go, so that a join costs the protocols of one member and not of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trunkline.cursors.stream.classic_member import ClassicMember, JoinedMember, Protocol
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.subscription import subscribed_topics


class Roster:
    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._members: dict[str, ClassicMember] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self._speakers: Counter[str] = Counter()
        self.metadata_bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def ids(self) -> list[str]:
        return list(self._members)

    def get(self, member_id: str | None) -> ClassicMember | None:
        return None if member_id is None else self._members.get(member_id)

    def static_id(self, instance_id: str) -> str | None:
        """The member id under which a static member is known."""
        return self._static.get(instance_id)

    def checked(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member, unless it is unknown or another one has taken its instance id."""
        if instance_id is not None:
            known_as = self._static.get(instance_id)
            if known_as is None:
                raise GroupError(GroupErrorName.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
            if known_as != member_id:
                raise GroupError(GroupErrorName.FENCED_INSTANCE_ID, f"{instance_id} is now another member")
        member = self._members.get(member_id)
        if member is None:
            raise GroupError(
                GroupErrorName.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of group {self._group_id}"
            )
        return member

    # -- coming and going ----------------------------------------------------------------------------------------

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._speakers.update(member.protocol_names)
        self.metadata_bytes += member.metadata_bytes

    def remove(self, member: ClassicMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._speakers.subtract(member.protocol_names)
        self._speakers += Counter()  # forgets the names that nobody speaks
        self.metadata_bytes -= member.metadata_bytes

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """A static member came back under another id."""
        self.remove(member)
        member.member_id = member_id
        self.add(member)

    def teach(self, member: ClassicMember, protocols: Sequence[Protocol]) -> None:
        """The member joined again, perhaps with other protocols."""
        self._speakers.subtract(member.protocol_names)
        self.metadata_bytes -= member.metadata_bytes
        member.protocols = tuple(protocols)
        self.metadata_bytes += member.metadata_bytes
        self._speakers.update(member.protocol_names)
        self._speakers += Counter()

    # -- what all have in common ---------------------------------------------------------------------------------

    @property
    def all_joined(self) -> bool:
        return all(member.awaiting_join for member in self._members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def shares_a_protocol(self, protocols: Sequence[Protocol]) -> bool:
        return any(self._speakers[name] == len(self._members) for name, _ in protocols)

    def vote(self) -> str:
        """Every member votes for the first of its protocols that all know; most votes win."""
        everyone = len(self._members)
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes[next(name for name, _ in member.protocols if self._speakers[name] == everyone)] += 1
        return votes.most_common(1)[0][0]

    def joined_members(self, protocol_name: str | None) -> list[JoinedMember]:
        """What the leader is told, to divide the partitions by."""
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol_name))
            for member in self._members.values()
        ]

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """The topics that the members read by this protocol; None when one does not say."""
        topics: set[str] = set()
        for member in self._members.values():
            found = subscribed_topics(member.metadata(protocol_name))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)
