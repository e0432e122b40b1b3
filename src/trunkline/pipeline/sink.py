"""The writers of `format("trunkline")`: each task writes its rows, exactly once unless told otherwise.

A streaming write is identified by the query's id and the number of its batch, a batch write by a name made for the job, or by
the options `txnAppId` and `txnVersion` where a job may be run again and must not write twice. With that a task's rows are
written once however often it is tried: see `ledger`. Rows count when their task is done, all of a task's at the same time;
readers with read_committed, the default of our source, never see those of a failed attempt.

With `delivery` at-least-once there are no transactions: rows are visible as they come, a repeated task repeats its rows.

The driver has nothing to do when all tasks are done but to remove the marks of a job that will not come back.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, ShortType, StringType, StructType

from trunkline.client.client import Client
from trunkline.client.errors import ClientError
from trunkline.client.producer import producer_identity
from trunkline.client.transaction import Transaction
from trunkline.pipeline.clients import client_for
from trunkline.pipeline.garbage import freeze_once
from trunkline.pipeline.ledger import Amount, Ledger
from trunkline.pipeline.options import AT_LEAST_ONCE, OptionError, SinkOptions, say_passed_over
from trunkline.pipeline.outgoing import Outgoing, row_bytes

COLUMNS = ("value", "key", "headers", "topic", "partition")
_BATCH_PROPERTY = "streaming.sql.batchId"
_QUERY_PROPERTY = "sql.streaming.queryId"


@dataclass
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int
    stored_bytes: int
    repeated: bool
    """The rows were in the log already, from an earlier attempt."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the query a task is."""

    application: str
    batch: int
    task: int
    streaming: bool


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuse, when the query is planned, what cannot be written. Columns that records have no place for are passed over."""
    types = {field.name: field.dataType for field in schema.fields if field.name in COLUMNS}
    if "value" not in types:
        raise OptionError(f"the sink needs a column named value, of type binary or string; there is {schema.names}")
    for name in ("value", "key", "topic"):
        if name in types and not isinstance(types[name], (BinaryType, StringType)):
            raise OptionError(f"column {name} is {types[name].simpleString()}; it must be binary or string: cast it")
    if "partition" in types and not isinstance(types["partition"], (IntegerType, LongType, ShortType)):
        raise OptionError(f"column partition is {types['partition'].simpleString()}; it must be int")
    headers = types.get("headers")
    if headers is not None and headers.simpleString() not in {
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
    }:
        raise OptionError(
            f"column headers is {headers.simpleString()}; it must be array<struct<key:string,value:binary>>"
        )
    if options.topic is None and "topic" not in types:
        raise OptionError('where to? Set option("topic", "NAME"), or have a column named topic')


class _RowWriter:
    """What both writers do in a task."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write_rows(self, batches: Iterator[pa.RecordBatch], place: _Place) -> TaskWritten:
        first = next((batch for batch in batches if batch.num_rows), None)
        freeze_once()
        if first is None:
            return TaskWritten(0, 0, repeated=False)  # nothing to write is nothing to remember
        client = client_for(self.options, known_to_run=place.streaming)
        if self.options.delivery == AT_LEAST_ONCE:
            outgoing = self._outgoing(client, place, producer_identity(client), None)
            return _drain(outgoing, first, batches)
        ledger = Ledger(client, place.application)
        ledger.prepare(place.task)
        transaction = Transaction(
            client, ledger.transactional_id(place.task), timeout_ms=self.options.transaction_timeout_ms
        )
        is_written, before = ledger.written(place.task, place.batch)
        if is_written:
            if before is not None:
                ledger.compare(place.task, place.batch, before, _amount(chain((first,), batches)))
            return TaskWritten(0, 0, repeated=True)
        try:
            outgoing = self._outgoing(client, place, (transaction.producer_id, transaction.epoch), transaction)
            written = _drain(outgoing, first, batches)
            ledger.mark(transaction, place.task, place.batch, Amount(outgoing.rows, outgoing.row_bytes))
        except BaseException:
            # The next attempt would end the transaction anyway; ending it now spares readers the wait.
            with contextlib.suppress(ClientError):
                transaction.abort()
            raise
        transaction.commit()
        return written

    def _outgoing(
        self, client: Client, place: _Place, producer: tuple[int, int], transaction: Transaction | None
    ) -> Outgoing:
        return Outgoing(
            client,
            topic=self.options.topic,
            compression=self.options.compression,
            producer=producer,
            transaction=transaction,
            first_partition=place.task + place.batch,
        )


def _amount(batches: Iterator[pa.RecordBatch]) -> Amount:
    rows = size_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        size_bytes += row_bytes(batch)
    return Amount(rows, size_bytes)


def _drain(outgoing: Outgoing, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> TaskWritten:
    outgoing.add(first)
    for batch in rest:
        outgoing.add(batch)
    outgoing.finish()
    return TaskWritten(outgoing.rows, outgoing.sent_bytes, repeated=False)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("the sink writes inside of a Spark task")
    return context


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._rows = _RowWriter(options)
        self._job = options.application or f"job-{uuid.uuid4().hex}"
        self._version = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        place = _Place(self._job, self._version, context.partitionId(), streaming=False)
        return self._rows.write_rows(iterator, place)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._clean_up()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        options = self._rows.options
        if options.application is None and options.delivery != AT_LEAST_ONCE:
            Ledger(client_for(options), self._job).forget()


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        if options.version is not None:
            raise OptionError("option txnVersion is for batch writes; a stream numbers its batches itself")
        freeze_once()  # Spark makes a writer in a planning worker for each batch, and in another to commit it
        self._rows = _RowWriter(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query = self._rows.options.application or context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        if query is None or batch is None:
            raise RuntimeError("Spark did not say which batch of which query this is")
        place = _Place(query, int(batch), context.partitionId(), streaming=True)
        return self._rows.write_rows(iterator, place)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Every task has committed its rows with its mark."""
        if batchId == 0:  # a writer is made for every batch: what it has no use for is said with the first
            say_passed_over(self._rows.options.passed_over, "sink")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was committed stays: when the batch comes back, the tasks that wrote it say so."""
