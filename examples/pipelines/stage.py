"""Where a pattern runs: a broker, a Spark session, a directory for its checkpoints and tables, and names of its own.

    python examples/pipelines/kappa.py                               a broker of its own, gone afterwards
    python examples/pipelines/kappa.py --bootstrap 127.0.0.1:9092    yours

Every pattern is a function that takes a `Stage` and returns what it found out, so that the tests can hold it to it. On a
broker that was there before, topic and queue names get a prefix: the pattern never reads what an earlier run has left.

Records are produced and checked with confluent-kafka, an unmodified Kafka client; Spark reads and writes them with
`format("trunkline")`. Each wait has a deadline: `PATIENCE_SECONDS`. On a busy machine Spark's Python processes may come too late
for it; then a query, or the pattern as a whole, is tried again (`Patience`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from trunkline.pipeline.causes import cause_of
from trunkline.pipeline.patience import Patience
from trunkline.pipeline.spark_log import SparkLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PATIENCE_SECONDS = 120.0
MAX_SHOWN_ROWS = 20
T = TypeVar("T")
Offsets: TypeAlias = dict[str, dict[str, int]]
"""topic -> partition -> offset, as the options startingOffsets and endingOffsets take them."""


class Message(NamedTuple):
    key: str | None
    value: bytes | None
    headers: Mapping[str, bytes] = {}
    timestamp_ms: int = 0
    """0: the time at which it is sent."""


def event(key: str | None, content: Mapping[str, object], timestamp_ms: int = 0) -> Message:
    """A message whose value is JSON."""
    return Message(key, json.dumps(content).encode(), timestamp_ms=timestamp_ms)


@dataclass
class Stage:
    bootstrap: str
    spark: SparkSession
    directory: Path
    prefix: str = ""
    amqp: str = "127.0.0.1:5672"
    mqtt: str = "127.0.0.1:1883"
    postgres: str | None = None
    """A connection string of libpq; None starts a private PostgreSQL."""
    console: Console = field(default_factory=Console)
    _producer: Producer | None = field(default=None, init=False, repr=False)

    def name(self, name: str) -> str:
        return self.prefix + name

    def topic(self, name: str, partitions: int = 2, *, compacted: bool = False) -> str:
        """Create a topic, and return its full name."""
        full = self.name(name)
        # Kept for ever: some patterns send records that are dated years back.
        settings = {"cleanup.policy": "compact"} if compacted else {"retention.ms": "-1"}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 4})  # must outlive the answer
        admin.create_topics([NewTopic(full, partitions, 1, config=settings)])[full].result(PATIENCE_SECONDS)
        return full

    def send(self, topic: str, messages: Iterable[Message]) -> int:
        """Produce them; they are on disk when this returns. How many they were."""
        if self._producer is None:  # one for all: an idempotent producer takes half a second to start
            settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5}
            self._producer = Producer(settings)
        producer = self._producer
        failures: list[str] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failures.append(str(error))

        count = 0
        for message in messages:
            count += 1
            producer.produce(
                topic,
                message.value,
                message.key,
                headers=dict(message.headers),
                timestamp=message.timestamp_ms,
                on_delivery=delivered,
            )
            producer.poll(0)
        if producer.flush(PATIENCE_SECONDS) or failures:
            raise RuntimeError(f"{topic}: not every record was stored: {failures[:1] or 'no answer'}")
        return count

    def close(self) -> None:
        """Give up the producer, before the broker goes."""
        self._producer = None

    def ends(self, topic: str) -> Offsets:
        """Where each partition ends now: the first offset that is not there yet."""
        with self._consumer() as consumer:
            partitions = consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
            return {
                topic: {
                    str(each): consumer.get_watermark_offsets(TopicPartition(topic, each), PATIENCE_SECONDS)[1]
                    for each in sorted(partitions)
                }
            }

    def messages(self, topic: str) -> list[Message]:
        """Every committed record of the topic, in the order of each partition."""
        found: list[Message] = []
        with self._consumer() as consumer:
            partitions = consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
            consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
            left = set(partitions)
            while left:
                message = consumer.poll(PATIENCE_SECONDS)
                if message is None:
                    raise TimeoutError(f"{topic}: no end in {PATIENCE_SECONDS} seconds")
                if message.error() is None:
                    key, headers = message.key(), dict(message.headers() or [])
                    text = key.decode() if key is not None else None
                    found.append(Message(text, message.value(), headers, message.timestamp()[1]))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise RuntimeError(f"{topic}: {message.error()}")
        return found

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "examples",  # required, never committed to
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def read(self, topic: str, **options: str) -> DataFrame:
        """The topic as a table, from its first record to its last of this moment, or as the options say."""
        reader = self.spark.read.format("trunkline").option("bootstrap", self.bootstrap).option("subscribe", topic)
        return reader.options(**{"startingOffsets": "earliest", **options}).load()

    def stream(self, topic: str, **options: str) -> DataFrame:
        """The topic as a table that grows, from its first record on, or from where the options say."""
        reader = self.spark.readStream.format("trunkline").option("bootstrap", self.bootstrap)
        return reader.options(**{"subscribe": topic, "startingOffsets": "earliest", **options}).load()

    def start(self, writer: DataStreamWriter, name: str, *, every: str | None = None) -> LiveQuery:
        """Start a query; its checkpoint is kept under its name. `every` is a trigger interval such as "1 second"."""
        writer = self._kept(writer, name)
        return LiveQuery(writer.trigger(processingTime=every) if every else writer, self.say)

    def catch_up(self, writer: DataStreamWriter, name: str) -> None:
        """Process everything that is there now, then stop; the next time under this name goes on from there."""
        writer = self._kept(writer, name).trigger(availableNow=True)

        def to_the_end() -> None:
            query = writer.start()
            try:
                if not query.awaitTermination(int(PATIENCE_SECONDS)):
                    raise TimeoutError(f"{name} did not catch up in {PATIENCE_SECONDS} seconds")
            finally:
                query.stop()

        Patience(self.say).run(to_the_end)

    def _kept(self, writer: DataStreamWriter, name: str) -> DataStreamWriter:
        return writer.option("checkpointLocation", str(self.directory / "checkpoints" / name))

    def patiently(self, pattern: Callable[[Stage], T]) -> T:
        """Run a pattern; if Spark's processes came late, once more from the start, under names of its own."""
        attempts = 0

        def attempt() -> T:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                return pattern(self)
            directory = self.directory / f"attempt-{attempts}"
            directory.mkdir()
            return pattern(replace(self, prefix=f"{self.prefix}attempt-{attempts}-", directory=directory))

        return Patience(self.say).run(attempt)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def show(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        table = Table(*columns, title=title, title_justify="left", title_style="bold")
        everything = list(rows)
        for row in everything[:MAX_SHOWN_ROWS]:
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        if len(everything) > MAX_SHOWN_ROWS:
            table.caption = f"and {len(everything) - MAX_SHOWN_ROWS} more"
        self.console.print(table)


class LiveQuery:
    """A query that runs on; started again from its checkpoint where Spark's processes came late."""

    def __init__(self, writer: DataStreamWriter, say: Callable[[str], None]) -> None:
        self._writer = writer
        self._patience = Patience(say)
        self._query = self._patience.run(writer.start)

    @property
    def reports(self) -> Sequence[Mapping[str, Any]]:
        """What Spark says of its last batches."""
        return self._query.recentProgress

    def check(self) -> None:
        """Raise what it has failed with, unless that passes."""
        failure = self._query.exception()
        if failure is not None:
            self._patience.excuse(failure)
            self._query = self._patience.run(self._writer.start)

    def catch_up(self) -> None:
        """Wait until it has processed everything that is there now."""

        def wait() -> None:
            self.check()
            self._query.processAllAvailable()

        self._patience.run(wait)

    def stop(self) -> None:
        """Raises what it has failed with: whoever waited for its results learns why none came."""
        failure = self._query.exception()
        self._query.stop()
        if failure is not None:
            raise failure


def main(description: str | None, pattern: Callable[[Stage], object]) -> int:
    """Run one pattern from the command line."""
    summary = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs; without it, one is started")
    parser.add_argument("--amqp", metavar="HOST:PORT", help="its AMQP listener, where it is not at port 5672")
    parser.add_argument("--mqtt", metavar="HOST:PORT", help="its MQTT listener, where it is not at port 1883")
    parser.add_argument(
        "--postgres", metavar="DSN", help="a PostgreSQL with wal_level=logical; without it, one is started"
    )
    chosen = parser.parse_args()
    console = Console()
    console.print(f"[bold]{summary}[/bold]", highlight=False)
    with opened(chosen, console) as stage:
        stage.patiently(pattern)
    return 0


@contextlib.contextmanager
def opened(chosen: argparse.Namespace, console: Console) -> Iterator[Stage]:
    """A broker unless one is named, a Spark session and a directory; all gone afterwards.

    What Spark writes goes into a log that stays only if the pattern fails: then one line says why, and where the log is.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    file, path = tempfile.mkstemp(prefix="trunkline-pipeline-", suffix=".log")
    os.close(file)
    log = SparkLog(Path(path))
    is_needed = False
    try:
        with _opened(chosen, console, log) as stage:
            yield stage
    except (PySparkException, Py4JError) as error:
        is_needed = True
        log.note(error)
        raise SystemExit(f"error: {cause_of(error)}\n       the whole trace is in {log.path}") from None
    finally:
        if not is_needed:
            log.path.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(chosen: argparse.Namespace, console: Console, log: SparkLog) -> Iterator[Stage]:
    import trunkline
    from trunkline.pipeline.session import JavaMissing, local_session

    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-pipeline-")))
        if chosen.bootstrap:
            host = chosen.bootstrap.rpartition(":")[0]
            addresses = {"kafka": chosen.bootstrap, "amqp": f"{host}:5672", "mqtt": f"{host}:1883"}
            prefix = f"{Path(sys.argv[0]).stem}-{uuid.uuid4().hex[:6]}-"
        else:
            addresses = dict(stack.enter_context(trunkline.run()).addresses)
            prefix = ""
        console.print(f"broker at {addresses['kafka']}; starting Spark", highlight=False)
        try:
            with log.launching():
                spark = local_session("trunkline-examples", quick_start=True)
        except JavaMissing as error:
            raise SystemExit(str(error)) from None
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        stage = Stage(
            addresses["kafka"],
            spark,
            directory,
            prefix,
            chosen.amqp or addresses["amqp"],
            chosen.mqtt or addresses["mqtt"],
            chosen.postgres,
            console,
        )
        stack.callback(stage.close)
        yield stage
