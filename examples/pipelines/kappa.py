"""Kappa: one streaming code path over the log; a new version of it reprocesses by replaying, then takes over.

    topic clicks  --(windows of a minute, watermark)-->  table visits/v1  <--  current
                  --(the same log, from its start)---->  table visits/v2  <--  current, once it has caught up

Version 1 counts clicks per page and minute. Version 2 leaves robots out. It is not patched into the result: it reads the
log from the first record with a checkpoint of its own, into a table of its own, while version 1 goes on serving. When it
has caught up, `current` is pointed at it in one step (a rename, which a reader sees entirely or not at all), and version 1
can go.

A window is in the table once the watermark has passed its end: it is final, and written once. Clicks that come late by less
than `LATENESS` are still counted. What is later is dropped by a live job and, since a replay sees it in the same batch
as its neighbours, perhaps counted by a replay: keep LATENESS above what your devices do.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f
from stage import Message, Stage, event, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "page STRING, visitor STRING, robot BOOLEAN, at_ms BIGINT"
WINDOW = "1 minute"
LATENESS = "2 minutes"
START_MS = 1_700_000_040_000  # a full minute
PAGES = ("/", "/prices", "/docs")

Visits: TypeAlias = dict[tuple[str, str], int]
"""(minute, page) -> clicks"""


@dataclass(frozen=True)
class Reprocessed:
    first: Visits
    """What version 1 served before the swap."""
    second: Visits
    """What is served after it."""
    served_during_replay: Visits


def visits(clicks: DataFrame, version: int) -> DataFrame:
    """The one code path: clicks per page and minute."""
    parsed = clicks.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("click")).select("click.*")
    if version >= 2:
        parsed = parsed.where("NOT robot")
    return (
        parsed.withColumn("at", f.timestamp_millis("at_ms"))
        .withWatermark("at", LATENESS)
        .groupBy(f.window("at", WINDOW).alias("minute"), "page")
        .count()
        .select(f.date_format("minute.start", "HH:mm").alias("minute"), "page", "count")
    )


def run(stage: Stage) -> Reprocessed:
    topic = stage.topic("clicks")
    tables = stage.directory / "visits"
    tables.mkdir()
    stage.send(topic, clicks(0, 6))
    _process(stage, topic, tables, 1)
    swap(tables, 1)
    stage.send(topic, clicks(6, 10))  # its first clicks are late: they belong to minutes before
    _process(stage, topic, tables, 1)
    first = served(stage, tables)

    _process(stage, topic, tables, 2)
    during = served(stage, tables)
    swap(tables, 2)
    second = served(stage, tables)
    stage.show(
        "clicks per minute and page",
        ["minute", "page", "version 1", "version 2, without robots"],
        [(*key, count, second.get(key)) for key, count in sorted(first.items())],
    )
    return Reprocessed(first, second, during)


def clicks(first_minute: int, end_minute: int) -> list[Message]:
    """Twelve clicks per minute, every fourth by a robot, some of them a minute late."""
    made = []
    for number in range(first_minute * 12, end_minute * 12):
        late_ms = 60_000 if number % 12 < 2 and number >= 12 else 0
        click = {
            "page": PAGES[number % len(PAGES)],
            "visitor": f"visitor {number % 5}",
            "robot": number % 4 == 0,
            "at_ms": START_MS + number * 5_000 - late_ms,
        }
        made.append(event(str(click["visitor"]), click))
    return made


def _process(stage: Stage, topic: str, tables: Path, version: int) -> None:
    """Files that the sink has committed are listed by it, so a batch that is repeated after a crash counts once."""
    table = str(tables / f"v{version}")
    writer = visits(stage.stream(topic), version).writeStream.format("parquet").option("path", table)
    stage.catch_up(writer, f"visits-v{version}")


def swap(tables: Path, version: int) -> None:
    """Point `current` at a version, in one step."""
    link = tables / "next"
    link.symlink_to(f"v{version}")
    os.replace(link, tables / "current")


def served(stage: Stage, tables: Path) -> Visits:
    """What a reader sees."""
    table = stage.spark.read.parquet(str((tables / "current").resolve())).toArrow().to_pylist()
    return {(row["minute"], row["page"]): row["count"] for row in table}


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
