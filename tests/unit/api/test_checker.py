"""The checker of histories: it accepts what can be explained, and nothing else."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.histories.checker import NEVER, Operation, bag, linearizable, register


def op(call: float, returned: float, what: str, given: object = None, answer: object = None) -> Operation:
    return Operation(call, what, given, answer, returned)


def test_a_read_that_overlaps_a_write_may_see_either_value() -> None:
    for seen in (None, 1):
        assert linearizable([op(0, 10, "set", 1), op(1, 2, "get", None, seen)], register, None)
    assert not linearizable([op(0, 1, "set", 1), op(2, 3, "get", None, None)], register, None)
    assert not linearizable(
        [op(0, 10, "set", 1), op(1, 2, "get", None, 1), op(3, 4, "get", None, None)], register, None
    )


def test_of_two_swaps_from_one_value_only_one_may_succeed() -> None:
    both = [op(0, 5, "swap", (None, "a"), True), op(0, 5, "swap", (None, "b"), True)]
    assert not linearizable(both, register, None)
    both[1].answer = False
    assert linearizable(both, register, None)


def test_what_was_not_answered_may_have_been_done_late_or_never() -> None:
    lost = op(0, NEVER, "set", 1)
    assert linearizable([lost, op(5, 6, "get", None, None), op(7, 8, "get", None, 1)], register, None)
    assert linearizable([lost, op(5, 6, "get", None, None)], register, None)
    assert not linearizable([lost, op(5, 6, "get", None, 1), op(7, 8, "get", None, None)], register, None)


def test_a_tuple_is_taken_once_and_nothing_is_only_found_where_nothing_is() -> None:
    written = op(0, 1, "write", 7)
    assert linearizable([written, op(2, 3, "take", None, 7), op(4, 5, "take", None, None)], bag, frozenset())
    assert not linearizable([written, op(2, 3, "take", None, 7), op(2, 4, "take", None, 7)], bag, frozenset())
    assert not linearizable([written, op(2, 3, "take", None, None)], bag, frozenset())
    assert not linearizable([written, op(2, 3, "take", None, 8)], bag, frozenset())
    assert linearizable([written, op(2, NEVER, "take"), op(4, 5, "read", None, None)], bag, frozenset())


@given(st.integers(0, 10_000))
def test_histories_of_one_client_after_another_are_what_the_model_says(seed: int) -> None:
    chance = random.Random(seed)
    state: int | None = None
    history = []
    for moment in range(20):
        what = chance.choice(["get", "set", "swap"])
        if what == "get":
            history.append(op(moment, moment + 0.5, "get", None, state))
        elif what == "set":
            state = chance.randrange(3)
            history.append(op(moment, moment + 0.5, "set", state))
        else:
            before, after = chance.choice([None, 0, 1, 2]), chance.randrange(3)
            history.append(op(moment, moment + 0.5, "swap", (before, after), before == state))
            state = after if before == state else state
    assert linearizable(history, register, None)
    reads = [each for each in history if each.what == "get"]
    if reads:
        chance.choice(reads).answer = "something else"
        assert not linearizable(history, register, None)
