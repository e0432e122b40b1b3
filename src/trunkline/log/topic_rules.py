"""What a store of this process checks before it makes, grows or changes a topic; the same for each of them."""

from __future__ import annotations

from trunkline.log.errors import InvalidPartitionCount, InvalidTopicName, TopicExists, UnknownTopicOrPartition
from trunkline.log.names import check_topic_name
from trunkline.log.store import LogStore, TopicInfo


class TopicRules:
    def __init__(self, store: LogStore, max_partitions: int) -> None:
        self._store = store
        self._max_partitions = max_partitions  # in the whole store

    def check_creation(self, name: str, partitions: int, held_partitions: int, *, ephemeral: bool = False) -> None:
        """Raise unless the topic may be made. `held_partitions` is how many the store has."""
        if self._store.topic(name) is not None:
            raise TopicExists(f"topic {name!r} already exists")
        check_topic_name(name)
        other = self._store.colliding_topic(name)
        # Reply queues come and go by the thousand: theirs are names that no metric is kept for.
        if other is not None and not ephemeral:
            raise InvalidTopicName(f"topic name {name!r} collides with topic {other!r}: '.' and '_' count as the same")
        self._check_count(partitions, partitions, held_partitions)

    def check_growth(self, old: TopicInfo, partitions: int, held_partitions: int) -> None:
        if partitions <= old.partitions:
            raise InvalidPartitionCount(f"topic {old.name!r} has {old.partitions} partitions already")
        self._check_count(partitions, partitions - old.partitions, held_partitions)

    def require(self, name: str) -> TopicInfo:
        info = self._store.topic(name)
        if info is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return info

    def _check_count(self, count: int, added: int, held: int) -> None:
        if count < 1:
            raise InvalidPartitionCount(f"a topic has at least one partition, not {count}")
        if held + added > self._max_partitions:
            raise InvalidPartitionCount(
                f"{added} more partitions would exceed the store's limit of {self._max_partitions}"
            )
