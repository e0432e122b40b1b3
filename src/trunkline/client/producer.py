"""Producing: records gathered into one batch per partition, sent together, acknowledged before `flush` returns.

Records wait in memory until `batch_bytes` of them are there for one partition, or `flush` is called; then every waiting
batch is sent, one request per leader. With acks=all the producer is idempotent where the broker can: each batch has a
producer id and sequence number, so that sending it again after a lost answer does not store it twice. With acks=1 a
retry may store it twice; with acks=0 nothing is known. When the broker refuses a batch for good, `ClientError` is raised
and the producer is at an end: what it did not send is dropped.

Limits: `batch_bytes` of records per partition wait in memory, one batch per partition is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline.client.client import Client
from trunkline.client.errors import ClientError, check
from trunkline.client.partitioner import partition_for_key
from trunkline.log.batch import NewRecord, advance_sequence, build_batch
from trunkline.protocols.kafka.apis import ApiKey
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

DEFAULT_BATCH_BYTES = 256 * 1024
RECORD_OVERHEAD_BYTES = 24
_BY_NAME_VERSION = 12  # later versions of Produce name topics by id


@dataclass(slots=True)
class _Waiting:
    """Records for one partition, not sent yet."""

    records: list[NewRecord] = field(default_factory=list)
    size_bytes: int = 0


class Producer:
    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        acks: int = -1,
        compression: str = "none",
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        create: bool = True,
    ) -> None:
        self.client = client
        self.topic = topic
        self.acks = acks
        self.compression = compression
        self.batch_bytes = batch_bytes
        self.sent_records = 0
        self.sent_bytes = 0
        self.last_offsets: dict[int, int] = {}
        self._partitions = [item.index for item in client.topic(topic, create=create).partitions]
        self._waiting: dict[int, _Waiting] = {}
        self._sticky = client.clock.wall_ms() % len(self._partitions)
        self._sequences: dict[int, int] = {}
        self._producer_id, self._producer_epoch = producer_identity(client) if acks == -1 else (-1, -1)

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Add a record; sends what waits when a batch is full."""
        target = self._choose(key, partition)
        waiting = self._waiting.setdefault(target, _Waiting())
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content or b"") + 4 for name, content in headers)
        if waiting.records and waiting.size_bytes + size > self.batch_bytes:
            self.flush()
            # A record without a key goes where the next batch begins.
            waiting = self._waiting.setdefault(self._choose(key, partition), _Waiting())
        stamp = self.client.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        waiting.records.append(NewRecord(key, value, headers, stamp))
        waiting.size_bytes += size
        if waiting.size_bytes >= self.batch_bytes:
            self.flush()

    def flush(self) -> None:
        """Send every waiting record. With acks other than 0 they are stored when this returns."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        self._sticky = (self._sticky + 1) % len(self._partitions)
        batches = {partition: self._encode(partition, item.records) for partition, item in waiting.items()}
        self.client.retrying(lambda: self._deliver(batches, waiting))

    def _choose(self, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            if partition not in self._partitions:
                check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {self.topic}-{partition}")
            return partition
        if key is not None:
            return self._partitions[partition_for_key(key, len(self._partitions))]
        return self._partitions[self._sticky]

    def _encode(self, partition: int, records: list[NewRecord]) -> bytes:
        sequence = -1
        if self._producer_id >= 0:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = advance_sequence(sequence, len(records))
        return build_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
            compression=self.compression,
        )

    def _deliver(self, batches: dict[int, bytes], waiting: dict[int, _Waiting]) -> None:
        """Send what is still in `batches`, removing what is acknowledged, so that a retry sends the rest only."""
        leaders = self.client.leaders(self.topic)
        by_leader: dict[int, list[PartitionProduceData]] = {}
        for partition, batch in batches.items():
            part = PartitionProduceData(index=partition, records=batch)
            by_leader.setdefault(leaders[partition], []).append(part)
        refused: ClientError | None = None
        for leader, data in by_leader.items():
            request = ProduceRequest(
                acks=self.acks,
                timeout_ms=self.client.timeout_ms,
                topic_data=[TopicProduceData(name=self.topic, partition_data=data)],
            )
            broker = self.client.broker(leader)
            if self.acks == 0:
                broker.post(request, max_version=_BY_NAME_VERSION)
                results = [PartitionProduceResponse(index=item.index, base_offset=-1) for item in data]
            else:
                response = broker.request(request, ProduceResponse, max_version=_BY_NAME_VERSION)
                results = [item for topic in response.responses for item in topic.partition_responses]
            for result in results:
                try:
                    self._acknowledge(result, batches, waiting)
                except ClientError as error:
                    if refused is None or refused.retriable:
                        refused = error
        if refused is not None:
            raise refused

    def _acknowledge(
        self, result: PartitionProduceResponse, batches: dict[int, bytes], waiting: dict[int, _Waiting]
    ) -> None:
        if result.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # which means: stored by an earlier attempt
            detail = result.error_message
            if result.record_errors and result.record_errors[0].batch_index_error_message:
                detail = result.record_errors[0].batch_index_error_message
            check(result.error_code, f"partition {self.topic}-{result.index}", detail)
        batch = batches.pop(result.index)
        records = waiting[result.index].records
        self.sent_records += len(records)
        self.sent_bytes += len(batch)
        if result.base_offset >= 0:
            self.last_offsets[result.index] = result.base_offset + len(records) - 1


def producer_identity(client: Client) -> tuple[int, int]:
    """A producer id and epoch for idempotent sending; (-1, -1) where the broker has none to give."""

    def ask() -> tuple[int, int]:
        broker = client.any_broker()
        if not broker.supports(ApiKey.INIT_PRODUCER_ID):
            return -1, -1
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=client.timeout_ms)
        response = broker.request(request, InitProducerIdResponse)
        check(response.error_code, "producer id")
        return response.producer_id, response.producer_epoch

    return client.retrying(ask)
