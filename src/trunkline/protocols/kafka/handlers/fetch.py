"""Fetch: whole batches straight from the log, woken by the append rather than by a clock.

A fetch reads its partitions in turn until `max_bytes` is full. If that gives less than `min_bytes` it waits, watching
all its partitions, until an append changes that or `max_wait_ms` is over. Partitions that gave data move to the end of
the session's order, so that a busy one does not starve the rest.

Limits: one response holds at most the broker's `fetch_max_bytes`, and less while other clients leave their responses
unread (`max_unsent_bytes`); the first batch is always sent whole, so that a consumer can go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from uuid import UUID

from trunkline.log.errors import LogError
from trunkline.log.store import Slice, TopicPartition
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.fetch_sessions import FetchedPartition, FetchPlan, PartitionKey, SessionError
from trunkline.protocols.kafka.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trunkline.security.quotas import FETCH, WINDOW_MS
from trunkline.security.rules import Kind, Operation

_LEADER_EPOCH = 0
_LEAST_BYTES = 64 * 1024  # what a fetch may still read when unsent responses have used up their limit


async def fetch(context: Context, request: FetchRequest) -> FetchResponse:
    try:
        plan = context.fetch_sessions.plan(request, context.version)
    except SessionError as error:
        return FetchResponse(error_code=error.code)
    reading = _Reading(context, request, plan)
    try:
        await reading.read()
        context.took_effect()
        if not reading.enough and request.max_wait_ms > 0:
            await reading.wait(min(request.max_wait_ms, context.broker.limits.max_fetch_wait_ms))
    finally:
        reading.hold(0)
    return reading.response()


class _Reading:
    """One fetch under way: what was read so far, and whether it suffices."""

    def __init__(self, context: Context, request: FetchRequest, plan: FetchPlan) -> None:
        self._context = context
        self._store = context.broker.store
        self._plan = plan
        self._committed = request.isolation_level == 1
        self._min_bytes = request.min_bytes
        asked = request.max_bytes if context.version >= 3 else 2**31 - 1
        self._asked_bytes = max(asked, 0)
        quotas = context.broker.access.book.quotas
        if quotas.active:
            bound = quotas.bound(FETCH, context.principal.name, context.client_id)
            if bound is not None:  # more than a window's worth could not go out
                self._asked_bytes = min(self._asked_bytes, int(bound * WINDOW_MS / 1000))
        self._read: dict[PartitionKey, PartitionData] = {}
        self._bytes = 0
        self._held_bytes = 0  # of `unsent_bytes`: what this fetch has read, or may be about to
        self._failed = False
        self._names: dict[PartitionKey, TopicPartition | None] = {
            key: self._resolve(part) for key, part in plan.partitions.items()
        }

    @property
    def enough(self) -> bool:
        return self._bytes >= self._min_bytes or self._failed or not self._plan.partitions

    def _resolve(self, part: FetchedPartition) -> TopicPartition | None:
        if isinstance(part.topic, UUID):
            info = self._store.topic_by_id(part.topic)
            return None if info is None else TopicPartition(info.name, part.partition)
        return TopicPartition(part.topic, part.partition)

    def hold(self, size: int) -> None:
        """Be counted with so many bytes among those that clients have not taken yet."""
        self._context.broker.counters.unsent_bytes += size - self._held_bytes
        self._held_bytes = size

    async def read(self, changed: Collection[PartitionKey] | None = None) -> None:
        """Read all partitions or, after a read that found nothing, those that changed since."""
        limits = self._context.broker.limits
        wanted = list(self._plan.partitions.items())
        if changed is None or self._bytes:
            self._read.clear()
        else:
            wanted = [(key, part) for key, part in wanted if key in changed]
        self._bytes = 0
        self.hold(0)
        room = limits.max_unsent_bytes - self._context.broker.counters.unsent_bytes
        left = min(self._asked_bytes, limits.fetch_max_bytes, max(room, _LEAST_BYTES))
        # Before the first wait: reads of the disk take time, and others begin theirs meanwhile.
        self.hold(min(left, sum(max(part.max_bytes, 0) for _, part in wanted)))
        for key, part in wanted:
            data = await self._read_one(key, part, min(left, part.max_bytes), at_least_one=self._bytes == 0)
            self._read[key] = data
            if data.records:
                self._bytes += len(data.records)
                left = max(0, left - len(data.records))
        self.hold(self._bytes)

    async def _read_one(
        self, key: PartitionKey, part: FetchedPartition, max_bytes: int, *, at_least_one: bool
    ) -> PartitionData:
        data = PartitionData(partition_index=part.partition, high_watermark=-1, records=b"")
        tp = self._names[key]
        if tp is None:
            return self._refused(data, ErrorCode.UNKNOWN_TOPIC_ID)
        if self._context.refuses(Operation.READ, Kind.TOPIC, tp.topic):
            return self._refused(data, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if part.current_leader_epoch > _LEADER_EPOCH:
            return self._refused(data, ErrorCode.UNKNOWN_LEADER_EPOCH)
        try:
            if max_bytes <= 0 and not at_least_one:
                found = Slice(b"", self._store.bounds(tp))
            else:
                found = await self._store.read(
                    tp, part.fetch_offset, max_bytes, committed=self._committed, at_least_one=at_least_one
                )
        except LogError as error:
            code = code_of(error)
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                bounds = self._store.bounds(tp)
                data.log_start_offset = bounds.log_start_offset
                data.high_watermark = bounds.high_watermark
            return self._refused(data, code)
        bounds = found.bounds
        data.high_watermark = bounds.high_watermark
        data.last_stable_offset = bounds.last_stable_offset
        data.log_start_offset = bounds.log_start_offset
        data.records = found.records
        if self._committed:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=gone.producer_id, first_offset=gone.first_offset)
                for gone in found.aborted
            ]
        else:
            data.aborted_transactions = None
        return data

    def _refused(self, data: PartitionData, code: ErrorCode) -> PartitionData:
        data.error_code = code
        self._failed = True
        return data

    async def wait(self, max_wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        changed: set[PartitionKey] = set()

        def wake(key: PartitionKey) -> None:
            changed.add(key)
            woken.set()

        watches = [(tp, partial(wake, key)) for key, tp in self._names.items() if tp is not None]
        hurrying = self._store.client_watches
        begin = self._store.watch if hurrying is None else hurrying.watch_for_client
        for tp, watch in watches:
            begin(tp, watch)
        timer = loop.call_later(max_wait_ms / 1000, woken.set)
        deadline = loop.time() + max_wait_ms / 1000
        try:
            while True:
                await woken.wait()
                woken.clear()
                read, changed = changed, set()
                await self.read(read or None)
                if self.enough or loop.time() >= deadline - 0.001:
                    return
        finally:
            timer.cancel()
            for tp, watch in watches:
                self._store.unwatch(tp, watch)

    def response(self) -> FetchResponse:
        response = FetchResponse(session_id=self._plan.session_id)
        topics: dict[str | UUID, FetchableTopicResponse] = {}
        for key, data in self._read.items():
            part = self._plan.partitions.get(key)
            if self._plan.incremental and part is not None and not self._news(part, data):
                continue
            if part is not None:
                part.last_high_watermark = data.high_watermark
                part.last_log_start_offset = data.log_start_offset
                if data.records:
                    self._plan.partitions.move_to_end(key)
            topic = topics.get(key[0])
            if topic is None:
                topic = FetchableTopicResponse()
                if isinstance(key[0], UUID):
                    topic.topic_id = key[0]
                else:
                    topic.topic = key[0]
                topics[key[0]] = topic
                response.responses.append(topic)
            topic.partitions.append(data)
        return response

    @staticmethod
    def _news(part: FetchedPartition, data: PartitionData) -> bool:
        return bool(
            data.records
            or data.error_code
            or data.high_watermark != part.last_high_watermark
            or data.log_start_offset != part.last_log_start_offset
        )
