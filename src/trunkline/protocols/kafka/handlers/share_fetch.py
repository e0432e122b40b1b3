"""ShareFetch and ShareAcknowledge: records for the members of share groups, and what became of them.

A share fetch first does what its acknowledgements say, then locks records of its session's partitions in turn until it has
`max_records` or `max_bytes`. If there are none it waits, watching all its partitions, until some are appended or given back
or `max_wait_ms` is over. Batches are sent as they are in the log, with the ranges of offsets that are meant.

An answer that tells of an acknowledgement leaves when that is on disk; that records were delivered is written to the operating
system before they leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from uuid import UUID

from trunkline.cursors.share import Acknowledgement, AcknowledgeType, Taken
from trunkline.cursors.share.errors import ShareError
from trunkline.cursors.share.partition import SharePartition
from trunkline.cursors.stream import GroupError
from trunkline.log.errors import LogError
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, RefusedError, code_of
from trunkline.protocols.kafka.messages import share_acknowledge as acknowledging
from trunkline.protocols.kafka.messages import share_fetch as fetching
from trunkline.protocols.kafka.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, ShareSession
from trunkline.security.rules import Kind, Operation

_LEAST_BYTES = 64 * 1024  # what a fetch may still read when unsent responses have used up their limit
_MAX_MEMBER_ID_CHARS = 36
_STRICT = 1
_RENEW_VERSION = 2
_REFUSALS = (LogError, ShareError, RefusedError, GroupError)
_NO_ERROR = (ErrorCode.NONE, None)
Outcome = tuple[ErrorCode, str | None]
Batch = fetching.AcknowledgementBatch | acknowledging.AcknowledgementBatch


async def share_fetch(context: Context, request: fetching.ShareFetchRequest) -> fetching.ShareFetchResponse:
    shares = context.broker.shares
    try:
        group_id, member_id = _checked_ids(context, request.group_id, request.member_id)
        if request.is_renew_ack:
            _check_renewing(request)
        session = _session_for(context, request, group_id, member_id)
    except RefusedError as error:
        context.took_effect()
        if code_of(error) is ErrorCode.SHARE_SESSION_LIMIT_REACHED:  # a client would come back at once
            await asyncio.sleep(min(max(request.max_wait_ms, 0), context.broker.limits.max_fetch_wait_ms) / 1000)
        return fetching.ShareFetchResponse(error_code=code_of(error), error_message=str(error))
    except (GroupError, LogError) as error:
        return fetching.ShareFetchResponse(error_code=code_of(error), error_message=str(error))
    said = {
        (topic.topic_id, part.partition_index): part.acknowledgement_batches
        for topic in request.topics
        for part in topic.partitions
        if part.acknowledgement_batches
    }
    outcomes = _acknowledge(context, group_id, member_id, said.items(), renewing=request.is_renew_ack)
    closing = request.share_session_epoch == FINAL_EPOCH
    reading = _Reading(context, request, group_id, member_id, session)
    try:
        if not closing and not request.is_renew_ack and request.max_records > 0:
            await reading.read()
            context.took_effect()
            if not reading.found and request.max_wait_ms > 0:
                if outcomes:
                    await _stored(context, outcomes)
                await reading.wait(min(request.max_wait_ms, context.broker.limits.max_fetch_wait_ms))
        if closing:
            _end(context, session)
        if outcomes:
            context.took_effect()
            await _stored(context, outcomes)
        else:
            shares.flush()
    finally:
        reading.hold(0)
    return reading.response(outcomes, shares.lock_ms(group_id))


async def share_acknowledge(
    context: Context, request: acknowledging.ShareAcknowledgeRequest
) -> acknowledging.ShareAcknowledgeResponse:
    try:
        group_id, member_id = _checked_ids(context, request.group_id, request.member_id)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise RefusedError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "The share session epoch is invalid.")
        session = context.share_sessions.resume((group_id, member_id), request.share_session_epoch)
    except _REFUSALS as error:
        return acknowledging.ShareAcknowledgeResponse(error_code=code_of(error), error_message=str(error))
    said = [
        ((topic.topic_id, part.partition_index), part.acknowledgement_batches)
        for topic in request.topics
        for part in topic.partitions
    ]
    outcomes = _acknowledge(context, group_id, member_id, said, renewing=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        _end(context, session)
    await _stored(context, outcomes)
    response = acknowledging.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=context.broker.shares.lock_ms(group_id)
    )
    topics: dict[UUID, acknowledging.ShareAcknowledgeTopicResponse] = {}
    for (topic_id, index), (code, message) in outcomes.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = acknowledging.ShareAcknowledgeTopicResponse(topic_id=topic_id)
            response.responses.append(topic)
        topic.partitions.append(
            acknowledging.PartitionData(partition_index=index, error_code=code, error_message=message)
        )
    return response


# -- sessions --------------------------------------------------------------------------------------------------------


def _checked_ids(context: Context, group_id: str | None, member_id: str | None) -> tuple[str, str]:
    if group_id is None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    context.check(Operation.READ, Kind.GROUP, group_id)
    if not member_id or len(member_id) > _MAX_MEMBER_ID_CHARS:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return group_id, member_id


def _check_renewing(request: fetching.ShareFetchRequest) -> None:
    """Who holds on to records asks for none, so that the answer is not late."""
    given = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait_ms,
    }
    wrong = [f"{name} must be set to 0" for name, value in given.items() if value]
    if wrong:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{', '.join(wrong)}, if isRenewAck is true.")


def _session_for(context: Context, request: fetching.ShareFetchRequest, group_id: str, member_id: str) -> ShareSession:
    asked = [(topic.topic_id, part.partition_index) for topic in request.topics for part in topic.partitions]
    key = (group_id, member_id)
    sessions = context.share_sessions
    if request.share_session_epoch == INITIAL_EPOCH:
        if any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "A share session does not begin with acknowledgements.")
        context.broker.groups.check_share_group(group_id)
        session = sessions.open(key, asked)
        context.at_end[key] = partial(_end, context, session)
        return session
    session = sessions.resume(key, request.share_session_epoch)
    if request.share_session_epoch != FINAL_EPOCH:
        forgotten = ((topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions)
        sessions.update(session, asked, forgotten)
    return session


def _end(context: Context, session: ShareSession) -> None:
    """Close a session: what its member holds can be had by others."""
    context.at_end.pop(session.key, None)
    if context.share_sessions.close(session):
        context.broker.shares.release_all(*session.key, session.touched)


# -- acknowledgements ------------------------------------------------------------------------------------------------


def _acknowledge(
    context: Context,
    group_id: str,
    member_id: str,
    said: Iterable[tuple[PartitionKey, Sequence[Batch]]],
    *,
    renewing: bool,
) -> dict[PartitionKey, Outcome]:
    outcomes: dict[PartitionKey, Outcome] = {}
    for key, batches in said:
        try:
            _check_topic(context, key[0])
            told = [_checked(context, batch, renewing=renewing) for batch in batches]
            if any(after.first <= before.last for before, after in pairwise(told)):
                raise RefusedError(ErrorCode.INVALID_REQUEST, "Acknowledgement batches overlap or are not in order.")
            if told:
                context.broker.shares.acknowledge(group_id, *key, member_id, told)
            outcomes[key] = _NO_ERROR
        except _REFUSALS as error:
            outcomes[key] = (code_of(error), str(error))
    return outcomes


def _checked(context: Context, batch: Batch, *, renewing: bool) -> Acknowledgement:
    types = batch.acknowledge_types
    if batch.first_offset > batch.last_offset or not types:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "An acknowledgement batch has no offsets, or says nothing of them."
        )
    if AcknowledgeType.RENEW in types and (context.version < _RENEW_VERSION or not renewing):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Renewing is not expected in this request.")
    return Acknowledgement(batch.first_offset, batch.last_offset, types)


def _check_topic(context: Context, topic_id: UUID) -> None:
    """Raise unless there is this topic, and this client may read it."""
    info = context.broker.topic_by_id(topic_id)
    if info is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    context.check(Operation.READ, Kind.TOPIC, info.name)


async def _stored(context: Context, outcomes: dict[PartitionKey, Outcome]) -> None:
    """Wait until what was acknowledged is on disk; what cannot be written is not acknowledged."""
    try:
        written = context.broker.shares.commit()
        if written is not None:
            await asyncio.shield(asyncio.ensure_future(written))
    except LogError as error:
        for key, (code, _) in outcomes.items():
            if code is ErrorCode.NONE:
                outcomes[key] = (code_of(error), str(error))


# -- records ---------------------------------------------------------------------------------------------------------


class _Reading:
    """One share fetch under way: what was locked so far."""

    def __init__(
        self,
        context: Context,
        request: fetching.ShareFetchRequest,
        group_id: str,
        member_id: str,
        session: ShareSession,
    ) -> None:
        self._context = context
        self._shares = context.broker.shares
        self._request = request
        self._group_id = group_id
        self._member_id = member_id
        self._session = session
        self._whole = request.share_session_epoch == INITIAL_EPOCH  # every partition is told of
        self._partitions: dict[PartitionKey, SharePartition] = {}
        self._taken: dict[PartitionKey, Taken] = {}
        self._failures: dict[PartitionKey, Outcome] = {}
        self._held_bytes = 0

    @property
    def found(self) -> bool:
        return bool(self._taken or self._failures)

    def hold(self, size: int) -> None:
        """Be counted with so many bytes among those that clients have not taken yet."""
        self._context.broker.counters.unsent_bytes += size - self._held_bytes
        self._held_bytes = size

    async def read(self, changed: Iterable[PartitionKey] | None = None) -> None:
        """Lock records of all partitions, or of those that changed."""
        request, limits = self._request, self._context.broker.limits
        wanted = self._shares.wanted(
            self._group_id,
            self._member_id,
            max_records=request.max_records,
            batch_records=max(request.batch_size, 1),
            strict=request.share_acquire_mode == _STRICT,
        )
        room = limits.max_unsent_bytes - self._context.broker.counters.unsent_bytes
        left_bytes = min(max(request.max_bytes, 0), limits.fetch_max_bytes, max(room, _LEAST_BYTES))
        left_records, size = request.max_records, 0
        for key in list(self._session.partitions if changed is None else changed):
            if left_records <= 0 or (self._taken and left_bytes <= 0):
                break
            try:
                partition = self._partitions.get(key) or await self._open(key)
                if not self._shares.may_give(partition, wanted):
                    continue
                taken = await self._shares.take(
                    partition,
                    wanted._replace(max_records=left_records, max_bytes=left_bytes),
                    at_least_one=not self._taken,
                )
            except _REFUSALS as error:
                self._failures[key] = (code_of(error), str(error))
                continue
            if taken.acquired:
                self._taken[key] = taken
                left_records -= taken.record_count
                left_bytes -= len(taken.records)
                size += len(taken.records)
                self.hold(size)

    async def _open(self, key: PartitionKey) -> SharePartition:
        _check_topic(self._context, key[0])
        self._context.broker.groups.check_share_group(self._group_id)  # it may have been deleted since
        partition = self._partitions[key] = await self._shares.open(self._group_id, *key)
        return partition

    async def wait(self, max_wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        changed: dict[PartitionKey, None] = {}

        def wake(key: PartitionKey) -> None:
            changed[key] = None
            woken.set()

        watches = [(part, partial(wake, key)) for key, part in self._partitions.items()]
        for part, watch in watches:
            self._shares.watch(part, watch)
            watch()  # it may have changed since it was read
        timer = loop.call_later(max_wait_ms / 1000, woken.set)
        deadline = loop.time() + max_wait_ms / 1000
        try:
            while True:
                await woken.wait()
                woken.clear()
                read = list(changed)
                changed.clear()
                await self.read(read)
                if self.found or loop.time() >= deadline - 0.001:
                    return
        finally:
            timer.cancel()
            for part, watch in watches:
                self._shares.unwatch(part, watch)

    def response(self, outcomes: dict[PartitionKey, Outcome], lock_ms: int) -> fetching.ShareFetchResponse:
        response = fetching.ShareFetchResponse(acquisition_lock_timeout_ms=lock_ms)
        topics: dict[UUID, fetching.ShareFetchableTopicResponse] = {}
        order = dict.fromkeys([*(self._session.partitions if self._whole else ()), *self._taken, *self._failures])
        for key in [*order, *(key for key in outcomes if key not in order)]:
            data = fetching.PartitionData(partition_index=key[1], records=b"")
            data.acknowledge_error_code, data.acknowledge_error_message = outcomes.get(key, _NO_ERROR)
            data.error_code, data.error_message = self._failures.get(key, _NO_ERROR)
            taken = self._taken.get(key)
            if taken is not None:
                data.records = taken.records
                data.acquired_records = [
                    fetching.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                    for first, last, count in taken.acquired
                ]
                if key in self._session.partitions:
                    self._session.partitions.move_to_end(key)  # a busy one does not starve the rest
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = fetching.ShareFetchableTopicResponse(topic_id=key[0])
                response.responses.append(topic)
            topic.partitions.append(data)
        return response
