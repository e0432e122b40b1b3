"""When a stream takes records into a batch: not too few, but not too late either; and where it starts by time."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from trunkline.client.client import Client
from trunkline.clock import ManualClock
from trunkline.log.store import TopicPartition
from trunkline.pipeline.options import OptionError, source_options
from trunkline.pipeline.positions import Positions
from trunkline.pipeline.source import StreamReader

TP = TopicPartition("orders", 0)
OPTIONS = {"bootstrap": "127.0.0.1:9092", "subscribe": "orders"}


class KnownPositions:
    """One partition, whose end the test moves."""

    def __init__(self) -> None:
        self.end = 0

    def partitions(self, *, refresh: bool = False) -> list[TopicPartition]:
        return [TP]

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)


def reader_of(**options: str) -> tuple[StreamReader, KnownPositions, ManualClock]:
    reader, positions, clock = StreamReader(source_options({**OPTIONS, **options})), KnownPositions(), ManualClock()
    reader._known, reader._clock = cast(Positions, positions), clock
    return reader, positions, clock


def latest(reader: StreamReader, start: int, limit: ReadLimit | None = None) -> int:
    return reader.latestOffset({"orders": {"0": start}}, limit or reader.getDefaultReadLimit())["orders"]["0"]


def test_a_stream_waits_for_enough_records_but_no_longer_than_it_may() -> None:
    reader, positions, clock = reader_of(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert isinstance(reader.getDefaultReadLimit(), ReadMinRows)
    positions.end = 3
    assert latest(reader, 0) == 3  # the first batch does not wait
    positions.end = 12
    assert latest(reader, 3) == 3
    positions.end = 13
    assert latest(reader, 3) == 13
    positions.end = 14
    clock.advance(29_999)
    assert latest(reader, 13) == 13
    clock.advance(1)
    assert latest(reader, 13) == 14


def test_both_limits_hold_and_a_trigger_that_ends_does_not_wait() -> None:
    reader, positions, _ = reader_of(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    positions.end = 100
    assert latest(reader, 0) == 20
    assert latest(reader, 95) == 95
    assert latest(reader, 95, ReadAllAvailable()) == 100
    reader.prepareForTriggerAvailableNow()
    assert latest(reader, 95) == 100


def test_a_reader_travels_without_what_belongs_to_its_process() -> None:
    reader, _, _ = reader_of(minOffsetsPerTrigger="10")
    copy = pickle.loads(pickle.dumps(reader))
    assert (copy._options, copy._known, copy._target) == (reader._options, None, None)


class ByTime:
    def __init__(self, found: Mapping[TopicPartition, int]) -> None:
        self._found = found

    def offsets(
        self, partitions: list[TopicPartition], at: int, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        return {tp: 50 if at == -1 else self._found[tp] for tp in partitions}


@pytest.mark.parametrize(("strategy", "expected"), [("latest", 50), ("error", None)])
def test_a_start_after_the_last_record_is_the_end_or_an_error(strategy: str, expected: int | None) -> None:
    options = source_options(
        {**OPTIONS, "startingTimestamp": "1700000000000", "startingOffsetsByTimestampStrategy": strategy}
    )
    positions = Positions(cast(Client, None), options)
    assert options.start is not None
    positions._topics = ByTime({TP: 7})  # type: ignore[assignment]
    assert positions.resolve(options.start, [TP]) == {TP: 7}
    positions._topics = ByTime({TP: -1})  # type: ignore[assignment]
    if expected is not None:
        assert positions.resolve(options.start, [TP]) == {TP: expected}
        return
    with pytest.raises(OptionError, match="no record is at or after 1700000000000"):
        positions.resolve(options.start, [TP])
