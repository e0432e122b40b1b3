"""The settings of single groups: Kafka's names, types and checks, and what a group has of its own.

A group stores only what differs from the broker's defaults; the rest comes from `GroupLimits`. Settings of streams
groups are kept for tools that set them: there are no such groups here. A group's settings may be there before
the group, and outlive it, as in Kafka. `GroupSettings` is a fold of `__consumer_offsets`: it changes when the record that
says so is on disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.limits import GroupLimits

INT_MAX = 2**31 - 1
SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_OFFSET_RESET = "share.auto.offset.reset"
SHARE_DELIVERY_LIMIT = "share.delivery.count.limit"
SHARE_ISOLATION = "share.isolation.level"
SHARE_MAX_LOCKS = "share.partition.max.record.locks"
SHARE_LOCK_DURATION = "share.record.lock.duration.ms"
SHARE_RENEW = "share.renew.acknowledge.enable"
_BY_DURATION = "by_duration:"
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
    GroupSetting(SHARE_OFFSET_RESET, "string", "share.auto.offset.reset", _always("latest"), words=("latest", "earliest")),
    GroupSetting(SHARE_DELIVERY_LIMIT, "int", "group.share.delivery.count.limit", _always("5"), 2, 10),
    GroupSetting(SHARE_HEARTBEAT_INTERVAL, "int", "group.share.heartbeat.interval.ms", lambda limits: str(limits.share_heartbeat_interval_ms), 5_000, 15_000),
    GroupSetting(SHARE_ISOLATION, "string", "share.isolation.level", _always("read_uncommitted"), words=("read_uncommitted", "read_committed")),
    GroupSetting(SHARE_MAX_LOCKS, "int", "group.share.partition.max.record.locks", _always("2000"), 100, 10_000),
    GroupSetting(SHARE_LOCK_DURATION, "int", "group.share.record.lock.duration.ms", _always("30000"), 15_000, 60_000),
    GroupSetting(SHARE_RENEW, "boolean", "share.renew.acknowledge.enable", _always("true"), words=("true", "false")),
    GroupSetting(SHARE_SESSION_TIMEOUT, "int", "group.share.session.timeout.ms", lambda limits: str(limits.share_session_timeout_ms), 45_000, 60_000),
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

    def share_session_timeout_ms(self, group_id: str) -> int:
        return self._number(group_id, SHARE_SESSION_TIMEOUT, self._limits.share_session_timeout_ms)

    def share_heartbeat_interval_ms(self, group_id: str) -> int:
        return self._number(group_id, SHARE_HEARTBEAT_INTERVAL, self._limits.share_heartbeat_interval_ms)

    def _number(self, group_id: str, name: str, default: int) -> int:
        own = self._overrides.get(group_id)
        return int(own[name]) if own is not None and name in own else default

    def check(self, overrides: Overrides) -> None:
        """Raise INVALID_CONFIG unless a group may have these."""
        for name, value in overrides.items():
            setting = GROUP_SETTINGS.get(name)
            if setting is None:
                raise _invalid(f"Unknown group config name: {name}")
            if name == SHARE_OFFSET_RESET and value.startswith(_BY_DURATION):
                reset_duration_ms(value)
                continue
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
        for session, heartbeat in _PAIRS:
            if numbers[session] <= numbers[heartbeat]:
                raise _invalid(f"{session} must be greater than {heartbeat}")


_PAIRS = ((SESSION_TIMEOUT, HEARTBEAT_INTERVAL), (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL))
_PAIRED = tuple(name for pair in _PAIRS for name in pair)
_DURATION = re.compile(r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?")


def reset_duration_ms(value: str) -> int:
    """How far back `by_duration:<ISO 8601>` reaches; INVALID_CONFIG when it says nothing."""
    text = value.removeprefix(_BY_DURATION)
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()) or text.endswith("T"):
        raise _invalid(
            f"Invalid value {value} for configuration {SHARE_OFFSET_RESET}: a duration such as by_duration:PT1H is needed"
        )
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups()[:4])
    fraction_ms = int(((found.group(5) or "") + "000")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms


def _invalid(why: str) -> GroupError:
    return GroupError(GroupErrorName.INVALID_CONFIG, why)
