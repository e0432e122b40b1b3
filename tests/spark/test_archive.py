"""Archives: a topic as a table, every record once, readable from the first offset when the log has it no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.integration.server import ServerProcess
from tests.spark.running_pipelines import Runs, fill
from trunkline.client.client import Client
from trunkline.client.producer import Producer
from trunkline.client.topics import EARLIEST, Topics
from trunkline.log.store import TopicPartition
from trunkline.pipeline.archive import Archive
from trunkline.pipeline.definition import DefinitionError
from trunkline.pipeline.lake import open_catalog
from trunkline.protocols.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

Unique = Callable[[str], str]
DAY_MS = 86_400_000


@pytest.fixture
def runs(spark: SparkSession, broker: ServerProcess, tmp_path: Path) -> Runs:
    return Runs(spark, broker.bootstrap, tmp_path)


def archive(runs: Runs, client: Client, wanted: Archive) -> None:
    runs.once(wanted.pipeline(wanted.find_fields(client)))


def expire(client: Client, topic: str, partition: int, before: int) -> None:
    """As retention does, but now."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=before)]
            )
        ],
        timeout_ms=10_000,
    )
    client.ask_controller(request, DeleteRecordsResponse)
    tp = TopicPartition(topic, partition)
    assert Topics(client).offsets([tp], EARLIEST)[tp] == before


def test_an_archive_has_every_record_once_after_the_log_has_expired_it(
    runs: Runs, client: Client, unique: Unique
) -> None:
    topic = unique("events")
    Topics(client).create(topic, 1)
    producer = Producer(client, topic)
    now_ms = client.clock.wall_ms()
    for number in range(6):
        producer.send(b"k%d" % number, b"v%d" % number, [("h", b"x")], timestamp_ms=now_ms - (number % 2) * DAY_MS)
    producer.flush()
    wanted = Archive(topic=topic, path=str(runs.directory / "lake"))
    archive(runs, client, wanted)
    expire(client, topic, 0, 6)
    producer.send(b"k6", b"v6")
    producer.flush()
    archive(runs, client, wanted)

    table = runs.spark.read.parquet(wanted.path).orderBy("offset").collect()
    assert [(row.offset, bytes(row.key), bytes(row.value)) for row in table] == [
        (number, b"k%d" % number, b"v%d" % number) for number in range(7)
    ]
    assert [(item.key, bytes(item.value)) for item in table[0].headers] == [("h", b"x")]
    assert len({row.date for row in table}) == 2
    # Readers that know nothing of Spark's list of files see the same.
    assert sorted(ds.dataset(wanted.path, partitioning="hive").to_table()["offset"].to_pylist()) == list(range(7))


def test_json_is_archived_as_columns_and_nothing_is_left_out(runs: Runs, client: Client, unique: Unique) -> None:
    topic = unique("orders")
    fill(client, topic, [{"id": 1, "date": "2026-01-01"}, {"id": 2, "date": "2026-01-02"}], partitions=1)
    delta = Archive(topic=topic, path=str(runs.directory / "delta"), format="delta", schema="json")
    iceberg = Archive(topic=topic, path=str(runs.directory / "iceberg"), format="iceberg", schema="json")
    archive(runs, client, delta)
    fill(client, topic, [b"not json", {"id": 3, "date": "2026-01-03", "new": 1}], partitions=1)
    archive(runs, client, delta)
    archive(runs, client, iceberg)
    catalog = open_catalog({}, iceberg.path)
    for table in (DeltaTable(delta.path).to_pyarrow_table(), catalog.load_table(iceberg.table).scan().to_arrow()):
        rows = sorted(table.to_pylist(), key=lambda row: row["_offset"])
        assert [(row["id"], row["date"], row["_offset"]) for row in rows] == [
            (1, "2026-01-01", 0),
            (2, "2026-01-02", 1),
            (None, None, 2),
            (3, "2026-01-03", 3),
        ]
        assert [row["_value"] for row in rows[:3]] == [None, None, b"not json"]
        assert "record_date" in table.column_names
    assert DeltaTable(delta.path).metadata().partition_columns == ["record_date"]
    rows = sorted(DeltaTable(delta.path).to_pyarrow_table().to_pylist(), key=lambda row: row["_offset"])
    assert rows[3]["_value"] == b'{"id": 3, "date": "2026-01-03", "new": 1}'


def test_an_empty_topic_can_be_archived_raw_but_not_with_columns_that_nobody_declared(
    runs: Runs, client: Client, unique: Unique
) -> None:
    topic = unique("empty")
    Topics(client).create(topic, 1)
    with pytest.raises(DefinitionError, match="cannot be inferred: declare them"):
        archive(runs, client, Archive(topic=topic, path=str(runs.directory / "json"), schema="json"))
    archive(runs, client, Archive(topic=topic, path=str(runs.directory / "raw")))
