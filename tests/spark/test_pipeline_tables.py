"""Tables that pipelines write: each kind exactly once, also when a batch comes back, with upserts and new columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from private_postgres import PrivatePostgres
from pyspark.sql import SparkSession

from tests.integration.server import ServerProcess
from tests.spark.running_pipelines import Runs, fill
from trunkline.client.client import Client
from trunkline.pipeline.definition import DefinitionError
from trunkline.pipeline.lake import open_catalog

Unique = Callable[[str], str]
COLUMNS = "id BIGINT, name STRING, tags ARRAY<STRING>"


@pytest.fixture
def runs(spark: SparkSession, broker: ServerProcess, tmp_path: Path) -> Runs:
    return Runs(spark, broker.bootstrap, tmp_path)


def people(ids: range) -> list[dict[str, object]]:
    return [{"id": number, "name": f"n{number}", "tags": ["a", str(number)]} for number in ids]


def forget_commits(runs: Runs) -> None:
    """As after a crash between the write of the last batch and Spark's note that it is done."""
    found = False
    for commits in (runs.directory / "state").rglob("commits"):
        last = max((item for item in commits.iterdir() if item.name.isdecimal()), key=lambda item: int(item.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
        found = True
    assert found


def test_every_kind_of_table_has_each_record_once_also_when_a_batch_comes_back(
    runs: Runs, client: Client, unique: Unique, postgres: PrivatePostgres
) -> None:
    topic = unique("people")
    fill(client, topic, people(range(10)))
    url = f"postgresql://trunkline@127.0.0.1:{postgres.port}/postgres"
    derby = f"jdbc:derby:{runs.directory}/derby;create=true"
    pipeline = runs.define(
        source=[{"name": "people", "topics": [topic], "format": "json", "schema": COLUMNS, "on_error": "drop"}],
        transformation=[
            {"name": "short", "sql": "SELECT id, name, tags, _timestamp AS at FROM people"},
            {"name": "flat", "sql": "SELECT id, name FROM people"},
        ],
        sink=[
            {"kind": "parquet", "path": "parquet", "view": "short"},
            {"kind": "delta", "path": "delta", "view": "short"},
            {"kind": "iceberg", "path": "iceberg", "table": "lake.people", "view": "short"},
            {"kind": "postgresql", "url": url, "table": "people", "view": "short"},
            {"kind": "jdbc", "url": derby, "table": "PEOPLE_FLAT", "view": "flat", "name": "derby"},
        ],
    )

    def ids() -> dict[str, list[int]]:
        found = {"parquet": [row.id for row in runs.spark.read.parquet(str(runs.directory / "parquet")).collect()]}
        found["delta"] = DeltaTable(runs.directory / "delta").to_pyarrow_table()["id"].to_pylist()
        catalog = open_catalog({}, str(runs.directory / "iceberg"))
        found["iceberg"] = catalog.load_table("lake.people").scan().to_arrow()["id"].to_pylist()
        with psycopg.connect(url) as connection:
            found["postgresql"] = [row[0] for row in connection.execute("SELECT id FROM people").fetchall()]
            tags = connection.execute("SELECT tags FROM people WHERE id = 3").fetchone()
            assert tags == (["a", "3"],)
        found["derby"] = [row.id for row in runs.spark.read.jdbc(derby, "PEOPLE_FLAT").collect()]
        return {kind: sorted(values) for kind, values in found.items()}

    runs.once(pipeline)
    assert ids() == {key: list(range(10)) for key in ["parquet", "delta", "iceberg", "postgresql", "derby"]}
    forget_commits(runs)
    fill(client, topic, people(range(10, 15)))
    runs.once(pipeline)
    assert ids() == {key: list(range(15)) for key in ["parquet", "delta", "iceberg", "postgresql", "derby"]}


def test_upserts_keep_the_last_row_of_each_key(
    runs: Runs, client: Client, unique: Unique, postgres: PrivatePostgres
) -> None:
    topic = unique("states")
    fill(
        client, topic, [{"id": 1, "state": "new"}, {"id": 2, "state": "new"}, {"id": 1, "state": "paid"}], partitions=1
    )
    url = f"jdbc:postgresql://trunkline@127.0.0.1:{postgres.port}/postgres"
    keyed = {"mode": "upsert", "keys": ["id"]}
    pipeline = runs.define(
        source=[
            {
                "name": "states",
                "topics": [topic],
                "format": "json",
                "schema": "id BIGINT, state STRING",
                "on_error": "drop",
            }
        ],
        transformation=[{"name": "latest", "sql": "SELECT id, state FROM states"}],
        sink=[
            {"kind": "delta", "path": "delta", **keyed},
            {"kind": "iceberg", "path": "iceberg", "table": "lake.states", **keyed},
            {"kind": "postgresql", "url": url, "table": "states", **keyed},
        ],
    )

    def tables() -> list[dict[int, str]]:
        catalog = open_catalog({}, str(runs.directory / "iceberg"))
        lake = [
            DeltaTable(runs.directory / "delta").to_pyarrow_table(),
            catalog.load_table("lake.states").scan().to_arrow(),
        ]
        found = [{row["id"]: row["state"] for row in table.to_pylist()} for table in lake]
        assert [table.num_rows for table in lake] == [len(item) for item in found]
        with psycopg.connect(url.removeprefix("jdbc:")) as connection:
            found.append({row[0]: row[1] for row in connection.execute("SELECT id, state FROM states").fetchall()})
        return found

    runs.once(pipeline)
    assert tables() == [{1: "paid", 2: "new"}] * 3
    fill(client, topic, [{"id": 2, "state": "paid"}, {"id": 3, "state": "new"}], partitions=1)
    runs.once(pipeline)
    assert tables() == [{1: "paid", 2: "paid", 3: "new"}] * 3


def test_files_of_a_killed_driver_are_gone_before_the_next_batch(runs: Runs, client: Client, unique: Unique) -> None:
    topic = unique("people")
    fill(client, topic, people(range(4)), partitions=1)
    pipeline = runs.define(source=[{"name": "people", "topics": [topic]}], sink=[{"kind": "parquet", "path": "table"}])
    runs.once(pipeline)
    (part,) = (runs.directory / "table").glob("part-*.parquet")
    stray = part.with_name(part.name.replace("part-00000-", "part-00001-"))
    stray.write_bytes(part.read_bytes())
    runs.once(pipeline)
    assert list((runs.directory / "table").glob("part-*.parquet")) == [part]

    forgotten = runs.define(
        name="another", source=[{"name": "people", "topics": [topic]}], sink=[{"kind": "parquet", "path": "table"}]
    )
    with pytest.raises(DefinitionError, match="written by another run"):
        runs.once(forgotten)
    assert json.loads((runs.directory / "state/another/v1/progress.json").read_text())["state"] == "failed"
