"""Consumer groups and their offsets: the classic protocol, the consumer protocol (KIP-848), commits and admin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from trunkline.cursors.stream import (
    ClassicDescription,
    ConsumerDescription,
    FetchedOffset,
    GroupError,
    GroupErrorName,
    HeartbeatRequest,
    LeavingMember,
    OffsetEntry,
    TopicIdPartition,
)
from trunkline.log.errors import LogError
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.messages import consumer_group_describe as cgd
from trunkline.protocols.kafka.messages import consumer_group_heartbeat as cgh
from trunkline.protocols.kafka.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from trunkline.protocols.kafka.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from trunkline.protocols.kafka.messages.heartbeat import HeartbeatRequest as ClassicHeartbeatRequest
from trunkline.protocols.kafka.messages.heartbeat import HeartbeatResponse as ClassicHeartbeatResponse
from trunkline.protocols.kafka.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from trunkline.protocols.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from trunkline.protocols.kafka.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from trunkline.protocols.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from trunkline.protocols.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from trunkline.protocols.kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from trunkline.security.rules import CLUSTER_NAME, Kind, Operation

_NO_ID = UUID(int=0)
_BY_ID_VERSION = 10  # OffsetCommit and OffsetFetch name topics by id from here on


def _code(name: GroupErrorName | None) -> ErrorCode:
    return ErrorCode.NONE if name is None else ErrorCode[name.value]


# -- the classic protocol ----------------------------------------------------------------------------------------


async def join_group(context: Context, request: JoinGroupRequest) -> JoinGroupResponse:
    timeout_ms = request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        joined = await context.broker.groups.join(
            request.group_id,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=timeout_ms,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=f"/{context.client_host}",
            protocol_type=request.protocol_type,
            protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
            require_known_member_id=context.version >= 4,
            supports_skipping_assignment=context.version >= 9,
            reason=request.reason or "",
        )
    except (GroupError, LogError) as error:
        member_id = error.member_id if isinstance(error, GroupError) and error.member_id else request.member_id
        return JoinGroupResponse(
            error_code=code_of(error),
            generation_id=-1,
            protocol_name=None if context.version >= 7 else "",
            member_id=member_id,
        )
    return JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name if joined.protocol_name is not None or context.version >= 7 else "",
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in joined.members
        ],
    )


async def sync_group(context: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        synced = await context.broker.groups.sync(
            request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            assignments={given.member_id: given.assignment for given in request.assignments},
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        )
    except (GroupError, LogError) as error:
        return SyncGroupResponse(error_code=code_of(error))
    return SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol_name, assignment=synced.assignment
    )


async def heartbeat(context: Context, request: ClassicHeartbeatRequest) -> ClassicHeartbeatResponse:
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        context.broker.groups.heartbeat(
            request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
    except (GroupError, LogError) as error:
        return ClassicHeartbeatResponse(error_code=code_of(error))
    return ClassicHeartbeatResponse()


async def leave_group(context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    leaving = [LeavingMember(request.member_id)]
    if context.version >= 3:
        leaving = [
            LeavingMember(member.member_id, member.group_instance_id, member.reason or "") for member in request.members
        ]
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        left = context.broker.groups.leave(request.group_id, leaving)
    except (GroupError, LogError) as error:
        return LeaveGroupResponse(error_code=code_of(error))
    if context.version < 3:
        return LeaveGroupResponse(error_code=_code(left[0].error))
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=_code(member.error),
            )
            for member in left
        ]
    )


# -- the consumer protocol ---------------------------------------------------------------------------------------


async def consumer_group_heartbeat(
    context: Context, request: cgh.ConsumerGroupHeartbeatRequest
) -> cgh.ConsumerGroupHeartbeatResponse:
    owned = request.topic_partitions
    names = request.subscribed_topic_names
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        for name in names or ():
            context.check(Operation.DESCRIBE, Kind.TOPIC, name)
        result = await context.broker.groups.consumer_heartbeat(
            HeartbeatRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                subscribed_topic_names=None if names is None else tuple(names),
                subscribed_topic_regex=request.subscribed_topic_regex,
                server_assignor=request.server_assignor,
                topic_partitions=None
                if owned is None
                else frozenset(TopicIdPartition(t.topic_id, p) for t in owned for p in t.partitions),
                client_id=context.client_id,
                client_host=f"/{context.client_host}",
            )
        )
    except (GroupError, LogError) as error:
        return cgh.ConsumerGroupHeartbeatResponse(error_code=code_of(error), error_message=str(error), assignment=None)
    response = cgh.ConsumerGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None,
    )
    if result.assignment is not None:
        topics: dict[UUID, cgh.TopicPartitions] = {}
        for topic_id, partition in sorted(result.assignment):
            topics.setdefault(topic_id, cgh.TopicPartitions(topic_id=topic_id)).partitions.append(partition)
        response.assignment = cgh.Assignment(topic_partitions=list(topics.values()))
    return response


async def consumer_group_describe(
    context: Context, request: cgd.ConsumerGroupDescribeRequest
) -> cgd.ConsumerGroupDescribeResponse:
    response = cgd.ConsumerGroupDescribeResponse()
    for group_id in request.group_ids:
        group = cgd.DescribedGroup(group_id=group_id)
        response.groups.append(group)
        try:
            context.check(Operation.DESCRIBE, Kind.GROUP, group_id)
            found = context.broker.groups.describe(group_id)
            if not isinstance(found, ConsumerDescription):
                raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            _check_topics(context, found)
        except (GroupError, LogError) as error:
            group.error_code, group.error_message = code_of(error), str(error)
            continue
        group.group_state = found.state
        group.group_epoch, group.assignment_epoch = found.group_epoch, found.assignment_epoch
        group.assignor_name = found.assignor
        if request.include_authorized_operations:
            group.authorized_operations = context.allowed_operations(Kind.GROUP, group_id)
        group.members = [
            cgd.Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.subscribed_topic_names),
                subscribed_topic_regex=member.subscribed_topic_regex or None,
                assignment=_assignment(context, member.assignment),
                target_assignment=_assignment(context, member.target_assignment),
                member_type=1,
            )
            for member in found.members
        ]
    return response


def _check_topics(context: Context, found: ConsumerDescription) -> None:
    """Who describes a group learns of its topics."""
    for member in found.members:
        topics = (
            context.broker.topic_by_id(topic_id) for topic_id, _ in {*member.assignment, *member.target_assignment}
        )
        for name in {*member.subscribed_topic_names, *(info.name for info in topics if info is not None)}:
            context.check(Operation.DESCRIBE, Kind.TOPIC, name)


def _assignment(context: Context, partitions: Iterable[tuple[UUID, int]]) -> cgd.Assignment:
    topics: dict[UUID, cgd.TopicPartitions] = {}
    for topic_id, partition in sorted(partitions):
        topic = topics.get(topic_id)
        if topic is None:
            info = context.broker.topic_by_id(topic_id)
            topic = topics[topic_id] = cgd.TopicPartitions(
                topic_id=topic_id, topic_name="" if info is None else info.name
            )
        topic.partitions.append(partition)
    return cgd.Assignment(topic_partitions=list(topics.values()))


# -- admin -------------------------------------------------------------------------------------------------------


async def describe_groups(context: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse()
    for group_id in request.groups:
        group = DescribedGroup(group_id=group_id)
        response.groups.append(group)
        try:
            context.check(Operation.DESCRIBE, Kind.GROUP, group_id)
            if request.include_authorized_operations:
                group.authorized_operations = context.allowed_operations(Kind.GROUP, group_id)
            found = context.broker.groups.describe(group_id)
            if not isinstance(found, ClassicDescription):
                raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
        except (GroupError, LogError) as error:
            code = code_of(error)
            group.group_state = "Dead"
            # Clients before version 6 read an unknown group as a dead one, without an error.
            if code is not ErrorCode.GROUP_ID_NOT_FOUND or context.version >= 6:
                group.error_code, group.error_message = code, str(error)
            continue
        group.group_state = found.state
        group.protocol_type = found.protocol_type or ""
        group.protocol_data = found.protocol_name or ""
        group.members = [
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ]
    return response


async def list_groups(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    sees_all = context.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=found.group_id,
                protocol_type=found.protocol_type or "",
                group_state=found.state,
                group_type=found.type,
            )
            for found in context.broker.groups.list_groups(request.states_filter, request.types_filter)
            if sees_all or context.allows(Operation.DESCRIBE, Kind.GROUP, found.group_id)
        ]
    )


async def delete_groups(context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    response = DeleteGroupsResponse()
    for group_id in request.groups_names:
        result = DeletableGroupResult(group_id=group_id)
        response.results.append(result)
        try:
            context.check(Operation.DELETE, Kind.GROUP, group_id)
            await context.broker.delete_group(group_id)
            context.changed(f"group {group_id}", "deleted")
        except (GroupError, LogError) as error:
            result.error_code = code_of(error)
    return response


# -- offsets -----------------------------------------------------------------------------------------------------


def _names(context: Context, topics: Sequence[OffsetCommitRequestTopic | OffsetFetchRequestTopics]) -> list[str | None]:
    """The topics' names; None for an id that no topic has."""
    if context.version < _BY_ID_VERSION:
        return [topic.name for topic in topics]
    found = (context.broker.topic_by_id(topic.topic_id) for topic in topics)
    return [None if info is None else info.name for info in found]


