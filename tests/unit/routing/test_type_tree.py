"""The type tree: a subscription matches the type and its subtypes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.type_tree import TypeTree

type_names = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(".".join)


def test_a_subscription_matches_subtypes_and_not_names_that_merely_begin_alike() -> None:
    tree: TypeTree[str] = TypeTree()
    tree.add("order", "all orders")
    tree.add("order.created", "created")
    assert tree.match("order") == ("all orders",)
    assert tree.match("order.created.v2") == ("all orders", "created")
    assert tree.match("orders") == ()
    assert tree.match("") == ()


@given(st.lists(st.tuples(st.booleans(), type_names, st.integers(0, 2))), type_names)
def test_matches_are_those_of_the_definition(changes: list[tuple[bool, str, int]], name: str) -> None:
    tree: TypeTree[int] = TypeTree()
    bound: set[tuple[str, int]] = set()
    for add, type_name, value in changes:
        pair = (type_name, value)
        if add:
            assert tree.add(*pair) == (pair not in bound)
            bound.add(pair)
        else:
            assert tree.remove(*pair) == (pair in bound)
            bound.discard(pair)
    assert len(tree) == len(bound)
    assert set(tree.types()) == bound
    found = tree.match(name)
    assert len(found) == len(set(found))
    assert set(found) == {v for t, v in bound if t in ("", name) or name.startswith(f"{t}.")}
