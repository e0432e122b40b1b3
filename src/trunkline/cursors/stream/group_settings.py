"""The settings of single groups: Kafka's names, types and checks, and what a group has of its own.

A group stores only what differs from the broker's defaults; the rest comes from `GroupLimits`. Settings of share and
streams groups are kept for tools that set them: there are no such groups here. A group's settings may be there before
the group, and outlive it, as in Kafka. `GroupSettings` is a fold of `__consumer_offsets`: it changes when the record that
says so is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.limits import GroupLimits

INT_MAX = 2**31 - 1
SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
Overrides = Mapping[str, str]


class GroupSetting(NamedTuple):
    name: str
    kind: str  # Kafka's type word: int, string or boolean
    broker_name: str  # what Kafka calls the default for all groups
    default: Callable[[GroupLimits], str]
    low: int = 0
    high: int = INT_MAX
    words: tuple[str, ...] = ()


def _always(value: str) -> Callable[[GroupLimits], str]:
    return lambda limits: value


_LIST = (
    GroupSetting("consumer.assignment.interval.ms", "int", "group.consumer.assignment.interval.ms", _always("0"), 0, 15_000),
    GroupSetting(HEARTBEAT_INTERVAL, "int", "group.consumer.heartbeat.interval.ms", lambda limits: str(limits.consumer_heartbeat_interval_ms), 5_000, 15_000),
    GroupSetting(SESSION_TIMEOUT, "int", "group.consumer.session.timeout.ms", lambda limits: str(limits.consumer_session_timeout_ms), 45_000, 60_000),
    GroupSetting("share.assignment.interval.ms", "int", "group.share.assignment.interval.ms", _always("1000"), 0, 15_000),
    GroupSetting("share.auto.offset.reset", "string", "share.auto.offset.reset", _always("latest"), words=("latest", "earliest")),
    GroupSetting("share.delivery.count.limit", "int", "group.share.delivery.count.limit", _always("5"), 2, 10),
    GroupSetting("share.heartbeat.interval.ms", "int", "group.share.heartbeat.interval.ms", _always("5000"), 5_000, 15_000),
    GroupSetting("share.isolation.level", "string", "share.isolation.level", _always("read_uncommitted"), words=("read_uncommitted", "read_committed")),
    GroupSetting("share.partition.max.record.locks", "int", "group.share.partition.max.record.locks", _always("2000"), 100, 10_000),
    GroupSetting("share.record.lock.duration.ms", "int", "group.share.record.lock.duration.ms", _always("30000"), 15_000, 60_000),
    GroupSetting("share.renew.acknowledge.enable", "boolean", "share.renew.acknowledge.enable", _always("true"), words=("true", "false")),
    GroupSetting("share.session.timeout.ms", "int", "group.share.session.timeout.ms", _always("45000"), 45_000, 60_000),
    GroupSetting("streams.assignment.interval.ms", "int", "group.streams.assignment.interval.ms", _always("1000"), 0, 15_000),
    GroupSetting("streams.heartbeat.interval.ms", "int", "group.streams.heartbeat.interval.ms", _always("5000"), 5_000, 15_000),
    GroupSetting("streams.initial.rebalance.delay.ms", "int", "group.streams.initial.rebalance.delay.ms", _always("3000")),
    GroupSetting("streams.num.standby.replicas", "int", "group.streams.num.standby.replicas", _always("0"), 0, 2),
    GroupSetting("streams.session.timeout.ms", "int", "group.streams.session.timeout.ms", _always("45000"), 45_000, 60_000),
)  # fmt: skip

GROUP_SETTINGS: Mapping[str, GroupSetting] = {setting.name: setting for setting in _LIST}


class GroupSettings:
    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._overrides: dict[str, Overrides] = {}

    def groups(self) -> list[str]:
        """The groups that have settings of their own."""
        return list(self._overrides)

    def overrides(self, group_id: str) -> Overrides:
        return self._overrides.get(group_id, {})

    def put(self, group_id: str, overrides: Overrides) -> None:
        if overrides:
            self._overrides[group_id] = overrides
        else:
            self._overrides.pop(group_id, None)

    def default(self, setting: GroupSetting) -> str:
        return setting.default(self._limits)

    def value(self, group_id: str, name: str) -> str:
        found = self.overrides(group_id).get(name)
        return self.default(GROUP_SETTINGS[name]) if found is None else found

    def session_timeout_ms(self, group_id: str) -> int:
        return self._number(group_id, SESSION_TIMEOUT, self._limits.consumer_session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._number(group_id, HEARTBEAT_INTERVAL, self._limits.consumer_heartbeat_interval_ms)

    def _number(self, group_id: str, name: str, default: int) -> int:
        own = self._overrides.get(group_id)
        return int(own[name]) if own is not None and name in own else default

    def check(self, overrides: Overrides) -> None:
        """Raise INVALID_CONFIG unless a group may have these."""
        for name, value in overrides.items():
            setting = GROUP_SETTINGS.get(name)
            if setting is None:
                raise _invalid(f"Unknown group config name: {name}")
            if setting.words:
                if value not in setting.words:
                    raise _invalid(
                        f"Invalid value {value} for configuration {name}: must be {' or '.join(setting.words)}"
                    )
                continue
            try:
                number = int(value)
            except ValueError:
                raise _invalid(f"Invalid value {value} for configuration {name}: Not a number of type INT") from None
            # The broker's own default is always good enough.
            default = int(self.default(setting))
            low, high = min(setting.low, default), max(setting.high, default)
            if not low <= number <= high:
                raise _invalid(f"Invalid value {value} for configuration {name}: must be between {low} and {high}")
        numbers = {name: int(overrides.get(name) or self.default(GROUP_SETTINGS[name])) for name in _PAIRED}
        if numbers[SESSION_TIMEOUT] <= numbers[HEARTBEAT_INTERVAL]:
            raise _invalid(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")


_PAIRED = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)


def _invalid(why: str) -> GroupError:
    return GroupError(GroupErrorName.INVALID_CONFIG, why)
