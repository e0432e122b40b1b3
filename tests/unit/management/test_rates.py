"""Rates from numbers that are asked for now and then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.administration.rates import Rates
from trunkline.clock import ManualClock


def test_a_rate_is_how_a_number_grew_lately() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    assert rates.of(("a",), 100) == 0
    clock.advance(5_000)
    assert rates.of(("a",), 200) == 20
    for _ in range(5):
        clock.advance(5_000)
        steady = rates.of(("a",), 200)
    assert steady == 0


def test_a_number_that_begins_anew_has_no_rate() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    rates.of(("a",), 100)
    clock.advance(5_000)
    assert rates.of(("a",), 3) == 0


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 1_000)), max_size=50))
def test_rates_are_never_negative_nor_above_what_came_in_the_shortest_time(steps: list[tuple[int, int]]) -> None:
    clock = ManualClock()
    rates = Rates(clock)
    value = 0
    for passed_ms, more in steps:
        clock.advance(passed_ms)
        value += more
        assert 0 <= rates.of(("a",), value) <= value / 0.0005
