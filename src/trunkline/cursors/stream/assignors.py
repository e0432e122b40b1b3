"""Server-side assignors of the consumer protocol: who should own which partition.

An assignor gets each member's topics and the partitions it was to own last time, and answers with new targets. Pure
functions: same input, same answer. Every partition of every subscribed topic goes to exactly one member that subscribes.

- `uniform` keeps what a member has, as far as loads stay within one partition of each other among members with the same
  subscription. O(partitions x log members) for equal subscriptions; otherwise moves one partition at a time to a less
  loaded subscriber until none is two below, O(moves x members of the topic).
- `range` gives each topic's partitions in runs to its subscribers, in the order of instance or member id, so that topics
  with equally many partitions are divided alike.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    partition: int


class AssignorMember(NamedTuple):
    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    owned: frozenset[TopicIdPartition]


Targets = dict[str, frozenset[TopicIdPartition]]
Assignor = Callable[[Mapping[str, AssignorMember], Mapping[UUID, int]], Targets]


def uniform(members: Mapping[str, AssignorMember], partition_counts: Mapping[UUID, int]) -> Targets:
    owner = _still_valid(members, partition_counts)
    subscribers = _subscribers(members, partition_counts)
    loads: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for tp, member_id in owner.items():
        loads[member_id].add(tp)
    free = [
        TopicIdPartition(topic_id, partition)
        for topic_id in sorted(subscribers)
        for partition in range(partition_counts[topic_id])
        if (topic_id, partition) not in owner
    ]
    if len({member.topics for member in members.values()}) == 1:
        _level(loads, free)
    else:
        for tp in free:
            loads[min(subscribers[tp.topic_id], key=lambda each: (len(loads[each]), each))].add(tp)
        _balance(loads, subscribers)
    return {member_id: frozenset(partitions) for member_id, partitions in loads.items()}


def _level(loads: dict[str, set[TopicIdPartition]], free: list[TopicIdPartition]) -> None:
    """All members want the same: everybody gets the floor or the ceiling of the mean; those with most keep the ceiling."""
    total = sum(map(len, loads.values())) + len(free)
    floor, ceilings = divmod(total, len(loads))
    for member_id in sorted(loads, key=lambda each: (-len(loads[each]), each)):
        quota = floor + (ceilings > 0)
        ceilings -= ceilings > 0
        excess = len(loads[member_id]) - quota
        if excess > 0:
            surplus = sorted(loads[member_id])[-excess:]
            loads[member_id].difference_update(surplus)
            free += surplus
    heap = [(len(partitions), member_id) for member_id, partitions in loads.items()]
    heapq.heapify(heap)
    for tp in free:
        load, member_id = heap[0]
        loads[member_id].add(tp)
        heapq.heapreplace(heap, (load + 1, member_id))


def _balance(loads: dict[str, set[TopicIdPartition]], subscribers: Mapping[UUID, list[str]]) -> None:
    """Each move lowers the sum of squared loads, so this ends; the bound keeps a huge group from holding up the loop."""
    moves_left = sum(map(len, loads.values())) * 2
    moved = True
    while moved and moves_left > 0:
        moved = False
        for member_id in sorted(loads, key=lambda each: (-len(loads[each]), each)):
            for tp in sorted(loads[member_id]):
                taker = min(subscribers[tp.topic_id], key=lambda each: (len(loads[each]), each))
                if len(loads[member_id]) - len(loads[taker]) < 2:
                    continue
                loads[member_id].discard(tp)
                loads[taker].add(tp)
                moved = True
                moves_left -= 1


def range_(members: Mapping[str, AssignorMember], partition_counts: Mapping[UUID, int]) -> Targets:
    shares: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for topic_id, names in _subscribers(members, partition_counts).items():
        ordered = sorted(names, key=lambda each: (members[each].instance_id or each, each))
        floor, extra = divmod(partition_counts[topic_id], len(ordered))
        start = 0
        for index, member_id in enumerate(ordered):
            end = start + floor + (index < extra)
            shares[member_id].update(TopicIdPartition(topic_id, partition) for partition in range(start, end))
            start = end
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _subscribers(members: Mapping[str, AssignorMember], partition_counts: Mapping[UUID, int]) -> dict[UUID, list[str]]:
    found: defaultdict[UUID, list[str]] = defaultdict(list)
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            if topic_id in partition_counts:
                found[topic_id].append(member_id)
    return found


def _still_valid(
    members: Mapping[str, AssignorMember], partition_counts: Mapping[UUID, int]
) -> dict[TopicIdPartition, str]:
    """What members keep: partitions that still exist, of topics that they still subscribe to, each with one owner."""
    owner: dict[TopicIdPartition, str] = {}
    for member_id in sorted(members):
        member = members[member_id]
        for tp in member.owned:
            if tp.topic_id in member.topics and tp.partition < partition_counts.get(tp.topic_id, 0):
                owner.setdefault(tp, member_id)
    return owner


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
DEFAULT_ASSIGNOR = "uniform"
