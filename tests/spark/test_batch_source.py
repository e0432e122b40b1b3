"""Batch reads: every option, every kind of batch, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, feed_transaction, make_topic, trim
from trunkline.client.client import Client
from trunkline.client.topics import Topics

Read = Callable[..., DataFrame]
Unique = Callable[[str], str]


def values(rows: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows.select("value").collect())


def test_rows_have_every_part_of_a_record(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("parts"), 2)
    # Younger than any retention, and with a fraction of a second.
    stamp_ms = client.clock.wall_ms() // 1000 * 1000 + 123
    feed(client, topic, [b"one"], partition=1, headers=[("a", b"x"), ("b", None), ("a", b"")], timestamps_ms=[stamp_ms])
    feed(client, topic, [None], partition=0)
    rows = {row.partition: row for row in read(subscribe=topic, includeHeaders="true").collect()}
    assert (bytes(rows[1].key), bytes(rows[1].value), rows[1].topic, rows[1].offset) == (b"k0", b"one", topic, 0)
    assert [(item.key, item.value) for item in rows[1].headers] == [("a", b"x"), ("b", None), ("a", b"")]
    assert rows[1].timestamp.astimezone(UTC) == datetime.fromtimestamp(stamp_ms / 1000, UTC)
    assert rows[0].value is None
    assert rows[0].headers == []


def test_schema_is_that_of_sparks_kafka_source(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("schema"))
    plain = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert read(subscribe=topic).schema.simpleString() == f"struct<{plain.replace(', ', ',').replace(' ', ':')}>"
    assert read(subscribe=topic, includeHeaders="true").columns[-1] == "headers"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(codec: str, read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique(codec))
    sent = [b"value %06d " % number * 5 for number in range(3000)]
    feed(client, topic, sent, compression=codec, batch_bytes=20_000)
    assert values(read(subscribe=topic)) == sorted(value.decode() for value in sent)


def test_starting_and_ending_offsets(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("bounds"), 2)
    feed(client, topic, [b"a%d" % number for number in range(10)], partition=0)
    feed(client, topic, [b"b%d" % number for number in range(10)], partition=1)
    start, end = json.dumps({topic: {"0": 3, "1": -2}}), json.dumps({topic: {"0": 5, "1": 2}})
    assert values(read(subscribe=topic, startingOffsets=start, endingOffsets=end)) == ["a3", "a4", "b0", "b1"]
    assert read(subscribe=topic, startingOffsets="latest").count() == 0
    tail = json.dumps({topic: {"0": 8, "1": -1}})
    assert values(read(subscribe=topic, startingOffsets=tail, endingOffsets="latest")) == ["a8", "a9"]


def test_offsets_by_timestamp(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("times"))
    base_ms = client.clock.wall_ms() - 100_000
    feed(
        client,
        topic,
        [b"%d" % number for number in range(10)],
        timestamps_ms=[base_ms + 1000 * number for number in range(10)],
        batch_bytes=1,
    )
    assert values(read(subscribe=topic, startingTimestamp=base_ms + 6500)) == ["7", "8", "9"]
    assert values(read(subscribe=topic, endingTimestamp=base_ms + 1500)) == ["0", "1"]
    exact = json.dumps({topic: {"0": base_ms + 4000}})
    upto = json.dumps({topic: {"0": base_ms + 6000}})
    assert values(read(subscribe=topic, startingOffsetsByTimestamp=exact, endingOffsetsByTimestamp=upto)) == ["4", "5"]
    assert read(subscribe=topic, startingTimestamp=base_ms + 50_000).count() == 0


def test_pattern_assignment_and_several_topics(read: Read, client: Client, unique: Unique) -> None:
    prefix = unique("many")
    for name in ("a", "b", "other"):
        feed(client, make_topic(client, f"{prefix}.{name}", 2), [name.encode()], partition=1)
    assert values(read(subscribePattern=f"{prefix}\\.[ab]")) == ["a", "b"]
    assert values(read(subscribe=f"{prefix}.a, {prefix}.other")) == ["a", "other"]
    assert values(read(assign=json.dumps({f"{prefix}.a": [1], f"{prefix}.b": [0]}))) == ["a"]


def test_large_ranges_are_split(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("split"))
    sent = [b"%d" % number for number in range(1000)]
    feed(client, topic, sent, batch_bytes=2000)
    by_records = read(subscribe=topic, maxRecordsPerPartition=300)
    assert by_records.rdd.getNumPartitions() == 4
    assert values(by_records) == sorted(value.decode() for value in sent)
    by_count = read(subscribe=topic, minPartitions=3)
    assert by_count.rdd.getNumPartitions() == 3
    assert values(by_count) == sorted(value.decode() for value in sent)


def test_aborted_transactions_are_not_read_unless_asked_for(
    read: Read, broker: ServerProcess, client: Client, unique: Unique
) -> None:
    topic = make_topic(client, unique("transactions"))
    feed_transaction(broker.bootstrap, topic, [b"committed-1"], commit=True)
    feed_transaction(broker.bootstrap, topic, [b"aborted-1", b"aborted-2"], commit=False)
    feed(client, topic, [b"plain"])
    feed_transaction(broker.bootstrap, topic, [b"committed-2"], commit=True)
    assert values(read(subscribe=topic)) == ["committed-1", "committed-2", "plain"]
    everything = ["aborted-1", "aborted-2", "committed-1", "committed-2", "plain"]
    assert values(read(subscribe=topic, isolation="read_uncommitted")) == everything


def test_an_empty_topic_is_an_empty_table(read: Read, client: Client, unique: Unique) -> None:
    assert read(subscribe=make_topic(client, unique("empty"), 3)).count() == 0


def test_what_retention_removed_is_an_error_unless_allowed(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("trimmed"))
    feed(client, topic, [b"%d" % number for number in range(10)])
    trim(client, topic, 4)
    start = json.dumps({topic: {"0": 1}})
    with pytest.raises(
        PySparkException, match=r"offsets 1 to 9 are to be read, but the log now begins at 4.*failOnDataLoss"
    ):
        read(subscribe=topic, startingOffsets=start).collect()
    assert values(read(subscribe=topic, startingOffsets=start, failOnDataLoss="false")) == [
        "4",
        "5",
        "6",
        "7",
        "8",
        "9",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic-here"}, "there is no topic no-such-topic-here"),
        ({}, "set one of the options subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": "{}"}, "subscribe and assign are both set"),
        ({"subscribe": "a", "startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "option startingOffsets must be JSON"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "whole number of at least 1"),
        ({"subscribe": "a", "isolation": "serializable"}, "must be one of read_committed, read_uncommitted"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "nothing would be read"),
        ({"subscribePattern": "("}, "no regular expression"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str, read: Read) -> None:
    with pytest.raises(PySparkException, match=message):
        read(**options).collect()


def test_a_broker_that_is_not_there_is_named(spark: SparkSession) -> None:
    rows = spark.read.format("trunkline").option("bootstrap", "127.0.0.1:1").option("subscribe", "x").load()
    with pytest.raises(PySparkException, match=r"no broker answers at 127\.0\.0\.1:1"):
        rows.collect()


def test_a_topic_that_grew_is_read_as_a_whole(read: Read, client: Client, unique: Unique) -> None:
    topic = make_topic(client, unique("grown"))
    feed(client, topic, [b"old"])
    assert values(read(subscribe=topic)) == ["old"]
    Topics(client).grow(topic, 3)
    client.forget()
    feed(client, topic, [b"new"], partition=2)
    assert values(read(subscribe=topic)) == ["new", "old"]
