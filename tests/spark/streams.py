"""Streaming queries for the tests: started with a checkpoint, run until all that is there was read, or until stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.waiting import wait_until

RUN_SECONDS = 60


def stream(spark: SparkSession, bootstrap: str, form: str = "trunkline", **options: object) -> DataFrame:
    reader = spark.readStream.format(form).option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def run_to_topic(
    rows: DataFrame,
    bootstrap: str,
    topic: str,
    checkpoint: Path,
    form: str = "trunkline",
    options: Mapping[str, str] | None = None,
) -> list[int]:
    """Run until everything available was written; returns the rows of each batch."""
    writer = rows.writeStream.format(form).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    for name, value in (options or {}).items():
        writer = writer.option(name, value)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    return _finish(query)


def run_to_rows(rows: DataFrame, checkpoint: Path) -> tuple[list[str], list[int]]:
    """Run until everything available was read; all values in order, and the rows of each batch."""
    values: list[str] = []

    def keep(batch: DataFrame, _number: int) -> None:
        values.extend(bytes(row.value).decode() for row in batch.select("value").collect())

    query = (
        rows.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    counted = _finish(query)
    return sorted(values), counted


def _finish(query: StreamingQuery) -> list[int]:
    try:
        assert query.awaitTermination(RUN_SECONDS), f"the query is not done: {query.lastProgress}"
    finally:
        query.stop()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


@contextmanager
def running(
    rows: DataFrame, bootstrap: str, topic: str, checkpoint: Path, options: Mapping[str, str] | None = None
) -> Iterator[StreamingQuery]:
    """A query that goes on until the end of the block."""
    writer = rows.writeStream.format("trunkline").option("bootstrap", bootstrap).option("topic", topic)
    for name, value in (options or {}).items():
        writer = writer.option(name, value)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def wait_for(query: StreamingQuery, condition: Callable[[], bool], what: str) -> None:
    def met() -> bool:
        failure = query.exception()
        assert failure is None, f"the query failed: {failure}"
        return condition()

    wait_until(met, RUN_SECONDS, what)
