"""Records split into the rows that fit a schema and the malformed ones, with the reason.

JSON and CSV are parsed by Spark; only a malformed record costs Python, to say what is wrong with it. Avro is decoded in
Python, an Arrow batch at a time. Every record becomes exactly one row or one malformed record:

    row          the schema's columns, then _key, _topic, _partition, _offset, _timestamp (and _headers)
    malformed    key, value, headers, topic, partition, offset, timestamp as they were, and `reason`

A column declared NOT NULL must have a value. Fields that the schema does not have are passed over; fields that a record
does not have are null. So producers may add fields at any time, and leave out what is not NOT NULL. A record without a
value (a tombstone) is a row of nulls, unless a column is NOT NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every PySpark user knows)
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.types import DataType, StringType, StructField, StructType

from trunkline.pipeline import csv_schema, json_schema
from trunkline.pipeline.avro import AvroError, Decoder, columns, parse_schema
from trunkline.pipeline.definition import AVRO, FAIL, JSON, RAW, DefinitionError, Source
from trunkline.pipeline.json_schema import Columns
from trunkline.version import install_command

if TYPE_CHECKING:
    import pyarrow as pa

PARSED: Final = "_parsed"
_CORRUPT: Final = "_corrupt_record"
_RECORD_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp")
FRAME_OPTION: Final = "framing"
"""Of a source's `parse` table: `confluent` for Avro values with a schema id before them."""


@dataclass(frozen=True)
class Parsed:
    rows: DataFrame
    malformed: DataFrame | None
    """None where nothing can be malformed. It has the headers where the records have."""


@dataclass(frozen=True)
class Decoded:
    """Records with a column PARSED beside them: null, or null in places, where they are malformed."""

    frame: DataFrame
    schema: StructType
    malformed: Column
    reason: Column


def parse(records: DataFrame, source: Source, schema: str | None) -> Parsed:
    """`schema` is the source's, read from its file or inferred."""
    if source.format == RAW:
        return Parsed(records, None)
    assert schema is not None
    return _split(decode(records, source, schema), source)


def decode(records: DataFrame, source: Source, schema: str) -> Decoded:
    if source.format == AVRO:
        return _decode_avro(records, source, schema)
    return _decode_text(records, source, struct_of(schema, source.name))


def struct_of(schema: str, source: str) -> StructType:
    try:
        found = DataType.fromDDL(schema)
    except (ParseException, AnalysisException) as error:
        first = str(error).strip().splitlines()[0]
        raise DefinitionError(f"source {source!r}: the schema does not parse: {first}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise DefinitionError(f"source {source!r}: the schema must be columns, like 'id BIGINT NOT NULL, name STRING'")
    return found


def _decode_text(records: DataFrame, source: Source, schema: StructType) -> Decoded:
    # Spark only fills the column of corrupt records where the schema has it, and ignores NOT NULL: that is ours to check.
    lenient = StructType([StructField(item.name, item.dataType) for item in schema.fields])
    lenient = lenient.add(_CORRUPT, StringType())
    options = {**source.parse, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = F.col("value").cast("string")
    if source.format == JSON:
        parsed = F.from_json(text, lenient, options)
    else:
        parsed = F.from_csv(text, ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in lenient.fields), options)
    frame = records.withColumn(PARSED, parsed)
    missing = [F.col(f"{PARSED}.`{item.name}`").isNull() for item in schema.fields if not item.nullable]
    unreadable = F.col("value").isNotNull() & (F.col(PARSED).isNull() | F.col(f"{PARSED}.{_CORRUPT}").isNotNull())
    malformed = reduce(lambda one, other: one | other, missing, unreadable)
    about: Columns = {item.name: (item.dataType.simpleString(), not item.nullable) for item in schema.fields}
    separator = source.parse.get("sep", ",")

    def explain(value: bytes | None) -> str:
        return json_schema.explain(value, about) if is_json else csv_schema.explain(value, about, separator)

    is_json = source.format == JSON
    reason = F.udf(explain, StringType(), useArrow=False)(F.col("value"))
    return Decoded(frame, schema, malformed, reason)


def _decode_avro(records: DataFrame, source: Source, schema: str) -> Decoded:
    framed = _framed(source)
    try:
        names = columns(parse_schema(schema))
        Decoder(schema)
    except AvroError as error:
        raise DefinitionError(f"source {source.name!r}: {error}") from None
    except ImportError:
        raise DefinitionError(
            f"source {source.name!r}: format avro needs the package fastavro: {install_command('avro')}"
        ) from None
    rows = struct_of(names, source.name)
    decoded = StructType([StructField("row", rows), StructField("reason", StringType())])

    def decode_all(values: pa.Array) -> pa.Array:
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_type

        decoder = Decoder(schema, framed=framed)
        pairs = [decoder.decode(value) for value in values.to_pylist()]
        kind = to_arrow_type(decoded, timezone="UTC")
        return pyarrow.array([{"row": row, "reason": reason} for row, reason in pairs], type=kind)

    udf = arrow_udf(decode_all, decoded, ArrowUDFType.SCALAR)
    # The decoded column is computed once and then only looked into: a filter on it would otherwise decode again.
    frame = records.withColumn("_decoded", udf(F.col("value")))
    frame = frame.withColumn(PARSED, F.col("_decoded.row")).withColumn("_reason", F.col("_decoded.reason"))
    return Decoded(frame, rows, F.col("_reason").isNotNull(), F.col("_reason"))


def _framed(source: Source) -> bool:
    framing = source.parse.get(FRAME_OPTION, "none")
    if framing not in {"none", "confluent"}:
        raise DefinitionError(f"source {source.name!r}: parse.{FRAME_OPTION} must be none or confluent")
    return framing == "confluent"


def _split(decoded: Decoded, source: Source) -> Parsed:
    frame, malformed = decoded.frame, decoded.malformed
    headers = ("headers",) if "headers" in frame.columns else ()
    kept = [F.col(f"{PARSED}.`{item.name}`").alias(item.name) for item in decoded.schema.fields]
    kept += [F.col(name).alias(f"_{name}") for name in (*_RECORD_COLUMNS, *headers)]
    good = frame.where(~malformed)
    if source.on_error == FAIL:
        place = F.concat_ws(" ", F.lit("record"), F.col("topic"), F.col("partition"), F.lit("offset"), F.col("offset"))
        complaint = F.concat(place, F.lit(f" does not fit the schema of source {source.name}"))
        good = frame.where(F.when(malformed, F.raise_error(complaint).cast("boolean")).otherwise(F.lit(True)))
    bad = frame.where(malformed).select("value", *_RECORD_COLUMNS, *headers, decoded.reason.alias("reason"))
    return Parsed(good.select(*kept), bad)
