"""The records of `__consumer_offsets`: Kafka's own formats, so that Kafka's tools read our groups.

Every key starts with an int16 that says what it is; strings are int16 length + UTF-8, -1 for null; bytes int32 length.

    key 0, 1   group, topic, int32 partition           an offset
      value 3  int64 offset, int32 leader epoch, string metadata, int64 commit time
    key 2      group                                   a classic group
      value 3  string protocol type, int32 generation, nullable protocol, nullable leader, int64 state time,
               int32 count, members: id, nullable instance id, client id, client host, int32 rebalance timeout,
               int32 session timeout, bytes subscription, bytes assignment
    key 100    group                                   a consumer-protocol group, JSON (ours)
    key 101    group, member id                        a member of one, JSON (ours)
    key 102    group                                   settings of a group, by name, JSON (ours)
    key 103    group                                   a share group, JSON (ours)
    key 104    group, member id                        a member of one, JSON (ours)

A null value deletes. Older value versions of offsets (0-2) and of groups (0-2) are read, never written. What cannot be
read raises `UnreadableRecord`; the replay reports it and goes on, as one bad record must not keep all groups away.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

OFFSET_KEY_VERSION = 1
CLASSIC_KEY_VERSION = 2
CONSUMER_GROUP_KEY_VERSION = 100
CONSUMER_MEMBER_KEY_VERSION = 101
GROUP_SETTINGS_KEY_VERSION = 102
SHARE_GROUP_KEY_VERSION = 103
SHARE_MEMBER_KEY_VERSION = 104
OFFSET_VALUE_VERSION = 3
CLASSIC_VALUE_VERSION = 3

JsonObject = dict[str, object]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_HEAD = struct.Struct(">hqi")


class UnreadableRecord(ValueError):
    """A record of `__consumer_offsets` that is in no format we know."""


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class ClassicKey(NamedTuple):
    group_id: str


class ConsumerGroupKey(NamedTuple):
    group_id: str


class ConsumerMemberKey(NamedTuple):
    group_id: str
    member_id: str


class GroupSettingsKey(NamedTuple):
    group_id: str


class ShareGroupKey(NamedTuple):
    group_id: str


class ShareMemberKey(NamedTuple):
    group_id: str
    member_id: str


Key = OffsetKey | ClassicKey | ConsumerGroupKey | ConsumerMemberKey | GroupSettingsKey | ShareGroupKey | ShareMemberKey


class OffsetValue(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


class ClassicMemberValue(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class ClassicValue(NamedTuple):
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[ClassicMemberValue, ...]


# -- writing -----------------------------------------------------------------------------------------------------


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return _INT16.pack(len(data)) + data


def _blob(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return b"".join((_INT16.pack(OFFSET_KEY_VERSION), _text(group_id), _text(topic), _INT32.pack(partition)))


def offset_value(value: OffsetValue) -> bytes:
    head = _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION, value.offset, value.leader_epoch)
    return b"".join((head, _text(value.metadata), _INT64.pack(value.commit_timestamp_ms)))


def classic_key(group_id: str) -> bytes:
    return _INT16.pack(CLASSIC_KEY_VERSION) + _text(group_id)


def classic_value(value: ClassicValue) -> bytes:
    parts = [
        _INT16.pack(CLASSIC_VALUE_VERSION),
        _text(value.protocol_type),
        _INT32.pack(value.generation),
        _text(value.protocol_name),
        _text(value.leader),
        _INT64.pack(value.state_timestamp_ms),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _text(member.member_id),
            _text(member.instance_id),
            _text(member.client_id),
            _text(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _blob(member.subscription),
            _blob(member.assignment),
        )
    return b"".join(parts)


def consumer_group_key(group_id: str) -> bytes:
    return _INT16.pack(CONSUMER_GROUP_KEY_VERSION) + _text(group_id)


def consumer_member_key(group_id: str, member_id: str) -> bytes:
    return _INT16.pack(CONSUMER_MEMBER_KEY_VERSION) + _text(group_id) + _text(member_id)


def group_settings_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_SETTINGS_KEY_VERSION) + _text(group_id)


def share_group_key(group_id: str) -> bytes:
    return _INT16.pack(SHARE_GROUP_KEY_VERSION) + _text(group_id)


def share_member_key(group_id: str, member_id: str) -> bytes:
    return _INT16.pack(SHARE_MEMBER_KEY_VERSION) + _text(group_id) + _text(member_id)


def json_value(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# -- reading -----------------------------------------------------------------------------------------------------


class _Reader:
    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return int(self._number(_INT16))

    def int32(self) -> int:
        return int(self._number(_INT32))

    def int64(self) -> int:
        return int(self._number(_INT64))

    def text(self) -> str:
        value = self.nullable_text()
        if value is None:
            raise UnreadableRecord("null where a string must be")
        return value

    def nullable_text(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._take(length).decode()

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length < 0 else self._take(length)

    def _number(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack(self._take(layout.size))
        return int(value)

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise UnreadableRecord(f"record ends after {len(self._data)} bytes, needs {end}")
        piece = self._data[self._position : end]
        self._position = end
        return piece


def read_key(data: bytes) -> Key:
    try:
        reader = _Reader(data)
        version = reader.int16()
        if version in (0, OFFSET_KEY_VERSION):
            return OffsetKey(reader.text(), reader.text(), reader.int32())
        if version == CLASSIC_KEY_VERSION:
            return ClassicKey(reader.text())
        if version == CONSUMER_GROUP_KEY_VERSION:
            return ConsumerGroupKey(reader.text())
        if version == CONSUMER_MEMBER_KEY_VERSION:
            return ConsumerMemberKey(reader.text(), reader.text())
        if version == GROUP_SETTINGS_KEY_VERSION:
            return GroupSettingsKey(reader.text())
        if version == SHARE_GROUP_KEY_VERSION:
            return ShareGroupKey(reader.text())
        if version == SHARE_MEMBER_KEY_VERSION:
            return ShareMemberKey(reader.text(), reader.text())
    except UnicodeDecodeError as error:
        raise UnreadableRecord(str(error)) from None
    raise UnreadableRecord(f"key version {version}")


def read_offset_value(data: bytes) -> OffsetValue:
    try:
        reader = _Reader(data)
        version = reader.int16()
        if not 0 <= version <= OFFSET_VALUE_VERSION:
            raise UnreadableRecord(f"offset value version {version}")
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else -1
        return OffsetValue(offset, leader_epoch, reader.text(), reader.int64())
    except UnicodeDecodeError as error:
        raise UnreadableRecord(str(error)) from None


def read_classic_value(data: bytes) -> ClassicValue:
    try:
        reader = _Reader(data)
        version = reader.int16()
        if not 0 <= version <= CLASSIC_VALUE_VERSION:
            raise UnreadableRecord(f"group value version {version}")
        protocol_type, generation = reader.text(), reader.int32()
        protocol_name, leader = reader.nullable_text(), reader.nullable_text()
        state_timestamp_ms = reader.int64() if version >= 2 else -1
        members = tuple(_read_classic_member(reader, version) for _ in range(max(0, reader.int32())))
    except UnicodeDecodeError as error:
        raise UnreadableRecord(str(error)) from None
    return ClassicValue(protocol_type, generation, protocol_name, leader, state_timestamp_ms, members)


def _read_classic_member(reader: _Reader, version: int) -> ClassicMemberValue:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    return ClassicMemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms,
        reader.blob(),
        reader.blob(),
    )


def read_json_value(data: bytes) -> JsonObject:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise UnreadableRecord(str(error)) from None
    if not isinstance(value, dict):
        raise UnreadableRecord("JSON value is not an object")
    return value
