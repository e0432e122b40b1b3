"""Producer ids and transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn,
WriteTxnMarkers, DescribeTransactions, ListTransactions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from trunkline.broker import guard
from trunkline.broker.access import AccessDenied
from trunkline.broker.transactions.errors import TransactionError, TransactionErrorName
from trunkline.broker.transactions.listing import TransactionListing
from trunkline.broker.transactions.state import STATUS_BY_LABEL
from trunkline.cursors.stream import GroupError, OffsetEntry
from trunkline.log.errors import LogError
from trunkline.log.store import TopicPartition
from trunkline.pattern import InvalidPattern, NamePattern
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from trunkline.protocols.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from trunkline.protocols.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from trunkline.protocols.kafka.messages.describe_transactions import TransactionState as DescribedTransaction
from trunkline.protocols.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trunkline.protocols.kafka.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from trunkline.protocols.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from trunkline.protocols.kafka.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from trunkline.security.rules import CLUSTER_NAME, Kind, Operation

_OFFSETS = TopicPartition("__consumer_offsets", 0)
_BUMPING_END_VERSION = 5  # from here on EndTxn gives the producer its next epoch (KIP-890)
_IMPLICIT_OFFSETS_VERSION = 5
_MATCH_CHARS = 64 * 1024  # of transactional ids, matched in one turn of the loop


async def init_producer_id(context: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        _check_producer(context, request.transactional_id)
        identity = await context.broker.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
        )
    except (TransactionError, LogError) as error:
        code = _era(context, code_of(error), fenced_from=4)
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)


def _check_producer(context: Context, transactional_id: str | None) -> None:
    """Who may write anywhere may be idempotent there, as in Kafka."""
    if transactional_id is not None:
        context.check(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id)
    elif not context.allows(Operation.IDEMPOTENT_WRITE, Kind.CLUSTER, CLUSTER_NAME) and not (
        context.broker.access.allows_anywhere(context.principal, Operation.WRITE, Kind.TOPIC)
    ):
        context.check_cluster(Operation.IDEMPOTENT_WRITE)


def _era(context: Context, code: ErrorCode, *, fenced_from: int) -> ErrorCode:
    """Clients older than `fenced_from` know INVALID_PRODUCER_EPOCH only; newer ones tell PRODUCER_FENCED apart."""
    if code is ErrorCode.PRODUCER_FENCED and context.version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


async def add_partitions_to_txn(context: Context, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    response = AddPartitionsToTxnResponse()
    if context.version < 4:
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        response.results_by_topic_v3_and_below = await _add(context, only)
        return response
    try:
        context.check_cluster(Operation.CLUSTER_ACTION)  # these versions are between brokers
    except AccessDenied as denied:
        return AddPartitionsToTxnResponse(error_code=code_of(denied))
    for transaction in request.transactions:
        response.results_by_transaction.append(
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id, topic_results=await _add(context, transaction)
            )
        )
    return response


async def _add(context: Context, transaction: AddPartitionsToTxnTransaction) -> list[AddPartitionsToTxnTopicResult]:
    transactions = context.broker.transactions
    partitions = [TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    if context.refuses(Operation.WRITE, Kind.TRANSACTIONAL_ID, transaction.transactional_id):
        codes = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return [_topic_result(topic, codes) for topic in transaction.topics]
    reserved = guard.refused(guard.Operation.WRITE)
    refused = {
        topic.name
        for topic in transaction.topics
        if topic.name in reserved or context.refuses(Operation.WRITE, Kind.TOPIC, topic.name)
    }
    if refused:
        codes = {
            tp: ErrorCode.TOPIC_AUTHORIZATION_FAILED if tp.topic in refused else ErrorCode.OPERATION_NOT_ATTEMPTED
            for tp in partitions
        }
        return [_topic_result(topic, codes) for topic in transaction.topics]
    try:
        if transaction.verify_only:
            names = await transactions.verify(*identity, partitions)
        else:
            names = await transactions.add_partitions(*identity, partitions)
        codes = {tp: _verdict(context, name) for tp, name in names.items()}
    except (TransactionError, LogError) as error:
        code = _era(context, code_of(error), fenced_from=2)
        codes = dict.fromkeys(partitions, code)
    return [_topic_result(topic, codes) for topic in transaction.topics]


def _verdict(context: Context, name: TransactionErrorName) -> ErrorCode:
    if name is TransactionErrorName.TRANSACTION_ABORTABLE and context.version < 5:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode[name.value]


def _topic_result(
    topic: AddPartitionsToTxnTopic, codes: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=codes.get(TopicPartition(topic.name, index), ErrorCode.NONE),
            )
            for index in topic.partitions
        ],
    )


async def add_offsets_to_txn(context: Context, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    try:
        context.check(Operation.WRITE, Kind.TRANSACTIONAL_ID, request.transactional_id)
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        await context.broker.transactions.add_offsets(
            request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
    except (TransactionError, LogError) as error:
        return AddOffsetsToTxnResponse(error_code=_era(context, code_of(error), fenced_from=2))
    return AddOffsetsToTxnResponse()


async def txn_offset_commit(context: Context, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    hidden = {topic.name for topic in request.topics if context.refuses(Operation.READ, Kind.TOPIC, topic.name)}
    entries = [
        OffsetEntry(
            topic.name,
            part.partition_index,
            part.committed_offset,
            part.committed_leader_epoch,
            part.committed_metadata or "",
        )
        for topic in request.topics
        if topic.name not in hidden
        for part in topic.partitions
    ]
    codes: dict[tuple[str, int], ErrorCode] = {}
    failure = ErrorCode.NONE
    try:
        context.check(Operation.WRITE, Kind.TRANSACTIONAL_ID, request.transactional_id)
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        if entries or not hidden:
            await _join_transaction(context, request)
            results = await context.broker.groups.txn_commit(
                request.group_id,
                request.producer_id,
                request.producer_epoch,
                entries,
                member_id=request.member_id,
                generation_or_epoch=request.generation_id,
                group_instance_id=request.group_instance_id,
            )
            codes = {
                (tp.topic, tp.partition): ErrorCode[name.value] for tp, name in results.items() if name is not None
            }
    except AccessDenied as denied:
        failure, hidden = code_of(denied), set()
    except (TransactionError, GroupError, LogError) as error:
        failure = code_of(error)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                        if topic.name in hidden
                        else failure or codes.get((topic.name, part.partition_index), ErrorCode.NONE),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _join_transaction(context: Context, request: TxnOffsetCommitRequest) -> None:
    transactions = context.broker.transactions
    if context.version < _IMPLICIT_OFFSETS_VERSION:
        transactions.check_append(request.producer_id, request.producer_epoch, _OFFSETS)
    else:
        await transactions.ensure_partition(
            request.transactional_id, request.producer_id, request.producer_epoch, _OFFSETS
        )


async def end_txn(context: Context, request: EndTxnRequest) -> EndTxnResponse:
    try:
        context.check(Operation.WRITE, Kind.TRANSACTIONAL_ID, request.transactional_id)
        identity = await context.broker.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            bump_epoch=context.version >= _BUMPING_END_VERSION,
        )
    except (TransactionError, LogError) as error:
        return EndTxnResponse(
            error_code=_era(context, code_of(error), fenced_from=2), producer_id=-1, producer_epoch=-1
        )
    return EndTxnResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)


async def write_txn_markers(context: Context, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """An operator ends a hanging transaction partition by partition (`kafka-transactions.sh abort`)."""
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(result)
        for topic in marker.topics:
            answer = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(answer)
            for index in topic.partition_indexes:
                code = ErrorCode.NONE
                try:
                    if not context.allows(Operation.CLUSTER_ACTION, Kind.CLUSTER, CLUSTER_NAME):
                        context.check_cluster(Operation.ALTER)
                    await context.broker.end_transaction_of(
                        TopicPartition(topic.name, index),
                        marker.producer_id,
                        marker.producer_epoch,
                        commit=marker.transaction_result,
                        coordinator_epoch=marker.coordinator_epoch,
                    )
                except LogError as error:
                    code = code_of(error)
                answer.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
    return response


async def describe_transactions(context: Context, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    response = DescribeTransactionsResponse()
    for transactional_id in request.transactional_ids:
        state = DescribedTransaction(transactional_id=transactional_id)
        response.transaction_states.append(state)
        try:
            context.check(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id)
            found = context.broker.transactions.describe(transactional_id)
        except (TransactionError, LogError) as error:
            state.error_code = code_of(error)
            continue
        state.transaction_state = found.state
        state.producer_id, state.producer_epoch = found.producer_id, found.producer_epoch
        state.transaction_timeout_ms = found.timeout_ms
        state.transaction_start_time_ms = found.start_ms
        state.topics = _by_topic(
            [tp for tp in found.partitions if context.allows(Operation.DESCRIBE, Kind.TOPIC, tp.topic)]
        )
    return response


def _by_topic(partitions: Collection[TopicPartition]) -> list[TopicData]:
    topics: dict[str, TopicData] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, TopicData(topic=tp.topic)).partitions.append(tp.partition)
    return list(topics.values())


async def list_transactions(context: Context, request: ListTransactionsRequest) -> ListTransactionsResponse:
    transactions = context.broker.transactions
    response = ListTransactionsResponse(
        unknown_state_filters=[label for label in request.state_filters if label not in STATUS_BY_LABEL]
    )
    wanted = [label for label in request.state_filters if label in STATUS_BY_LABEL]
    if request.state_filters and not wanted:
        return response
    found = [
        each
        for each in transactions.list(wanted, request.producer_id_filters, request.duration_filter)
        if context.allows(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, each.transactional_id)
    ]
    if request.transactional_id_pattern:
        try:
            found = await _named_like(NamePattern(request.transactional_id_pattern), found)
        except InvalidPattern:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    response.transaction_states = [
        TransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
        )
        for each in found
    ]
    return response


async def _named_like(pattern: NamePattern, found: Sequence[TransactionListing]) -> list[TransactionListing]:
    """Ids may be many and long: other clients are served in between."""
    matching: list[TransactionListing] = []
    left = _MATCH_CHARS
    for each in found:
        if pattern.matches(each.transactional_id):
            matching.append(each)
        left -= len(each.transactional_id)
        if left < 0:
            left = _MATCH_CHARS
            await asyncio.sleep(0)
    return matching
