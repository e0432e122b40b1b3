"""Reading: the records of some partitions, each from a given offset on, in the order of each partition.

`poll` asks every leader once and gives whatever arrived. Control batches are skipped; with `committed` so are the
records of aborted transactions: a fetch response lists, per partition, the aborted transactions that overlap it, each
from its first offset until the abort marker of its producer.

`positions` is the next offset to read, moved past everything that `poll` returned or skipped. An offset that retention
has removed moves to the partition's start and is noted in `moved`; one past the end is an error.

Limits: `fetch_bytes` per response and `partition_bytes` per partition, except for a single larger batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from trunkline.client.client import Client
from trunkline.client.errors import ClientError, check
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.batch import Record, check_crc, iter_records, parse_header, read_marker, whole_batches
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

DEFAULT_FETCH_BYTES = 32 * 1024 * 1024
DEFAULT_PARTITION_BYTES = 1024 * 1024
_BY_NAME_VERSION = 12  # later versions of Fetch name topics by id


class ReadRecord(NamedTuple):
    partition: TopicPartition
    record: Record


class Reader:
    def __init__(
        self,
        client: Client,
        positions: Mapping[TopicPartition, int],
        *,
        committed: bool = False,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        partition_bytes: int = DEFAULT_PARTITION_BYTES,
    ) -> None:
        self.client = client
        self.positions = dict(positions)
        self.committed = committed
        self.fetch_bytes = fetch_bytes
        self.partition_bytes = partition_bytes
        self.moved: dict[TopicPartition, int] = {}

    def poll(self, max_wait_ms: int = 500) -> Iterator[ReadRecord]:
        """One round of fetches. Records are yielded as they are decoded and `positions` follows them."""
        by_leader = self._by_leader()
        for leader, partitions in by_leader.items():
            # Leaders are asked in turn, so each may only keep us waiting for its share.
            response = self._fetch(leader, partitions, max_wait_ms // len(by_leader))
            if response is None:
                return
            for topic in response.responses:
                for data in topic.partitions:
                    yield from self._records(TopicPartition(topic.topic, data.partition_index), data)

    def _by_leader(self) -> dict[int, list[TopicPartition]]:
        found: dict[int, list[TopicPartition]] = {}
        for tp in self.positions:
            leader = self.client.leaders(tp.topic).get(tp.partition)
            if leader is None:
                check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
                continue
            found.setdefault(leader, []).append(tp)
        return found

    def _fetch(self, leader: int, partitions: Sequence[TopicPartition], max_wait_ms: int) -> FetchResponse | None:
        """None after an error that may pass: the next poll tries again with fresh metadata."""
        topics: dict[str, list[FetchPartition]] = {}
        for tp in partitions:
            asked = FetchPartition(
                partition=tp.partition, fetch_offset=self.positions[tp], partition_max_bytes=self.partition_bytes
            )
            topics.setdefault(tp.topic, []).append(asked)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=self.fetch_bytes,
            isolation_level=int(self.committed),
            topics=[FetchTopic(topic=name, partitions=items) for name, items in topics.items()],
        )

        def ask() -> FetchResponse:
            response = self.client.broker(leader).request(
                request,
                FetchResponse,
                max_version=_BY_NAME_VERSION,
                timeout_ms=self.client.timeout_ms + max_wait_ms,
            )
            check(response.error_code, "fetch")
            return response

        try:
            return ask()
        except ClientError as error:
            if not error.retriable:
                raise
            # The broker is restarting or has moved its partitions: wait until the cluster answers again.
            self.client.forget()
            self.client.metadata([])
            return None

    def _records(self, tp: TopicPartition, data: PartitionData) -> Iterator[ReadRecord]:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._come_back_into_range(tp)
            return
        try:
            check(data.error_code, f"partition {tp}")
        except ClientError as error:
            if not error.retriable:
                raise
            self.client.forget()
            return
        for record in self._visible(tp, data):
            if record.offset >= self.positions[tp]:
                self.positions[tp] = record.offset + 1
                yield ReadRecord(tp, record)

    def _come_back_into_range(self, tp: TopicPartition) -> None:
        topics = Topics(self.client)
        start, end = topics.offsets([tp], EARLIEST)[tp], topics.offsets([tp], LATEST)[tp]
        asked = self.positions[tp]
        if start <= asked <= end:
            return
        if asked > end:
            raise ClientError("OFFSET_OUT_OF_RANGE", f"partition {tp}: offset {asked} is past the end, {end}")
        self.positions[tp] = self.moved[tp] = start

    def _visible(self, tp: TopicPartition, data: PartitionData) -> Iterator[Record]:
        aborted = AbortedTransactions(data.aborted_transactions or () if self.committed else ())
        try:
            for batch in whole_batches(data.records):
                header = parse_header(batch)
                if header.last_offset >= self.positions[tp]:
                    check_crc(batch)
                    if header.control:
                        marker = read_marker(batch)
                        if marker is not None and not marker.commit:
                            aborted.end(header.producer_id)
                    elif not (header.transactional and aborted.hides(header.producer_id, header.last_offset)):
                        yield from iter_records(batch)
                self.positions[tp] = max(self.positions[tp], header.last_offset + 1)
        except CorruptBatch as error:
            raise ClientError("CORRUPT_MESSAGE", f"partition {tp} near offset {self.positions[tp]}: {error}") from error


class AbortedTransactions:
    """Which producers' records are being skipped at this point of a partition."""

    def __init__(self, listed: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(listed, key=lambda item: item.first_offset, reverse=True)
        self._open: set[int] = set()

    def hides(self, producer_id: int, last_offset: int) -> bool:
        while self._coming and self._coming[-1].first_offset <= last_offset:
            self._open.add(self._coming.pop().producer_id)
        return producer_id in self._open

    def end(self, producer_id: int) -> None:
        self._open.discard(producer_id)
