"""The cells of a typical notebook for Spark's Kafka source and sink, run with both formats: only the name differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, make_topic, records_of, values_of
from trunkline.client.client import Client

RUN_SECONDS = 90


@pytest.fixture(params=["trunkline", "kafka"])
def form(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        return str(request.getfixturevalue("kafka_format"))
    return str(request.param)


def test_the_cells_of_a_notebook_do_the_same_with_both_formats(
    form: str, spark: SparkSession, broker: ServerProcess, client: Client, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, copies, counts = (make_topic(client, unique(name)) for name in ("orders", "copies", "counts"))
    stamp_ms = client.clock.wall_ms() - 60_000
    feed(client, topic, [b"a", b"b", b"a"], timestamps_ms=[stamp_ms, stamp_ms + 1000, stamp_ms + 2000], batch_bytes=1)

    orders = (
        spark.read.format(form)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsetsByTimestamp", json.dumps({topic: {"0": stamp_ms + 500}}))
        .option("startingOffsetsByTimestampStrategy", "error")
        .option("endingOffsets", "latest")
        .option("groupIdPrefix", "notebook")
        .option("kafka.request.timeout.ms", "30000")
        .option("kafkaConsumer.pollTimeoutMs", "60000")
        .option("fetchOffset.numRetries", "3")
        .option("fetchOffset.retryIntervalMs", "10")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .load()
    )
    assert orders.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert orders.schema["timestampType"].dataType.simpleString() == "int"
    found = orders.selectExpr("cast(value as string) value", "offset", "timestampType").collect()
    assert [tuple(row) for row in sorted(found, key=lambda row: row.offset)] == [("b", 1, 0), ("a", 2, 0)]

    # Everything that was read, columns of its own included, and no mode.
    (
        orders.withColumn("colour", F.lit("red"))
        .write.format(form)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("kafka.acks", "all")
        .option("kafka.compression.type", "gzip")
        .option("kafka.linger.ms", "5")
        .option("topic", copies)
        .save()
    )
    assert sorted((record.key, record.value) for record in records_of(client, copies)) == [(b"k1", b"b"), (b"k2", b"a")]

    counted = (
        spark.readStream.format(form)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minOffsetsPerTrigger", "1")
        .option("maxTriggerDelay", "1m")
        .option("maxOffsetsPerTrigger", "2")
        .option("kafka.group.id", unique("notebook"))
        .load()
        .groupBy(F.col("value").cast("string").alias("value"))
        .count()
        .select(F.concat_ws(" ", "value", "count").alias("value"))
    )
    query = (
        counted.writeStream.format(form)
        .outputMode("complete")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", counts)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(RUN_SECONDS)
    finally:
        query.stop()
    assert sorted(values_of(client, counts)) == [b"a 1", b"a 2", b"b 1", b"b 1"]
