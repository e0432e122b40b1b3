"""Topic settings: Kafka's names, types, defaults and checks, plus our own `flush`.

`SETTINGS` is the whole list. A topic stores only what differs from the broker's defaults (`TopicConfig.overrides`);
`TopicConfig.effective` adds the rest. The attributes that the log reads on its hot paths are parsed once, on construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from trunkline.log.errors import InvalidConfig

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
# Of `__topology`, which the embedded store makes by itself and others when the broker opens it.
TOPOLOGY_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "max.message.bytes": str(8 << 20),
    "flush": "commit",
}


class Setting(NamedTuple):
    name: str
    kind: str  # Kafka's type word: boolean, string, int, long, double, list
    default: str
    check: Callable[[str], None]
    doc: str


def _number(low: float, high: float, whole: bool = True) -> Callable[[str], None]:
    def check(text: str) -> None:
        value = int(text) if whole else float(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low:g} and {high:g}")

    return check


def _one_of(*words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")

    return check


def _some_of(*words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if any(word not in words for word in words_of(text)):
            raise ValueError(f"must be a comma-separated list of {', '.join(words)}")

    return check


def _number_or(special: int, low: int, high: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if int(text) != special and not low <= int(text) <= high:
            raise ValueError(f"must be between {low} and {high}, or {special}")

    return check


def _replicas(text: str) -> None:
    """Kafka's form for throttled replicas: all of them, or partition and broker of each."""
    given = words_of(text)
    pairs = [word.split(":") for word in given]
    if given != ["*"] and not all(len(pair) == 2 and all(map(_is_number, pair)) for pair in pairs):
        raise ValueError("must be * or a list of partition:broker, as in 0:1,1:1")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _no_tiers(text: str) -> None:
    _boolean(text)
    if text == "true":
        raise ValueError("records are not moved to another tier here")


def words_of(text: str) -> list[str]:
    """The members of a setting whose kind is list."""
    return [word.strip() for word in text.split(",") if word.strip()]


_boolean = _one_of("true", "false")
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

_LIST = (
    Setting("cleanup.policy", "list", "delete", _some_of("delete", "compact"), "What becomes of old segments: deleted, compacted by key, both, or nothing if it is empty."),
    Setting("compression.gzip.level", "int", "-1", _number_or(-1, 1, 9), "Kept for clients that set it."),
    Setting("compression.lz4.level", "int", "9", _number(1, 17), "Kept for clients that set it."),
    Setting("compression.type", "string", "producer", _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), "The final compression; `producer` keeps what was sent."),
    Setting("compression.zstd.level", "int", "3", _number(-131072, 22), "Kept for clients that set it."),
    Setting("delete.retention.ms", "long", str(_DAY_MS), _number(0, LONG_MAX), "How long a tombstone stays in a compacted topic."),
    Setting("file.delete.delay.ms", "long", "60000", _number(0, LONG_MAX), "How long a removed segment's file stays on disk."),
    Setting("flush", "string", "acks", _one_of("acks", "os", "interval", "commit"), "When an append counts as stored: `acks` as the producer asks, `os` once written, `interval` by flush.messages and flush.ms, `commit` always fsynced."),
    Setting("flush.messages", "long", str(LONG_MAX), _number(1, LONG_MAX), "Records between two forced fsyncs."),
    Setting("flush.ms", "long", str(LONG_MAX), _number(0, LONG_MAX), "Longest time that a record waits for an fsync."),
    Setting("follower.replication.throttled.replicas", "list", "", _replicas, "Kept for tools that set it; an embedded log has one replica."),
    Setting("index.interval.bytes", "int", "4096", _number(0, INT_MAX), "Bytes of log per index entry."),
    Setting("leader.replication.throttled.replicas", "list", "", _replicas, "Kept for tools that set it; an embedded log has one replica."),
    Setting("local.retention.bytes", "long", "-2", _number(-2, LONG_MAX), "Kept for clients that set it; everything is local."),
    Setting("local.retention.ms", "long", "-2", _number(-2, LONG_MAX), "Kept for clients that set it; everything is local."),
    Setting("max.compaction.lag.ms", "long", str(LONG_MAX), _number(1, LONG_MAX), "Longest time that a record may stay uncompacted."),
    Setting("max.message.bytes", "int", "1048588", _number(0, INT_MAX), "Largest record batch."),
    Setting("message.timestamp.after.max.ms", "long", str(_HOUR_MS), _number(0, LONG_MAX), "How far a timestamp may lie ahead of the broker's clock."),
    Setting("message.timestamp.before.max.ms", "long", str(LONG_MAX), _number(0, LONG_MAX), "How far a timestamp may lie behind the broker's clock."),
    Setting("message.timestamp.type", "string", "CreateTime", _one_of("CreateTime", "LogAppendTime"), "Whose clock stamps the records."),
    Setting("min.cleanable.dirty.ratio", "double", "0.5", _number(0, 1, whole=False), "Share of uncompacted bytes that starts a compaction."),
    Setting("min.compaction.lag.ms", "long", "0", _number(0, LONG_MAX), "Shortest time that a record stays uncompacted."),
    Setting("min.insync.replicas", "int", "1", _number(1, INT_MAX), "Kept for clients that set it; an embedded log has one replica."),
    Setting("preallocate", "boolean", "false", _boolean, "Kept for clients that set it."),
    Setting("remote.log.copy.disable", "boolean", "false", _boolean, "Kept for clients that set it."),
    Setting("remote.log.delete.on.disable", "boolean", "false", _boolean, "Kept for clients that set it."),
    Setting("remote.storage.enable", "boolean", "false", _no_tiers, "There is no other tier: only false is taken."),
    Setting("retention.bytes", "long", "-1", _number(-1, LONG_MAX), "Size at which a partition drops its oldest segments; -1 for no limit."),
    Setting("retention.ms", "long", str(7 * _DAY_MS), _number(-1, LONG_MAX), "Age at which a segment is dropped; -1 for never."),
    Setting("segment.bytes", "int", str(1 << 30), _number(14, INT_MAX), "Size at which a segment is rolled."),
    Setting("segment.index.bytes", "int", "10485760", _number(4, INT_MAX), "Largest size of an index file."),
    Setting("segment.jitter.ms", "long", "0", _number(0, LONG_MAX), "Random part of segment.ms."),
    Setting("segment.ms", "long", str(7 * _DAY_MS), _number(1, LONG_MAX), "Age at which a segment is rolled."),
    Setting("unclean.leader.election.enable", "boolean", "false", _boolean, "Kept for clients that set it."),
)  # fmt: skip

SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _LIST})
FLUSH_POLICIES = ("acks", "os", "interval", "commit")


class TopicConfig:
    """A topic's settings: its own `overrides`, on top of the broker's `defaults`, on top of `SETTINGS`."""

    def __init__(self, overrides: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None) -> None:
        self.overrides: Mapping[str, str] = MappingProxyType(dict(overrides or {}))
        self.defaults: Mapping[str, str] = MappingProxyType(dict(defaults or {}))
        for name, value in {**self.defaults, **self.overrides}.items():
            check_setting(name, value)
        policy = words_of(self.value("cleanup.policy"))
        self.compacted = "compact" in policy
        self.deleted = "delete" in policy
        self.compression_type = self.value("compression.type")
        self.delete_retention_ms = self._int("delete.retention.ms")
        self.file_delete_delay_ms = self._int("file.delete.delay.ms")
        self.flush = self.value("flush")
        self.flush_messages = self._int("flush.messages")
        self.flush_ms = self._int("flush.ms")
        self.index_interval_bytes = self._int("index.interval.bytes")
        self.max_compaction_lag_ms = self._int("max.compaction.lag.ms")
        self.max_message_bytes = self._int("max.message.bytes")
        self.timestamp_after_max_ms = self._int("message.timestamp.after.max.ms")
        self.timestamp_before_max_ms = self._int("message.timestamp.before.max.ms")
        self.log_append_time = self.value("message.timestamp.type") == "LogAppendTime"
        self.min_cleanable_dirty_ratio = float(self.value("min.cleanable.dirty.ratio"))
        self.min_compaction_lag_ms = self._int("min.compaction.lag.ms")
        self.retention_bytes = self._int("retention.bytes")
        self.retention_ms = self._int("retention.ms")
        self.segment_bytes = self._int("segment.bytes")
        self.segment_index_bytes = self._int("segment.index.bytes")
        self.segment_jitter_ms = self._int("segment.jitter.ms")
        self.segment_ms = self._int("segment.ms")

    def value(self, name: str) -> str:
        found = self.overrides.get(name)
        if found is None:
            found = self.defaults.get(name)
        return SETTINGS[name].default if found is None else found

    def effective(self) -> dict[str, str]:
        return {name: self.value(name) for name in SETTINGS}

    def _int(self, name: str) -> int:
        return int(self.value(name))


def check_setting(name: str, value: str) -> None:
    """Raise InvalidConfig unless `value` is one that the setting takes."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(f"unknown topic setting {name}")
    try:
        setting.check(value)
    except ValueError as error:
        raise InvalidConfig(f"invalid value {value!r} for {name}: {error}") from None
