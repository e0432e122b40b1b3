"""The answer cache: bounded, and it keeps what is asked for."""

from __future__ import annotations

from trunkline.routing.recent import Recent


def test_it_never_holds_more_than_two_generations() -> None:
    recent: Recent[int, int] = Recent(max_names=10, max_values=1_000)
    for key in range(1_000):
        recent.put(key, (key,))
        assert len(recent) <= 20


def test_it_bounds_the_values_in_its_answers() -> None:
    recent: Recent[int, int] = Recent(max_names=1_000, max_values=100)
    for key in range(100):
        recent.put(key, (1,) * 30)
        held = sum(len(answer) for answer in (*recent.hot.values(), *recent.cold.values()))
        assert held <= 200
    recent.put(-1, (1,) * 101)
    assert recent.get(-1) is None


def test_what_is_asked_for_again_and_again_stays() -> None:
    recent: Recent[int, int] = Recent(max_names=10)
    recent.put(-1, (7,))
    for key in range(1_000):
        assert recent.get(-1) == (7,)
        recent.put(key, ())
    assert recent.get(0) is None


def test_an_empty_answer_is_an_answer() -> None:
    recent: Recent[str, int] = Recent()
    recent.put("nobody", ())
    assert recent.get("nobody") == ()
    recent.clear()
    assert recent.get("nobody") is None
    assert len(recent) == 0
