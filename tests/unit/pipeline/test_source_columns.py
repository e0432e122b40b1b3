"""Record batches to columns and back: the same records as the readable reference gives, and nothing but CorruptBatch for
what is malformed."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.client.partitioner import partition_for_key
from trunkline.log import compression as codecs
from trunkline.log.batch import HEADER_BYTES, NewRecord, build_batch, iter_records, parse_header, seal_batch
from trunkline.log.errors import CorruptBatch
from trunkline.pipeline.arrow import HEADERS, BatchMaker, bytes_input, headers_input
from trunkline.pipeline.columns import ColumnBuilder
from trunkline.pipeline.encoding import BatchBody, append_rows, choose_targets

BYTES = st.none() | st.binary(max_size=200)
HEADER = st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20))
RECORDS = st.lists(
    st.builds(NewRecord, BYTES, BYTES, st.lists(HEADER, max_size=3), st.integers(0, 2**41)), min_size=1, max_size=40
)
Row = tuple[bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]]]


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    found = []
    for row in batch.to_pylist():
        stamp_us = int(row["timestamp"].timestamp() * 1_000_000 + 0.5)
        headers = [(item["key"], item["value"]) for item in row["headers"]]
        found.append((row["key"], row["value"], row["offset"], stamp_us // 1000, headers))
    return found


def expected_of(batch: bytes, first: int, end: int) -> list[Row]:
    return [
        (record.key, record.value, record.offset, record.timestamp_ms, list(record.headers))
        for record in iter_records(batch)
        if first <= record.offset < end
    ]


@given(st.lists(RECORDS, min_size=1, max_size=3), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_columns_are_what_the_reference_reads(runs: list[list[NewRecord]], first: int, count: int) -> None:
    builder = ColumnBuilder(True)
    expected: list[Row] = []
    base = 0
    for records in runs:
        batch = build_batch(records, base_offset=base)
        builder.add(parse_header(batch), batch, HEADER_BYTES, first, first + count)
        expected += expected_of(batch, first, first + count)
        base += len(records)
    assert builder.rows == len(expected)
    made = BatchMaker("topic", 3, headers=True).make(builder.take())
    assert rows_of(made) == expected
    assert set(made.column("topic").to_pylist()) <= {"topic"}
    assert set(made.column("partition").to_pylist()) <= {3}
    assert set(made.column("timestampType").to_pylist()) <= {0}
    assert builder.rows == 0


@given(RECORDS, st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_batches_raise_corrupt_batch_and_nothing_else(records: list[NewRecord], data: st.DataObject) -> None:
    batch = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(HEADER_BYTES, len(batch)))
    damaged = bytes(batch[:cut])
    builder = ColumnBuilder(True)
    try:
        builder.add(parse_header(bytes(batch)), damaged, HEADER_BYTES, 0, 2**60)
    except CorruptBatch:
        return
    assert builder.rows == len(records)


def test_log_append_time_is_the_batchs() -> None:
    batch = build_batch([NewRecord(None, b"x", (), 5), NewRecord(None, b"y", (), 9)])
    header = parse_header(batch)._replace(attributes=0x08, max_timestamp_ms=77)
    builder = ColumnBuilder(False)
    builder.add(header, batch, HEADER_BYTES, 0, 10)
    taken = builder.take()
    assert struct.unpack("<2q", taken.timestamps_us) == (77_000, 77_000)
    assert struct.unpack("<2i", taken.timestamp_types) == (1, 1)


@given(RECORDS, st.integers(1, 4), st.sampled_from(["none", "lz4", "zstd"]), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_rows_are_encoded_as_records_and_split_among_partitions(
    records: list[NewRecord], partitions: int, compression: str, skipped: int
) -> None:
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    keys = pa.array([record.key for record in records], pa.binary())[skipped:]
    values = pa.array([record.value for record in records], pa.binary())[skipped:]
    lists = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
    headers = pa.array(lists, kind)[skipped:]
    rows = len(values)
    key_input, value_input = bytes_input(keys), bytes_input(values)
    targets = choose_targets(key_input, rows, partitions, 0)
    bodies = [BatchBody() for _ in range(partitions)]
    at = 0
    while at < rows:
        at = append_rows(bodies, targets, key_input, value_input, headers_input(headers), at, rows, 1)
    for partition, body in enumerate(bodies):
        wanted = [
            (record.key, record.value, list(record.headers))
            for record in records[skipped:]
            if (0 if record.key is None else partition_for_key(record.key, partitions)) == partition
        ]
        if not wanted:
            assert body.count == 0
            continue
        codec = codecs.CODEC_NUMBERS[compression]
        batch = seal_batch(
            codecs.compress(codec, body.out.getvalue()),
            base_offset=0,
            attributes=codec,
            last_offset_delta=body.count - 1,
            base_timestamp_ms=1,
            max_timestamp_ms=1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=body.count,
        )
        assert [(item.key, item.value, list(item.headers)) for item in iter_records(batch)] == wanted


def test_null_lists_of_headers_are_no_headers_and_a_header_needs_a_name() -> None:
    body = BatchBody()
    values = bytes_input(pa.array(["a", "b"]))
    append_rows([body], bytes(8), None, values, headers_input(pa.array([None, []], HEADERS)), 0, 2, 1 << 20)
    assert body.count == 2
    nameless = headers_input(pa.array([[{"key": None, "value": b"x"}]], HEADERS))
    with pytest.raises(ValueError, match="no name"):
        append_rows([body], bytes(4), None, values, nameless, 0, 1, 1 << 20)
