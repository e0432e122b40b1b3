"""The log partitions that publications are written to: found by mapping, created when first needed, watched from then on.

A log topic of a mapping rule may exist already, with any number of partitions: a publication goes to the one that its key's
CRC-32 names, so that the messages of one topic name keep their order. `discover` looks for topics that others have
created, so that a Kafka producer reaches MQTT subscribers before the first MQTT publication.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.mapping import Mapped, Mapping
from trunkline.log.errors import LogError, TopicExists
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.message import Message
from trunkline.protocols.mqtt.sessions.window import Inflight
from trunkline.protocols.mqtt.source import Source

_TOPIC_SLACK_BYTES = 64 << 10  # a record is larger than its packet by its key, headers and framing


class Sources:
    def __init__(
        self,
        broker: BrokerCore,
        mapping: Mapping,
        max_packet_bytes: int,
        changed: Callable[[Source], None],
        dropped: Callable[[Source], None],
    ) -> None:
        """`changed` is told of a source that has to be read, `dropped` of one that is gone."""
        self._broker = broker
        self._mapping = mapping
        self._max_packet_bytes = max_packet_bytes
        self.all: list[Source] = []
        self._topics: dict[str, list[Source]] = {}
        self._by_partition: dict[TopicPartition, Source] = {}
        self._changed = changed
        self._dropped = dropped

    def discover(self) -> None:
        """Take up mapped topics that exist now, and partitions that were added to known ones."""
        for name in self._mapping.topics():
            info = self._broker.store.topic(name)
            if info is not None and info.partitions > len(self._topics.get(name, ())):
                self._open(name, info.partitions)

    def _open(self, name: str, partitions: int) -> None:
        sources = self._topics.setdefault(name, [])
        for number in range(len(sources), partitions):
            tp = TopicPartition(name, number)
            source = Source(self._broker.store, self._broker.clock, tp, self._changed)
            sources.append(source)
            self.all.append(source)
            self._by_partition[tp] = source
            if source.behind:
                self._changed(source)

    def find(self, mapped: Mapped) -> Source | None:
        """The partition for a key; None if the topic must be created first."""
        sources = self._topics.get(mapped.topic)
        if not sources:
            self.discover()
            sources = self._topics.get(mapped.topic)
            if not sources:
                return None
        return sources[0] if len(sources) == 1 else sources[crc32(mapped.key) % len(sources)]

    async def create(self, name: str) -> None:
        settings = {"max.message.bytes": str(max(1_048_588, self._max_packet_bytes + _TOPIC_SLACK_BYTES))}
        try:
            await self._broker.create_topic(name, None, settings)
        except TopicExists:
            pass
        self.discover()
        if name not in self._topics:
            raise LogError(f"topic {name} was deleted again")

    def drop(self, source: Source) -> None:
        """Its topic is gone or cannot be read. All partitions go: the next publication finds or makes the topic anew."""
        for each in self._topics.pop(source.tp.topic, []):
            each.close()
            self.all.remove(each)
            self._by_partition.pop(each.tp, None)
            self._dropped(each)

    async def message_at(self, entry: Inflight, max_bytes: int) -> Message | None:
        """The publication that a window's entry refers to, if it is still in the log."""
        source = self._by_partition.get(entry.partition) if entry.partition is not None else None
        return None if source is None else await source.read_at(entry.offset, max_bytes)

    def close(self) -> None:
        for source in self.all:
            source.close()
