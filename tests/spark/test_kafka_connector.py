"""Spark's own `format("kafka")`, unchanged, against our broker: batch and streaming, reading and writing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, feed_transaction, make_topic, values_of
from tests.spark.streams import run_to_rows, run_to_topic, stream
from trunkline.client.client import Client

Unique = Callable[[str], str]


def load(spark: SparkSession, form: str, broker: ServerProcess, **options: str) -> DataFrame:
    reader = spark.read.format(form).option("kafka.bootstrap.servers", broker.bootstrap)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_connector_reads_a_batch_as_our_source_does(
    kafka_format: str, spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("connector"), 3)
    feed(client, topic, [b"%04d" % number for number in range(500)], headers=[("a", b"1")], compression="lz4")
    common = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
    theirs = load(spark, kafka_format, broker, subscribe=topic, includeHeaders="true").select(*common)
    ours = load(spark, "trunkline", broker, subscribe=topic, includeHeaders="true").select(*common)
    assert theirs.exceptAll(ours).count() == 0
    assert ours.exceptAll(theirs).count() == 0
    assert ours.count() == 500
    bounds = {"startingOffsets": json.dumps({topic: {"0": 5, "1": -2, "2": 7}}), "endingOffsets": "latest"}
    assert (
        load(spark, kafka_format, broker, subscribe=topic, **bounds).count()
        == load(spark, "trunkline", broker, subscribe=topic, **bounds).count()
    )


def test_connector_skips_aborted_transactions(
    kafka_format: str, spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("committed"))
    feed_transaction(broker.bootstrap, topic, [b"in"], commit=True)
    feed_transaction(broker.bootstrap, topic, [b"out"], commit=False)
    options = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    found = load(spark, kafka_format, broker, **options).select("value").collect()
    assert [bytes(row.value) for row in found] == [b"in"]


def test_connector_writes_a_batch(
    kafka_format: str, spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("written"), 2)
    rows = spark.range(300).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.format(kafka_format).option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic).save()
    assert sorted(map(int, values_of(client, topic))) == list(range(300))


def test_connector_streams_from_topic_to_topic(
    kafka_format: str, spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic, target = make_topic(client, unique("from"), 2), make_topic(client, unique("to"))
    rows = stream(
        spark, broker.bootstrap, kafka_format, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=60
    )
    feed(client, topic, [b"%04d" % number for number in range(100)])
    counted = run_to_topic(rows.select("key", "value"), broker.bootstrap, target, tmp_path / "to-topic", kafka_format)
    assert sum(counted) == 100
    assert len(counted) == 2
    assert sorted(values_of(client, target)) == [b"%04d" % number for number in range(100)]
    feed(client, topic, [b"%04d" % number for number in range(100, 120)])
    run_to_topic(rows.select("key", "value"), broker.bootstrap, target, tmp_path / "to-topic", kafka_format)
    assert sorted(values_of(client, target)) == [b"%04d" % number for number in range(120)]
    values, _ = run_to_rows(rows, tmp_path / "to-rows")
    assert values == [f"{number:04d}" for number in range(120)]