async def offset_commit(context: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    names = _names(context, request.topics)
    hidden = {name for name in names if name is not None and context.refuses(Operation.READ, Kind.TOPIC, name)}
    entries = [
        OffsetEntry(
            name,
            part.partition_index,
            part.committed_offset,
            part.committed_leader_epoch,
            part.committed_metadata or "",
        )
        for name, topic in zip(names, request.topics, strict=True)
        if name is not None and name not in hidden
        for part in topic.partitions
    ]
    failure = ErrorCode.NONE
    codes: dict[TopicPartition, ErrorCode] = {}
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        if entries or not hidden:
            results = await context.broker.groups.commit(
                request.group_id,
                request.member_id,
                request.generation_id_or_member_epoch if context.version >= 1 else -1,
                request.group_instance_id,
                entries,
            )
            codes = {tp: _code(name) for tp, name in results.items()}
    except (GroupError, LogError) as error:
        failure = code_of(error)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=_commit_code(name, part.partition_index, failure, hidden, codes),
                    )
                    for part in topic.partitions
                ],
            )
            for name, topic in zip(names, request.topics, strict=True)
        ]
    )


def _commit_code(
    name: str | None, partition: int, failure: ErrorCode, hidden: set[str], codes: dict[TopicPartition, ErrorCode]
) -> ErrorCode:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if name in hidden and failure is not ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if failure:
        return failure
    return codes.get(TopicPartition(name, partition), ErrorCode.NONE)


