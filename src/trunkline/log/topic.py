"""Topics and partitions, as stores name and describe them. Imported from `store` by all who use a store."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from trunkline.log.config import TopicConfig
from trunkline.log.names import RESERVED_TOPICS


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicInfo(NamedTuple):
    name: str
    id: UUID
    partitions: int
    config: TopicConfig
    ephemeral: bool = False  # gone with the process; nothing about it is durable

    @property
    def internal(self) -> bool:
        """One of the broker's own. As in Kafka, other names that begin with two underscores are ordinary."""
        return self.name in RESERVED_TOPICS
