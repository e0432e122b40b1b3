"""The budget that many share: constant work for each, and the worst go when it is exceeded."""

from __future__ import annotations

from trunkline.budget import Budget, Holder


class Client:
    holding = "a client"

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.gone = False

    def let_go(self) -> None:
        self.gone = True


def test_what_is_held_is_the_sum_of_what_each_holds_now() -> None:
    budget = Budget(1_000)
    one, other = Client("a"), Client("b")
    budget.hold(one, 100)
    budget.hold(other, 200)
    budget.hold(one, 50)
    assert budget.held_bytes == 250
    budget.hold(other, 0)
    assert (budget.held_bytes, budget.holders) == (50, 1), "who holds nothing is not known"


def test_the_largest_goes_when_the_budget_is_exceeded() -> None:
    told: list[tuple[Holder, int]] = []
    budget = Budget(1_000, lambda holder, held_bytes: told.append((holder, held_bytes)))
    small, large = Client("a"), Client("a")
    budget.hold(large, 900)
    budget.hold(small, 100)
    assert not large.gone, "the budget may be used up"
    budget.hold(small, 101)
    assert large.gone
    assert not small.gone
    assert budget.held_bytes == 101
    assert told == [(large, 900)]
    assert budget.let_go == 1


def test_many_small_holders_of_one_place_go_before_a_larger_one_elsewhere() -> None:
    budget = Budget(1_000)
    decent = Client("there")
    crowd = [Client("here") for _ in range(9)]
    budget.hold(decent, 300)
    for each in crowd:
        budget.hold(each, 80)
    assert not decent.gone
    assert budget.held_bytes <= 1_000
    assert 0 < sum(each.gone for each in crowd) < len(crowd)


def test_an_eighth_is_free_afterwards_so_that_the_search_is_not_paid_for_by_each_byte() -> None:
    budget = Budget(8_000)
    for _ in range(8_001):
        budget.hold(Client("here"), 1)
    assert budget.held_bytes == 7_000


def test_a_holder_that_tells_of_itself_while_it_lets_go_does_not_count() -> None:
    budget = Budget(100)

    class Stubborn(Client):
        def let_go(self) -> None:
            super().let_go()
            budget.hold(self, 0)

    client = Stubborn("a")
    budget.hold(client, 101)
    assert client.gone
    assert budget.held_bytes == 0
