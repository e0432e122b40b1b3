"""Topics: Metadata, DescribeTopicPartitions, CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections import Counter
from functools import partial
from uuid import UUID

from trunkline.broker import guard
from trunkline.broker.access import AccessDenied
from trunkline.log.config import TopicConfig
from trunkline.log.errors import (
    InvalidConfig,
    InvalidPartitionCount,
    LogError,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from trunkline.log.names import check_topic_name
from trunkline.log.store import TopicInfo
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError, code_of
from trunkline.protocols.kafka.handlers import configs
from trunkline.protocols.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from trunkline.protocols.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trunkline.protocols.kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from trunkline.protocols.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from trunkline.protocols.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trunkline.security.rules import CLUSTER_NAME, Kind, Operation

_NO_ID = UUID(int=0)
_MAX_DESCRIBED_PARTITIONS = 2000  # Kafka's max.request.partition.size.limit
# What can be done to the broker's own topics, whoever asks.
_LOOKING = sum(1 << each for each in (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS))


async def metadata(context: Context, request: MetadataRequest) -> MetadataResponse:
    broker = context.broker
    host, port = context.address
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=broker.settings.node_id, host=host, port=port)],
        cluster_id=broker.cluster_id,
        controller_id=broker.settings.node_id,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context)
    if request.topics is None or (context.version == 0 and not request.topics):
        response.topics = [
            _described(context, info)
            for name, info in broker.topics().items()
            if context.allows(Operation.DESCRIBE, Kind.TOPIC, name)
        ]
    else:
        create = request.allow_auto_topic_creation or context.version < 4
        response.topics = [await _asked(context, topic, create=create) for topic in request.topics]
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name is not None:
                topic.topic_authorized_operations = _operations(context, topic.name, internal=topic.is_internal)
    return response


async def _asked(context: Context, topic: MetadataRequestTopic, *, create: bool) -> MetadataResponseTopic:
    broker = context.broker
    name = topic.name
    if topic.topic_id.int:
        name = None  # the Java client sends an empty name beside an id
    try:
        if name is None:
            info = broker.topic_by_id(topic.topic_id)
            if info is None:
                raise UnknownTopicId(str(topic.topic_id))
            context.check(Operation.DESCRIBE, Kind.TOPIC, info.name)
            return _described(context, info)
        context.check(Operation.DESCRIBE, Kind.TOPIC, name)
        info = broker.topic(name)
        if info is None:
            if not create:
                check_topic_name(name)
                raise UnknownTopicOrPartition(name)
            if context.broker.settings.auto_create_topics:
                context.check(Operation.CREATE, Kind.TOPIC, name)
            info = await context.broker.ensure_topic(name)
            context.changed(f"topic {name}", "created, since it was named")
        return _described(context, info)
    except LogError as error:
        shown = name if name is not None or context.version >= 12 else ""
        return MetadataResponseTopic(error_code=code_of(error), name=shown, topic_id=topic.topic_id)


def _operations(context: Context, topic: str, *, internal: bool) -> int:
    allowed = context.allowed_operations(Kind.TOPIC, topic)
    return allowed & _LOOKING if internal else allowed


def cluster_operations(context: Context) -> int:
    """What the client may do in the cluster; nothing to who may not even look at it."""
    if not context.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return 0
    return context.allowed_operations(Kind.CLUSTER, CLUSTER_NAME)


def _described(context: Context, info: TopicInfo) -> MetadataResponseTopic:
    node = [context.broker.settings.node_id]
    return MetadataResponseTopic(
        name=info.name,
        topic_id=info.id,
        is_internal=info.internal,
        partitions=[
            MetadataResponsePartition(
                partition_index=index, leader_id=node[0], leader_epoch=0, replica_nodes=node, isr_nodes=node
            )
            for index in range(info.partitions)
        ],
    )


async def describe_topic_partitions(
    context: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names, at most so many partitions at once; the cursor says where to go on."""
    broker = context.broker
    node = [context.broker.settings.node_id]
    visible = partial(context.allows, Operation.DESCRIBE, Kind.TOPIC)
    names = sorted({topic.name for topic in request.topics} or filter(visible, broker.topics()))
    first_partition = 0
    if request.cursor is not None:
        cursor = request.cursor
        names = [name for name in names if name >= cursor.topic_name]
        first_partition = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    left = max(1, min(request.response_partition_limit, _MAX_DESCRIBED_PARTITIONS))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        info = broker.topic(name)
        answer = DescribeTopicPartitionsResponseTopic(name=name)
        hidden = context.refuses(Operation.DESCRIBE, Kind.TOPIC, name)
        if info is None or hidden:
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if hidden else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(answer)
            continue
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        answer.topic_id, answer.is_internal = info.id, info.internal
        answer.topic_authorized_operations = _operations(context, info.name, internal=info.internal)
        last = min(info.partitions, first_partition + left)
        for index in range(first_partition, last):
            answer.partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    partition_index=index,
                    leader_id=node[0],
                    leader_epoch=0,
                    replica_nodes=node,
                    isr_nodes=node,
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
            )
        left -= len(answer.partitions)
        first_partition = 0
        response.topics.append(answer)
        if last < info.partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=last)
            break
    return response


