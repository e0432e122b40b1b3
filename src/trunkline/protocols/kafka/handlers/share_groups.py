"""Share groups (KIP-932): their members, and where they stand. Their records are the matter of `share_fetch`."""

from __future__ import annotations

from uuid import UUID

from trunkline.cursors.share import ShareOffset
from trunkline.cursors.stream import GroupError, GroupErrorName, ShareDescription, ShareHeartbeat
from trunkline.log.errors import LogError
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError, code_of
from trunkline.protocols.kafka.messages import alter_share_group_offsets as alter
from trunkline.protocols.kafka.messages import delete_share_group_offsets as delete
from trunkline.protocols.kafka.messages import describe_share_group_offsets as offsets
from trunkline.protocols.kafka.messages import share_group_describe as describe
from trunkline.protocols.kafka.messages import share_group_heartbeat as heartbeat
from trunkline.security.rules import Kind, Operation

_MAX_MEMBER_ID_CHARS = 36
_NO_ID = UUID(int=0)
_REFUSALS = (GroupError, LogError, RefusedError)
_UNKNOWN_PARTITION = "This server does not host this topic-partition."


async def share_group_heartbeat(
    context: Context, request: heartbeat.ShareGroupHeartbeatRequest
) -> heartbeat.ShareGroupHeartbeatResponse:
    names = request.subscribed_topic_names
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        if not request.member_id or len(request.member_id) > _MAX_MEMBER_ID_CHARS:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
        for name in names or ():
            context.check(Operation.DESCRIBE, Kind.TOPIC, name)
        result = await context.broker.groups.share_heartbeat(
            ShareHeartbeat(
                group_id=request.group_id,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                rack_id=request.rack_id,
                subscribed_topic_names=None if names is None else tuple(names),
                client_id=context.client_id,
                client_host=f"/{context.client_host}",
            )
        )
    except _REFUSALS as error:
        return heartbeat.ShareGroupHeartbeatResponse(error_code=code_of(error), error_message=str(error))
    response = heartbeat.ShareGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
    )
    if result.assignment is not None:
        topics: dict[UUID, heartbeat.TopicPartitions] = {}
        for topic_id, partition in sorted(result.assignment):
            topics.setdefault(topic_id, heartbeat.TopicPartitions(topic_id=topic_id)).partitions.append(partition)
        response.assignment = heartbeat.Assignment(topic_partitions=list(topics.values()))
    return response


async def share_group_describe(
    context: Context, request: describe.ShareGroupDescribeRequest
) -> describe.ShareGroupDescribeResponse:
    response = describe.ShareGroupDescribeResponse()
    for group_id in request.group_ids:
        group = describe.DescribedGroup(group_id=group_id)
        response.groups.append(group)
        try:
            context.check(Operation.DESCRIBE, Kind.GROUP, group_id)
            found = context.broker.groups.describe(group_id)
            if not isinstance(found, ShareDescription):
                raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        except _REFUSALS as error:
            group.error_code, group.error_message = code_of(error), str(error)
            continue
        group.group_state = found.state
        group.group_epoch = group.assignment_epoch = found.group_epoch
        group.assignor_name = found.assignor
        if request.include_authorized_operations:
            group.authorized_operations = context.allowed_operations(Kind.GROUP, group_id)
        group.members = [
            describe.Member(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.subscribed_topic_names),
                assignment=_assignment(context, member.assignment),
            )
            for member in found.members
        ]
    return response


def _assignment(context: Context, partitions: frozenset[tuple[UUID, int]]) -> describe.Assignment:
    topics: dict[UUID, describe.TopicPartitions] = {}
    for topic_id, partition in sorted(partitions):
        topic = topics.get(topic_id)
        if topic is None:
            info = context.broker.topic_by_id(topic_id)
            name = "" if info is None else info.name
            topic = topics[topic_id] = describe.TopicPartitions(topic_id=topic_id, topic_name=name)
        topic.partitions.append(partition)
    return describe.Assignment(topic_partitions=list(topics.values()))


# -- offsets ---------------------------------------------------------------------------------------------------------


async def describe_share_group_offsets(
    context: Context, request: offsets.DescribeShareGroupOffsetsRequest
) -> offsets.DescribeShareGroupOffsetsResponse:
    return offsets.DescribeShareGroupOffsetsResponse(groups=[_offsets_of(context, asked) for asked in request.groups])


