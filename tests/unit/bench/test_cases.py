"""The arithmetic and the names of the benchmark."""

from __future__ import annotations

import math

import pytest

from trunkline.bench.cases import (
    MEBIBYTES,
    MILLISECONDS,
    RATE,
    SECONDS,
    Case,
    Figure,
    all_cases,
    median,
    percentile,
    select,
)


def test_a_rate_is_better_when_it_is_larger() -> None:
    assert Figure("produce/100B/acks=1/1p", RATE, 300.0, 100.0).ratio == 3.0


@pytest.mark.parametrize("unit", [MILLISECONDS, SECONDS, MEBIBYTES])
def test_everything_else_is_better_when_it_is_smaller(unit: str) -> None:
    assert Figure("start-up", unit, 1.0, 4.0).ratio == 4.0


def test_no_ratio_without_a_peer() -> None:
    assert Figure("start-up", SECONDS, 1.0, None).ratio is None


def test_percentile_is_a_sample_that_the_fraction_does_not_exceed() -> None:
    samples = [float(value) for value in range(100, 0, -1)]
    assert percentile(samples, 0.50) == 50.0
    assert percentile(samples, 0.99) == 99.0
    assert percentile(samples, 1.0) == 100.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0], 0.99) == 2.0
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


@pytest.mark.parametrize("count", range(1, 60))
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_percentile_has_the_nearest_rank(count: int, fraction: float) -> None:
    assert percentile([float(value) for value in range(1, count + 1)], fraction) == math.ceil(fraction * count)


def test_one_bad_repetition_does_not_move_the_median() -> None:
    assert median([100.0, 101.0, 3.0]) == 100.0


def test_cases_cover_every_combination_once() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))
    assert "produce/100B/acks=1/1p" in names
    assert "produce/1KB/acks=all/8p" in names
    assert "consume/1KB/8p" in names
    kinds = [name.partition("/")[0] for name in names]
    assert {kind: kinds.count(kind) for kind in kinds} == {"produce": 8, "consume": 4, "end-to-end": 8, "latency": 8}


def test_globs_choose_by_the_name_of_the_figure() -> None:
    assert [case.name for case in select(all_cases(), ["consume/100B/*"])] == ["consume/100B/1p", "consume/100B/8p"]
    assert {case.kind for case in select(all_cases(), ["*/p99"])} == {"latency"}
    assert select(all_cases(), ["start-up"]) == []
    assert len(select(all_cases(), [])) == len(all_cases())


def test_latency_yields_two_figures() -> None:
    assert Case("latency", 100, "all", 8).figures == ("latency/100B/acks=all/8p/p50", "latency/100B/acks=all/8p/p99")
