"""Streaming reads: checkpoints, admission control, new partitions, and what happens when records are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, make_topic, trim, values_of
from tests.spark.streams import run_to_rows, running, stream, wait_for
from trunkline.client.client import Client
from trunkline.client.topics import Topics

Unique = Callable[[str], str]


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%05d" % number for number in range(start, end)]


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic = make_topic(client, unique("checkpoint"), 2)
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest")
    feed(client, topic, numbers(0, 50))
    first, counted = run_to_rows(rows, tmp_path / "checkpoint")
    assert (first, counted) == ([value.decode() for value in numbers(0, 50)], [50])
    feed(client, topic, numbers(50, 60))
    second, _ = run_to_rows(rows, tmp_path / "checkpoint")
    assert second == [value.decode() for value in numbers(50, 60)]
    third, _ = run_to_rows(rows, tmp_path / "checkpoint")
    assert third == []


def test_offsets_in_the_checkpoint_are_in_order(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic = make_topic(client, unique("order"), 12)
    feed(client, topic, numbers(0, 100))
    run_to_rows(stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest"), tmp_path / "checkpoint")
    kept = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert list(kept[topic]) == [str(partition) for partition in range(12)]
    assert sum(kept[topic].values()) == 100


def test_rows_per_trigger_are_limited(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic = make_topic(client, unique("limited"), 2)
    feed(client, topic, numbers(0, 40), partition=0)
    feed(client, topic, numbers(40, 50), partition=1)
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    values, counted = run_to_rows(rows, tmp_path / "checkpoint")
    assert counted == [20, 20, 10]
    assert values == [value.decode() for value in numbers(0, 50)]


def test_bytes_per_trigger_are_limited(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic = make_topic(client, unique("bytes"))
    feed(client, topic, [b"%04d" % number + bytes(996) for number in range(100)], batch_bytes=10_000)
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger=25_000)
    _, counted = run_to_rows(rows, tmp_path / "checkpoint")
    assert sum(counted) == 100
    assert max(counted) <= 25
    assert len(counted) <= 8


def test_new_topics_and_partitions_are_found_while_a_stream_runs(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    prefix, target = unique("found"), unique("target")
    feed(client, make_topic(client, f"{prefix}-a"), [b"first"])
    make_topic(client, target)
    rows = stream(spark, broker.bootstrap, subscribePattern=f"{prefix}-.", startingOffsets="earliest")
    with running(rows.select("value"), broker.bootstrap, target, tmp_path / "checkpoint") as query:
        wait_for(query, lambda: values_of(client, target) == [b"first"], "the first row")
        feed(client, make_topic(client, f"{prefix}-b"), [b"topic"])
        wait_for(query, lambda: b"topic" in values_of(client, target), "the new topic's row")
        Topics(client).grow(f"{prefix}-a", 2)
        client.forget()
        feed(client, f"{prefix}-a", [b"partition"], partition=1)
        wait_for(query, lambda: b"partition" in values_of(client, target), "the new partition's row")
    assert sorted(values_of(client, target)) == [b"first", b"partition", b"topic"]


def test_records_that_retention_removed_stop_the_stream_unless_allowed(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic = make_topic(client, unique("retention"))
    feed(client, topic, numbers(0, 10))
    strict = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest")
    run_to_rows(strict, tmp_path / "checkpoint")
    feed(client, topic, numbers(10, 30))
    trim(client, topic, 20)
    with pytest.raises(StreamingQueryException, match=r"offsets 10 to 29 are to be read, but the log now begins at 20"):
        run_to_rows(strict, tmp_path / "checkpoint")
    lenient = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    rest, _ = run_to_rows(lenient, tmp_path / "checkpoint")
    assert rest == [value.decode() for value in numbers(20, 30)]


def test_a_deleted_topic_stops_the_stream_with_its_name(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic, target = make_topic(client, unique("deleted")), make_topic(client, unique("target"))
    feed(client, topic, [b"seen"])
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest").select("value")
    with running(rows, broker.bootstrap, target, tmp_path / "checkpoint") as query:
        wait_for(query, lambda: values_of(client, target) == [b"seen"], "the first row")
        Topics(client).delete(topic)
        with pytest.raises(StreamingQueryException, match=topic):
            assert query.awaitTermination(60)


def test_a_topic_made_anew_is_noticed(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic = make_topic(client, unique("anew"))
    feed(client, topic, numbers(0, 10))
    rows = stream(spark, broker.bootstrap, subscribe=topic, startingOffsets="earliest")
    run_to_rows(rows, tmp_path / "checkpoint")
    Topics(client).delete(topic)
    client.forget()
    make_topic(client, topic)
    feed(client, topic, numbers(0, 3))
    with pytest.raises(StreamingQueryException, match="has read up to offset 10, but the log ends at 3"):
        run_to_rows(rows, tmp_path / "checkpoint")


def test_a_stream_survives_a_broker_restart(
    spark: SparkSession, fresh_broker: ServerProcess, unique: Unique, tmp_path: Path
) -> None:
    with Client(fresh_broker.bootstrap) as client:
        topic, target = make_topic(client, unique("restart"), 2), make_topic(client, unique("target"))
        feed(client, topic, numbers(0, 100))
        rows = stream(spark, fresh_broker.bootstrap, subscribe=topic, startingOffsets="earliest").select("key", "value")
        with running(rows, fresh_broker.bootstrap, target, tmp_path / "checkpoint") as query:
            wait_for(query, lambda: len(values_of(client, target)) == 100, "the rows before the restart")
            fresh_broker.stop()
            fresh_broker.start()
            feed(client, topic, numbers(100, 200))
            wait_for(query, lambda: len(values_of(client, target)) >= 200, "the rows after the restart")
        assert sorted(values_of(client, target)) == numbers(0, 200)
