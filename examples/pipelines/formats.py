"""Conversion rules: a document as JSON, CSV or Avro bytes, to columns and back.

JSON and CSV are parsed and written by Spark itself. Avro is not in PySpark's package: `fastavro` does it, a pandas series at a
time. In every format a value that does not parse gives no document and a reason, never an exception: what to do with it
is for the caller to say.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

JSON, CSV, AVRO = "application/json", "text/csv", "application/avro"
FORMATS = (JSON, CSV, AVRO)
_AVRO_TYPES = {"BIGINT": "long", "INT": "int", "STRING": "string", "BOOLEAN": "boolean", "DOUBLE": "double"}


def parsed(value: Column, content_type: Column, fields: Mapping[str, str]) -> Column:
    """A struct of `document` (null when there is none) and `reason` (null when there is one).

    `fields` are the document's fields with their SQL types.
    """
    text = value.cast("string")
    problem = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_problem"}
    schema = ", ".join(f"{name} {kind}" for name, kind in fields.items())
    as_json = f.from_json(f.when(content_type == JSON, text), f"{schema}, _problem STRING", problem)
    as_csv = f.from_csv(f.when(content_type == CSV, text), f"{schema}, _problem STRING", problem)
    as_avro = _avro_decoder(fields)(f.when(content_type == AVRO, value))
    document = f.when(content_type == JSON, _only(as_json, fields)).when(content_type == CSV, _only(as_csv, fields))
    document = document.when(content_type == AVRO, _only(as_avro, fields))
    reason = (
        f.when(value.isNull(), f.lit("there is no value"))
        .when(content_type.isNull(), f.lit("there is no header content-type"))
        .when(~content_type.isin(*FORMATS), f.concat(f.lit("no rule converts "), content_type))
        .when(as_json["_problem"].isNotNull(), f.lit("not JSON with these fields"))
        .when(as_csv["_problem"].isNotNull(), f.lit("not CSV with these columns"))
        .when(as_avro["_problem"].isNotNull(), f.concat(f.lit("not Avro: "), as_avro["_problem"]))
    )
    return f.struct(f.when(reason.isNull(), document).alias("document"), reason.alias("reason"))


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


def _only(column: Column, fields: Mapping[str, str]) -> Column:
    return f.struct(*(column[name].alias(name) for name in fields))


# The functions below are sent to Spark's workers by value, since these cannot import this folder: so they import for
# themselves and use nothing of this module.


def _avro_decoder(fields: Mapping[str, str]) -> Column:
    schema, names = json.dumps(avro_schema(fields)), list(fields)
    returned = ", ".join(f"{name} {kind}" for name, kind in fields.items()) + ", _problem STRING"

    def decode(values: pd.Series) -> pd.DataFrame:
        import io
        import json

        import fastavro
        import pandas

        known = fastavro.parse_schema(json.loads(schema))
        rows = []
        for value in values:
            row: dict[str, object] = dict.fromkeys([*names, "_problem"])
            if value is not None:
                stream = io.BytesIO(value)
                try:
                    row.update(fastavro.schemaless_reader(stream, known, None))
                    if stream.read(1):
                        row["_problem"] = "bytes are left over"
                except Exception as error:  # fastavro lets through whatever its parts raise on hostile bytes
                    row["_problem"] = f"{type(error).__name__} {error}".strip()
            rows.append(row)
        return pandas.DataFrame(rows, columns=[*names, "_problem"], dtype=object)

    return f.pandas_udf(decode, returned)


def _avro_encoder(fields: Mapping[str, str]) -> Column:
    schema = json.dumps(avro_schema(fields))

    def encode(documents: pd.DataFrame) -> pd.Series:
        import io
        import json

        import fastavro
        import pandas

        known = fastavro.parse_schema(json.loads(schema))
        encoded: list[bytes | None] = []
        for document in documents.astype(object).to_dict("records"):
            # A row of another format comes as nothing but nulls, and what it gives is not used.
            given = {name: None if pandas.isna(value) else value for name, value in document.items()}
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, known, given)
            encoded.append(stream.getvalue())
        return pandas.Series(encoded, dtype=object)

    return f.pandas_udf(encode, "binary")
