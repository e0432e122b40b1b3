"""Rows on their way to topics: Arrow batches in, record batches out, one body per partition until it is full.

A row goes to the partition that its `partition` column names; without one, to that of its key's hash, as with Java clients;
without a key, to a partition that changes with every record batch. It goes to the topic of its `topic` column, or to the
one that the sink's option names, which wins.

`finish` sends what is left and waits for every acknowledgement. Whether the rows count is up to the transaction that they
may be part of.

`pyarrow.compute` takes a third of a second to import, which every Python worker would pay: only rows that name their topic or
partition need it.

Limits: per partition one body of `MAX_BATCH_BODY_BYTES` is gathered, and what `Sender` has in flight.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from trunkline.client.client import Client
from trunkline.client.sending import Sender
from trunkline.client.transaction import Transaction
from trunkline.log import compression as codecs
from trunkline.log.batch import TRANSACTIONAL, advance_sequence, seal_batch
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.arrow import bytes_input, headers_input
from trunkline.pipeline.encoding import BatchBody, BytesInput, append_rows, choose_targets

_INT32 = struct.Struct("<i")


class RowError(ValueError):
    """A row that cannot be written; the message says which column and why."""


class _TopicRows:
    """The bodies of one topic."""

    def __init__(self, name: str, partitions: int, first: int) -> None:
        self.name = name
        self.bodies = [BatchBody() for _ in range(partitions)]
        self.sticky = first % partitions


class Outgoing:
    def __init__(
        self,
        client: Client,
        *,
        topic: str | None,
        compression: str,
        producer: tuple[int, int],
        transaction: Transaction | None,
        first_partition: int = 0,
    ) -> None:
        self._client = client
        self._topic = topic
        self._codec = codecs.CODEC_NUMBERS[compression]
        self._producer_id, self._producer_epoch = producer
        self._transaction = transaction
        self._sender = Sender(client, None if transaction is None else transaction.transactional_id)
        self._first_partition = first_partition
        self._topics: dict[str, _TopicRows] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self.rows = 0
        self.row_bytes = 0

    @property
    def sent_bytes(self) -> int:
        return self._sender.sent_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        names = set(batch.schema.names)
        if self._topic is not None:
            self._add(self._topic, batch)
        elif "topic" not in names:
            raise RowError('where to? Set option("topic", "NAME"), or have a column named topic')
        else:
            import pyarrow.compute as pc

            column = batch.column("topic")
            if column.null_count:
                raise RowError("column topic is null in a row, and the option topic is not set")
            for name in pc.unique(column).to_pylist():
                self._add(name, batch.filter(pc.equal(column, name)))
        self.rows += batch.num_rows
        self.row_bytes += row_bytes(batch)

    def finish(self) -> None:
        for topic in self._topics.values():
            self._send(topic, [index for index, body in enumerate(topic.bodies) if body.count])
        self._sender.flush()

    def _add(self, name: str, batch: pa.RecordBatch) -> None:
        topic = self._topics.get(name)
        if topic is None:
            count = len(self._client.topic(name, create=True).partitions)
            topic = self._topics[name] = _TopicRows(name, count, self._first_partition)
        columns = {field.name: batch.column(index) for index, field in enumerate(batch.schema)}
        values = bytes_input(columns["value"])
        keys = bytes_input(columns["key"]) if "key" in columns else None
        headers = headers_input(columns["headers"]) if "headers" in columns else None
        fixed = columns.get("partition")
        row, rows = 0, batch.num_rows
        while row < rows:
            targets = self._targets(topic, keys, fixed, rows)
            row = append_rows(topic.bodies, targets, keys, values, headers, row, rows, limits.MAX_BATCH_BODY_BYTES)
            full = [index for index, body in enumerate(topic.bodies) if len(body.out) >= limits.MAX_BATCH_BODY_BYTES]
            if full:
                self._send(topic, full)
                if topic.sticky in full:
                    topic.sticky = (topic.sticky + 1) % len(topic.bodies)

    @staticmethod
    def _targets(topic: _TopicRows, keys: BytesInput | None, fixed: pa.Array | None, rows: int) -> bytes:
        partitions = len(topic.bodies)
        chosen = choose_targets(keys, rows, partitions, topic.sticky)
        if fixed is None or fixed.null_count == rows:
            return chosen
        import pyarrow.compute as pc

        asked = fixed.cast(pa.int32())
        bounds = pc.min_max(asked).as_py()
        if bounds["min"] < 0 or bounds["max"] >= partitions:
            wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
            raise RowError(f"column partition is {wrong} in a row, and topic {topic.name} has {partitions} partitions")
        hashed = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(chosen)])
        merged = pc.coalesce(asked, hashed)
        return bytes(merged.buffers()[1].to_pybytes()[4 * merged.offset : 4 * (merged.offset + rows)])

    def _send(self, topic: _TopicRows, indexes: list[int]) -> None:
        if not indexes:
            return
        batches: dict[TopicPartition, bytes] = {}
        for index in indexes:
            body = topic.bodies[index]
            topic.bodies[index] = BatchBody()
            tp = TopicPartition(topic.name, index)
            batches[tp] = self._seal(tp, body)
        if self._transaction is not None:
            self._transaction.add(batches)
        self._sender.send(batches)

    def _seal(self, tp: TopicPartition, body: BatchBody) -> bytes:
        now_ms = self._client.clock.wall_ms()
        sequence = -1
        if self._producer_id >= 0:
            sequence = self._sequences.get(tp, 0)
            self._sequences[tp] = advance_sequence(sequence, body.count)
        records = body.out.getvalue()
        return seal_batch(
            codecs.compress(self._codec, records) if self._codec else records,
            base_offset=0,
            attributes=self._codec | (TRANSACTIONAL if self._transaction is not None else 0),
            last_offset_delta=body.count - 1,
            base_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
            record_count=body.count,
        )


def row_bytes(batch: pa.RecordBatch) -> int:
    """The keys and values of a batch: the same for the same rows, however they are cut into batches."""
    total = 0
    for index, field in enumerate(batch.schema):
        if field.name in {"key", "value"}:
            column = bytes_input(batch.column(index))
            first, last = (_INT32.unpack_from(column.ends, 4 * (column.first + row))[0] for row in (0, batch.num_rows))
            total += last - first
    return total
