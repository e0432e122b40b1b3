"""A Spark driver in a process of its own, to be killed: a stream from topic to topic, and to files, until told to end.

    python -m tests.spark.driver BOOTSTRAP SOURCE TARGET DIRECTORY

Writes `ready` to standard output when the query runs. Both streams go on until standard input is closed; then they read
what is left and end with code 0. A query that fails ends the driver with code 2 and its error. The checkpoints are in DIRECTORY and are used again by the next driver.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from trunkline.pipeline.session import local_session

MAX_ROWS_PER_BATCH = 1000
END_SECONDS = 120
POLL_SECONDS = 0.2


def main(bootstrap: str, source: str, target: str, directory: str) -> int:
    spark = local_session("trunkline-driver", heap="512m", quick_start=True)
    spark.sparkContext.setLogLevel("OFF")
    base = Path(directory)
    rows = (
        spark.readStream.format("trunkline")
        .option("bootstrap", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MAX_ROWS_PER_BATCH)
        .load()
        .select("key", "value")
    )

    def start(rows: DataFrame, available_now: bool) -> list[StreamingQuery]:
        topic = rows.writeStream.format("trunkline").option("bootstrap", bootstrap).option("topic", target)
        table = rows.writeStream.format("parquet").option("path", str(base / "table"))
        found = []
        for writer, name in ((topic, "topic"), (table, "table")):
            prepared = writer.option("checkpointLocation", str(base / f"checkpoint-{name}"))
            found.append((prepared.trigger(availableNow=True) if available_now else prepared).start())
        return found

    running = start(rows, available_now=False)
    print("ready", flush=True)
    told = threading.Thread(target=sys.stdin.read, daemon=True)
    told.start()
    while told.is_alive():
        told.join(POLL_SECONDS)
        for query in running:
            failure = query.exception()
            if failure is not None:
                print(f"failed: {failure}", file=sys.stderr, flush=True)
                return 2
    for query in running:
        query.stop()
    for query in start(rows, available_now=True):
        if not query.awaitTermination(END_SECONDS):
            print(f"not done: {query.lastProgress}", flush=True)
            return 1
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
