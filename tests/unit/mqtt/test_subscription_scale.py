"""A match costs the same however many subscriptions there are. A tenth of a million by default; TRUNKLINE_SCALE=full."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from trunkline.routing.dialect import MQTT
from trunkline.routing.topic_tree import TopicTree

FULL = os.environ.get("TRUNKLINE_SCALE") == "full"
MANY = 1_000_000 if FULL else 100_000
FEW = 1_000
MAX_BYTES_PER_SUBSCRIPTION = 600


def filled(count: int) -> TopicTree[int]:
    """Sessions that subscribe to their own device, some to a kind of reading, and a few to everything."""
    tree: TopicTree[int] = TopicTree(MQTT)
    for number in range(count - 30):
        tree.add(f"site/{number % 100}/device/{number}/#", number)
    for number in range(10):
        tree.add("site/+/device/+/temperature", -1 - number)
        tree.add("site/7/#", -100 - number)
        tree.add("#", -200 - number)
    return tree


@pytest.mark.timeout(300)
def test_matching_does_not_depend_on_the_number_of_subscriptions() -> None:
    few, many = filled(FEW), filled(MANY)
    assert len(many) == MANY
    for name in ("site/7/device/107/temperature", "site/50/device/50/humidity", "elsewhere/entirely"):
        before = few.nodes_visited, many.nodes_visited
        assert sorted(few.match(name)) == sorted(many.match(name))
        visited = few.nodes_visited - before[0], many.nodes_visited - before[1]
        assert visited[0] == visited[1], f"{name}: {visited}"
        assert visited[1] < 50


@pytest.mark.timeout(300)
def test_a_subscription_takes_little_memory() -> None:
    count = MANY // 10
    tracemalloc.start()
    tree = filled(count)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count < MAX_BYTES_PER_SUBSCRIPTION
    assert len(tree) == count
