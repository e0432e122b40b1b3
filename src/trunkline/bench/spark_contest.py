"""Our Spark source and sink beside Spark's own Kafka connector, on the same broker, the same topics, in the same session.

    source/<size>    rows of a topic to Spark's no-op sink, all columns
    sink/<size>      rows of a Parquet file to a topic: ours exactly once, the connector as it is, at least once
    latency          from producing a record until a consumer sees what a stream made of it: topic, source, sink, topic

The ceiling of a source is the same rows from Parquet files to the same no-op sink. Each measurement is taken
`repetitions` times, ours and the connector's in turn, and the median counts; before that each runs `warm_ups` times
uncounted, because a JVM needs that to compile its hot paths. The broker runs beside Spark and is loaded by both alike.

The topics have as many partitions as Spark has threads. That all rows are read is checked once for each source before the
clock runs, because counting would change what is measured; that all are written, after every run by the topic's end
offsets; and in the latency stream every record must arrive, once.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.bench.cases import MEGABYTES, MILLISECONDS, ROWS, median, percentile
from trunkline.bench.librdkafka import LoadError
from trunkline.bench.spark_connector import Connector, fetch_connector
from trunkline.bench.trunkline_process import TrunklineProcess
from trunkline.client.client import Client
from trunkline.client.producer import Producer
from trunkline.client.reader import Reader
from trunkline.client.sending import Sender
from trunkline.client.topics import LATEST, Topics
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.store import TopicPartition
from trunkline.pipeline.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREADS = 2
HEAP = "1500m"
SIZES_BYTES = (100, 1000)
OURS, PEER = "trunkline", "kafka"
BATCH_BODY_BYTES = 500_000
LATENCY_INTERVAL_S = 0.05
WARM_UP_RECORDS = 60
ARRIVAL_TIMEOUT_S = 60.0
_STAMP = struct.Struct(">qq")  # number, time of production in ns


@dataclass(frozen=True, slots=True)
class SparkScale:
    """How much work a measurement is."""

    small_rows: int
    large_rows: int
    warm_ups: int
    repetitions: int
    latency_records: int

    def rows(self, size_bytes: int) -> int:
        return self.small_rows if size_bytes < 1000 else self.large_rows


FULL = SparkScale(small_rows=2_000_000, large_rows=400_000, warm_ups=3, repetitions=5, latency_records=400)
QUICK = SparkScale(small_rows=500_000, large_rows=100_000, warm_ups=2, repetitions=3, latency_records=100)


@dataclass(frozen=True, slots=True)
class SparkFigure:
    """One line of the result; `ceiling` is that of a Parquet source, where there is one."""

    case: str
    unit: str
    ours: float
    peer: float
    ceiling: float | None = None

    @property
    def ratio(self) -> float:
        return self.peer / self.ours if self.unit == MILLISECONDS else self.ours / self.peer


@dataclass(slots=True)
class SparkContest:
    scale: SparkScale
    on_step: Callable[[str, int], None] = lambda _description, _steps: None
    connector: Connector = field(init=False)
    _steps: int = 0

    def run(self) -> list[SparkFigure]:
        from pyspark import __version__ as spark_version

        self.connector = fetch_connector(spark_version)
        rounds = self.scale.warm_ups + self.scale.repetitions
        self._steps = len(SIZES_BYTES) * (2 * rounds + 1) + 5
        figures: list[SparkFigure] = []
        self._say("start the broker and Spark")
        with TrunklineProcess() as broker, Client(broker.bootstrap) as client, _scratch() as directory:
            spark = local_session("trunkline-bench", master=f"local[{THREADS}]", heap=HEAP, conf=self.connector.conf)
            spark.sparkContext.setLogLevel("OFF")
            try:
                for size_bytes in SIZES_BYTES:
                    bench = _Bench(spark, client, broker.bootstrap, directory, size_bytes, self.scale.rows(size_bytes))
                    self._say(f"fill {bench.topic}")
                    bench.fill()
                    figures += self._source(bench)
                    figures += self._sink(bench)
                figures += self._latency(spark, client, broker.bootstrap, directory)
            finally:
                spark.stop()
        return figures

    def _source(self, bench: _Bench) -> list[SparkFigure]:
        seconds: dict[str, list[float]] = {OURS: [], PEER: [], "parquet": []}
        for turn in range(self.scale.warm_ups + self.scale.repetitions):
            self._say(f"read {bench.topic}, round {turn + 1}")
            for name, taken in seconds.items():
                taken.append(bench.read(name))
        ours, peer, ceiling = (median(taken[self.scale.warm_ups :]) for taken in seconds.values())
        return _rates(f"source/{bench.size_name}", bench, ours, peer, ceiling)

    def _sink(self, bench: _Bench) -> list[SparkFigure]:
        seconds: dict[str, list[float]] = {OURS: [], PEER: []}
        for turn in range(self.scale.warm_ups + self.scale.repetitions):
            self._say(f"write {bench.rows:,} rows of {bench.size_name}, round {turn + 1}")
            for name, taken in seconds.items():
                taken.append(bench.write(name, f"sink-{name}-{bench.size_name}-{turn}"))
        ours, peer = (median(taken[self.scale.warm_ups :]) for taken in seconds.values())
        return _rates(f"sink/{bench.size_name}", bench, ours, peer, None)

    def _latency(self, spark: SparkSession, client: Client, bootstrap: str, directory: Path) -> list[SparkFigure]:
        taken: dict[str, list[float]] = {OURS: [], PEER: []}
        for turn, name in enumerate((OURS, PEER, PEER, OURS)):
            self._say(f"latency of a stream through {name}")
            stream = _Latency(spark, client, bootstrap, directory, name, turn)
            taken[name] += stream.measure(self.scale.latency_records // 2)
        return [
            SparkFigure(
                f"latency/p{round(100 * part)}",
                MILLISECONDS,
                percentile(taken[OURS], part),
                percentile(taken[PEER], part),
            )
            for part in (0.5, 0.99)
        ]

    def _say(self, what: str) -> None:
        self.on_step(what, self._steps)


def _rates(case: str, bench: _Bench, ours_s: float, peer_s: float, ceiling_s: float | None) -> list[SparkFigure]:
    megabytes = bench.rows * bench.size_bytes / 1e6
    return [
        SparkFigure(case, unit, total / ours_s, total / peer_s, None if ceiling_s is None else total / ceiling_s)
        for unit, total in ((ROWS, float(bench.rows)), (MEGABYTES, megabytes))
    ]


@dataclass(slots=True)
class _Bench:
    """One record size: a topic and Parquet files with the same rows."""

    spark: SparkSession
    client: Client
    bootstrap: str
    directory: Path
    size_bytes: int
    rows: int

    @property
    def size_name(self) -> str:
        return f"{self.size_bytes}B" if self.size_bytes < 1000 else f"{self.size_bytes // 1000}KB"

    @property
    def topic(self) -> str:
        return f"rows-{self.size_name}"

    @property
    def parquet(self) -> str:
        return str(self.directory / self.size_name)

    def fill(self) -> None:
        Topics(self.client).create(self.topic, THREADS)
        value = bytes(range(256)) * (self.size_bytes // 256 + 1)
        per_batch = BATCH_BODY_BYTES // self.size_bytes
        sender = Sender(self.client)
        left = self.rows
        now_ms = self.client.clock.wall_ms()
        turn = 0
        while left:
            count = min(per_batch, left)
            records = [NewRecord(b"%08d" % at, value[: self.size_bytes]) for at in range(left - count, left)]
            sender.send({TopicPartition(self.topic, turn % THREADS): build_batch(records, timestamp_ms=now_ms)})
            left -= count
            turn += 1
        sender.flush()
        self._load(OURS, self.topic).write.parquet(self.parquet)
        for name in (OURS, PEER, "parquet"):
            found = self._rows(name).count()
            if found != self.rows:
                raise LoadError(f"{self.topic} has {self.rows} rows, and {name} reads {found}")

    def read(self, name: str) -> float:
        rows = self._rows(name)
        started = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def _rows(self, name: str) -> DataFrame:
        return self.spark.read.parquet(self.parquet) if name == "parquet" else self._load(name, self.topic)

    def write(self, name: str, topic: str) -> float:
        Topics(self.client).create(topic, THREADS)
        writer = (
            self.spark.read.parquet(self.parquet)
            .select("key", "value")
            .write.format(name)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", topic)
            .mode("append")
        )
        started = time.perf_counter()
        writer.save()
        taken = time.perf_counter() - started
        self._check(topic)
        Topics(self.client).delete(topic)
        return taken

    def _check(self, topic: str) -> None:
        """Every row arrived. Offsets also count the transactions' markers, so rows are the least that there is."""
        ends = Topics(self.client).offsets([TopicPartition(topic, index) for index in range(THREADS)], LATEST)
        if not self.rows <= sum(ends.values()) <= self.rows + 2 * THREADS * THREADS:
            raise LoadError(f"{self.rows} rows were written to {topic}, and its offsets end at {sum(ends.values())}")

    def _load(self, name: str, topic: str) -> DataFrame:
        rows = (
            self.spark.read.format(name)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        return rows.select("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(slots=True)
class _Latency:
    """A stream from topic to topic, fed one record every `LATENCY_INTERVAL_S`."""

    spark: SparkSession
    client: Client
    bootstrap: str
    directory: Path
    format: str
    turn: int
    _arrived_ns: dict[int, int] = field(default_factory=dict)
    _failure: list[BaseException] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def measure(self, records: int) -> list[float]:
        source, target = f"latency-in-{self.turn}", f"latency-out-{self.turn}"
        for topic in (source, target):
            Topics(self.client).create(topic, 1)
        query = (
            self.spark.readStream.format(self.format)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value")
            .writeStream.format(self.format)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(self.directory / f"checkpoint-{self.turn}"))
            .start()
        )
        watcher = threading.Thread(target=self._watch, args=(target,), name="trunkline-latency")
        watcher.start()
        try:
            producer = Producer(self.client, source)
            warm_up = WARM_UP_RECORDS
            for number in range(warm_up + records):
                sent_ns = time.monotonic_ns()
                producer.send(None, _STAMP.pack(number, sent_ns))
                producer.flush()
                time.sleep(LATENCY_INTERVAL_S)
                if number == 0:
                    self._wait(1)  # the first batch plans the query: its seconds are not what a stream costs
            self._wait(warm_up + records)
        finally:
            self._stop.set()
            watcher.join()
            query.stop()
        return [taken / 1e6 for number, taken in self._arrived_ns.items() if number >= warm_up]

    def _wait(self, records: int) -> None:
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while len(self._arrived_ns) < records:
            if self._failure:
                raise LoadError(f"the consumer failed: {self._failure[0]}")
            if time.monotonic() > deadline:
                raise LoadError(f"{len(self._arrived_ns)} of {records} records arrived in {ARRIVAL_TIMEOUT_S:g} s")
            time.sleep(0.002)

    def _watch(self, topic: str) -> None:
        try:
            with Client(self.bootstrap) as client:
                reader = Reader(client, {TopicPartition(topic, 0): 0}, committed=True)
                while not self._stop.is_set():
                    for found in reader.poll(200):
                        now_ns = time.monotonic_ns()
                        number, sent_ns = _STAMP.unpack(found.record.value or b"")
                        if number in self._arrived_ns:
                            raise LoadError(f"record {number} arrived twice")
                        self._arrived_ns[number] = now_ns - sent_ns
        except Exception as error:
            self._failure.append(error)


@contextmanager
def _scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="trunkline-spark-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
