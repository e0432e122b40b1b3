"""Topics as records: the fold of the compacted internal topic `__topology`.

A topic is a record with key `topic:<name>` and, as value, JSON {"id": hex, "partitions": n, "config": {…}}; a tombstone
deletes it. Keys with other prefixes belong to other layers and are skipped. A topic's record is fsynced before its
directories are made, and its tombstone before they are removed, so the records decide after any crash: a directory that
has none is a leftover.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from trunkline.log.batch import NewRecord
from trunkline.log.embedded.files import FilePool
from trunkline.log.embedded.segment import Segment, TornLog, check_batches
from trunkline.log.errors import CorruptBatch, DamagedLog, StorageFailure
from trunkline.log.records import iter_light
from trunkline.log.state_topic import is_gap

TOPOLOGY_ID = UUID("7472756e-6b6c-4e65-8000-746f706f6c67")
_KEY_PREFIX = b"topic:"


class TopicEntry(NamedTuple):
    name: str
    id: UUID
    partitions: int
    config: Mapping[str, str]


class Topology:
    """The topics that the records so far describe, and those whose tombstone was seen."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicEntry] = {}
        self.deleted: set[str] = set()
        self.incomplete = False  # some of the records were lost

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Fold one record in. ValueError when a topic's record cannot be understood."""
        if key is None or not key.startswith(_KEY_PREFIX):
            return
        name = key[len(_KEY_PREFIX) :].decode()
        if value is None:
            self.topics.pop(name, None)
            self.deleted.add(name)
            return
        self.topics[name] = decode_topic(name, value)
        self.deleted.discard(name)


def read_topology(segments: Sequence[Segment], pool: FilePool) -> Topology:
    """Fold the files of `__topology`, before there is a store to read from. DamagedLog where they are damaged."""
    topology = Topology()
    topology.incomplete = segments[0].base_offset > 0
    for segment in segments:
        if segment.size == 0:
            continue
        try:
            for position, header, batch in check_batches(pool.fd(segment.log_path), segment.size):
                topology.incomplete |= is_gap(header)
                try:
                    for _, _, key, value, _ in () if header.control else iter_light(batch):
                        topology.apply(key, value)
                except (CorruptBatch, ValueError) as error:
                    raise StorageFailure(segment.log_path, f"unreadable at position {position}: {error}") from None
        except TornLog as torn:
            raise DamagedLog(segment.log_path, torn.position, torn.reason) from None
    return topology


def encode_topic(entry: TopicEntry) -> NewRecord:
    value = {"id": entry.id.hex, "partitions": entry.partitions, "config": dict(entry.config)}
    return NewRecord(_KEY_PREFIX + entry.name.encode(), json.dumps(value, separators=(",", ":")).encode())


def encode_tombstone(name: str) -> NewRecord:
    return NewRecord(_KEY_PREFIX + name.encode(), None)


def decode_topic(name: str, value: bytes) -> TopicEntry:
    try:
        document = json.loads(value)
        config = {str(key): str(text) for key, text in document["config"].items()}
        return TopicEntry(name, UUID(hex=document["id"]), int(document["partitions"]), config)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a description of topic {name}: {error!r}") from None
