"""The readers of `format("trunkline")`: the driver plans, the executors read.

The driver asks the broker for offsets and divides them into Spark partitions; a task reads its offset range and nothing
else. A stream's offsets are kept by Spark in the checkpoint, written before a batch runs: after a crash the same batch is
planned from the same offsets. Nothing is stored in the log, and no consumer group is involved.

`latestOffset` is asked every few milliseconds while a stream is idle: it costs one request, and a second one each second
to see new topics and partitions. A partition that appears later is read from its first offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from trunkline.client.topics import EARLIEST, LATEST
from trunkline.clock import Clock, SystemClock
from trunkline.log.store import TopicPartition
from trunkline.pipeline.clients import client_for
from trunkline.pipeline.garbage import freeze_once
from trunkline.pipeline.options import LOCAL_AUTO, Bound, Offsets, SourceOptions
from trunkline.pipeline.planning import DataLoss, OffsetRange, admit, clip, from_json, split, to_json
from trunkline.pipeline.positions import Positions
from trunkline.pipeline.ranges import RangeReader, ReadSettings
from trunkline.pipeline.sampling import offsets_within


class RangePartition(InputPartition):
    """What a task gets."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_range(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):
        return  # Spark makes up a partition when there are none
    freeze_once()
    settings = ReadSettings(
        options.committed,
        options.include_headers,
        options.fail_on_data_loss,
        options.stall_timeout_ms,
        options.local_segments == LOCAL_AUTO,
    )
    client = client_for(options, known_to_run=True)
    yield from RangeReader(client, partition.wanted, settings).batches()


def _plan(
    positions: Positions,
    options: SourceOptions,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> list[RangePartition]:
    wanted = [tp for tp, last in end.items() if start.get(tp, 0) < last]
    alive = positions.existing(wanted)
    log_starts = positions.starts(sorted(alive))
    ranges = clip(start, end, log_starts, fail_on_data_loss=options.fail_on_data_loss)
    pieces = split(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
    return [RangePartition(piece) for piece in pieces]


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        positions = Positions(client_for(options), options)
        found = positions.partitions(refresh=True)
        start = positions.resolve(options.start or Bound(everywhere=EARLIEST), found)
        end = positions.resolve(options.end or Bound(everywhere=LATEST), found)
        return _plan(positions, options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process on the driver for as long as the query runs; a copy of it reads on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._known: Positions | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._clock: Clock = SystemClock()
        self._admitted_at_ms: float | None = None

    def __getstate__(self) -> dict[str, object]:
        copy = StreamReader(self._options)
        return copy.__dict__

    @property
    def _positions(self) -> Positions:
        if self._known is None:
            client = client_for(self._options)
            self._known = Positions(client, self._options)
        return self._known

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name)
        bound = self._options.start or Bound(everywhere=LATEST)
        return to_json(self._positions.resolve(bound, self._positions.partitions(refresh=True)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._latest({})

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        return to_json(self._latest({}))

    def latestOffset(self, start: dict, limit: ReadLimit) -> Offsets:  # type: ignore[type-arg]  # noqa: N802
        begin = from_json(cast(Offsets, start))
        latest = self._latest(begin)
        if self._target is not None:
            latest = {tp: min(end, self._target[tp]) for tp, end in latest.items() if tp in self._target}
        available = {tp: max(0, end - begin.get(tp, 0)) for tp, end in latest.items()}
        if not isinstance(limit, ReadAllAvailable) and self._is_to_wait(sum(available.values())):
            return to_json(begin)
        if isinstance(limit, ReadMaxRows):
            available = admit(available, limit.max_rows)
            # Spark knows one limit at a time; the user may have set both.
            if self._options.max_bytes_per_trigger is not None:
                available = self._within_bytes(begin, available, self._options.max_bytes_per_trigger)
        elif isinstance(limit, ReadMaxBytes):
            available = self._within_bytes(begin, available, limit.max_bytes)
        end = {tp: begin.get(tp, 0) + count for tp, count in available.items()}
        return to_json({**begin, **end})

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        return _plan(self._positions, self._options, from_json(cast(Offsets, start)), from_json(cast(Offsets, end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def _is_to_wait(self, available: int) -> bool:
        """Whether there are too few records for a batch, and the last one is not long ago.

        Never with Trigger.AvailableNow: nothing more would come.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        since_ms = None if self._admitted_at_ms is None else now_ms - self._admitted_at_ms
        if available < least and since_ms is not None and since_ms < self._options.max_trigger_delay_ms:
            return True
        self._admitted_at_ms = now_ms
        return False

    def _latest(self, begin: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The ends of all partitions; a partition never goes back."""
        try:
            found = self._positions.partitions()
            missing = begin.keys() - set(found)
            if missing:
                raise DataLoss(f"{', '.join(map(str, sorted(missing)))} is not there any more")
            ends = self._positions.ends(found)
            for tp, end in ends.items():
                if end < begin.get(tp, 0):
                    raise DataLoss(
                        f"{tp}: the query has read up to offset {begin[tp]}, but the log ends at {end}: the topic was "
                        "deleted and made anew, or its broker has lost records"
                    )
            return ends
        except DataLoss as error:
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f'{error}. Set option("failOnDataLoss", "false") to go on with what is there, '
                    "or start the query with a new checkpoint"
                ) from error
            alive = self._positions.existing(begin)
            return {tp: max(end, begin[tp]) for tp, end in self._positions.ends(sorted(alive)).items()}

    def _within_bytes(
        self, begin: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, int]:
        client = client_for(self._options)
        ranges = [
            OffsetRange(tp.topic, tp.partition, begin.get(tp, 0), begin.get(tp, 0) + count)
            for tp, count in available.items()
            if count
        ]
        return {**dict.fromkeys(available, 0), **offsets_within(client, ranges, max_bytes)}
