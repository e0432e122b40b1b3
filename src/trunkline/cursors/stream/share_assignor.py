"""Which members of a share group read which partitions: as many of each as evenly as can be.

Unlike in a consumer group a partition may have several members. With at least as many partitions as members each partition
has one member; with fewer, as many members as it takes for all to have something to do. Members keep what they have as far
as that is even: O(partitions × members per partition) and a heap of members per topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from uuid import UUID

from trunkline.cursors.stream.assignors import TopicIdPartition
from trunkline.cursors.stream.consumer_member import Partitions

SIMPLE = "simple"


def assign_shares(
    subscriptions: Mapping[str, Iterable[UUID]], counts: Mapping[UUID, int], current: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """The partitions of each member, by what it subscribes to, how many partitions topics have, and what members had."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(subscriptions):
        for topic_id in subscriptions[member_id]:
            if counts.get(topic_id, 0) > 0:
                subscribers.setdefault(topic_id, []).append(member_id)
    given: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in subscriptions}
    for topic_id in sorted(subscribers):
        _assign_topic(topic_id, counts[topic_id], subscribers[topic_id], current, given)
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def _assign_topic(
    topic_id: UUID,
    count: int,
    members: list[str],
    current: Mapping[str, Partitions],
    given: dict[str, set[TopicIdPartition]],
) -> None:
    """Give out one topic: `slots` pairs of member and partition, no member more than `most` of them."""
    slots = max(count, len(members))
    most = -(-slots // len(members))
    least_shared, rest = divmod(slots, count)
    room = {number: least_shared + (number < rest) for number in range(count)}
    held: dict[str, int] = dict.fromkeys(members, 0)
    for member_id in members:
        for number in sorted(part for topic, part in current.get(member_id, ()) if topic == topic_id):
            if room.get(number, 0) > 0 and held[member_id] < most:
                room[number] -= 1
                held[member_id] += 1
                given[member_id].add(TopicIdPartition(topic_id, number))
    # The member with the least of this topic comes first, then the one with the least of all.
    waiting = [(held[member_id], len(given[member_id]), member_id) for member_id in members]
    heapify(waiting)
    for number in [each for each, left in room.items() for _ in range(left)]:
        passed: list[tuple[int, int, str]] = []
        while waiting:
            of_topic, of_all, member_id = heappop(waiting)
            place = TopicIdPartition(topic_id, number)
            if place in given[member_id]:
                passed.append((of_topic, of_all, member_id))
                continue
            given[member_id].add(place)
            heappush(waiting, (of_topic + 1, of_all + 1, member_id))
            break
        for each in passed:
            heappush(waiting, each)
