"""Arrow batches from the buffers of `columns`, and the inputs of `encoding` from Arrow arrays. Buffers are not copied here
where Arrow can use them as they are.

The columns have the names and types that Spark's Kafka source gives them:

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp[µs, UTC],
    timestampType int, and, if asked for, headers array<struct<key: string, value: binary>>
"""

from __future__ import annotations

import pyarrow as pa

from trunkline.pipeline.columns import BytesBuffers, ColumnBuffers, HeaderBuffers
from trunkline.pipeline.encoding import BytesInput, HeadersInput

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", _HEADER))
_FIELDS = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
)
_BYTES_PER_INT32 = 4


def arrow_schema(*, headers: bool) -> pa.Schema:
    return pa.schema([*_FIELDS, pa.field("headers", HEADERS)] if headers else _FIELDS)


class BatchMaker:
    """Makes Arrow batches of one log partition. The columns that are the same in every row are made once and cut."""

    def __init__(self, topic: str, partition: int, *, headers: bool) -> None:
        self._schema = arrow_schema(headers=headers)
        self._topic = topic
        self._partition = partition
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())

    def make(self, buffers: ColumnBuffers) -> pa.RecordBatch:
        rows = buffers.rows
        if len(self._topics) < rows:
            self._topics = pa.repeat(pa.scalar(self._topic, pa.string()), rows)
            self._partitions = pa.repeat(pa.scalar(self._partition, pa.int32()), rows)
        columns = [
            _bytes_array(pa.binary(), rows, buffers.keys),
            _bytes_array(pa.binary(), rows, buffers.values),
            self._topics[:rows],
            self._partitions[:rows],
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(buffers.offsets)]),
            pa.Array.from_buffers(self._schema.field(5).type, rows, [None, pa.py_buffer(buffers.timestamps_us)]),
            pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(buffers.timestamp_types)]),
        ]
        if buffers.headers is not None:
            columns.append(_headers_array(rows, buffers.headers))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _bytes_array(kind: pa.DataType, rows: int, buffers: BytesBuffers) -> pa.Array:
    validity = None if buffers.validity is None else pa.py_buffer(buffers.validity)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(buffers.ends), pa.py_buffer(buffers.data)])


def _headers_array(rows: int, buffers: HeaderBuffers) -> pa.Array:
    count = buffers.elements
    names = _bytes_array(pa.string(), count, buffers.names)
    names.validate(full=True)  # names are text, and only the producer knows whether they are UTF-8
    values = _bytes_array(pa.binary(), count, buffers.values)
    elements = pa.Array.from_buffers(_HEADER, count, [None], children=[names, values])
    return pa.Array.from_buffers(HEADERS, rows, [None, pa.py_buffer(buffers.ends)], children=[elements])


# -- the way back ----------------------------------------------------------------------------------------------------


def bytes_input(array: pa.Array) -> BytesInput:
    """A column of strings or binaries as the encoder takes it."""
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = array.cast(pa.binary())
    validity, ends, data = array.buffers()
    return BytesInput(
        None if validity is None or array.null_count == 0 else validity.to_pybytes(),
        _ends(ends),
        b"" if data is None else data.to_pybytes(),
        array.offset,
    )


def headers_input(array: pa.Array) -> HeadersInput:
    """A column of lists of (key, value)."""
    if not pa.types.is_list(array.type):
        array = array.cast(HEADERS)
    validity, ends = array.buffers()[:2]
    elements = array.values
    # `field` keeps the buffers of a sliced struct as they are; `flatten` is what takes its offset and nulls into account.
    names, values = elements.flatten()
    return HeadersInput(
        None if validity is None or array.null_count == 0 else validity.to_pybytes(),
        _ends(ends),
        array.offset,
        bytes_input(names),
        bytes_input(values),
    )


def _ends(buffer: pa.Buffer | None) -> bytes:
    """Arrow may leave out the ends of an array without rows."""
    return bytes(_BYTES_PER_INT32) if buffer is None or buffer.size == 0 else buffer.to_pybytes()
