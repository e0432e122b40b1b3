"""From offsets to Spark partitions: pure functions, the same result for the same arguments.

That matters: after a crash Spark replays a batch from the offsets in its checkpoint, and what a task wrote already is
recognised by the task's place in the batch. So a range is divided by the offsets and the options alone.

Offsets are text in the checkpoint, and Spark compares them as text: `to_json` sorts topics by name and partitions by
number, and a partition's offset only ever grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.options import Offsets, OptionError


class DataLoss(Exception):
    """Records that the query has to read are gone."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """start <= offset < end of one partition of the log."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def to_json(offsets: Mapping[TopicPartition, int]) -> Offsets:
    found: Offsets = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(offsets: Offsets) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def admit(available: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Share `limit` among the partitions in proportion to what each has; never more than it has, nor in all."""
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    shares = {tp: count * limit // total for tp, count in available.items()}
    left = limit - sum(shares.values())
    # What rounding left over goes to those that lost most by it, so that a small partition is not starved for ever.
    by_loss = sorted(available, key=lambda tp: (-(available[tp] * limit % total), tp))
    for tp in by_loss[:left]:
        shares[tp] += 1
    return shares


def split(ranges: list[OffsetRange], *, min_partitions: int, max_records: int) -> list[OffsetRange]:
    """At most `max_records` offsets each, and about `min_partitions` in all; ranges stay in order."""
    total = sum(item.end - item.start for item in ranges)
    if total == 0:
        return []
    size = min(max_records, max(1, -(-total // min_partitions)))
    found: list[OffsetRange] = []
    for item in ranges:
        pieces = -(-(item.end - item.start) // size)
        if len(found) + pieces > limits.MAX_SPARK_PARTITIONS:
            raise OptionError(
                f"the offsets would make more than {limits.MAX_SPARK_PARTITIONS} Spark partitions: "
                "raise maxRecordsPerPartition"
            )
        # Pieces of equal length rather than full ones and a remainder.
        cuts = [item.start + (item.end - item.start) * piece // pieces for piece in range(pieces + 1)]
        found += [OffsetRange(item.topic, item.partition, *pair) for pair in pairwise(cuts)]
    return found


def clip(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """The ranges to read. A partition that the start does not know is new: it is read from its first offset.

    `log_starts` has the partitions that exist, with what retention has left of them.
    """
    found: list[OffsetRange] = []
    for tp in sorted(end):
        first, last = start.get(tp, 0), end[tp]
        if first >= last:
            continue
        log_start = log_starts.get(tp)
        if log_start is None:
            if fail_on_data_loss:
                raise DataLoss(_lost(tp, first, last, "the topic or partition was deleted"))
            continue
        if first < log_start:
            if fail_on_data_loss and tp in start:
                raise DataLoss(_lost(tp, first, last, f"the log now begins at {log_start}"))
            first = min(log_start, last)
        if first < last:
            found.append(OffsetRange(tp.topic, tp.partition, first, last))
    return found


def _lost(tp: TopicPartition, first: int, last: int, why: str) -> str:
    return (
        f"{tp}: offsets {first} to {last - 1} are to be read, but {why}. Keep records for longer (retention.ms), "
        'or set option("failOnDataLoss", "false") to go on with what is there'
    )
