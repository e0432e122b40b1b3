"""The log, as an administrator looks at it: topics with their partitions, records as any protocol shows them, groups and lag.

What is listed comes as JSON objects. Records are searched for by reading: a call looks at `MAX_SEARCHED` records or
`_SEARCH_BYTES` bytes at the most, and says where the next one goes on. Bodies are shown up to `MAX_BODY_BYTES`.

Bounded: `MAX_RECORDS` records a call. Nothing here changes anything but `produce`, `replay` and `reset_group`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trunkline.broker.core import BrokerCore
from trunkline.broker.guard import Operation, check
from trunkline.broker.messaging.envelope import RESERVED
from trunkline.cursors.stream.descriptions import ClassicDescription
from trunkline.cursors.stream.errors import GroupError
from trunkline.cursors.stream.offsets import OffsetEntry
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.log.portions import read_portion
from trunkline.log.records import LightNewRecord, LightRecord, decode_headers, encode_headers, encode_records
from trunkline.log.store import Durability, TopicInfo, TopicPartition

MAX_RECORDS: Final = 1_000
MAX_SEARCHED: Final = 50_000
MAX_BODY_BYTES: Final = 65_536
MAX_REPLAYED: Final = 1_000_000
FOLLOWED_RECORDS: Final = 200  # a step of a live view
_FOLLOW_S: Final = 0.25  # between two of them
_IDLE_S: Final = 15.0
_READ_BYTES: Final = 1 << 20
_SEARCH_BYTES: Final = 64 << 20
_REPLAY_STEP: Final = 500

Json = dict[str, object]


class Lag(NamedTuple):
    topic: str
    partition: int
    committed: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class Search:
    """Which records are wanted: those that have all of this in them."""

    text: str = ""  # anywhere in key, value or headers
    key: str | None = None  # the whole key
    header: str = ""  # `name`, or `name=value`

    def wants(self, record: LightRecord) -> bool:
        _, _, key, value, section = record
        if self.key is not None and (key or b"") != self.key.encode():
            return False
        if self.header:
            name, separator, wanted = self.header.partition("=")
            found = [each for each in decode_headers(section) if each[0] == name]
            if not found or (separator and all((held or b"") != wanted.encode() for _, held in found)):
                return False
        if self.text:
            wanted_bytes = self.text.encode()
            return any(wanted_bytes in part for part in (key or b"", value or b"", bytes(section)))
        return True

    @property
    def everything(self) -> bool:
        return not self.text and self.key is None and not self.header


class LogView:
    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    # -- topics ------------------------------------------------------------------------------------------------------

    def topics(self) -> list[Json]:
        return [self._topic(info) for info in self._broker.topics().values()]

    def topic(self, name: str) -> Json:
        info = self._require(name)
        document = self._topic(info)
        document["config"] = {key: str(value) for key, value in info.config.overrides.items()}
        document["partitions"] = [
            {
                "partition": number,
                "start": bounds.log_start_offset,
                "end": bounds.high_watermark,
                "stable": bounds.last_stable_offset,
            }
            for number in range(info.partitions)
            for bounds in (self._broker.bounds(TopicPartition(name, number)),)
        ]
        return document

    def _topic(self, info: TopicInfo) -> Json:
        all_bounds = [self._broker.bounds(TopicPartition(info.name, each)) for each in range(info.partitions)]
        return {
            "name": info.name,
            "id": str(info.id),
            "partition_count": info.partitions,
            "records": sum(each.high_watermark - each.log_start_offset for each in all_bounds),
            "appended": sum(each.high_watermark for each in all_bounds),
            "internal": info.internal,
            "ephemeral": info.ephemeral,
        }

    def _require(self, name: str) -> TopicInfo:
        info = self._broker.topic(name)
        if info is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        return info

    # -- records -----------------------------------------------------------------------------------------------------

    async def start_of(self, tp: TopicPartition, *, at_ms: int | None = None, last: int | None = None) -> int:
        """The offset of the first record at or after a time, or of the last so many."""
        bounds = self._broker.bounds(tp)
        if at_ms is not None:
            found = await self._broker.offset_for_time(tp, at_ms)
            return bounds.high_watermark if found is None else found.offset
        return max(bounds.log_start_offset, bounds.high_watermark - (last or 0))

    async def records(self, tp: TopicPartition, offset: int, count: int, search: Search) -> Json:
        """Records from an offset on; `next` is where to go on, `end` where the partition ends now."""
        info = self._require(tp.topic)
        if not 0 <= tp.partition < info.partitions:
            raise UnknownTopicOrPartition(f"there is no partition {tp}")
        count = min(count, MAX_RECORDS)
        bounds = self._broker.bounds(tp)
        following = max(offset, bounds.log_start_offset)
        found: list[Json] = []
        searched = size_bytes = 0
        while len(found) < count and searched < MAX_SEARCHED and size_bytes < _SEARCH_BYTES:
            portion = await read_portion(self._broker.store, tp, following, _READ_BYTES)
            if portion.following == following:
                break
            following = portion.following
            size_bytes += _READ_BYTES
            for record in portion.records:
                searched += 1
                if search.everything or search.wants(record):
                    found.append(record_document(record))
                if len(found) == count:
                    following = record[0] + 1
                    break
        return {
            "records": found,
            "next": following,
            "searched": searched,
            "start": bounds.log_start_offset,
            "end": self._broker.bounds(tp).high_watermark,
        }

    async def follow(self, tp: TopicPartition, offset: int, search: Search) -> AsyncIterator[Json | None]:
        """Records as they are appended, as `records` gives them, until the topic is deleted; None: nothing came for a while.

        What is too much for one step comes with the next. Who wants everything, and gets more than can be shown, is told how
        many were passed over.
        """
        changed = asyncio.Event()
        wake = changed.set
        self._broker.store.watch(tp, wake, decodes=True)
        try:
            while self._broker.topic(tp.topic) is not None:
                changed.clear()
                end = self._broker.bounds(tp).high_watermark
                passed_over = max(0, end - offset - FOLLOWED_RECORDS) if search.everything else 0
                found = await self.records(tp, offset + passed_over, FOLLOWED_RECORDS, search)
                if found["records"] or passed_over:
                    yield {**found, "passed_over": passed_over}
                before, offset = offset, int(str(found["next"]))
                if offset > before:
                    await asyncio.sleep(_FOLLOW_S)
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), _IDLE_S)
                except TimeoutError:
                    yield None
        finally:
            self._broker.store.unwatch(tp, wake)

    async def produce(self, name: str, partition: int, records: Sequence[LightNewRecord]) -> int:
        """Append records as a Kafka producer would with acks=all; returns the offset of the first."""
        check(Operation.WRITE, name)
        self._require(name)
        batch = encode_records(list(records), timestamp_ms=self._broker.clock.wall_ms())
        return (await self._broker.append(TopicPartition(name, partition), batch, Durability.DISK)).base_offset

    async def replay(self, source: TopicPartition, first: int, last: int, target: str) -> int:
        """Append the records of a range to another topic, or queue, once more; returns how many."""
        check(Operation.WRITE, target)
        self._require(target)
        if target == source.topic:
            raise LogError("a topic is not replayed into itself")
        replayed = 0
        async for part in self._range(source, first, last):
            batch: list[LightNewRecord] = [(key, value, bytes(section), -1) for _, _, key, value, section in part]
            await self.produce(target, 0, batch)
            replayed += len(batch)
        return replayed

    async def _range(self, tp: TopicPartition, first: int, last: int) -> AsyncIterator[list[LightRecord]]:
        following, left = max(first, self._broker.bounds(tp).log_start_offset), MAX_REPLAYED
        while following <= last and left > 0:
            portion = await read_portion(self._broker.store, tp, following, _READ_BYTES)
            if portion.following == following:
                return
            following = portion.following
            wanted = [record for record in portion.records if record[0] <= last][:left]
            left -= len(wanted)
            for at in range(0, len(wanted), _REPLAY_STEP):
                yield wanted[at : at + _REPLAY_STEP]

    # -- groups ------------------------------------------------------------------------------------------------------

    def groups(self) -> list[Json]:
        return [
            {
                "name": each.group_id,
                "type": each.type.value,
                "state": each.state,
                "lag": sum(entry.lag for entry in self.lags(each.group_id)),
            }
            for each in self._broker.groups.list_groups()
        ]

    def group(self, name: str) -> Json:
        described = self._broker.groups.describe(name)
        members: list[Json] = [
            {"id": each.member_id, "client_id": each.client_id, "host": each.client_host} for each in described.members
        ]
        return {
            "name": name,
            "type": described.type.value,
            "state": described.state,
            "protocol": described.protocol_name if isinstance(described, ClassicDescription) else described.assignor,
            "members": members,
            "offsets": [entry._asdict() for entry in self.lags(name)],
        }

    def lags(self, group: str) -> list[Lag]:
        entries: list[Lag] = []
        try:
            fetched = self._broker.groups.fetch(group, None)
        except GroupError:
            return entries
        for tp, at in sorted(fetched.items()):
            info = self._broker.topic(tp.topic)
            if info is None or tp.partition >= info.partitions:
                continue
            end = self._broker.bounds(tp).high_watermark
            entries.append(Lag(tp.topic, tp.partition, at.offset, end, max(0, end - at.offset)))
        return entries

    async def reset_group(self, name: str, wanted: Mapping[TopicPartition, int], *, preview: bool) -> list[Json]:
        """Set a group's offsets, as far as the partitions reach; with `preview` only say what would be."""
        before = self._broker.groups.fetch(name, list(wanted))
        entries: list[OffsetEntry] = []
        changes: list[Json] = []
        for tp, offset in wanted.items():
            bounds = self._broker.bounds(tp)
            target = min(max(offset, bounds.log_start_offset), bounds.high_watermark)
            entries.append(OffsetEntry(tp.topic, tp.partition, target))
            changes.append({"topic": tp.topic, "partition": tp.partition, "before": before[tp].offset, "after": target})
        if not preview:
            results = await self._broker.groups.commit(name, "", -1, None, entries)
            for tp, error in results.items():
                if error is not None:
                    raise LogError(f"{tp}: {error}: a group's offsets are set while nobody is a member of it")
        return changes


