"""The records of one offset range of a partition, as Arrow batches.

Fetches of `FETCH_BYTES` go to the partition's leader, the next one in a thread while this one is decoded. Of what comes,
record batches that end before the range are stepped over, as are control batches and, under read_committed, those of
aborted transactions. The range ends when a batch at or past its end comes, or the position reaches it: offsets need not
be dense, because transactions and compaction leave gaps.

Where the broker's segment files are on this machine they are read directly (see `segments`), and fetches take over where
that stops.

A lost connection is tried again until the request time-out is over. If retention overtakes the reader, that is a
`DataLoss`, or, where the query says so, the range goes on from what is left. A range that was planned and whose records do
not come for `stall_timeout_ms` is an error: waiting for ever would look like progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from trunkline.client.client import Client
from trunkline.client.errors import ClientError, check
from trunkline.client.reader import AbortedTransactions
from trunkline.log import compression as codecs
from trunkline.log.batch import HEADER_BYTES, BatchHeader, check_crc, parse_header, read_marker, whole_batches
from trunkline.log.errors import CorruptBatch
from trunkline.pipeline import limits, segments
from trunkline.pipeline.arrow import BatchMaker
from trunkline.pipeline.columns import ColumnBuilder
from trunkline.pipeline.planning import DataLoss, OffsetRange
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

_BY_NAME_VERSION = 12  # later versions of Fetch name topics by id
_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a range is read; part of what is sent to an executor."""

    committed: bool
    include_headers: bool
    fail_on_data_loss: bool
    stall_timeout_ms: int
    local_segments: bool = True


class RangeReader:
    def __init__(self, client: Client, wanted: OffsetRange, settings: ReadSettings) -> None:
        self._client = client
        self._wanted = wanted
        self._settings = settings
        self._tp = wanted.tp
        self._position = wanted.start
        self._builder = ColumnBuilder(settings.include_headers)
        self._maker = BatchMaker(wanted.topic, wanted.partition, headers=settings.include_headers)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._read_files()
        if self._position < self._wanted.end:
            yield from self._fetch_all()
        if self._builder.rows:
            yield self._maker.make(self._builder.take())

    def _read_files(self) -> Iterator[pa.RecordBatch]:
        if not self._settings.local_segments or self._wanted.end - self._wanted.start < segments.MIN_RECORDS:
            return
        directory = segments.find_log(self._client)
        if directory is None:
            return
        none_aborted = AbortedTransactions(())
        for run in segments.local_batches(directory, self._wanted, committed=self._settings.committed):
            yield from self._decode(run, none_aborted)
            self._position = run[-1][0].last_offset + 1

    def _fetch_all(self) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(1, thread_name_prefix="trunkline-fetch") as thread:
            heard_ms = self._client.clock.monotonic_ms()
            coming: Future[PartitionData] = thread.submit(self._fetch, self._position)
            while self._position < self._wanted.end:
                data = coming.result()
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._skip_lost(data)
                    coming = thread.submit(self._fetch, self._position)
                    continue
                check(data.error_code, f"partition {self._tp}")
                found = self._in_range(data)
                now_ms = self._client.clock.monotonic_ms()
                if found:
                    heard_ms = now_ms
                    after = found[-1][0].last_offset + 1
                    if after < self._wanted.end:
                        coming = thread.submit(self._fetch, after)
                    yield from self._decode(found, AbortedTransactions(data.aborted_transactions or ()))
                    self._position = max(self._position, after)
                else:
                    if now_ms - heard_ms > self._settings.stall_timeout_ms:
                        raise ClientError("TIMED_OUT", self._stalled(data))
                    coming = thread.submit(self._fetch, self._position)

    def _decode(
        self, batches: list[tuple[BatchHeader, memoryview]], aborted: AbortedTransactions
    ) -> Iterator[pa.RecordBatch]:
        """The visible records of these batches, as far as they fill Arrow batches; the rest waits in the builder."""
        builder, wanted = self._builder, self._wanted
        for header, batch in batches:
            try:
                check_crc(batch)
                if header.control:
                    marker = read_marker(batch)
                    if marker is not None and not marker.commit:
                        aborted.end(header.producer_id)
                    continue
                if (
                    self._settings.committed
                    and header.transactional
                    and aborted.hides(header.producer_id, header.last_offset)
                ):
                    continue
                if header.codec:
                    body = memoryview(batch)[HEADER_BYTES:]
                    builder.add(header, bytes(codecs.decompress(header.codec, body)), 0, wanted.start, wanted.end)
                else:
                    builder.add(header, bytes(batch), HEADER_BYTES, wanted.start, wanted.end)
            except CorruptBatch as error:
                raise ClientError("CORRUPT_MESSAGE", f"{self._tp} at offset {header.base_offset}: {error}") from error
            if (
                builder.rows >= limits.MAX_ROWS_PER_ARROW_BATCH
                or builder.size_bytes >= limits.MAX_BYTES_PER_ARROW_BATCH
            ):
                yield self._maker.make(builder.take())

    def _in_range(self, data: PartitionData) -> list[tuple[BatchHeader, memoryview]]:
        found: list[tuple[BatchHeader, memoryview]] = []
        try:
            for batch in whole_batches(data.records):
                header = parse_header(batch)
                if header.base_offset >= self._wanted.end:
                    self._position = self._wanted.end
                    break
                if header.last_offset >= self._position:
                    found.append((header, batch))
        except CorruptBatch as error:
            raise ClientError("CORRUPT_MESSAGE", f"{self._tp} near offset {self._position}: {error}") from error
        return found

    def _fetch(self, offset: int) -> PartitionData:
        part = FetchPartition(partition=self._tp.partition, fetch_offset=offset, partition_max_bytes=limits.FETCH_BYTES)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=limits.FETCH_BYTES,
            isolation_level=int(self._settings.committed),
            topics=[FetchTopic(topic=self._tp.topic, partitions=[part])],
        )

        def ask() -> PartitionData:
            leader = self._client.leaders(self._tp.topic).get(self._tp.partition)
            if leader is None:
                raise ClientError("UNKNOWN_TOPIC_OR_PARTITION", f"partition {self._tp} does not exist any more")
            response = self._client.broker(leader).request(request, FetchResponse, max_version=_BY_NAME_VERSION)
            check(response.error_code, f"partition {self._tp}")
            data = response.responses[0].partitions[0]
            if data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                check(data.error_code, f"partition {self._tp}")
            return data

        try:
            return self._client.retrying(ask)
        except ClientError as error:
            if error.name == "UNKNOWN_TOPIC_OR_PARTITION":
                raise DataLoss(f"{error}; it was deleted while it was read") from error
            raise

    def _skip_lost(self, data: PartitionData) -> None:
        log_start = data.log_start_offset
        if self._settings.fail_on_data_loss or log_start <= self._position:
            raise DataLoss(
                f"{self._tp}: offset {self._position} is to be read, but the log begins at {log_start} and ends at "
                f"{data.high_watermark}. Keep records for longer (retention.ms), "
                'or set option("failOnDataLoss", "false") to go on with what is there'
            )
        self._position = min(log_start, self._wanted.end)

    def _stalled(self, data: PartitionData) -> str:
        return (
            f"{self._tp}: no records from offset {self._position} on for {self._settings.stall_timeout_ms} ms, though the "
            f"range ends at {self._wanted.end}; the last stable offset is {data.last_stable_offset}, "
            f"the end of the log {data.high_watermark}"
        )
