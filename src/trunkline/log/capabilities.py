"""What only some stores can do: asked for by name (`LogStore.ephemeral_topics`, …), None where it is missing.

They are no part of the contract that every store keeps. Who asks does without where the answer is None, and says there how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from trunkline.log.topic import TopicInfo, TopicPartition


class EphemeralTopics(Protocol):
    """Topics that live as long as the store is open, cost no fsync and promise no durability."""

    async def create_ephemeral_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicInfo:
        """As `create_topic`; a name that differs from another only in '.' and '_' is no collision."""
        ...


class ClientWatches(Protocol):
    """A store that can hurry when a client waits for what is appended."""

    def watch_for_client(self, tp: TopicPartition, wake: Callable[[], None]) -> None:
        """As `watch`, which `unwatch` ends: a client is answered without delay when `wake` is called."""
        ...


class LogDirectory(NamedTuple):
    path: str
    total_bytes: int
    usable_bytes: int
    sizes: Mapping[TopicPartition, int] = MappingProxyType({})
    failed: Mapping[TopicPartition, str] = MappingProxyType({})


class LogDirectories(Protocol):
    """A store whose files are on this machine."""

    async def directories(self) -> Sequence[LogDirectory]: ...
