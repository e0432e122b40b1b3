"""Event sourcing: orders are a log of what happened to them; their state is a fold of it, with snapshots.

    topic orders  --(fold, batch by batch)-->  snapshot-0, snapshot-1, …  (state, and the offsets it reaches)

The step of the fold is one SQL expression over (state, event), used by everything here: the live fold, the recovery from a
snapshot, and the replay from the first event. An event that makes no sense in the state it meets (paying twice, shipping what
is not paid) changes nothing but the count of refusals: the log keeps it, the fold judges it.

Snapshot N is the fold of snapshot N-1 and the events of batch N, and names the offsets that it reaches. A batch that Spark
repeats after a crash begins again from N-1 and writes the same N. Any snapshot plus the events behind its offsets is
the present state: that is what a recovery costs, and why older events may be archived but snapshots need not be.
`KEPT_SNAPSHOTS` are kept.

Events of one order have one key, so one partition, so one order; the fold sorts them by offset.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f
from stage import Message, Offsets, Stage, event, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT = "STRUCT<order: STRING, kind: STRING, amount: BIGINT>"
STATE = "STRUCT<status: STRING, total: BIGINT, events: INT, refused: INT>"
EMPTY = f"CAST(named_struct('status', 'new', 'total', 0, 'events', 0, 'refused', 0) AS {STATE})"
MOVES = {
    "placed": "s.status = 'new'",
    "item added": "s.status = 'placed'",
    "paid": "s.status = 'placed' AND s.total > 0",
    "shipped": "s.status = 'paid'",
    "cancelled": "s.status IN ('placed', 'paid')",
}
"""Kind of event -> in which state it makes sense."""
ALLOWED = "CASE e.kind " + " ".join(f"WHEN '{kind}' THEN {when}" for kind, when in MOVES.items()) + " ELSE false END"
STEP = f"""CAST(named_struct(
    'status', CASE WHEN NOT ({ALLOWED}) OR e.kind = 'item added' THEN s.status ELSE e.kind END,
    'total', CASE WHEN {ALLOWED} AND e.kind = 'item added' THEN s.total + e.amount ELSE s.total END,
    'events', s.events + 1,
    'refused', s.refused + CASE WHEN {ALLOWED} THEN 0 ELSE 1 END) AS {STATE})"""
KEPT_SNAPSHOTS = 3
EVENTS_PER_SNAPSHOT = 50

Orders: TypeAlias = dict[str, tuple[str, int, int, int]]
"""order -> status, total, events, refused"""


@dataclass(frozen=True)
class Folded:
    live: Orders
    """The last snapshot of the live fold."""
    recovered: Orders
    """An older snapshot, and the events after it."""
    replayed: Orders
    """Every event, from the first."""
    snapshots: list[str]
    replayed_events: int
    recovered_events: int
    """How many events recovering took; the rest were in the snapshot."""


def fold(events: DataFrame, before: DataFrame | None) -> DataFrame:
    """The state of every order after these records of the topic; `before` is the state that they meet."""
    parsed = events.select(f.from_json(f.col("value").cast("string"), EVENT).alias("event"), "offset")
    grouped = parsed.groupBy(f.col("event.order").alias("order")).agg(
        f.array_sort(f.collect_list(f.struct("offset", "event.kind", "event.amount"))).alias("events")
    )
    if before is None:
        return grouped.selectExpr("order", f"aggregate(events, {EMPTY}, (s, e) -> {STEP}) AS state")
    met = grouped.join(before, "order", "full_outer")
    nothing = "CAST(array() AS ARRAY<STRUCT<offset: BIGINT, kind: STRING, amount: BIGINT>>)"
    return met.selectExpr(
        "order", f"aggregate(coalesce(events, {nothing}), coalesce(state, {EMPTY}), (s, e) -> {STEP}) AS state"
    )


def snapshotter(directory: Path, topic: str) -> Callable[[DataFrame, int], None]:
    """Folds a batch into the snapshot before it, and writes the next."""

    def write(batch: DataFrame, number: int) -> None:
        previous = directory / f"snapshot-{number - 1}"
        before = batch.sparkSession.read.parquet(str(previous)) if previous.exists() else None
        batch = batch.persist()
        try:
            reached = batch.groupBy("partition").agg(f.max("offset").alias("last")).toArrow().to_pylist()
            partial = directory / f"partial-{number}"
            fold(batch, before).write.mode("overwrite").parquet(str(partial))
        finally:
            batch.unpersist()
        offsets = dict(_offsets(previous)[topic]) if before is not None else {}
        offsets.update({str(row["partition"]): row["last"] + 1 for row in reached})
        (partial / "_offsets.json").write_text(json.dumps({topic: offsets}))
        target = directory / f"snapshot-{number}"
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        shutil.rmtree(directory / f"snapshot-{number - KEPT_SNAPSHOTS}", ignore_errors=True)

    return write


def snapshots(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(directory.glob("snapshot-*"), key=lambda path: int(path.name.partition("-")[2]))


def recover(stage: Stage, topic: str, snapshot: Path) -> tuple[DataFrame, int]:
    """The present state from a snapshot and the events behind it; and how many those were."""
    behind = stage.read(topic, startingOffsets=json.dumps(_from_start(stage, topic, _offsets(snapshot))))
    return fold(behind, stage.spark.read.parquet(str(snapshot))), behind.count()


def orders(state: DataFrame) -> Orders:
    rows = state.select("order", "state.*").toArrow().to_pylist()
    return {row["order"]: (row["status"], row["total"], row["events"], row["refused"]) for row in rows}


def run(stage: Stage) -> Folded:
    topic = stage.topic("orders")
    directory = stage.directory / "orders"
    directory.mkdir()
    stage.send(topic, order_events(0, 40))
    events = stage.stream(topic, maxOffsetsPerTrigger=str(EVENTS_PER_SNAPSHOT))
    stage.catch_up(events.writeStream.foreachBatch(snapshotter(directory, topic)), "orders")
    kept = snapshots(directory)
    live = orders(stage.spark.read.parquet(str(kept[-1])))
    recovered, recovered_events = recover(stage, topic, kept[0])
    everything = stage.read(topic)
    folded = Folded(
        live,
        orders(recovered),
        orders(fold(everything, None)),
        [path.name for path in kept],
        everything.count(),
        recovered_events,
    )
    show(stage, folded.live)
    same = folded.live == folded.recovered == folded.replayed
    stage.say(
        f"from {kept[0].name} and {recovered_events} events, or from all {folded.replayed_events} events: "
        + ("the same state" if same else "NOT the same state")
    )
    return folded


def show(stage: Stage, state: Orders) -> None:
    stage.show(
        "orders",
        ["order", "status", "total", "events", "refused"],
        [(name, *found) for name, found in sorted(state.items())],
    )


def order_events(first: int, end: int) -> list[Message]:
    """The life of some orders, each interleaved with its neighbours', with an event here and there that makes no sense."""
    lives: list[list[tuple[str, int]]] = []
    for number in range(first, end):
        life = [("placed", 0), ("item added", 5 + number), ("item added", 20), ("paid", 0), ("shipped", 0)]
        if number % 3 == 1:
            life = [*life[:3], ("cancelled", 0), ("paid", 0)]  # paid after it was cancelled: refused
        elif number % 3 == 2:
            life = [*life[:4], ("paid", 0)]  # paid twice: refused, and not shipped yet
        lives.append(life)
    made = []
    for step in range(max(len(life) for life in lives)):
        for number, life in enumerate(lives, first):
            kind, amount = life[step]
            made.append(event(f"order {number:03}", {"order": f"order {number:03}", "kind": kind, "amount": amount}))
    return made


def _offsets(snapshot: Path) -> Offsets:
    found: Offsets = json.loads((snapshot / "_offsets.json").read_text())
    return found


def _from_start(stage: Stage, topic: str, reached: Offsets) -> Offsets:
    """A partition that the snapshot has seen nothing of is read from its beginning."""
    return {topic: {partition: reached[topic].get(partition, 0) for partition in stage.ends(topic)[topic]}}


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
