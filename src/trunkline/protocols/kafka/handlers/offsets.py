"""Where a partition begins and ends: ListOffsets, DeleteRecords, OffsetForLeaderEpoch."""

from __future__ import annotations

from trunkline.broker import guard
from trunkline.log.errors import LogError
from trunkline.log.store import OffsetAndTimestamp, TopicPartition
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from trunkline.protocols.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trunkline.protocols.kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from trunkline.security.rules import Kind, Operation

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
_LEADER_EPOCH = 0


async def list_offsets(context: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    for topic in request.topics:
        answer = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            result = ListOffsetsPartitionResponse(partition_index=part.partition_index)
            answer.partitions.append(result)
            tp = TopicPartition(topic.name, part.partition_index)
            if part.current_leader_epoch > _LEADER_EPOCH:
                result.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
                continue
            try:
                context.check(Operation.DESCRIBE, Kind.TOPIC, topic.name)
                found = await _find(context, tp, part.timestamp, committed=request.isolation_level == 1)
            except LogError as error:
                result.error_code = code_of(error)
                continue
            _fill(context, tp, part, result, found)
    return response


async def _find(context: Context, tp: TopicPartition, timestamp: int, *, committed: bool) -> OffsetAndTimestamp | None:
    broker = context.broker
    bounds = broker.bounds(tp)
    end = bounds.last_stable_offset if committed else bounds.high_watermark
    if timestamp == LATEST:
        return OffsetAndTimestamp(end, -1)
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return OffsetAndTimestamp(bounds.log_start_offset, -1)
    if timestamp == LATEST_TIERED:
        return None  # nothing is ever moved to another tier
    if timestamp == MAX_TIMESTAMP:
        found = await broker.max_timestamp(tp)
    else:
        found = await broker.offset_for_time(tp, timestamp)
    return None if found is None or found.offset >= end else found


def _fill(
    context: Context,
    tp: TopicPartition,
    part: ListOffsetsPartition,
    result: ListOffsetsPartitionResponse,
    found: OffsetAndTimestamp | None,
) -> None:
    if context.version == 0:
        result.old_style_offsets = [] if found is None else [found.offset]
        if part.timestamp == LATEST and found is not None and part.max_num_offsets > 1:
            start = context.broker.bounds(tp).log_start_offset
            if start != found.offset:
                result.old_style_offsets.append(start)
    elif found is None:
        result.offset = result.timestamp = -1
    else:
        result.offset, result.timestamp = found.offset, found.timestamp_ms
        result.leader_epoch = _LEADER_EPOCH


async def delete_records(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        answer = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=-1)
            answer.partitions.append(result)
            tp = TopicPartition(topic.name, part.partition_index)
            try:
                guard.check(guard.Operation.TRIM, topic.name)
                context.check(Operation.DELETE, Kind.TOPIC, topic.name)
                result.low_watermark = await context.broker.trim(tp, part.offset)
                context.changed(f"topic {topic.name}", f"records of partition {part.partition_index} deleted")
            except LogError as error:
                result.error_code = code_of(error)
    return response


async def offset_for_leader_epoch(
    context: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """There is one leader epoch, 0: it ends where the log ends."""
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answer = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answer)
        for part in topic.partitions:
            result = EpochEndOffset(partition=part.partition, leader_epoch=-1, end_offset=-1)
            answer.partitions.append(result)
            try:
                context.check(Operation.DESCRIBE, Kind.TOPIC, topic.topic)
                bounds = context.broker.bounds(TopicPartition(topic.topic, part.partition))
            except LogError as error:
                result.error_code = code_of(error)
                continue
            if part.current_leader_epoch > _LEADER_EPOCH:
                result.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
            elif part.leader_epoch == _LEADER_EPOCH:
                result.leader_epoch = _LEADER_EPOCH
                result.end_offset = bounds.high_watermark
    return response
