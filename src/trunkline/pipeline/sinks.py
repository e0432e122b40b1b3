"""A view and a sink become a streaming query, each kind in the way that gives it exactly once.

    topic                        the `trunkline` sink: transactions, one mark per batch and task
    parquet                      Spark's file sink: a list of files per batch (`file_sink`)
    delta, iceberg, postgresql   the batch's rows and number in one commit (`lake`, `postgresql`)
    jdbc                         staging table, then one transaction (`jdbc`)

All of them rest on the checkpoint: after a crash Spark runs the unfinished batch again from the same offsets, under the same
number, so a transformation must give the same rows for the same records. One that looks at the clock or draws lots does not.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, StringType

from trunkline.pipeline import file_sink, limits
from trunkline.pipeline.definition import (
    COMPLETE,
    UPSERT,
    VERSION,
    DefinitionError,
    DeltaSink,
    IcebergSink,
    JdbcSink,
    ParquetSink,
    PostgresqlSink,
    Sink,
    TopicSink,
)
from trunkline.pipeline.jdbc import JdbcWriter
from trunkline.pipeline.lake import DeltaWriter, IcebergWriter, TableWriter
from trunkline.pipeline.postgresql import PostgresqlWriter
from trunkline.pipeline.progress import OBSERVED, OBSERVED_ROWS


@dataclass(frozen=True)
class Setting:
    """What a query is started with, besides its sink."""

    query: str
    checkpoint: str
    bootstrap: str
    version: int
    directory: Path
    once: bool
    trigger_ms: int

    def path(self, text: str) -> str:
        """A path of the definition: with the version, and relative to the file unless it is absolute or a URL."""
        filled = self.filled(text)
        return filled if "://" in filled else str((self.directory / filled).resolve())

    def filled(self, text: str) -> str:
        return text.replace(VERSION, str(self.version))


def batch_limit(sink: Sink) -> Mapping[str, str]:
    """What the source of a sink is asked to keep to."""
    if isinstance(sink, DeltaSink | IcebergSink | PostgresqlSink):
        return {
            "maxOffsetsPerTrigger": str(limits.MAX_DRIVER_ROWS),
            "maxBytesPerTrigger": str(limits.MAX_DRIVER_BYTES),
        }
    return {}


def start(frame: DataFrame, sink: Sink, setting: Setting) -> StreamingQuery:
    """Start the query; DefinitionError where Spark says that the view cannot be written so."""
    if isinstance(sink, TopicSink):
        writer = _topic(frame, sink, setting)
    elif isinstance(sink, ParquetSink):
        path = setting.path(sink.path)
        file_sink.prepare(path, new_checkpoint=_is_new(setting.checkpoint))
        writer = _counted(frame).writeStream.format("parquet").option("path", path)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
    else:
        writer = _counted(frame).writeStream.foreachBatch(_each_batch(sink, setting))
    mode = {UPSERT: "update"}.get(sink.mode, sink.mode)
    writer = writer.outputMode(mode).queryName(setting.query).option("checkpointLocation", setting.checkpoint)
    if setting.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{setting.trigger_ms} milliseconds")
    try:
        return writer.start()
    except AnalysisException as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise DefinitionError(f"sink {setting.query!r}: {first}") from error


def _counted(frame: DataFrame) -> DataFrame:
    """Spark counts what a topic takes, but not what files and `foreachBatch` do."""
    return frame.observe(OBSERVED, F.count(F.lit(1)).alias(OBSERVED_ROWS))


def _topic(frame: DataFrame, sink: TopicSink, setting: Setting) -> DataStreamWriter:
    options = {"bootstrap": setting.bootstrap, "topic": setting.filled(sink.topic), **sink.options}
    return records_of(frame, sink).writeStream.format("trunkline").options(**options)


def records_of(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """A view's rows as records: as they are where there is a value, else as JSON of all columns."""
    if sink.key is not None and sink.key not in frame.columns:
        raise DefinitionError(f"sink {sink.topic!r}: the key {sink.key!r} is no column of the view")
    if "value" in frame.columns:
        if not isinstance(frame.schema["value"].dataType, BinaryType | StringType):
            frame = frame.withColumn("value", F.col("value").cast("string"))
        # The topic and partition of a raw source are where a record came from, not where it goes.
        kept = [name for name in ("key", "value", "headers") if name in frame.columns]
        columns = [F.col(name) for name in kept if name != "key" or sink.key is None]
        if sink.key is not None:
            columns.append(F.col(sink.key).cast("string").alias("key"))
        elif "key" in kept and not isinstance(frame.schema["key"].dataType, BinaryType | StringType):
            columns = [column for name, column in zip(kept, columns, strict=True) if name != "key"]
            columns.append(F.col("key").cast("string"))
        return frame.select(*columns)
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns))).alias("value")
    if sink.key is None:
        return frame.select(value)
    return frame.select(F.col(f"`{sink.key}`").cast("string").alias("key"), value)


def _each_batch(sink: Sink, setting: Setting) -> Callable[[DataFrame, int], None]:
    application = application_of(setting.checkpoint)
    if isinstance(sink, JdbcSink):
        jdbc = JdbcWriter(sink, setting.filled(sink.table))
        return lambda frame, batch: jdbc.write(frame, application, batch)
    table: TableWriter
    if isinstance(sink, DeltaSink):
        table = DeltaWriter(sink, setting.path(sink.path))
    elif isinstance(sink, IcebergSink):
        warehouse = None if sink.path is None else setting.path(sink.path)
        table = IcebergWriter(sink, setting.filled(sink.table), warehouse)
    else:
        assert isinstance(sink, PostgresqlSink)
        table = PostgresqlWriter(sink, setting.filled(sink.table))

    def write(frame: DataFrame, batch: int) -> None:
        rows = frame.toArrow()
        if rows.num_rows or sink.mode == COMPLETE:
            table.write(rows, application, batch)

    return write


def application_of(checkpoint: str) -> str:
    """A name for what is written under a checkpoint; another after the checkpoint was deleted.

    Kept in the checkpoint where that is a directory of this machine; elsewhere made from its address.
    """
    if urlsplit(checkpoint).scheme not in {"", "file"}:
        return hashlib.sha256(checkpoint.encode()).hexdigest()[:32]
    directory = Path(urlsplit(checkpoint).path)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "application"
    if not path.exists():
        fresh = path.with_name(".application")
        fresh.write_text(uuid.uuid4().hex)
        fresh.replace(path)
    return path.read_text().strip()


def _is_new(checkpoint: str) -> bool:
    if urlsplit(checkpoint).scheme not in {"", "file"}:
        return False
    offsets = Path(urlsplit(checkpoint).path) / "offsets"
    return not offsets.is_dir() or not any(item.name.isdecimal() for item in offsets.iterdir())
