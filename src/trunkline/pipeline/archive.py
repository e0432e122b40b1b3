"""A topic kept as a lake table: every record once, from the first offset on, long after the log has expired it.

An archive is a pipeline of one source and one sink. It begins at the oldest record that the log still has (the backfill),
goes on from its checkpoint, and is partitioned by the date (UTC) of the records' timestamps.

    raw           partition, offset, timestamp, key, value, headers, date
    json, avro    the value's fields, then _partition, _offset, _timestamp, _key, _headers, _value, date

Nothing is left out: `_value` has the bytes of a record that does not fit the schema, or that has fields at the top which the
schema does not; it is null where the columns say it all. The schema of JSON is inferred from the topic's first records, or
declared, and stays: it is kept beside the table. The partition's column is called `record_date` where a field is called `date`.

The checkpoint is kept beside the table, in `_trunkline`, which readers of tables pass over: table and position move together.
For object stores it is in the state directory. What retention removes before the archive has read it is an error, not a gap.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline.client import Client
from trunkline.pipeline.avro import AvroError, parse_schema
from trunkline.pipeline.definition import (
    AVRO,
    JSON,
    RAW,
    DefinitionError,
    DeltaSink,
    IcebergSink,
    ParquetSink,
    Pipeline,
    Sink,
    Source,
    Transformation,
)
from trunkline.pipeline.json_schema import infer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
SCHEMAS: Final = (RAW, JSON, AVRO)
DEFAULT_TRIGGER_MS: Final = 60_000
"""Each batch is a file per partition and date at least: rarer batches make fewer, larger files."""
MAX_BATCH_RECORDS: Final = 2_000_000
MAX_BATCH_BYTES: Final = 256 << 20
_NAMESPACE: Final = "archive"


@dataclass(frozen=True, kw_only=True)
class Archive:
    topic: str
    path: str
    format: str = PARQUET
    schema: str = RAW
    fields: str | None = None
    """Declared columns (json) or the Avro schema's text (avro)."""
    trigger_ms: int = DEFAULT_TRIGGER_MS

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise DefinitionError(f"an archive is kept as {', '.join(FORMATS)}, not {self.format!r}")
        if self.schema not in SCHEMAS:
            raise DefinitionError(f"an archive's schema is {', '.join(SCHEMAS)}, not {self.schema!r}")
        if self.schema == AVRO and self.fields is None:
            raise DefinitionError("an archive with schema avro needs the Avro schema")
        if self.schema == RAW and self.fields is not None:
            raise DefinitionError("columns are declared with schema json or avro")
        if "://" not in self.path and not Path(self.path).is_absolute():
            object.__setattr__(self, "path", str(Path(self.path).resolve()))

    @property
    def name(self) -> str:
        """Of the pipeline: two archives of one topic have two."""
        digest = hashlib.sha256(self.path.encode()).hexdigest()[:6]
        return f"archive-{self.topic[:80]}-{digest}"

    @property
    def table(self) -> str:
        """In an Iceberg catalog."""
        return f"{_NAMESPACE}.{re.sub('[^A-Za-z0-9_]', '_', self.topic)}"

    @property
    def _beside(self) -> Path | None:
        return None if "://" in self.path else Path(self.path) / "_trunkline"

    def find_fields(self, client: Client) -> str | None:
        """The schema of the table: declared, kept from before, or inferred now."""
        from trunkline.pipeline.views import sample

        if self.schema == RAW:
            return None
        if self.schema == AVRO:
            assert self.fields is not None
            try:
                parse_schema(self.fields)
            except AvroError as error:
                raise DefinitionError(str(error)) from None
            return self.fields
        kept = None if self._beside is None else self._beside / "schema"
        if kept is not None and kept.is_file():
            before = kept.read_text("utf-8")
            if self.fields is not None and self.fields != before:
                raise DefinitionError(f"{self.path} has other columns: {before}; archive to another path")
            return before
        found = self.fields or infer(sample(client, (self.topic,)))
        if found is None:
            raise DefinitionError(
                f"no record of topic {self.topic} is a JSON object, so its columns cannot be inferred: declare them "
                "with --fields 'id BIGINT, name STRING', or archive with --schema raw"
            )
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            fresh = kept.with_name(".schema")
            fresh.write_text(found, "utf-8")
            fresh.replace(kept)
        return found

    def pipeline(self, fields: str | None) -> Pipeline:
        """`fields` as `find_fields` gave them."""
        source = Source(
            name="records",
            topics=(self.topic,),
            headers=True,
            options={"maxOffsetsPerTrigger": str(MAX_BATCH_RECORDS), "maxBytesPerTrigger": str(MAX_BATCH_BYTES)}
            if self.format == PARQUET
            else {},
        )
        rows = Transformation(name="rows", inputs=("records",), function=lambda records: self.rows(records, fields))
        return Pipeline(
            name=self.name,
            sources=(source,),
            transformations=(rows,),
            sinks=(self._sink(fields),),
            trigger_ms=self.trigger_ms,
            checkpoints=None if self._beside is None else str(self._beside),
        )

    def _sink(self, fields: str | None) -> Sink:
        date = (self._date_column(fields),)
        if self.format == PARQUET:
            return ParquetSink(name="archive", path=self.path, partition_by=date)
        if self.format == DELTA:
            return DeltaSink(name="archive", path=self.path, partition_by=date)
        return IcebergSink(name="archive", table=self.table, path=self.path, partition_by=date)

    def _date_column(self, fields: str | None) -> str:
        return "record_date" if fields is not None and re.search(r"(?i)[`\s,\"]date[`\s\"]|^date\s", fields) else "date"

    def rows(self, records: DataFrame, fields: str | None) -> DataFrame:
        """The records as the table has them."""
        from pyspark.sql import functions as F  # noqa: N812

        date = F.to_date("timestamp").alias(self._date_column(fields))
        if fields is None:
            return records.select("partition", "offset", "timestamp", "key", "value", "headers", date)
        from trunkline.pipeline.parsing import PARSED, decode

        decoded = decode(
            records, Source(name="records", topics=(self.topic,), format=self.schema, schema=fields), fields
        )
        names = [item.name for item in decoded.schema.fields]
        unsaid = decoded.malformed
        if self.schema == JSON:
            known = F.array(*(F.lit(name) for name in names))
            others = F.array_except(F.json_object_keys(F.col("value").cast("string")), known)
            unsaid = unsaid | (F.size(others) > 0)
        return decoded.frame.select(
            *(F.col(f"{PARSED}.`{name}`").alias(name) for name in names),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
            F.col("key").alias("_key"),
            F.col("headers").alias("_headers"),
            F.when(unsaid, F.col("value")).alias("_value"),
            date,
        )
