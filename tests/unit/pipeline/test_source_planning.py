"""Offsets to Spark partitions: limits are kept, nothing is left out, and what is gone is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.options import OptionError
from trunkline.pipeline.planning import DataLoss, OffsetRange, admit, clip, from_json, split, to_json

PARTITION = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 20))
COUNTS = st.dictionaries(PARTITION, st.integers(0, 10_000), max_size=10)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@given(COUNTS)
def test_offsets_survive_their_text_in_an_order_that_does_not_depend_on_how_they_came(
    offsets: dict[TopicPartition, int],
) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets
    assert json.dumps(to_json(dict(reversed(offsets.items())))) == json.dumps(to_json(offsets))


@given(COUNTS, st.integers(1, 5_000))
def test_admission_uses_the_whole_limit_and_no_more(available: dict[TopicPartition, int], limit: int) -> None:
    admitted = admit(available, limit)
    assert admitted.keys() == available.keys()
    assert sum(admitted.values()) == min(limit, sum(available.values()))
    assert all(0 <= admitted[tp] <= count for tp, count in available.items())


def test_a_small_partition_is_not_starved_for_ever() -> None:
    left = {A: 1_000_000, B: 1}
    for _ in range(1000):
        for tp, count in admit(left, 1000).items():
            left[tp] -= count
        if not left[B]:
            return
    pytest.fail(f"{left[B]} record is still waiting")


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5000)), min_size=1, max_size=5),
    st.integers(1, 30),
    st.integers(1, 3000),
)
def test_split_ranges_are_the_same_offsets_in_pieces_of_the_allowed_length(
    spans: list[tuple[int, int]], min_partitions: int, max_records: int
) -> None:
    ranges = [OffsetRange("t", index, start, start + count) for index, (start, count) in enumerate(spans)]
    if sum(-(-(count) // max_records) for _, count in spans) > limits.MAX_SPARK_PARTITIONS // 2:
        return
    pieces = split(ranges, min_partitions=min_partitions, max_records=max_records)
    assert all(0 < piece.end - piece.start <= max_records for piece in pieces)
    assert len(pieces) >= min(min_partitions, sum(count for _, count in spans)) or len(pieces) >= len(ranges)
    for wanted in ranges:
        own = [piece for piece in pieces if piece.partition == wanted.partition]
        covered = [offset for piece in own for offset in range(piece.start, piece.end)]
        assert covered == list(range(wanted.start, wanted.end))


def test_too_many_pieces_are_refused() -> None:
    with pytest.raises(OptionError, match="raise maxRecordsPerPartition"):
        split([OffsetRange("t", 0, 0, 10_000_000)], min_partitions=1, max_records=1)


def test_what_is_gone_is_told_or_left_out() -> None:
    start, end = {A: 5, B: 5}, {A: 10, B: 10}
    assert clip(start, end, {A: 0, B: 5}, fail_on_data_loss=True) == [
        OffsetRange("a", 0, 5, 10),
        OffsetRange("b", 0, 5, 10),
    ]
    with pytest.raises(DataLoss, match="a-0: offsets 5 to 9 are to be read, but the log now begins at 7"):
        clip(start, end, {A: 7, B: 0}, fail_on_data_loss=True)
    with pytest.raises(DataLoss, match=r"b-0: .* was deleted"):
        clip(start, end, {A: 0}, fail_on_data_loss=True)
    assert clip(start, end, {A: 7}, fail_on_data_loss=False) == [OffsetRange("a", 0, 7, 10)]
    assert clip(start, end, {A: 10, B: 12}, fail_on_data_loss=False) == []


def test_a_new_partition_is_read_from_its_first_offset() -> None:
    assert clip({}, {A: 10}, {A: 3}, fail_on_data_loss=True) == [OffsetRange("a", 0, 3, 10)]
