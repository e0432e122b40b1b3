"""Produce: record batches go to the log as they came.

`acks` chooses the durability (docs/operations.md): 0 nothing, 1 written, -1 fsynced. With acks=0 there is no response;
an error closes the connection, which is all that such a client can notice.

All appends of a request are made in one turn of the loop, and the next request begins after them: producers number their
batches per partition and rely on that order. What must be waited for, the partitions' place in the transaction, comes
before the first append.
"""

from __future__ import annotations

import struct

from trunkline.broker import guard
from trunkline.broker.guard import TopicForbidden
from trunkline.broker.transactions.errors import TransactionError
from trunkline.log.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, TRANSACTIONAL, parse_header
from trunkline.log.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTransactionState,
    LogError,
    UnknownTopicId,
    UnsupportedFormat,
)
from trunkline.log.store import Buffer, Durability, TopicPartition
from trunkline.log.ticket import Appended, Ticket
from trunkline.protocols.kafka.context import CloseConnection, Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from trunkline.security.rules import Kind, Operation

Refusals = dict[TopicPartition, TransactionError]

_DURABILITY = {0: Durability.NONE, 1: Durability.OS, -1: Durability.DISK}
_LENGTH_AND_ATTRIBUTES = struct.Struct(">i9xh")  # from byte 8 of a batch on: bytes 8-11 and 21-22
_FIRST_V2_VERSION = 3  # earlier versions carry message sets of the formats v0 and v1
_IMPLICIT_TRANSACTION_VERSION = 12  # from here on a produce adds its partitions to the transaction (KIP-890)


async def produce(context: Context, request: ProduceRequest) -> ProduceResponse | None:
    durability = _DURABILITY.get(request.acks)
    response = ProduceResponse()
    waiting: list[tuple[PartitionProduceResponse, Ticket]] = []
    reserved = guard.refused(guard.Operation.WRITE)
    refused: Refusals = {}
    transactional_id = request.transactional_id
    denied = transactional_id is not None and context.refuses(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id)
    if (
        transactional_id is not None
        and not denied
        and durability is not None
        and context.version >= _IMPLICIT_TRANSACTION_VERSION
    ):
        refused = await _join_transaction(context, request, transactional_id)
    for topic in request.topic_data:
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        response.responses.append(answer)
        name = _topic_name(context, topic)
        may_write = name is None or name in reserved or not context.refuses(Operation.WRITE, Kind.TOPIC, name)
        for part in topic.partition_data:
            result = PartitionProduceResponse(index=part.index)
            answer.partition_responses.append(result)
            if denied:
                _refuse(
                    result, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
                )
                continue
            if durability is None:
                _refuse(result, ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be 0, 1 or -1, not {request.acks}")
                continue
            if name is None:
                _refuse(result, ErrorCode.UNKNOWN_TOPIC_ID, str(UnknownTopicId(str(topic.topic_id))))
                continue
            if name in reserved:
                _fail(result, TopicForbidden(guard.Operation.WRITE, name))
                continue
            if not may_write:
                _refuse(result, ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to access topics: [{name}]")
                continue
            tp = TopicPartition(name, part.index)
            try:
                records = _batch(context, request, part)
                if transactional_id is not None:
                    _check_transaction(context, tp, records, refused)
                ticket = context.broker.append(tp, records, durability, foreign=True)
                if ticket.done():
                    _fill(result, ticket.result())
                else:
                    waiting.append((result, ticket))
            except Exception as error:
                _fail(result, error)
    context.took_effect()
    for result, ticket in waiting:
        try:
            _fill(result, await ticket)
        except LogError as error:
            _fail(result, error)
    if request.acks == 0:
        if any(part.error_code for answer in response.responses for part in answer.partition_responses):
            raise CloseConnection
        return None
    return response


async def _join_transaction(context: Context, request: ProduceRequest, transactional_id: str) -> Refusals:
    """Add the partitions to the transaction that its batches name; returns those that it does not take."""
    joining: dict[tuple[int, int], list[TopicPartition]] = {}
    reserved = guard.refused(guard.Operation.WRITE)
    for topic in request.topic_data:
        name = _topic_name(context, topic)
        for part in topic.partition_data:
            if part.records is not None:
                part.records = memoryview(bytes(part.records))  # this waits, and the request's buffer is used again
            if name is None or name in reserved or not context.allows(Operation.WRITE, Kind.TOPIC, name):
                continue
            try:
                header = parse_header(_batch(context, request, part))
            except LogError:
                continue  # it is refused when its turn to be appended comes
            if header.transactional:
                identity = (header.producer_id, header.producer_epoch)
                joining.setdefault(identity, []).append(TopicPartition(name, part.index))
    refused: Refusals = {}
    for identity, partitions in joining.items():
        refused |= await context.broker.transactions.ensure_partitions(transactional_id, *identity, partitions)
    return refused


def _topic_name(context: Context, topic: TopicProduceData) -> str | None:
    if context.version < 13:
        return topic.name
    info = context.broker.topic_by_id(topic.topic_id)
    return None if info is None else info.name


def _batch(context: Context, request: ProduceRequest, part: PartitionProduceData) -> Buffer:
    """The one batch that a produce may carry per partition. Whether it is sound is for the log to say."""
    records = part.records
    if records is None or len(records) == 0:
        raise CorruptBatch("a produce request without records")
    if context.version < _FIRST_V2_VERSION:
        raise UnsupportedFormat("message formats v0 and v1 are not stored; use a client of Kafka 0.11 or newer")
    if len(records) < HEADER_BYTES:
        raise CorruptBatch(f"{len(records)} bytes are too few for a batch")
    length, attributes = _LENGTH_AND_ATTRIBUTES.unpack_from(records, 8)
    if LENGTH_PREFIX_BYTES + length < len(records):
        raise InvalidRecord("a produce request takes exactly one record batch per partition")
    if attributes & TRANSACTIONAL:
        if request.transactional_id is None:
            raise InvalidTransactionState("a transactional batch in a request without a transactional id")
        if parse_header(records).base_sequence < 0:
            raise InvalidRecord("a transactional batch needs a sequence number")
    return records


def _check_transaction(context: Context, tp: TopicPartition, records: Buffer, refused: Refusals) -> None:
    header = parse_header(records)
    if header.transactional:
        if tp in refused:
            raise refused[tp]
        context.broker.transactions.check_append(header.producer_id, header.producer_epoch, tp)


def _fill(result: PartitionProduceResponse, appended: Appended) -> None:
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.log_append_time_ms
    result.log_start_offset = appended.log_start_offset


def _fail(result: PartitionProduceResponse, error: Exception) -> None:
    code = code_of(error)
    if code is ErrorCode.UNKNOWN_SERVER_ERROR:
        raise error
    _refuse(result, code, str(error))


def _refuse(result: PartitionProduceResponse, code: ErrorCode, message: str) -> None:
    result.error_code = code
    result.error_message = message
    result.base_offset = -1
    result.log_append_time_ms = -1
    result.log_start_offset = -1
