"""What `format("trunkline")` is. PySpark finds it through the package `pyspark_trunkline`; where that is not on the
driver's path, `spark.dataSource.register(TrunklineDataSource)` does the same.

Spark starts a Python process to look for sources, one to plan, and several to read and write: reader and writer, and the
libraries that they need, are imported by those that use them."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from trunkline.pipeline.options import OptionError, includes_headers, say_passed_over, sink_options, source_options

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"


class TrunklineDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trunkline"

    def schema(self) -> str:
        # Asked once, before anything else: so what is wrong with the options is said now, and what has no effect said once.
        say_passed_over(source_options(self.options).passed_over, "source")
        return f"{_COLUMNS}, {_HEADERS}" if includes_headers(self.options) else _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        from trunkline.pipeline.source import BatchReader

        return BatchReader(source_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        from trunkline.pipeline.source import StreamReader

        return StreamReader(source_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError('a log is only appended to: use mode("append")')
        from trunkline.pipeline.sink import BatchWriter

        options = sink_options(self.options)
        say_passed_over(options.passed_over, "sink")
        return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        # With outputMode("complete") `overwrite` is set: the whole result is appended each time, as by Spark's Kafka sink.
        from trunkline.pipeline.sink import StreamWriter

        return StreamWriter(sink_options(self.options), schema)
