"""Topics filled and pipelines run by the tests of pipelines and archives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from trunkline.client.client import Client
from trunkline.client.producer import Producer
from trunkline.client.reader import Reader
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.batch import Record
from trunkline.log.store import TopicPartition
from trunkline.pipeline.definition import Pipeline, from_table
from trunkline.pipeline.home import PipelineHome
from trunkline.pipeline.progress import QueryProgress
from trunkline.pipeline.runner import Runner


def fill(client: Client, topic: str, values: Iterable[object], partitions: int = 2) -> None:
    """Produce values: bytes as they are, None as a tombstone, anything else as JSON. Keys are their numbers."""
    if topic not in client.metadata().topics:
        Topics(client).create(topic, partitions)
    producer = Producer(client, topic)
    for number, value in enumerate(values):
        data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        producer.send(str(number).encode(), data)
    producer.flush()


def records(client: Client, topic: str) -> list[Record]:
    """Everything committed in a topic, by partition and offset."""
    partitions = [TopicPartition(topic, item.index) for item in client.topic(topic).partitions]
    ends = Topics(client).offsets(partitions, LATEST, committed=True)
    reader = Reader(client, Topics(client).offsets(partitions, EARLIEST), committed=True)
    found: list[tuple[TopicPartition, Record]] = []
    while any(reader.positions[tp] < end for tp, end in ends.items()):
        found += [(item.partition, item.record) for item in reader.poll()]
    return [record for _, record in sorted(found, key=lambda pair: (pair[0], pair[1].offset))]


@dataclass
class Runs:
    """Runs pipelines on the shared session, with state in a directory of the test's own."""

    spark: SparkSession
    bootstrap: str
    directory: Path

    def home(self, pipeline: Pipeline) -> PipelineHome:
        return PipelineHome(self.directory / "state" / pipeline.name)

    def define(self, **table: object) -> Pipeline:
        return from_table({"restarts": 1, **table}, default_name="test", directory=self.directory)

    def runner(self, pipeline: Pipeline, *, once: bool = True, version: int = 1) -> Runner:
        home = self.home(pipeline).version(version)
        home.directory.mkdir(parents=True, exist_ok=True)
        return Runner(pipeline, self.spark, home, self.bootstrap, once=once, first_pause_ms=100)

    def once(self, pipeline: Pipeline) -> list[QueryProgress]:
        return self.runner(pipeline).run()
