"""Batches on their way to a broker: several requests in flight, each acknowledged in the order of sending.

A `Sender` takes batches that are complete but for their place: producer id, epoch and sequence number are in them. It keeps
what it has sent until the broker has acknowledged it. When the connection is lost, all of that is sent again, in the same
order, until the broker answers or `timeout_ms` of the client is over: a broker that has stored a batch already says so by
its sequence number and does not store it twice. Without a producer id (-1) a batch may be stored twice after that.

Limits: at most `MAX_IN_FLIGHT` requests per leader are unacknowledged; Kafka remembers the sequence numbers of five batches
per partition, so more would not be safe to send again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from trunkline.client.client import Client
from trunkline.client.connection import KafkaConnection, Submitted
from trunkline.client.errors import ClientError, check
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

MAX_IN_FLIGHT = 4
_EXPLICIT_TRANSACTIONS_VERSION = 11  # from 12 on, Produce adds partitions to a transaction by itself
_ALL = -1


@dataclass(slots=True)
class _InFlight:
    """Batches of one request that are not acknowledged yet."""

    batches: dict[TopicPartition, bytes]
    connection: KafkaConnection
    submitted: Submitted | None


class Sender:
    def __init__(self, client: Client, transactional_id: str | None = None) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.sent_bytes = 0
        self._in_flight: dict[int, deque[_InFlight]] = {}

    def send(self, batches: Mapping[TopicPartition, bytes]) -> None:
        """Send one batch for each of these partitions; waits only while too many requests are unanswered."""
        by_leader: dict[int, dict[TopicPartition, bytes]] = {}
        for tp, batch in batches.items():
            leader = self.client.leaders(tp.topic).get(tp.partition)
            if leader is None:
                check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
                continue
            by_leader.setdefault(leader, {})[tp] = batch
        for leader, part in by_leader.items():
            queue = self._in_flight.setdefault(leader, deque())
            while len(queue) >= MAX_IN_FLIGHT:
                self._collect(queue)
            self._submit(leader, queue, part)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        for queue in self._in_flight.values():
            while queue:
                self._collect(queue)

    def _submit(self, leader: int, queue: deque[_InFlight], batches: dict[TopicPartition, bytes]) -> None:
        try:
            connection = self.client.broker(leader)
            item = _InFlight(batches, connection, None)
            queue.append(item)
            item.submitted = connection.submit(self._request(batches), max_version=_EXPLICIT_TRANSACTIONS_VERSION)
        except ClientError as error:
            if not error.retriable:
                raise
            if not queue or queue[-1].batches is not batches:
                queue.append(_InFlight(batches, KafkaConnection("", 0), None))
            self._send_again(queue)

    def _collect(self, queue: deque[_InFlight]) -> None:
        oldest = queue[0]
        try:
            if oldest.submitted is None:
                raise ClientError("DISCONNECTED", "the request was not sent")
            response = oldest.connection.collect(oldest.submitted, ProduceResponse)
            self._acknowledge(oldest.batches, response)
            queue.popleft()
        except ClientError as error:
            if not error.retriable:
                raise
            oldest.connection.close()
            self._send_again(queue)

    def _send_again(self, queue: deque[_InFlight]) -> None:
        """One by one, in the order in which they were first sent."""
        while queue:
            batches = queue[0].batches
            self.client.retrying(lambda: self._exchange(batches))  # noqa: B023 (called before the next round)
            queue.popleft()

    def _exchange(self, batches: dict[TopicPartition, bytes]) -> None:
        by_leader: dict[int, dict[TopicPartition, bytes]] = {}
        for tp, batch in batches.items():
            by_leader.setdefault(self.client.leaders(tp.topic)[tp.partition], {})[tp] = batch
        for leader, part in by_leader.items():
            response = self.client.broker(leader).request(
                self._request(part), ProduceResponse, max_version=_EXPLICIT_TRANSACTIONS_VERSION
            )
            self._acknowledge(batches, response)

    def _request(self, batches: Mapping[TopicPartition, bytes]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for tp, batch in batches.items():
            topics.setdefault(tp.topic, []).append(PartitionProduceData(index=tp.partition, records=batch))
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=_ALL,
            timeout_ms=self.client.timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    def _acknowledge(self, batches: dict[TopicPartition, bytes], response: ProduceResponse) -> None:
        """Forget what was stored; raise for what was not."""
        refused: ClientError | None = None
        for topic in response.responses:
            for result in topic.partition_responses:
                tp = TopicPartition(topic.name, result.index)
                try:
                    _check(tp, result)
                    self.sent_bytes += len(batches.pop(tp, b""))
                except ClientError as error:
                    if refused is None or refused.retriable:
                        refused = error
        if refused is not None:
            raise refused


def _check(tp: TopicPartition, result: PartitionProduceResponse) -> None:
    if result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return  # an earlier attempt was stored
    detail = result.error_message
    if result.record_errors and result.record_errors[0].batch_index_error_message:
        detail = result.record_errors[0].batch_index_error_message
    check(result.error_code, f"partition {tp}", detail)
