"""The broker and its cluster of one: FindCoordinator, DescribeCluster, log directories, and what a single
embedded broker answers to requests about replication."""

from __future__ import annotations

from trunkline.broker.access import AccessDenied
from trunkline.broker.core import TOPOLOGY
from trunkline.log.errors import LogError
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.handlers.api_versions import FEATURES
from trunkline.protocols.kafka.handlers.topics import cluster_operations
from trunkline.protocols.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from trunkline.protocols.kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from trunkline.protocols.kafka.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from trunkline.protocols.kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from trunkline.protocols.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from trunkline.protocols.kafka.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from trunkline.protocols.kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from trunkline.protocols.kafka.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from trunkline.protocols.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from trunkline.protocols.kafka.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from trunkline.security.rules import CLUSTER_NAME, Kind, Operation

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_SHARE_VERSION = 6  # FindCoordinator knows share coordinators from here on
_METADATA_TOPIC = "__cluster_metadata"
_QUORUM_EPOCH = 1
_UPGRADE_TYPES = frozenset({1, 2, 3})  # upgrade, safe downgrade, unsafe downgrade
_DOWNGRADES = frozenset({2, 3})


async def find_coordinator(context: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    host, port = context.address
    node_id = context.broker.settings.node_id
    response = FindCoordinatorResponse()
    code, message = ErrorCode.NONE, None
    if request.key_type not in {_GROUP, _TRANSACTION} and (
        request.key_type != _SHARE or context.version < _SHARE_VERSION
    ):
        code, message = ErrorCode.INVALID_REQUEST, f"unknown coordinator type {request.key_type}"
    if context.version >= 4:
        for key in request.coordinator_keys:
            found = Coordinator(key=key, node_id=node_id, host=host, port=port)
            refusal = code or _coordinator_refusal(context, request.key_type, key)
            if refusal:
                found = Coordinator(key=key, node_id=-1, port=-1, error_code=refusal)
            response.coordinators.append(found)
        return response
    code = code or _coordinator_refusal(context, request.key_type, request.key)
    if code and code is not ErrorCode.INVALID_GROUP_ID:
        response.error_code, response.error_message = code, message
        response.node_id, response.port = -1, -1
    else:
        response.node_id, response.host, response.port = node_id, host, port
    return response


def _coordinator_refusal(context: Context, key_type: int, key: str) -> ErrorCode:
    if not key:
        return ErrorCode.INVALID_GROUP_ID
    try:
        if key_type == _SHARE:
            context.check_cluster(Operation.CLUSTER_ACTION)  # only brokers look for these
        else:
            context.check(Operation.DESCRIBE, Kind.GROUP if key_type == _GROUP else Kind.TRANSACTIONAL_ID, key)
    except AccessDenied as denied:
        return code_of(denied)
    return ErrorCode.NONE


async def describe_cluster(context: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    broker = context.broker
    host, port = context.address
    if request.endpoint_type != 1:
        return DescribeClusterResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="this listener describes brokers, not controllers",
            endpoint_type=request.endpoint_type,
        )
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.settings.node_id,
        brokers=[DescribeClusterBroker(broker_id=broker.settings.node_id, host=host, port=port)],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context)
    return response


