"""Assignors: every partition once, to a subscriber, evenly, and moved no more than needed."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.cursors.stream.assignors import ASSIGNORS, AssignorMember, Targets, TopicIdPartition, range_, uniform

TOPICS = [UUID(int=number) for number in range(1, 5)]


def members_of(subscriptions: dict[str, frozenset[UUID]], owned: Targets | None = None) -> dict[str, AssignorMember]:
    owned = owned or {}
    return {
        name: AssignorMember(name, None, topics, owned.get(name, frozenset())) for name, topics in subscriptions.items()
    }


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdefg"), st.frozensets(st.sampled_from(TOPICS), max_size=4), min_size=1, max_size=7
)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), max_size=4)


def check(targets: Targets, subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]) -> None:
    given_out = [tp for partitions in targets.values() for tp in partitions]
    assert len(given_out) == len(set(given_out))
    wanted = frozenset().union(*subscriptions.values())
    assert set(given_out) == {
        TopicIdPartition(topic, number) for topic, count in counts.items() if topic in wanted for number in range(count)
    }
    for name, partitions in targets.items():
        assert {tp.topic_id for tp in partitions} <= subscriptions[name]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@settings(deadline=None)
@given(SUBSCRIPTIONS, SUBSCRIPTIONS, COUNTS, COUNTS)
def test_every_partition_goes_to_one_subscriber_whatever_was_before(
    name: str,
    before: dict[str, frozenset[UUID]],
    after: dict[str, frozenset[UUID]],
    counts_before: dict[UUID, int],
    counts_after: dict[UUID, int],
) -> None:
    assignor = ASSIGNORS[name]
    first = assignor(members_of(before), counts_before)
    check(first, before, counts_before)
    second = assignor(members_of(after, first), counts_after)
    check(second, after, counts_after)


@given(st.integers(1, 8), st.integers(1, 8), COUNTS)
def test_uniform_is_even_and_sticky_among_equal_members(count: int, later: int, counts: dict[UUID, int]) -> None:
    everything = frozenset(TOPICS)
    first = uniform(members_of({f"m{n}": everything for n in range(count)}), counts)
    second = uniform(members_of({f"m{n}": everything for n in range(later)}, first), counts)
    loads = [len(partitions) for partitions in second.values()]
    assert max(loads) - min(loads) <= 1
    total = sum(counts.values())
    moved = sum(len(second[name] - first.get(name, frozenset())) for name in second)
    if later >= count:
        assert moved == sum(len(second[name]) for name in second if name not in first)
    assert uniform(members_of({f"m{n}": everything for n in range(later)}, second), counts) == second
    assert moved <= total


@settings(deadline=None)
@given(SUBSCRIPTIONS, COUNTS)
def test_uniform_leaves_no_subscriber_two_below_an_owner_that_could_give(
    subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    targets = uniform(members_of(subscriptions), counts)
    for owner, partitions in targets.items():
        for tp in partitions:
            for other, topics in subscriptions.items():
                if tp.topic_id in topics:
                    assert len(partitions) - len(targets[other]) < 2, f"{owner} should give {tp} to {other}"


def test_range_gives_runs_in_the_order_of_instance_ids() -> None:
    topic = TOPICS[0]
    members = {
        "x": AssignorMember("x", "i2", frozenset({topic}), frozenset()),
        "y": AssignorMember("y", "i1", frozenset({topic}), frozenset()),
    }
    targets = range_(members, {topic: 3})
    assert targets == {"y": {(topic, 0), (topic, 1)}, "x": {(topic, 2)}}
