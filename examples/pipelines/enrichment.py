"""Stream enrichment: orders joined with what a compacted topic says of their products, into a new topic.

    topic orders    --.
                       >--(Spark)-->  topic orders.enriched
    topic products  --'   compacted: the last record of a key is the product as it is, a tombstone removes it

Each batch of orders is joined with the products as they are when the batch runs: a price that changes between two batches
holds from the next one on. An order whose product is not known is not dropped: it goes out as it is, marked.

The join is written by `foreachBatch`, with the query's name and the batch's number as `txnAppId` and `txnVersion`: a batch
that Spark repeats after a crash is in the topic once.

The products must fit in Spark's memory; a table larger than that wants a stateful join or a database.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f
from stage import Message, Stage, event, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "order BIGINT, product STRING, units INT"
PRODUCT = "name STRING, cents BIGINT"
QUERY = "enrichment"
Enriched: TypeAlias = dict[int, dict[str, object]]


@dataclass(frozen=True)
class Joined:
    orders: Enriched
    """order -> what is in the enriched topic about it"""
    records: int
    """How many records the enriched topic has."""
    records_after_repeat: int
    """The same after the last batch was written again, as after a crash."""


def latest(records: DataFrame) -> DataFrame:
    """A compacted topic as the table that it is: the last record of each key, without what was removed.

    A key has one partition, so offsets order its records. Compaction happens in its own time: older ones are there too.
    """
    last = records.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
    return last.where("value IS NOT NULL")


def enricher(stage: Stage, products: str, target: str) -> Callable[[DataFrame, int], None]:
    def enrich(batch: DataFrame, number: int) -> None:
        table = latest(stage.read(products)).select(
            f.col("key").cast("string").alias("product"),
            f.from_json(f.col("value").cast("string"), PRODUCT).alias("known"),
        )
        orders = batch.select("key", f.from_json(f.col("value").cast("string"), ORDER).alias("o")).select("key", "o.*")
        joined = orders.join(f.broadcast(table), "product", "left").select(
            "key",
            f.to_json(
                f.struct(
                    "order",
                    "product",
                    "units",
                    f.col("known.name").alias("name"),
                    (f.col("units") * f.col("known.cents")).alias("cents"),
                    f.col("known").isNotNull().alias("known"),
                )
            ).alias("value"),
        )
        writer = joined.write.format("trunkline").option("bootstrap", stage.bootstrap).option("topic", target)
        writer.option("txnAppId", stage.name(QUERY)).option("txnVersion", str(number)).mode("append").save()

    return enrich


def run(stage: Stage) -> Joined:
    orders = stage.topic("orders")
    products = stage.topic("products", compacted=True)
    target = stage.topic("orders.enriched")
    enrich = enricher(stage, products, target)
    last: list[tuple[DataFrame, int]] = []

    def enrich_and_remember(batch: DataFrame, number: int) -> None:
        enrich(batch, number)
        last[:] = [(batch, number)]

    stage.send(
        products,
        [event("kettle", {"name": "Kettle, red", "cents": 2_900}), event("cup", {"name": "Cup", "cents": 350})],
    )
    query = stage.start(stage.stream(orders).writeStream.foreachBatch(enrich_and_remember), QUERY)
    try:
        stage.send(orders, order_records(0, 6))
        query.catch_up()
        # A new price, a product that is gone, and one that is new.
        stage.send(products, [event("kettle", {"name": "Kettle, red", "cents": 1_900}), Message("cup", None)])
        stage.send(products, [event("teapot", {"name": "Teapot", "cents": 4_000})])
        stage.send(orders, order_records(6, 12))
        query.catch_up()
        found = stage.messages(target)
        enrich(*last[0])
    finally:
        query.stop()
    enriched: Enriched = {row["order"]: row for row in (json.loads(item.value or b"") for item in found)}
    columns = ["order", "product", "units", "name", "cents", "known"]
    stage.show("orders.enriched", columns, [[enriched[key].get(name) for name in columns] for key in sorted(enriched)])
    return Joined(enriched, len(found), len(stage.messages(target)))


def order_records(first: int, end: int) -> list[Message]:
    names = ("kettle", "cup", "teapot")
    return [
        event(str(each), {"order": each, "product": names[each % 3], "units": each % 2 + 1})
        for each in range(first, end)
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
