"""Who fails over and over waits; everybody else does not."""

from __future__ import annotations

from trunkline.security.patience import FORGET_MS, MAX_KEYS, MAX_WAIT_MS, Patience


def tried(free: int = 2) -> Patience[str]:
    return Patience(free=free, first_ms=100, most_ms=400)


def test_the_first_failures_cost_nothing_and_later_ones_more_and_more() -> None:
    patience = tried()
    waits = []
    now_ms = 0.0
    for _ in range(6):
        wait_ms = patience.wait_ms("a", now_ms)
        assert wait_ms is not None
        waits.append(wait_ms)
        now_ms += wait_ms
        patience.failed("a", now_ms)
    assert waits == [0, 0, 0, 100, 200, 400]
    assert patience.wait_ms("b", now_ms) == 0, "another one pays nothing"


def test_attempts_at_the_same_time_take_their_turns_and_the_queue_is_short() -> None:
    patience = tried(free=1)
    patience.failed("a", 0)
    waits = [patience.wait_ms("a", 0) for _ in range(1_000)]
    served = [wait for wait in waits if wait is not None]
    assert served == sorted(served)
    assert served[-1] <= MAX_WAIT_MS
    assert len(served) == MAX_WAIT_MS / 100 + 1
    assert waits[-1] is None


def test_success_and_time_make_forget() -> None:
    patience = tried(free=0)
    patience.failed("a", 0)
    patience.wait_ms("a", 0)
    patience.forgive("a")
    assert patience.wait_ms("a", 0) == 0
    patience.failed("a", 0)
    patience.wait_ms("a", 0)
    assert patience.wait_ms("a", 1)
    assert patience.wait_ms("a", FORGET_MS + 1) == 0
    assert len(patience) == 0


def test_as_many_are_known_as_fit() -> None:
    patience = tried(free=0)
    for number in range(MAX_KEYS + 10):
        patience.failed(str(number), number)
    assert len(patience) == MAX_KEYS