async def describe_log_dirs(context: Context, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted = None if request.topics is None else {(t.topic, p) for t in request.topics for p in t.partitions}
    response = DescribeLogDirsResponse()
    if context.refuses(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return response
    for directory in await context.broker.directories():
        result = DescribeLogDirsResult(
            log_dir=directory.path, total_bytes=directory.total_bytes, usable_bytes=directory.usable_bytes
        )
        topics: dict[str, DescribeLogDirsTopic] = {}
        for tp, size in directory.sizes.items():
            if wanted is None or tp in wanted:
                topic = topics.setdefault(tp.topic, DescribeLogDirsTopic(name=tp.topic))
                topic.partitions.append(DescribeLogDirsPartition(partition_index=tp.partition, partition_size=size))
        result.topics = list(topics.values())
        response.results.append(result)
    return response


async def alter_replica_log_dirs(context: Context, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """There is one directory, in which every partition is already."""
    known = {directory.path for directory in await context.broker.directories()}
    refused = context.refuses(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME)
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            answer = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                code = ErrorCode.NONE if directory.path in known else ErrorCode.LOG_DIR_NOT_FOUND
                if not _hosts(context, topic.name, index):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if refused:
                    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                answer.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return AlterReplicaLogDirsResponse(results=list(results.values()))


async def describe_producers(context: Context, request: DescribeProducersRequest) -> DescribeProducersResponse:
    response = DescribeProducersResponse()
    for topic in request.topics:
        answer = TopicResponse(name=topic.name)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            result = PartitionResponse(partition_index=index)
            answer.partitions.append(result)
            try:
                context.check(Operation.READ, Kind.TOPIC, topic.name)
                states = await context.broker.producers(TopicPartition(topic.name, index))
            except LogError as error:
                result.error_code, result.error_message = code_of(error), str(error)
                continue
            for state in states:
                start = state.transaction_start_offset
                result.active_producers.append(
                    ProducerState(
                        producer_id=state.producer_id,
                        producer_epoch=state.producer_epoch,
                        last_sequence=state.last_sequence,
                        last_timestamp=state.last_timestamp_ms,
                        coordinator_epoch=state.coordinator_epoch,
                        current_txn_start_offset=-1 if start is None else start,
                    )
                )
    return response


# -- one broker, one replica -------------------------------------------------------------------------------------


async def describe_quorum(context: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Kafka keeps its metadata in the log of a quorum. Ours is `__topology`, and the quorum is this broker."""
    broker = context.broker
    node_id, (host, port) = broker.settings.node_id, context.address
    response = DescribeQuorumResponse()
    if context.refuses(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return response
    for topic in request.topics:
        answer = TopicData(topic_name=topic.topic_name)
        response.topics.append(answer)
        for part in topic.partitions:
            found = PartitionData(partition_index=part.partition_index, error_message="")
            answer.partitions.append(found)
            if (topic.topic_name, part.partition_index) != (_METADATA_TOPIC, 0):
                found.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                found.error_message = "This server does not host this topic-partition."
                continue
            end, now_ms = broker.bounds(TOPOLOGY).high_watermark, broker.clock.wall_ms()
            found.leader_id, found.leader_epoch, found.high_watermark = node_id, _QUORUM_EPOCH, end
            found.current_voters = [
                ReplicaState(
                    replica_id=node_id,
                    log_end_offset=end,
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ]
            response.nodes = [Node(node_id=node_id, listeners=[Listener(name="CONTROLLER", host=host, port=port)])]
    return response


async def update_features(context: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """What this broker can do is on, and stays on: only asking for what is so already succeeds."""
    if context.refuses(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME):
        return UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for update in request.feature_updates:
        objection = _feature_objection(context, update)
        if objection is not None:
            code, why = objection
            message = f"Invalid update version {update.max_version_level} for feature {update.feature}. {why}"
            return UpdateFeaturesResponse(
                error_code=code,
                error_message=f"The update failed for all features since the following feature had an error: {message}",
            )
    return UpdateFeaturesResponse(
        results=[UpdatableFeatureResult(feature=update.feature) for update in request.feature_updates]
    )


def _feature_objection(context: Context, update: FeatureUpdateKey) -> tuple[ErrorCode, str] | None:
    top = FEATURES.get(update.feature)
    node_id = context.broker.settings.node_id
    downgrade = update.allow_downgrade if context.version == 0 else update.upgrade_type in _DOWNGRADES
    if top is None:
        return ErrorCode.INVALID_UPDATE_VERSION, f"Local controller {node_id} does not support this feature."
    if not 0 <= update.max_version_level <= top:
        return ErrorCode.INVALID_UPDATE_VERSION, f"Local controller {node_id} only supports versions 0-{top}"
    if context.version >= 1 and update.upgrade_type not in _UPGRADE_TYPES:
        return ErrorCode.INVALID_UPDATE_VERSION, "The controller does not support the given upgrade type."
    if update.max_version_level == top:
        return None
    if not downgrade:
        why = "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
        return ErrorCode.INVALID_UPDATE_VERSION, why
    return ErrorCode.FEATURE_UPDATE_FAILED, "This broker's features cannot be switched off."


async def elect_leaders(context: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """The one replica is the leader already."""
    response = ElectLeadersResponse()
    topics = context.broker.topics()
    if context.refuses(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME):
        return ElectLeadersResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.topic_partitions is None:
        return response
    for topic in request.topic_partitions:
        answer = ReplicaElectionResult(topic=topic.topic)
        response.replica_election_results.append(answer)
        info = topics.get(topic.topic)
        for index in topic.partitions:
            known = info is not None and 0 <= index < info.partitions
            code = ErrorCode.ELECTION_NOT_NEEDED if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = (
                "Leader election not needed for topic partition."
                if known
                else f"No such partition as {topic.topic}-{index}"
            )
            answer.partition_result.append(PartitionResult(partition_id=index, error_code=code, error_message=message))
    return response


async def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if context.refuses(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return ListPartitionReassignmentsResponse()


async def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    response = AlterPartitionReassignmentsResponse()
    if context.refuses(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME):
        response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return response
    for topic in request.topics:
        answer = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answer)
        for part in topic.partitions:
            code, message = _reassignment(context, topic.name, part)
            answer.partitions.append(
                ReassignablePartitionResponse(
                    partition_index=part.partition_index, error_code=code, error_message=message
                )
            )
    return response


def _hosts(context: Context, topic: str, partition: int) -> bool:
    info = context.broker.topic(topic)
    return info is not None and 0 <= partition < info.partitions


def _reassignment(context: Context, topic: str, part: ReassignablePartition) -> tuple[ErrorCode, str | None]:
    if not _hosts(context, topic, part.partition_index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{part.partition_index}."
    if part.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    if part.replicas == [context.broker.settings.node_id]:
        return ErrorCode.NONE, None
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the one broker is {context.broker.settings.node_id}"
