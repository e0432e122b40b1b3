"""Writes: keys, headers, partitions, topics, exactly once by application and version, and errors that name the column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, make_topic, records_of, values_of
from tests.spark.streams import run_to_topic, stream
from trunkline.client.client import Client
from trunkline.client.groups import Groups
from trunkline.client.partitioner import partition_for_key
from trunkline.client.reader import Reader
from trunkline.log.batch import parse_header
from trunkline.log.store import TopicPartition

Unique = Callable[[str], str]


def write(rows: DataFrame, broker: ServerProcess, **options: object) -> None:
    writer = rows.write.format("trunkline").option("bootstrap", broker.bootstrap)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.mode("append").save()


def test_rows_become_records_with_keys_and_headers(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("records"))
    rows = spark.sql(
        "select cast('k' as binary) key, 'text' value, array(named_struct('key', 'a', 'value', cast('1' as binary)),"
        " named_struct('key', 'b', 'value', cast(null as binary))) headers"
        " union all select null, null, null union all select cast('' as binary), '', array()"
    ).coalesce(1)
    write(rows, broker, topic=topic)
    found = records_of(client, topic)
    assert [(record.key, record.value, list(record.headers)) for record in found] == [
        (b"k", b"text", [("a", b"1"), ("b", None)]),
        (None, None, []),
        (b"", b"", []),
    ]


def test_keys_go_where_every_kafka_client_puts_them_and_partitions_where_they_are_told(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("placed"), 5)
    write(spark.range(500).selectExpr("cast(id as string) key", "cast(id as string) value"), broker, topic=topic)
    assert len(records_of(client, topic)) == 500
    for partition in range(5):
        for found in Reader(client, {TopicPartition(topic, partition): 0}, committed=True).poll(0):
            assert partition_for_key(found.record.key or b"", 5) == partition
    told = make_topic(client, unique("told"), 3)
    chosen = spark.range(30).selectExpr("cast(id as string) value", "cast(id % 3 as int) partition")
    write(chosen, broker, topic=told)
    for partition in range(3):
        found_here = list(Reader(client, {TopicPartition(told, partition): 0}, committed=True).poll(0))
        assert {int(item.record.value or b"") % 3 for item in found_here} == {partition}
        assert len(found_here) == 10


def test_a_topic_column_chooses_the_topic_and_the_option_wins(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    prefix = unique("column")
    rows = spark.range(100).selectExpr("cast(id as string) value", f"concat('{prefix}-', id % 3) topic")
    write(rows, broker)
    for index in range(3):
        assert sorted(map(int, values_of(client, f"{prefix}-{index}"))) == list(range(index, 100, 3))
    write(rows, broker, topic=f"{prefix}-all")
    assert len(values_of(client, f"{prefix}-all")) == 100


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(codec: str, spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique(codec))
    write(spark.range(2000).selectExpr("repeat(cast(id as string), 20) value"), broker, topic=topic, compression=codec)
    assert {len(str(number)) for number in range(2000)} == {len(value) // 20 for value in values_of(client, topic)}
    assert len(values_of(client, topic)) == 2000
    reader = Reader(client, {TopicPartition(topic, 0): 0})
    data = reader._fetch(client.leaders(topic)[0], [TopicPartition(topic, 0)], 0)
    assert data is not None
    assert parse_header(data.responses[0].partitions[0].records or b"").compression == codec


def test_more_rows_than_one_batch_holds(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("large"), 2)
    write(spark.range(6000).selectExpr("cast(id as string) key", "repeat('x', 1000) value"), broker, topic=topic)
    assert Counter(len(value) for value in values_of(client, topic)) == {1000: 6000}


def test_a_job_that_is_run_again_under_its_name_and_version_writes_nothing(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic, job = make_topic(client, unique("again")), unique("job")
    rows = spark.range(100).selectExpr("cast(id as string) value")
    for version, expected in ((1, 100), (1, 100), (2, 200), (1, 200)):
        write(rows, broker, topic=topic, txnAppId=job, txnVersion=version)
        assert len(values_of(client, topic)) == expected


def test_a_job_without_a_name_leaves_no_group_behind(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    before = {group.name for group in Groups(client).all()}
    write(spark.range(10).selectExpr("cast(id as string) value"), broker, topic=make_topic(client, unique("clean")))
    assert {group.name for group in Groups(client).all()} == before


def test_a_failed_job_leaves_nothing_that_a_reader_sees(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("failed"))
    rows = spark.range(0, 5000, 1, 1).selectExpr(
        "if(id < 4990, cast(id as string), cast(raise_error('broken row') as string)) value"
    )
    with pytest.raises(PySparkException, match="broken row"):
        write(rows, broker, topic=topic)
    assert values_of(client, topic) == []


def test_at_least_once_needs_no_transactions(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("plain"))
    write(spark.range(100).selectExpr("cast(id as string) value"), broker, topic=topic, delivery="at-least-once")
    found = records_of(client, topic)
    assert len(found) == 100
    assert not any(record.transactional for record in found)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("select 'x' value", {}, 'where to. Set option\\("topic"'),
        ("select 'x' word", {"topic": "t"}, "needs a column named value"),
        ("select 1 value", {"topic": "t"}, "column value is int"),
        ("select 'x' value, 'y' headers", {"topic": "t"}, "column headers is string"),
        ("select 'x' value, 7 partition", {"topic": "{topic}"}, "column partition is 7 in a row, and topic"),
        ("select 'x' value", {"topic": "t", "delivery": "twice"}, "must be one of exactly-once, at-least-once"),
        ("select 'x' value", {"topic": "t", "txnVersion": "1"}, "txnVersion needs txnAppId"),
        ("select repeat('x', 3000000) value", {"topic": "{topic}"}, "larger than the topic allows|MESSAGE_TOO_LARGE"),
    ],
)
def test_what_cannot_be_written_is_named(
    query: str,
    options: dict[str, str],
    message: str,
    spark: SparkSession,
    broker: ServerProcess,
    client: Client,
    unique: Unique,
) -> None:
    topic = make_topic(client, unique("refused"))
    asked = {name: value.format(topic=topic) for name, value in options.items()}
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(query), broker, **asked)


def test_a_stream_to_a_topic_writes_each_row_once_across_restarts(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic, target = make_topic(client, unique("from"), 2), make_topic(client, unique("to"), 3)
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    for start in (0, 250):
        feed(client, topic, [b"%05d" % number for number in range(start, start + 250)])
        run_to_topic(rows.select("key", "value"), broker.bootstrap, target, tmp_path / "checkpoint")
    assert sorted(values_of(client, target)) == [b"%05d" % number for number in range(500)]
    # A driver that died after its tasks had committed replays the batch: the commit note is what it had not written.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    run_to_topic(rows.select("key", "value"), broker.bootstrap, target, tmp_path / "checkpoint")
    assert sorted(values_of(client, target)) == [b"%05d" % number for number in range(500)]
    # The same with at least once: what the transactions are for.
    last.unlink()
    run_to_topic(
        rows.select("key", "value"),
        broker.bootstrap,
        target,
        tmp_path / "checkpoint",
        options={"delivery": "at-least-once"},
    )
    assert len(values_of(client, target)) > 500


def test_a_batch_that_comes_back_divided_differently_stops_the_query(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic, target = make_topic(client, unique("from")), make_topic(client, unique("to"))
    feed(client, topic, [b"%05d" % number for number in range(100)])
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest").select("value")
    run_to_topic(rows, broker.bootstrap, target, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    other = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest", maxRecordsPerPartition=30)
    with pytest.raises(PySparkException, match="comes back with"):
        run_to_topic(other.select("value"), broker.bootstrap, target, tmp_path / "checkpoint")
