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

from trunkline.pipeline.options import OptionError, includes_headers, sink_options, source_options

_COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_HEADERS = "headers array<struct<key: string, value: binary>>"


class TrunklineDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trunkline"

    def schema(self) -> str:
        source_options(self.options)  # so that what is wrong with them is said before anything else happens
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

        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise OptionError('a log is only appended to: use outputMode("append") or "update"')
        from trunkline.pipeline.sink import StreamWriter

        return StreamWriter(sink_options(self.options), schema)