async def offset_fetch(context: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= 8:
        return OffsetFetchResponse(
            groups=[_fetch_group(context, group, require_stable=request.require_stable) for group in request.groups]
        )
    topics = request.topics
    if topics is not None:
        topics_asked = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics
        ]
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=None if topics is None else topics_asked)
    found = _fetch_group(context, asked, require_stable=request.require_stable)
    return OffsetFetchResponse(
        error_code=found.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in found.topics
        ],
    )


def _fetch_group(context: Context, asked: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=asked.group_id)
    names = None if asked.topics is None else _names(context, asked.topics)
    hidden = {
        name for name in names or () if name is not None and context.refuses(Operation.DESCRIBE, Kind.TOPIC, name)
    }
    wanted: list[TopicPartition] | None = None
    if asked.topics is not None and names is not None:
        wanted = [
            TopicPartition(name, index)
            for name, topic in zip(names, asked.topics, strict=True)
            if name is not None and name not in hidden
            for index in topic.partition_indexes
        ]
    try:
        context.check(Operation.DESCRIBE, Kind.GROUP, asked.group_id)
        found = context.broker.groups.fetch(
            asked.group_id,
            wanted,
            require_stable=require_stable,
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
        )
    except (GroupError, LogError) as error:
        response.error_code = code_of(error)
        return response
    if asked.topics is not None and names is not None:
        for name, topic in zip(names, asked.topics, strict=True):
            response.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetFetchResponsePartitions(
                            partition_index=index,
                            committed_offset=-1,
                            error_code=ErrorCode.UNKNOWN_TOPIC_ID
                            if name is None
                            else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        )
                        if name is None or name in hidden
                        else _fetched(index, found[TopicPartition(name, index)])
                        for index in topic.partition_indexes
                    ],
                )
            )
        return response
    topics: dict[str, OffsetFetchResponseTopics] = {}
    for tp, offset in found.items():
        if not context.allows(Operation.DESCRIBE, Kind.TOPIC, tp.topic):
            continue
        answer = topics.get(tp.topic)
        if answer is None:
            info = context.broker.topic(tp.topic)
            answer = topics[tp.topic] = OffsetFetchResponseTopics(
                name=tp.topic, topic_id=_NO_ID if info is None else info.id
            )
        answer.partitions.append(_fetched(tp.partition, offset))
    response.topics = list(topics.values())
    return response


def _fetched(partition: int, found: FetchedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=_code(found.error),
    )


async def offset_delete(context: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    hidden = {topic.name for topic in request.topics if context.refuses(Operation.READ, Kind.TOPIC, topic.name)}
    partitions = [
        TopicPartition(topic.name, part.partition_index)
        for topic in request.topics
        if topic.name not in hidden
        for part in topic.partitions
    ]
    try:
        context.check(Operation.DELETE, Kind.GROUP, request.group_id)
        results = {}
        if partitions or not hidden:
            results = await context.broker.groups.delete_offsets(request.group_id, partitions)
    except (GroupError, LogError) as error:
        return OffsetDeleteResponse(error_code=code_of(error))
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                        if topic.name in hidden
                        else _code(results.get(TopicPartition(topic.name, part.partition_index))),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