async def create_topics(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    response = CreateTopicsResponse()
    counts = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        result = CreatableTopicResult(name=topic.name, num_partitions=-1, replication_factor=-1, configs=None)
        if counts[topic.name] > 1:
            if any(done.name == topic.name for done in response.topics):
                continue
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = f"topic {topic.name} is named more than once"
            response.topics.append(result)
            continue
        response.topics.append(result)
        try:
            await _create(context, topic, result, validate_only=request.validate_only)
        except (LogError, RefusedError) as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


async def _create(
    context: Context, topic: CreatableTopic, result: CreatableTopicResult, *, validate_only: bool
) -> None:
    broker = context.broker
    check_topic_name(topic.name)
    guard.check(guard.Operation.CREATE, topic.name)
    context.check(Operation.CREATE, Kind.TOPIC, topic.name)
    partitions = _checked_partitions(context, topic)
    overrides: dict[str, str] = {}
    for setting in topic.configs:
        if setting.value is None:
            raise InvalidConfig(f"null value is not supported for topic configs: {setting.name}")
        overrides[setting.name] = setting.value
    config = TopicConfig(overrides)
    if validate_only:
        if broker.topic(topic.name) is not None:
            raise TopicExists(f"Topic '{topic.name}' already exists.")
    else:
        info = await broker.create_topic(topic.name, partitions, overrides)
        result.topic_id, config = info.id, info.config
        context.changed(f"topic {topic.name}", f"created with {partitions} partitions")
    if not context.allows(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, topic.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return
    result.num_partitions, result.replication_factor = partitions, 1
    result.configs = [
        CreatableTopicConfigs(name=name, value=value, config_source=configs.source_of(config, name))
        for name, value in config.effective().items()
    ]


def _checked_partitions(context: Context, topic: CreatableTopic) -> int:
    broker = context.broker
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "give either replica assignments, or partitions and a replication factor"
            )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))) or any(
            assignment.broker_ids != [broker.settings.node_id] for assignment in topic.assignments
        ):
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions must be numbered from 0 and placed on the one broker, {broker.settings.node_id}",
            )
        return len(indexes)
    if topic.replication_factor not in {1, -1}:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {topic.replication_factor} time(s): this broker is the only one. "
            "Use a replication factor of 1, or run on an Apache Kafka cluster.",
        )
    partitions = broker.settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    most = broker.limits.max_partitions_per_topic
    if not 1 <= partitions <= most:
        raise InvalidPartitionCount(f"Number of partitions must be between 1 and {most}, not {partitions}")
    return partitions


async def delete_topics(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    broker = context.broker
    response = DeleteTopicsResponse()
    asked: list[tuple[str | None, UUID]] = [(name, _NO_ID) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    for name, topic_id in asked:
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        response.responses.append(result)
        try:
            if name is None:
                info = broker.topic_by_id(topic_id)
                if info is None:
                    raise UnknownTopicId(f"no topic has the id {topic_id}")
            else:
                guard.check(guard.Operation.DELETE, name)
                context.check(Operation.DELETE, Kind.TOPIC, name)
                info = broker.topic(name)
                if info is None:
                    raise UnknownTopicOrPartition("This server does not host this topic-partition.")
            if name is None and not context.allows(Operation.DESCRIBE, Kind.TOPIC, info.name):
                raise AccessDenied(f"no topic with the id {topic_id} is yours to delete")
            result.name, result.topic_id = info.name, info.id
            guard.check(guard.Operation.DELETE, info.name)
            context.check(Operation.DELETE, Kind.TOPIC, info.name)
            await context.broker.delete_topic(info.name)
            context.changed(f"topic {info.name}", "deleted")
        except LogError as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


async def create_partitions(context: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    response = CreatePartitionsResponse()
    counts = Counter(topic.name for topic in request.topics)
    for topic in request.topics:
        result = CreatePartitionsTopicResult(name=topic.name)
        response.results.append(result)
        try:
            if counts[topic.name] > 1:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named more than once")
            await _grow(context, topic, validate_only=request.validate_only)
        except (LogError, RefusedError) as error:
            result.error_code, result.error_message = code_of(error), str(error)
    return response


async def _grow(context: Context, topic: CreatePartitionsTopic, *, validate_only: bool) -> None:
    broker = context.broker
    guard.check(guard.Operation.GROW, topic.name)
    context.check(Operation.ALTER, Kind.TOPIC, topic.name)
    info = broker.topic(topic.name)
    if info is None:
        raise UnknownTopicOrPartition("This server does not host this topic-partition.")
    broker.check_growth(info.name)
    if topic.count == info.partitions:
        raise InvalidPartitionCount(f"Topic already has {info.partitions} partition(s).")
    if topic.count < info.partitions:
        raise InvalidPartitionCount(
            f"The topic {info.name} currently has {info.partitions} partition(s); {topic.count} would not be an increase."
        )
    if topic.count > broker.limits.max_partitions_per_topic:
        raise InvalidPartitionCount(f"a topic has at most {broker.limits.max_partitions_per_topic} partitions")
    if topic.assignments is not None and (
        len(topic.assignments) != topic.count - info.partitions
        or any(assignment.broker_ids != [broker.settings.node_id] for assignment in topic.assignments)
    ):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"each new partition must be placed on the one broker, {broker.settings.node_id}",
        )
    if not validate_only:
        await broker.grow_topic(topic.name, topic.count)
        context.changed(f"topic {topic.name}", f"has {topic.count} partitions, {info.partitions} before")
