"""Groups seen from outside: list, describe, committed offsets and lag, reset, delete.

All kinds are covered: the classic protocol, where members' assignments are bytes that the members agreed on, the consumer
protocol (KIP-848), where the broker assigns, and share groups. `describe` finds out of which kind a group is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trunkline.client.client import Client
from trunkline.client.errors import check, refusal
from trunkline.client.share_groups import SHARE, ShareGroups, Standing
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.apis import ApiKey
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages import consumer_group_describe, describe_groups, share_group_describe
from trunkline.protocols.kafka.messages.consumer_protocol import ConsumerProtocolAssignment
from trunkline.protocols.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from trunkline.protocols.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from trunkline.protocols.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from trunkline.protocols.kafka.wire import DecodeError

_BY_NAME_VERSION = 9  # later versions of OffsetCommit and OffsetFetch name topics by id
_CONSUMER_PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    name: str
    state: str
    kind: str  # "classic", "consumer", "share" …; empty from a broker too old to say


@dataclass(frozen=True, slots=True)
class GroupMember:
    id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    state: str
    kind: str
    assignor: str
    members: Sequence[GroupMember] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is on one partition. `committed` is None where it has not committed anything.

    A share group commits nothing: its offset is the first that is not done with, and the broker tells how many are not.
    """

    partition: TopicPartition
    committed: int | None
    end: int
    start: int
    member: GroupMember | None
    told_lag: int | None = None

    @property
    def lag(self) -> int:
        """Records still to be read; a group without a commit has everything before it."""
        if self.told_lag is not None:
            return self.told_lag
        at = self.start if self.committed is None else self.committed
        return max(0, self.end - at)