def _offsets_of(
    context: Context, asked: offsets.DescribeShareGroupOffsetsRequestGroup
) -> offsets.DescribeShareGroupOffsetsResponseGroup:
    response = offsets.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
    try:
        context.check(Operation.DESCRIBE, Kind.GROUP, asked.group_id)
        context.broker.groups.check_share_group(asked.group_id)
    except _REFUSALS as error:
        response.error_code, response.error_message = code_of(error), str(error)
        return response
    found = {(place.tp.topic, place.tp.partition): place for place in context.broker.shares.offsets(asked.group_id)}
    wanted = (
        [key for key in found if context.allows(Operation.DESCRIBE, Kind.TOPIC, key[0])]
        if asked.topics is None
        else [(topic.topic_name, index) for topic in asked.topics for index in topic.partitions]
    )
    topics: dict[str, offsets.DescribeShareGroupOffsetsResponseTopic] = {}
    for name, index in wanted:
        info = context.broker.topic(name)
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = offsets.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=_NO_ID if info is None else info.id
            )
        if context.refuses(Operation.DESCRIBE, Kind.TOPIC, name):
            code, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to access topic: {name}"
        elif info is None or not 0 <= index < info.partitions:
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_PARTITION
        else:
            topic.partitions.append(_standing(index, found.get((name, index))))
            continue
        topic.partitions.append(
            offsets.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index, start_offset=-1, error_code=code, error_message=message
            )
        )
    response.topics = list(topics.values())
    return response


def _standing(index: int, place: ShareOffset | None) -> offsets.DescribeShareGroupOffsetsResponsePartition:
    """-1 for a partition of which the group has had nothing yet."""
    return offsets.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=-1 if place is None else place.start_offset,
        lag=-1 if place is None else place.lag,
    )


async def alter_share_group_offsets(
    context: Context, request: alter.AlterShareGroupOffsetsRequest
) -> alter.AlterShareGroupOffsetsResponse:
    response = alter.AlterShareGroupOffsetsResponse()
    starts: list[tuple[UUID, int, int]] = []
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        await context.broker.groups.empty_share_group(request.group_id, create=True)
        for topic in request.topics:
            info = context.broker.topic(topic.topic_name)
            answer = alter.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=_NO_ID if info is None else info.id
            )
            response.responses.append(answer)
            for part in topic.partitions:
                result = alter.AlterShareGroupOffsetsResponsePartition(partition_index=part.partition_index)
                answer.partitions.append(result)
                if context.refuses(Operation.READ, Kind.TOPIC, topic.topic_name):
                    result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif info is None or not 0 <= part.partition_index < info.partitions:
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    result.error_message = _UNKNOWN_PARTITION
                else:
                    starts.append((info.id, part.partition_index, part.start_offset))
        await context.broker.shares.reset(request.group_id, starts)
        context.changed(f"group {request.group_id}", "share offsets moved")
    except _REFUSALS as error:
        return alter.AlterShareGroupOffsetsResponse(error_code=code_of(error), error_message=str(error))
    return response


async def delete_share_group_offsets(
    context: Context, request: delete.DeleteShareGroupOffsetsRequest
) -> delete.DeleteShareGroupOffsetsResponse:
    response = delete.DeleteShareGroupOffsetsResponse()
    try:
        context.check(Operation.DELETE, Kind.GROUP, request.group_id)
        await context.broker.groups.empty_share_group(request.group_id)
    except _REFUSALS as error:
        return delete.DeleteShareGroupOffsetsResponse(error_code=code_of(error), error_message=str(error))
    for topic in request.topics:
        info = context.broker.topic(topic.topic_name)
        result = delete.DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=_NO_ID if info is None else info.id
        )
        response.responses.append(result)
        if context.refuses(Operation.READ, Kind.TOPIC, topic.topic_name):
            result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif info is None:
            result.error_code, result.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_PARTITION
        else:
            try:
                if not await context.broker.shares.delete(request.group_id, info.id):
                    raise RefusedError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete."
                    )
                context.changed(f"group {request.group_id}", f"share offsets of {topic.topic_name} deleted")
            except _REFUSALS as error:
                result.error_code, result.error_message = code_of(error), str(error)
    return response
