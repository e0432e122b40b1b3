"""What goes wrong while a pipeline runs: recovery where that is possible, one clear sentence where it is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.server import ServerProcess
from tests.spark.running_pipelines import Runs, fill, records
from trunkline.client.client import Client
from trunkline.client.errors import ClientError
from trunkline.client.topics import Topics
from trunkline.pipeline.definition import DefinitionError, Pipeline, Source, TopicSink, Transformation
from trunkline.pipeline.runner import PipelineFailed, Runner

Unique = Callable[[str], str]
DEADLINE_S = 90.0


@pytest.fixture
def runs(spark: SparkSession, broker: ServerProcess, tmp_path: Path) -> Runs:
    return Runs(spark, broker.bootstrap, tmp_path)


class Background:
    """A pipeline that runs on in a thread; `end` gives what it raised."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.runner.run()
        except Exception as error:
            self.error = error

    def end(self, *, stop: bool = True) -> Exception | None:
        if stop:
            self.runner.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def in_background() -> Iterator[Callable[[Runner], Background]]:
    started: list[Background] = []

    def start(runner: Runner) -> Background:
        started.append(Background(runner))
        return started[-1]

    yield start
    for item in started:
        item.end()


def wait_until(holds: Callable[[], bool], running: Background) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert running.error is None
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.1)


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    try:
        with Client(bootstrap, timeout_ms=2_000) as client:
            return [item.value for item in records(client, topic)]
    except ClientError:
        return []


def test_a_pipeline_outlives_a_killed_broker(
    spark: SparkSession,
    fresh_broker: ServerProcess,
    tmp_path: Path,
    in_background: Callable[[Runner], Background],
) -> None:
    runs = Runs(spark, fresh_broker.bootstrap, tmp_path)
    with Client(fresh_broker.bootstrap) as client:
        fill(client, "in", [b"1", b"2"], partitions=1)
    pipeline = runs.define(
        restarts=100, source=[{"name": "records", "topics": ["in"]}], sink=[{"kind": "topic", "topic": "out"}]
    )
    running = in_background(runs.runner(pipeline, once=False))
    wait_until(lambda: values(fresh_broker.bootstrap, "out") == [b"1", b"2"], running)
    fresh_broker.kill()
    fresh_broker.start()
    with Client(fresh_broker.bootstrap) as client:
        fill(client, "in", [b"3"], partitions=1)
    wait_until(lambda: values(fresh_broker.bootstrap, "out") == [b"1", b"2", b"3"], running)
    assert running.end() is None
    assert runs.home(pipeline).version(1).progress()["state"] == "stopped"


def test_an_empty_topic_is_waited_on_and_a_deleted_one_is_named(
    runs: Runs, client: Client, unique: Unique, in_background: Callable[[Runner], Background]
) -> None:
    topic, out = unique("later"), unique("out")
    Topics(client).create(topic, 1)
    pipeline = runs.define(source=[{"name": "records", "topics": [topic]}], sink=[{"kind": "topic", "topic": out}])
    running = in_background(runs.runner(pipeline, once=False))
    wait_until(lambda: out in client.metadata().topics, running)
    fill(client, topic, [b"at last"])
    wait_until(lambda: values(runs.bootstrap, out) == [b"at last"], running)
    Topics(client).delete(topic)
    error = running.end(stop=False)
    assert isinstance(error, PipelineFailed)
    assert topic in str(error)
    progress = runs.home(pipeline).version(1).progress()
    assert progress["state"] == "failed"
    assert topic in str(progress["error"])


def test_what_cannot_work_is_said_before_anything_is_written(runs: Runs, client: Client, unique: Unique) -> None:
    topic = unique("orders")
    with pytest.raises(DefinitionError, match=f"there is no topic {topic}"):
        runs.once(runs.define(source=[{"name": "o", "topics": [topic]}], sink=[{"kind": "parquet", "path": "x"}]))
    fill(client, topic, [{"id": 1}])
    source = {"name": "orders", "topics": [topic], "format": "json"}
    sink = {"kind": "parquet", "path": "x"}
    wrong = [
        ({"source": [{**source, "schema": "id WHAT"}], "sink": [sink]}, "the schema does not parse"),
        (
            {"source": [source], "sink": [sink], "transformation": [{"name": "t", "sql": "SELECT nope FROM orders"}]},
            "transformation 't': .*nope",
        ),
        (
            {
                "source": [source],
                "sink": [sink],
                "transformation": [{"name": "t", "function": "no_such:f", "inputs": ["orders"]}],
            },
            "there is no module 'no_such'",
        ),
        ({"source": [source], "sink": [{"kind": "topic", "topic": "x", "key": "nope"}]}, "'nope' is no column"),
    ]
    for table, complaint in wrong:
        with pytest.raises(DefinitionError, match=complaint):
            runs.once(runs.define(**table))


def test_a_malformed_record_stops_the_pipeline_if_it_is_told_to(runs: Runs, client: Client, unique: Unique) -> None:
    topic = unique("strict")
    fill(client, topic, [{"id": 1}, b"oops"], partitions=1)
    source = {"name": "strict", "topics": [topic], "format": "json", "schema": "id INT", "on_error": "fail"}
    with pytest.raises(PipelineFailed, match=f"on_error is fail.*record {topic} 0 offset 1 does not fit the schema"):
        runs.once(runs.define(restarts=100, source=[source], sink=[{"kind": "parquet", "path": "x"}]))


def test_python_functions_transform_and_schemas_are_inferred_once(runs: Runs, client: Client, unique: Unique) -> None:
    topic, out = unique("orders"), unique("out")
    fill(client, topic, [{"id": 1, "amount": 2}], partitions=1)

    def doubled(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("id", "amount * 2 AS amount")

    pipeline = Pipeline(
        name="doubles",
        sources=(Source(name="orders", topics=(topic,), format="json"),),
        transformations=(Transformation(name="doubled", inputs=("orders",), function=doubled),),
        sinks=(TopicSink(topic=out),),
        directory=runs.directory,
    )
    runs.once(pipeline)
    # A field that comes later is passed over; the schema of the first run stays.
    fill(client, topic, [{"id": 2, "amount": 3, "later": "x"}], partitions=1)
    runs.once(pipeline)
    assert values(runs.bootstrap, out) == [b'{"id":1,"amount":4}', b'{"id":2,"amount":6}']
    assert runs.home(pipeline).version(1).schema("orders") == "`id` BIGINT, `amount` BIGINT"