# -- one record, from every protocol's point of view -------------------------------------------------------------------


def record_document(record: LightRecord) -> Json:
    offset, timestamp_ms, key, value, section = record
    headers = decode_headers(section)
    shown = [[name, None if held is None else shown_text(held)] for name, held in headers if name not in RESERVED]
    return {
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "key": None if key is None else shown_body(key),
        "value": None if value is None else shown_body(value),
        "size_bytes": len(value or b""),
        "headers": shown,
        "views": _views(key, dict(reversed(headers))),
    }


def _views(key: bytes | None, headers: Mapping[str, bytes | None]) -> Json:
    """What the record is called where it came from: an AMQP address and properties, an MQTT topic."""
    views: Json = {}
    properties = {
        name.removeprefix("amqp."): shown_text(held)
        for name, held in headers.items()
        if name in RESERVED and name != "amqp.headers" and held is not None
    }
    if properties:
        views["amqp"] = properties
    mqtt = {
        name.removeprefix("mqtt."): shown_text(held)
        for name, held in headers.items()
        if name.startswith("mqtt.") and held is not None
    }
    if mqtt and key is not None:
        views["mqtt"] = {"topic": shown_text(key), **mqtt}
    return views


def shown_text(value: bytes) -> str:
    return bytes(value[:MAX_BODY_BYTES]).decode("utf-8", "replace")


def shown_body(value: bytes) -> Json:
    """As text where it is text, as JSON where it is that, else in base64."""
    part = bytes(value[:MAX_BODY_BYTES])
    cut = len(value) > MAX_BODY_BYTES
    try:
        text = part.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(part).decode(), "cut": cut}
    kind = "text"
    if (not cut and text[:1] in ("{", "[", '"')) or text in ("true", "false", "null"):
        try:
            json.loads(text)
            kind = "json"
        except (ValueError, RecursionError):
            pass
    return {"text": text, "kind": kind, "cut": cut}


def new_record(key: bytes | None, value: bytes | None, headers: Mapping[str, str]) -> LightNewRecord:
    section = encode_headers([(name, held.encode()) for name, held in headers.items()])
    return key, value, section, -1
