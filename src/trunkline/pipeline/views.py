"""The views of a pipeline as data frames: topics read and parsed, then SQL and functions over them.

Built anew for each sink, because each sink is a query of its own with its own reading position, and some read in smaller
batches. Views are temporary views of a session that nobody else uses: two pipelines in one Spark application do not meet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from trunkline.client import Client
from trunkline.client.reader import Reader
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.causes import refusal_of
from trunkline.pipeline.definition import AVRO, JSON, RAW, DefinitionError, Pipeline, Source, Transformation
from trunkline.pipeline.json_schema import infer
from trunkline.pipeline.parsing import Parsed, parse

if TYPE_CHECKING:
    from trunkline.pipeline.definition import Function
    from trunkline.pipeline.home import VersionHome


class Views:
    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, *, bootstrap: str, home: VersionHome, since_ms: int | None = None
    ) -> None:
        """`since_ms`: where queries without a checkpoint begin, instead of what the sources say."""
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.streaming.stopTimeout", f"{limits.STOP_TIMEOUT_MS}ms")
        self._pipeline = pipeline
        self._bootstrap = bootstrap
        self._home = home
        self._since_ms = since_ms
        self._schemas: dict[str, str | None] = {}

    def rows(self, view: str, limit: Mapping[str, str] | None = None) -> DataFrame:
        """The view that a sink writes; `limit` bounds its batches unless the sources' options do."""
        frames: dict[str, DataFrame] = {}
        for source in self._pipeline.sources:
            frame = self._source(source, limit or {}, headers=source.headers).rows
            if source.event_time is not None:
                frame = self._with_watermark(frame, source)
            frames[source.name] = frame
            frame.createOrReplaceTempView(source.name)
        for item in self._pipeline.transformations:
            frames[item.name] = self._transformed(item, frames)
            frames[item.name].createOrReplaceTempView(item.name)
        return frames[view]

    def malformed(self, source: Source) -> DataFrame | None:
        return self._source(source, {}, headers=True).malformed

    def _source(self, source: Source, limit: Mapping[str, str], *, headers: bool) -> Parsed:
        options = {
            "bootstrap": self._bootstrap,
            "includeHeaders": str(headers).lower(),
            "startingOffsets": source.starting,
            **({} if self._since_ms is None else {"startingTimestamp": str(self._since_ms)}),
            **limit,
            **source.options,
        }
        if source.pattern is not None:
            options["subscribePattern"] = source.pattern
        else:
            options["subscribe"] = ",".join(source.topics)
        records = self._spark.readStream.format("trunkline").options(**options).load()
        # The columns of a raw view are those of the tables that are made of it: there is no place in them for one more.
        records = records.drop("timestampType")
        return parse(records, source, self._schema(source))

    def _with_watermark(self, frame: DataFrame, source: Source) -> DataFrame:
        assert source.event_time is not None
        if source.event_time not in frame.columns:
            raise DefinitionError(f"source {source.name!r}: event_time {source.event_time!r} is no column of it")
        return frame.withWatermark(source.event_time, source.lateness)

    def _schema(self, source: Source) -> str | None:
        if source.name not in self._schemas:
            self._schemas[source.name] = self._find_schema(source)
        return self._schemas[source.name]

    def _find_schema(self, source: Source) -> str | None:
        if source.format == RAW:
            return None
        if source.schema is not None:
            return source.schema
        if source.schema_file is not None:
            path = self._pipeline.directory / source.schema_file
            try:
                return path.read_text("utf-8")
            except OSError as error:
                raise DefinitionError(f"source {source.name!r}: {path}: {error.strerror}") from None
        assert source.format == JSON != AVRO
        kept = self._home.schema(source.name)
        if kept is not None:
            return kept
        with Client(self._bootstrap) as client:
            found = infer(sample(client, source.topics))
        if found is None:
            raise DefinitionError(
                f"source {source.name!r}: no record of {', '.join(source.topics) or source.pattern} is a JSON object, so "
                "its columns cannot be inferred: declare them, as in schema = 'id BIGINT, name STRING'"
            )
        self._home.keep_schema(source.name, found)
        return found

    def _transformed(self, item: Transformation, frames: Mapping[str, DataFrame]) -> DataFrame:
        if item.sql is not None:
            try:
                return self._spark.sql(item.sql)
            except AnalysisException as error:  # a ParseException is one too
                raise DefinitionError(f"transformation {item.name!r}: {refusal_of(error, frames)}") from error
        assert item.function is not None
        function = _load(item.function, self._pipeline.directory) if isinstance(item.function, str) else item.function
        found = function(*(frames[name] for name in item.inputs))
        if not isinstance(found, DataFrame):
            raise DefinitionError(f"transformation {item.name!r}: the function returned no data frame")
        return found


def _load(name: str, directory: Path) -> Function:
    module, _, attribute = name.partition(":")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise DefinitionError(f"there is no module {module!r} in {directory} or on the path") from None
    except AttributeError:
        raise DefinitionError(f"module {module!r} has no function {attribute!r}") from None
    if not callable(found):
        raise DefinitionError(f"{name} is no function")
    # What a module beside the file defines cannot be imported by executors elsewhere: it travels by value.
    _travel_by_value(module)
    checked: Function = found
    return checked


def _travel_by_value(module: str) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]


def sample(client: Client, topics: tuple[str, ...], limit: int = limits.SAMPLE_RECORDS) -> list[bytes | None]:
    """The values of the first records of the topics."""
    partitions = [TopicPartition(name, item.index) for name in topics for item in client.topic(name).partitions]
    starts = Topics(client).offsets(partitions, EARLIEST)
    ends = Topics(client).offsets(partitions, LATEST, committed=True)
    reader = Reader(client, {tp: start for tp, start in starts.items() if start < ends[tp]}, committed=True)
    found: list[bytes | None] = []
    while reader.positions and len(found) < limit:
        for _, record in reader.poll():
            found.append(record.value)
            if len(found) >= limit:
                break
        reader.positions = {tp: offset for tp, offset in reader.positions.items() if offset < ends[tp]}
    return found
