"""Pipelines on a real Spark: from topics through SQL and Python to every kind of sink, malformed records set aside."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.server import ServerProcess
from tests.spark.running_pipelines import Runs, fill, records
from trunkline.client.client import Client
from trunkline.pipeline import application
from trunkline.pipeline.progress import Totals

Unique = Callable[[str], str]
ORDERS = "id BIGINT NOT NULL, customer STRING, amount DOUBLE"


@pytest.fixture
def runs(spark: SparkSession, broker: ServerProcess, tmp_path: Path) -> Runs:
    return Runs(spark, broker.bootstrap, tmp_path)


def orders(count: int) -> list[dict[str, object]]:
    return [{"id": number, "customer": f"c{number % 3}", "amount": number * 1.5} for number in range(count)]


def test_sql_takes_a_topic_to_a_derived_topic_and_a_table(runs: Runs, client: Client, unique: Unique) -> None:
    topic, derived = unique("orders"), unique("large")
    fill(client, topic, [*orders(20), b"malformed"])
    pipeline = runs.define(
        source=[
            {
                "name": "orders",
                "topics": [topic],
                "format": "json",
                "schema": ORDERS,
                "options": {"maxOffsetsPerTrigger": "6"},
            }
        ],
        transformation=[{"name": "large", "sql": "SELECT id, customer, amount FROM orders WHERE amount >= 15"}],
        sink=[{"kind": "topic", "topic": derived, "key": "customer"}, {"kind": "parquet", "path": "table"}],
    )
    reports = runs.once(pipeline)
    written = sorted((json.loads(item.value or b"") for item in records(client, derived)), key=lambda row: row["id"])
    assert written == [row for row in orders(20) if float(str(row["amount"])) >= 15]
    assert {item.key for item in records(client, derived)} == {b"c0", b"c1", b"c2"}
    table = runs.spark.read.parquet(str(runs.directory / "table"))
    assert sorted(row.id for row in table.collect()) == list(range(10, 20))
    assert {item.name: item.state for item in reports} == {
        derived: "finished",
        "table": "finished",
        "dead-letters.orders": "finished",
    }
    # In several batches, and each record and row counted once; malformed ones by the letters.
    assert all(item.batch and item.batch >= 3 for item in reports)
    assert [(item.read, item.written) for item in reports] == [(21, 10), (21, 10), (21, 1)]
    kept = runs.home(pipeline).version(1).progress()["queries"]
    assert kept == [item.to_json() for item in reports]
    assert Totals.of(item.to_json() for item in reports) == Totals(read=21, written=20, dead_letters=1, lag=0)

    fill(client, topic, [{"id": 100, "customer": "c9", "amount": 99.0}])
    assert [(item.read, item.written) for item in runs.once(pipeline)] == [(1, 1), (1, 1), (1, 0)]
    assert len(records(client, derived)) == 11
    assert runs.spark.read.parquet(str(runs.directory / "table")).count() == 11


def test_malformed_records_go_to_the_dead_letter_topic_with_the_reason(
    runs: Runs, client: Client, unique: Unique
) -> None:
    topic, out, dead = unique("orders"), unique("out"), unique("dead")
    bad = [b"{not json", b'{"customer": "x"}', b'{"id": "seven"}', b"[1]", b"", b"\xff\xfe", b"null", b"7"]
    fill(client, topic, [{"id": 1, "new_field": True}, *bad, None, {"id": 2, "amount": 3}], partitions=1)
    pipeline = runs.define(
        source=[
            {"name": "orders", "topics": [topic], "format": "json", "schema": ORDERS, "dead_letter_topic": dead},
        ],
        sink=[{"kind": "topic", "topic": out}],
    )
    runs.once(pipeline)
    assert [json.loads(item.value or b"")["id"] for item in records(client, out)] == [1, 2]
    letters = records(client, dead)
    assert [item.value for item in letters] == [*bad, None]
    headers = [dict(item.headers) for item in letters]
    reasons = [(item["dead-letter.reason"] or b"").decode() for item in headers]
    assert reasons[0].startswith("not JSON")
    assert reasons[1:3] == ["field id is missing", 'field id: expected bigint, found "seven"']
    assert reasons[3] == "not a JSON object but a list"
    assert reasons[8] == "the record has no value"
    assert [item["dead-letter.offset"] for item in headers] == [str(offset).encode() for offset in range(1, 10)]
    assert {item["dead-letter.topic"] for item in headers} == {topic.encode()}


def test_csv_and_avro_are_parsed_and_their_malformed_records_set_aside(
    runs: Runs, client: Client, unique: Unique
) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "sensor", "type": "string"},
            {"name": "value", "type": ["null", "double"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, schema, {"sensor": "s1", "value": 2.5, "at": 1_700_000_000_000})
    lines, avro = unique("lines"), unique("avro")
    fill(client, lines, [b"1;ann", b"two;bob", b"3", b"4;dan"], partitions=1)
    fill(client, avro, [encoded.getvalue(), b"\x02", encoded.getvalue() + b"!"], partitions=1)
    pipeline = runs.define(
        source=[
            {
                "name": "people",
                "topics": [lines],
                "format": "csv",
                "schema": "id INT, name STRING",
                "parse": {"sep": ";"},
            },
            {"name": "readings", "topics": [avro], "format": "avro", "schema": json.dumps(schema)},
        ],
        sink=[
            {"kind": "parquet", "path": "people", "view": "people"},
            {"kind": "parquet", "path": "readings", "view": "readings"},
        ],
    )
    runs.once(pipeline)
    people = runs.spark.read.parquet(str(runs.directory / "people")).collect()
    assert [(row.id, row.name) for row in people] == [(1, "ann"), (4, "dan")]
    (reading,) = runs.spark.read.parquet(str(runs.directory / "readings")).collect()
    assert (reading.sensor, reading.value, reading["at"].year) == ("s1", 2.5, 2023)
    assert [dict(item.headers)["dead-letter.reason"] for item in records(client, "people.dead-letters")] == [
        b"column id: expected int, found 'two'",
        b"expected 2 columns, found 1",
    ]
    reasons = [dict(item.headers)["dead-letter.reason"] or b"" for item in records(client, "readings.dead-letters")]
    assert reasons[0].startswith(b"not Avro of this schema")
    assert reasons[1] == b"not Avro of this schema: 1 bytes are left over"


def test_the_documented_example_in_python_runs(runs: Runs, client: Client) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    (python,) = (text for text in re.findall("```python\n(.*?)```", page, re.DOTALL) if "Pipeline(" in text)
    (runs.directory / "app.py").write_text(python)
    fill(
        client, "orders", [{"id": number, "shop": f"s{number % 3}", "amount": number * 7 % 50} for number in range(20)]
    )
    pipeline = application.load(runs.directory / "app.py")
    expected = {number for number in range(20) if number * 7 % 50 > 40}
    assert [item.written for item in runs.once(pipeline)] == [len(expected), len(expected), 0]
    assert {json.loads(item.value or b"")["id"] for item in records(client, "large-orders")} == expected
