"""A stream from topic to topic, and one to files, that must lose and repeat nothing; and a driver of its own for them, to be killed.

    python -m tests.spark.driver BOOTSTRAP SOURCE TARGET DIRECTORY

Writes `ready` to standard output when the queries run. They go on until standard input is closed; then they read what is
left and end with code 0. A query that fails ends the driver with code 2 and its error. The checkpoints are in DIRECTORY
and are used again by the next driver.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from trunkline.pipeline.patience import Patience
from trunkline.pipeline.session import local_session

MAX_ROWS_PER_BATCH = 1000
END_SECONDS = 120
POLL_SECONDS = 0.1


@dataclass
class Streams:
    """The two queries: started, looked after, and run to the end of what is there."""

    spark: SparkSession
    bootstrap: str
    source: str
    target: str
    directory: Path
    _running: dict[str, StreamingQuery] = field(default_factory=dict)
    _patience: Patience = field(default_factory=lambda: Patience(lambda text: print(text, file=sys.stderr)))

    @property
    def table(self) -> Path:
        return self.directory / "table"

    def start(self) -> None:
        for name in ("topic", "table"):
            self._running[name] = self._writer(name).start()

    def check(self) -> None:
        """Raise what a query has failed with; one that only had no worker in time is started again."""
        for name, query in self._running.items():
            failure = query.exception()
            if failure is not None:
                self._patience.excuse(failure)
                self._running[name] = self._writer(name).start()

    def both_have_begun(self) -> bool:
        self.check()
        return all((self.directory / f"checkpoint-{name}" / "commits" / "0").exists() for name in self._running)

    def stop(self) -> None:
        for query in self._running.values():
            query.stop()

    def finish(self) -> None:
        """Stop them, and read what is left."""
        self.stop()
        for name in ("topic", "table"):
            self._patience.run(lambda name=name: self._read_the_rest(name))  # type: ignore[misc]

    def _read_the_rest(self, name: str) -> None:
        query = self._writer(name).trigger(availableNow=True).start()
        if not query.awaitTermination(END_SECONDS):
            raise TimeoutError(f"not done: {query.lastProgress}")

    def _writer(self, name: str) -> DataStreamWriter:
        rows = (
            self.spark.readStream.format("trunkline")
            .option("bootstrap", self.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", MAX_ROWS_PER_BATCH)
            .load()
            .select("key", "value")
        )
        if name == "topic":
            writer = rows.writeStream.format("trunkline").option("bootstrap", self.bootstrap)
            writer = writer.option("topic", self.target)
        else:
            writer = rows.writeStream.format("parquet").option("path", str(self.table))
        return writer.option("checkpointLocation", str(self.directory / f"checkpoint-{name}"))


def main(bootstrap: str, source: str, target: str, directory: str) -> int:
    spark = local_session("trunkline-driver", heap="512m", quick_start=True)
    spark.sparkContext.setLogLevel("OFF")
    streams = Streams(spark, bootstrap, source, target, Path(directory))
    streams.start()
    print("ready", flush=True)
    told = threading.Thread(target=sys.stdin.read, daemon=True)
    told.start()
    try:
        while told.is_alive():
            told.join(POLL_SECONDS)
            streams.check()
        streams.finish()
    except Exception as failure:
        print(f"failed: {failure}", file=sys.stderr, flush=True)
        return 2
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
