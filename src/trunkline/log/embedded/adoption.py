"""Adoption: partitions whose topics were lost with a part of `__topology` are served all the same.

A directory that no topic claims is a leftover only if the topology is whole. When some of its records were lost, every
partition directory that is there and was not deleted belongs to a topic, which has as many partitions as there are
directories. Its id comes from the checkpoint, if that has it; its settings are those last known, or else such that nothing is
deleted: without retention, or compacted if the topic is one of the broker's own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID, uuid4

from trunkline.log.embedded.checkpoint import PartitionMark
from trunkline.log.embedded.topology import TopicEntry, Topology
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.store import TopicPartition

_logger = logging.getLogger(__name__)
_ADOPTED_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}
_INTERNAL_CONFIG = {"cleanup.policy": "compact", "max.message.bytes": str(300 << 20)}


def adopted_topics(
    directories: Mapping[str, TopicPartition], marks: Mapping[str, PartitionMark], topology: Topology
) -> list[TopicEntry]:
    """The topics that what is left of the topology does not tell of, or not with all their partitions."""
    counts: dict[str, int] = {}
    ids: dict[str, UUID] = {}
    for name, tp in directories.items():
        if name in marks and marks[name].topic_id:
            ids[tp.topic] = UUID(int=marks[name].topic_id)
        if tp.topic != TOPOLOGY_TOPIC and tp.topic not in topology.deleted:
            counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    adopted: list[TopicEntry] = []
    for name, count in sorted(counts.items()):
        known = topology.topics.get(name)
        if known is not None and known.partitions >= count:
            continue
        if known is not None:
            entry = known._replace(partitions=count)
        else:
            config = _INTERNAL_CONFIG if name.startswith("__") else _ADOPTED_CONFIG
            entry = TopicEntry(name, ids.get(name) or uuid4(), count, config)
        _logger.error(
            "what %s said of topic %s is lost: it is served with %d partitions and %s",
            TOPOLOGY_TOPIC, name, count, "its last known settings" if known else dict(entry.config),
        )  # fmt: skip
        adopted.append(entry)
    return adopted
