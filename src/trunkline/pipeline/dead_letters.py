"""Malformed records as they go to a dead-letter topic: key, value and headers as they were, and where and why in headers.

    dead-letter.reason       what is wrong, for people
    dead-letter.pipeline     which pipeline did not take it
    dead-letter.topic, .partition, .offset, .timestamp    where the record is in the log (milliseconds)

So a record that is repaired, or a schema that is, can be sent again: nothing of the record is lost.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

PREFIX: Final = "dead-letter."
REASON: Final = f"{PREFIX}reason"
MAX_REASON_CHARS: Final = 1_000


def as_records(malformed: DataFrame, pipeline: str) -> DataFrame:
    """The rows of `Parsed.malformed`, with headers, as the `trunkline` sink writes them."""
    added = F.array(
        _header("reason", F.substring(F.col("reason"), 1, MAX_REASON_CHARS)),
        _header("pipeline", F.lit(pipeline)),
        _header("topic", F.col("topic")),
        _header("partition", F.col("partition")),
        _header("offset", F.col("offset")),
        _header("timestamp", F.unix_millis("timestamp")),
    )
    # A record that comes back from a dead-letter topic has these already: the latest are those that count.
    before = F.filter("headers", lambda header: ~header["key"].startswith(PREFIX))
    none = F.array().cast("array<struct<key:string,value:binary>>")
    return malformed.select("key", "value", F.concat(F.coalesce(before, none), added).alias("headers"))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value"))
