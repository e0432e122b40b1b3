"""Conversion rules: a document as JSON, CSV or Avro bytes, to columns and back.

JSON and CSV are parsed and written by Spark itself. Avro is not in PySpark's package: the decoder of our pipelines and
`fastavro` do it, an Arrow batch at a time. In every format a value that does not parse gives no document and a reason, never an exception: what to do with it
is for the caller to say.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.types import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

JSON, CSV, AVRO = "application/json", "text/csv", "application/avro"
FORMATS = (JSON, CSV, AVRO)
_AVRO_TYPES = {"BIGINT": "long", "INT": "int", "STRING": "string", "BOOLEAN": "boolean", "DOUBLE": "double"}


def parsed(records: DataFrame, fields: Mapping[str, str]) -> DataFrame:
    """The records with two columns more: `document`, null when there is none, and `reason`, null when there is one.

    The format is in the column `content_type`; `fields` are the document's fields with their SQL types. Each format has
    a column of its own on the way: an expression that is used by several others is then computed once.
    """
    value, content_type = f.col("value"), f.col("content_type")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_problem"}
    schema = ", ".join(f"{name} {kind}" for name, kind in fields.items()) + ", _problem STRING"
    attempts = records.withColumns(
        {
            "_json": f.from_json(f.when(content_type == JSON, value.cast("string")), schema, options),
            "_csv": f.from_csv(f.when(content_type == CSV, value.cast("string")), schema, options),
            "_avro": _avro_decoder(fields)(f.when(content_type == AVRO, value)),
        }
    ).withColumn("_attempt", f.coalesce("_json", "_csv", "_avro"))
    reason = (
        f.when(value.isNull(), f.lit("there is no value"))
        .when(content_type.isNull(), f.lit("there is no header content-type"))
        .when(~content_type.isin(*FORMATS), f.concat(f.lit("no rule converts "), content_type))
        .when(f.col("_json._problem").isNotNull(), f.lit("not JSON with these fields"))
        .when(f.col("_csv._problem").isNotNull(), f.lit("not CSV with these columns"))
        .when(f.col("_avro._problem").isNotNull(), f.col("_avro._problem"))
    )
    document = f.struct(*(f.col(f"_attempt.{name}").alias(name) for name in fields))
    judged = attempts.withColumn("reason", reason)
    judged = judged.withColumn("document", f.when(f.col("reason").isNull(), document))
    return judged.drop("_json", "_csv", "_avro", "_attempt")


def written(document: Column, content_type: Column, fields: Mapping[str, str]) -> Column:
    """The document's bytes in a format."""
    return (
        f.when(content_type == JSON, f.to_json(document).cast("binary"))
        .when(content_type == CSV, f.to_csv(document).cast("binary"))
        .otherwise(_avro_encoder(fields)(f.when(content_type == AVRO, document)))
    )


def avro_schema(fields: Mapping[str, str]) -> dict[str, object]:
    """The Avro schema of a document: every field may be null."""
    columns = [{"name": name, "type": ["null", _AVRO_TYPES[kind]]} for name, kind in fields.items()]
    return {"type": "record", "name": "document", "fields": columns}


# The functions below are sent to Spark's workers by value, since these cannot import this folder: so they import for
# themselves and use nothing of this module.


def _avro_decoder(fields: Mapping[str, str]) -> Callable[[Column], Column]:
    schema = json.dumps(avro_schema(fields))
    returned = DataType.fromDDL(", ".join(f"{name} {kind}" for name, kind in fields.items()) + ", _problem STRING")

    def decode(values: pa.Array) -> pa.Array:
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_type

        from trunkline.pipeline.avro import Decoder

        decoder = Decoder(schema)
        rows: list[dict[str, object] | None] = []
        for value in values.to_pylist():
            document, problem = (None, None) if value is None else decoder.decode(value)
            rows.append(None if value is None else {**(document or {}), "_problem": problem})
        return pyarrow.array(rows, type=to_arrow_type(returned, timezone="UTC"))

    return arrow_udf(decode, returned, ArrowUDFType.SCALAR)


def _avro_encoder(fields: Mapping[str, str]) -> Callable[[Column], Column]:
    schema = json.dumps(avro_schema(fields))

    def encode(documents: pa.Array) -> pa.Array:
        import io
        import json

        import fastavro
        import pyarrow

        known = fastavro.parse_schema(json.loads(schema))
        encoded: list[bytes | None] = []
        for document in documents.to_pylist():
            stream = io.BytesIO()
            if document is not None:
                fastavro.schemaless_writer(stream, known, document)
            encoded.append(None if document is None else stream.getvalue())
        return pyarrow.array(encoded, type=pyarrow.binary())

    return arrow_udf(encode, "binary", ArrowUDFType.SCALAR)
