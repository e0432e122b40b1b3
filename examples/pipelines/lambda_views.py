"""Lambda: a batch view of everything up to a point, a speed view of what came since, merged when served.

    topic payments  --(batch, up to the cut)--->  batch view    \\
                    --(stream, from the cut)--->  speed view     >  total per account = the sum of both

The cut is a set of offsets. The batch view ends there and the speed view begins there, so that no payment is in both and
none in neither; both views carry the same cut in their name, and a query takes two views of one cut. The next batch
run moves the cut forward, starts a speed view behind it, and only then is the pair switched.

Where one streaming job can do it all, prefer it (see kappa.py): lambda earns its second code path when the batch side does
what a stream cannot, such as corrections over the whole past.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f
from stage import LiveQuery, Message, Offsets, Stage, event, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "account STRING, amount DECIMAL(12, 2)"
ACCOUNTS = 5
Totals: TypeAlias = dict[str, Decimal]


@dataclass(frozen=True)
class Answer:
    batch: Totals
    speed: Totals
    merged: Totals
    sent: Totals
    """What was really paid until then."""


@dataclass(frozen=True)
class Views:
    """A batch view, and the speed view that begins where it ends."""

    batch: DataFrame
    speed: LiveQuery
    speed_table: str


def totals(payments: DataFrame) -> DataFrame:
    parsed = payments.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("payment")).select("payment.*")
    return parsed.groupBy("account").agg(f.sum("amount").cast("DECIMAL(18, 2)").alias("total"))


def run(stage: Stage) -> list[Answer]:
    topic = stage.topic("payments")
    sent: Totals = {}
    answers = []
    stage.send(topic, payments(0, 60, sent))
    views = _open_views(stage, topic, stage.ends(topic))
    stage.send(topic, payments(60, 90, sent))
    answers.append(_serve(stage, views, sent))

    renewed = _open_views(stage, topic, stage.ends(topic))
    views.speed.stop()  # the switch: from here on queries take the new pair
    stage.send(topic, payments(90, 100, sent))
    answers.append(_serve(stage, renewed, sent))
    renewed.speed.stop()
    for number, answer in enumerate(answers, 1):
        stage.show(
            f"total per account, after batch run {number}",
            ["account", "batch view", "speed view", "served"],
            [
                (name, answer.batch.get(name), answer.speed.get(name), total)
                for name, total in sorted(answer.merged.items())
            ],
        )
    return answers


def payments(first: int, end: int, sent: Totals) -> list[Message]:
    """Payments, and beside them what they add up to."""
    made = []
    for number in range(first, end):
        account, amount = f"account {number % ACCOUNTS}", Decimal(number * 37 % 1_000) / 100
        sent[account] = sent.get(account, Decimal(0)) + amount
        made.append(event(account, {"account": account, "amount": str(amount)}))
    return made


def _open_views(stage: Stage, topic: str, cut: Offsets) -> Views:
    position = json.dumps(cut)
    name = "_".join(str(offset) for offset in cut[topic].values())
    path = str(stage.directory / "batch_views" / name)
    totals(stage.read(topic, endingOffsets=position)).write.parquet(path)
    table = f"speed_view_{name}"
    recent = totals(stage.stream(topic, startingOffsets=position))
    writer = recent.writeStream.format("memory").queryName(table).outputMode("complete")
    return Views(stage.spark.read.parquet(path), stage.start(writer, table), table)


def _serve(stage: Stage, views: Views, sent: Totals) -> Answer:
    """One query over both views. It waits for the speed view here, so that the example can compare; a server would not."""
    views.speed.catch_up()
    speed = stage.spark.table(views.speed_table)
    merged = views.batch.unionByName(speed).groupBy("account").agg(f.sum("total").alias("total"))
    return Answer(_totals(views.batch), _totals(speed), _totals(merged), dict(sent))


def _totals(view: DataFrame) -> Totals:
    return {row["account"]: row["total"] for row in view.toArrow().to_pylist()}


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