class Groups:
    def __init__(self, client: Client) -> None:
        self.client = client

    def all(self) -> list[ListedGroup]:
        def ask() -> dict[str, ListedGroup]:
            found: dict[str, ListedGroup] = {}
            for broker in self.client.brokers():
                response = broker.request(ListGroupsRequest(), ListGroupsResponse)
                check(response.error_code, "groups")
                for item in response.groups:
                    found[item.group_id] = ListedGroup(item.group_id, item.group_state, item.group_type.lower())
            return found

        return sorted(self.client.retrying(ask).values(), key=lambda item: item.name)

    def describe(self, name: str) -> Group:
        """GROUP_ID_NOT_FOUND when there is none."""
        return self.client.retrying(lambda: self._describe(name))

    def _describe(self, name: str) -> Group:
        coordinator = self.client.coordinator(name)
        if coordinator.supports(ApiKey.CONSUMER_GROUP_DESCRIBE):
            request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[name])
            (item,) = coordinator.request(request, consumer_group_describe.ConsumerGroupDescribeResponse).groups
            if item.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                check(item.error_code, f"group {name}", item.error_message)
                members = [_consumer_member(member) for member in item.members]
                return Group(name, item.group_state, "consumer", item.assignor_name, members)
        if coordinator.supports(ApiKey.SHARE_GROUP_DESCRIBE):
            asked = share_group_describe.ShareGroupDescribeRequest(group_ids=[name])
            (share,) = coordinator.request(asked, share_group_describe.ShareGroupDescribeResponse).groups
            if share.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                check(share.error_code, f"group {name}", share.error_message)
                sharing = [_share_member(member) for member in share.members]
                return Group(name, share.group_state, SHARE, share.assignor_name, sharing)
        classic = describe_groups.DescribeGroupsRequest(groups=[name])
        (found,) = coordinator.request(classic, describe_groups.DescribeGroupsResponse).groups
        # Old brokers describe a group that does not exist as dead instead of saying so.
        if found.group_state == "Dead" or found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name}", "there is no such group")
        check(found.error_code, f"group {name}", found.error_message)
        kind = "classic" if found.protocol_type in {_CONSUMER_PROTOCOL_TYPE, ""} else found.protocol_type
        members = [_classic_member(member, found.protocol_type) for member in found.members]
        return Group(name, found.group_state, kind, found.protocol_data, members)

    def committed(
        self, name: str, *, member_id: str | None = None, member_epoch: int = -1
    ) -> dict[TopicPartition, int]:
        """Every offset that the group has committed."""
        return self.client.retrying(lambda: self._committed(name, member_id, member_epoch))

    def _committed(self, name: str, member_id: str | None, member_epoch: int) -> dict[TopicPartition, int]:
        asked = OffsetFetchRequestGroup(group_id=name, member_id=member_id, member_epoch=member_epoch, topics=None)
        request = OffsetFetchRequest(group_id=name, topics=None, groups=[asked], require_stable=True)
        response = self.client.coordinator(name).request(request, OffsetFetchResponse, max_version=_BY_NAME_VERSION)
        check(response.error_code, f"group {name}")
        found: dict[TopicPartition, int] = {}
        for old in response.topics:
            for each in old.partitions:
                check(each.error_code, f"group {name}, partition {old.name}-{each.partition_index}")
                found[TopicPartition(old.name, each.partition_index)] = each.committed_offset
        for group in response.groups:
            check(group.error_code, f"group {name}")
            for topic in group.topics:
                for item in topic.partitions:
                    check(item.error_code, f"group {name}, partition {topic.name}-{item.partition_index}")
                    found[TopicPartition(topic.name, item.partition_index)] = item.committed_offset
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def commit(
        self, name: str, offsets: Mapping[TopicPartition, int], *, member_id: str = "", generation: int = -1
    ) -> None:
        """Store offsets. Without a member id the group must have no members."""
        if offsets:
            self.client.retrying(lambda: self._commit(name, offsets, member_id, generation))

    def _commit(self, name: str, offsets: Mapping[TopicPartition, int], member_id: str, generation: int) -> None:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, offset in offsets.items():
            item = OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(tp.topic, []).append(item)
        request = OffsetCommitRequest(
            group_id=name,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=items) for topic, items in topics.items()],
        )
        response = self.client.coordinator(name).request(request, OffsetCommitResponse, max_version=_BY_NAME_VERSION)
        for topic in response.topics:
            for result in topic.partitions:
                check(result.error_code, f"group {name}, partition {topic.name}-{result.partition_index}")

    def delete(self, name: str) -> None:
        def ask() -> None:
            request = DeleteGroupsRequest(groups_names=[name])
            for result in self.client.coordinator(name).request(request, DeleteGroupsResponse).results:
                check(result.error_code, f"group {name}")

        self.client.retrying(ask)

    def progress(self, group: Group, topics: Iterable[str] = ()) -> list[Progress]:
        """Committed offset, end and owner of each partition that the group has a commit for or a member on."""
        standings: Mapping[TopicPartition, Standing] = {}
        if group.kind == SHARE:
            standings = ShareGroups(self.client).standings(group.name)
            committed = {tp: standing.start_offset for tp, standing in standings.items()}
        else:
            committed = self.committed(group.name)
        owners = {tp: member for member in group.members for tp in member.assigned}
        wanted = set(topics)
        partitions = {tp for tp in committed.keys() | owners.keys() if not wanted or tp.topic in wanted}
        existing = self.client.metadata(sorted({tp.topic for tp in partitions})).topics if partitions else {}
        # Offsets may outlive their topic; a partition that is gone has no end to compare with.
        alive = sorted(
            tp for tp in partitions if tp.topic in existing and tp.partition < len(existing[tp.topic].partitions)
        )
        ends = Topics(self.client).offsets(alive, LATEST)
        starts = Topics(self.client).offsets(alive, EARLIEST)
        lags = {tp: standing.lag for tp, standing in standings.items() if standing.lag >= 0}
        if group.kind == SHARE:
            lags = {tp: 0 for tp in alive if tp not in standings} | lags  # nothing is owed of what it never read
        return [Progress(tp, committed.get(tp), ends[tp], starts[tp], owners.get(tp), lags.get(tp)) for tp in alive]


def _consumer_member(item: consumer_group_describe.Member) -> GroupMember:
    assigned = [
        TopicPartition(topic.topic_name, partition)
        for topic in item.assignment.topic_partitions
        for partition in topic.partitions
    ]
    return GroupMember(item.member_id, item.client_id, item.client_host, item.instance_id, assigned)


def _share_member(item: share_group_describe.Member) -> GroupMember:
    assigned = [
        TopicPartition(topic.topic_name, partition)
        for topic in item.assignment.topic_partitions
        for partition in topic.partitions
    ]
    return GroupMember(item.member_id, item.client_id, item.client_host, None, assigned)


def _classic_member(item: describe_groups.DescribedGroupMember, protocol_type: str) -> GroupMember:
    assigned: list[TopicPartition] = []
    if protocol_type == _CONSUMER_PROTOCOL_TYPE and item.member_assignment:
        try:
            assignment, _ = ConsumerProtocolAssignment.decode_prefixed(memoryview(item.member_assignment))
        except DecodeError:
            # These bytes are the members' own affair: one that we cannot read is shown without partitions.
            assignment = ConsumerProtocolAssignment()
        assigned = [
            TopicPartition(topic.topic, partition)
            for topic in assignment.assigned_partitions
            for partition in topic.partitions
        ]
    return GroupMember(item.member_id, item.client_id, item.client_host, item.group_instance_id, assigned)
