"""Lake, warehouse, marts: keep everything raw, derive what is typed and clean, derive what one line of business asks for.

    topic sales --> lake/sales        every record as it came, with its place in the log, by date; never changed
                --> warehouse/sales   typed, each sale once, what does not parse set aside with the reason
                    warehouse/products
                --> marts/finance     revenue per day
                    marts/marketing   units per channel and product

The lake is written by a stream, exactly once, and is all that the other two need: after the log has expired its records, or
after a bug in the warehouse's code, both are made again from the lake. Here they are, to show that nothing differs.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as f
from stage import Message, Stage, event, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SALE = "sale BIGINT, product STRING, channel STRING, units INT, cents BIGINT, problem STRING"
PRODUCTS = {"p1": "kettle", "p2": "teapot", "p3": "cup"}
CHANNELS = ("shop", "web")
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SALES = 60

Table: TypeAlias = list[dict[str, object]]


@dataclass(frozen=True)
class Layers:
    lake_rows: int
    lake_dates: list[str]
    sales: int
    rejected: list[str]
    """Why records of the lake are not in the warehouse."""
    finance: Table
    marketing: Table
    rebuilt_finance: Table


def run(stage: Stage) -> Layers:
    topic = stage.topic("sales")
    root = stage.directory
    stage.send(topic, sales(0, SALES // 2))
    fill_lake(stage, topic, root / "lake" / "sales")
    stage.send(topic, sales(SALES // 2, SALES))
    fill_lake(stage, topic, root / "lake" / "sales")
    build_warehouse(stage, root)
    build_marts(stage, root)
    lake = stage.spark.read.parquet(str(root / "lake" / "sales"))
    finance, marketing = _table(stage, root / "marts" / "finance"), _table(stage, root / "marts" / "marketing")
    layers = Layers(
        lake.count(),
        sorted(path.name.removeprefix("date=") for path in (root / "lake" / "sales").glob("date=*")),
        stage.spark.read.parquet(str(root / "warehouse" / "sales")).count(),
        sorted(str(row["reason"]) for row in _table(stage, root / "warehouse" / "rejected_sales")),
        finance,
        marketing,
        _rebuild(stage, root),
    )
    stage.say(f"lake: {layers.lake_rows} records on {layers.lake_dates}; warehouse: {layers.sales} sales")
    stage.say(f"not in the warehouse: {layers.rejected}")
    stage.show("mart for finance", ["date", "revenue"], [list(row.values()) for row in _text(finance)])
    stage.show("mart for marketing", ["channel", "product", "units"], [list(row.values()) for row in _text(marketing)])
    stage.say("made again from the lake: " + ("the same" if layers.rebuilt_finance == finance else "DIFFERENT"))
    return layers


def fill_lake(stage: Stage, topic: str, path: Path) -> None:
    """Bytes as they came: a schema that turns out to be wrong later has lost nothing."""
    raw = stage.stream(topic).withColumn("date", f.to_date("timestamp"))
    writer = raw.writeStream.format("parquet").partitionBy("date").option("path", str(path))
    stage.catch_up(writer, "lake")


def build_warehouse(stage: Stage, root: Path) -> None:
    raw = stage.spark.read.parquet(str(root / "lake" / "sales"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "problem"}
    parsed = raw.select(
        f.from_json(f.col("value").cast("string"), SALE, options).alias("s"), "timestamp", "partition", "offset"
    )
    judged = (
        parsed.select("s.*", "timestamp", "partition", "offset")
        .withColumn(
            "reason",
            f.expr("""CASE WHEN problem IS NOT NULL THEN concat('does not parse: ', problem)
                       WHEN sale IS NULL OR product IS NULL THEN 'a sale has a number and a product'
                       WHEN units <= 0 THEN concat('sold units: ', units) END"""),
        )
        .persist()
    )
    # A sale that its sender sent twice is two records; the first one counts.
    first = (
        judged.where("reason IS NULL")
        .groupBy("sale")
        .agg(
            f.min_by(
                f.struct("product", "channel", "units", "cents", "timestamp"), f.struct("partition", "offset")
            ).alias("s")
        )
    )
    first.select("sale", "s.*").write.mode("overwrite").parquet(str(root / "warehouse" / "sales"))
    rejected = judged.where("reason IS NOT NULL").select("reason", "partition", "offset")
    rejected.write.mode("overwrite").parquet(str(root / "warehouse" / "rejected_sales"))
    judged.unpersist()
    names = stage.spark.createDataFrame(pa.table({"product": list(PRODUCTS), "name": list(PRODUCTS.values())}))
    names.write.mode("overwrite").parquet(str(root / "warehouse" / "products"))


def build_marts(stage: Stage, root: Path) -> None:
    stage.spark.read.parquet(str(root / "warehouse" / "sales")).createOrReplaceTempView("sales")
    stage.spark.read.parquet(str(root / "warehouse" / "products")).createOrReplaceTempView("products")
    finance = stage.spark.sql(
        "SELECT cast(timestamp AS date) AS date, sum(units * cents) / 100 AS revenue FROM sales GROUP BY 1"
    )
    marketing = stage.spark.sql(
        """SELECT channel, name AS product, sum(units) AS units FROM sales JOIN products USING (product)
           GROUP BY channel, name"""
    )
    _write(finance, root / "marts" / "finance")
    _write(marketing, root / "marts" / "marketing")


def sales(first: int, end: int) -> list[Message]:
    """One sale per hour; each tenth is sent twice, and there are records that are no sales."""
    made = []
    for number in range(first, end):
        sale: dict[str, object] = {
            "sale": number,
            "product": f"p{number % 3 + 1}",
            "channel": CHANNELS[number % 2],
            "units": number % 4 + 1,
            "cents": 250 * (number % 3 + 1),
        }
        made += [event(str(number), sale, START_MS + number * HOUR_MS)] * (2 if number % 10 == 0 else 1)
    made.append(Message("broken", b'{"sale": 9', timestamp_ms=START_MS + first * HOUR_MS))
    made.append(
        event("odd", {"sale": 1_000 + first, "product": "p1", "units": 0, "cents": 1}, START_MS + first * HOUR_MS)
    )
    return made


def _rebuild(stage: Stage, root: Path) -> Table:
    shutil.rmtree(root / "warehouse")
    shutil.rmtree(root / "marts")
    build_warehouse(stage, root)
    build_marts(stage, root)
    return _table(stage, root / "marts" / "finance")


def _write(frame: DataFrame, path: Path) -> None:
    frame.coalesce(1).write.mode("overwrite").parquet(str(path))


def _table(stage: Stage, path: Path) -> Table:
    rows: Table = stage.spark.read.parquet(str(path)).toArrow().to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def _text(table: Table) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in row.items()} for row in table]


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
