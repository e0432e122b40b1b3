"""The options of `format("trunkline")`, checked when a query is planned, so that a wrong one never reaches a task.

They have the names of Spark's Kafka source where they mean the same, and are compared without regard to case.
`kafka.bootstrap.servers` and `kafka.isolation.level` are understood too, so that a query for Spark's Kafka source needs
only another format. An option that neither side knows is an error that names the nearest one.

Offsets are written as Spark's Kafka source writes them: `earliest`, `latest`, or {"topic": {"0": 23, "1": -2}} with -2 for
earliest and -1 for latest.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trunkline.client.topics import EARLIEST, LATEST
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits

Offsets: TypeAlias = dict[str, dict[str, int]]
"""topic -> partition -> offset (or timestamp), as in JSON."""

COMMON = ("bootstrap", "bootstrap.servers", "kafka.bootstrap.servers", "requestTimeoutMs")
SOURCE = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "maxOffsetsPerTrigger",
    "maxBytesPerTrigger", "failOnDataLoss", "isolation", "kafka.isolation.level", "includeHeaders", "minPartitions",
    "maxRecordsPerPartition", "localSegments", "stallTimeoutMs",
)  # fmt: skip
SINK = ("topic", "delivery", "compression", "txnAppId", "txnVersion", "transactionTimeoutMs", "includeHeaders")
# Set by Spark itself on the options that it hands to a source or sink.
SPARKS_OWN = ("path", "checkpointLocation", "queryName", "includeExistingData")

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
LOCAL_AUTO, LOCAL_NEVER = "auto", "never"
_LOCAL_REQUEST_TIMEOUT_MS = 30_000


class OptionError(ValueError):
    """An option that does not mean anything; the message names it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read: exactly one field is set."""

    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: tuple[tuple[TopicPartition, int], ...] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: tuple[tuple[TopicPartition, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: exactly one field is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    bootstrap: str
    request_timeout_ms: int
    subscription: Subscription
    start: Bound | None
    end: Bound | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    fail_on_data_loss: bool
    committed: bool
    include_headers: bool
    min_partitions: int
    max_records_per_partition: int
    local_segments: str
    stall_timeout_ms: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bootstrap: str
    request_timeout_ms: int
    topic: str | None
    delivery: str
    compression: str
    application: str | None
    version: int | None
    transaction_timeout_ms: int


class _Given:
    """The options as they were given, each taken by its name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], of: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in (*COMMON, *known)}
        accepted = names.keys() | {name.lower() for name in SPARKS_OWN}
        for name in self._values.keys() - accepted:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {names[near[0]]}?" if near else f": it knows {', '.join(sorted(names.values()))}"
            raise OptionError(f"the trunkline {of} has no option {name!r}{meant}")

    def text(self, *names: str) -> str | None:
        for name in names:
            value = self._values.get(name.lower())
            if value is not None:
                return value
        return None

    def number(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            found = int(value)
        except ValueError:
            found = least - 1
        if found < least:
            raise OptionError(f"option {name} is {value!r}; it must be a whole number of at least {least}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in {"true", "false"}:
            raise OptionError(f"option {name} is {value!r}; it must be true or false")
        return value == "true"

    def choice(self, name: str, among: tuple[str, ...], default: str, value: str | None = None) -> str:
        found = (value if value is not None else self.text(name) or default).lower()
        if found not in among:
            raise OptionError(f"option {name} is {found!r}; it must be one of {', '.join(among)}")
        return found

    def bootstrap(self) -> str:
        found = self.text("bootstrap", "bootstrap.servers", "kafka.bootstrap.servers")
        if not found:
            raise OptionError('where is the broker? Set option("bootstrap", "127.0.0.1:9092")')
        return found


def source_options(options: Mapping[str, str]) -> SourceOptions:
    given = _Given(options, SOURCE, "source")
    isolation = given.text("isolation", "kafka.isolation.level") or READ_COMMITTED
    return SourceOptions(
        bootstrap=given.bootstrap(),
        request_timeout_ms=given.number("requestTimeoutMs") or _LOCAL_REQUEST_TIMEOUT_MS,
        subscription=_subscription(given),
        start=_bound(given, "starting"),
        end=_bound(given, "ending"),
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
        max_bytes_per_trigger=given.number("maxBytesPerTrigger"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        committed=given.choice("isolation", (READ_COMMITTED, READ_UNCOMMITTED), READ_COMMITTED, isolation)
        == READ_COMMITTED,
        include_headers=given.flag("includeHeaders", False),
        min_partitions=given.number("minPartitions") or 1,
        max_records_per_partition=given.number("maxRecordsPerPartition") or limits.RECORDS_PER_SPARK_PARTITION,
        local_segments=given.choice("localSegments", (LOCAL_AUTO, LOCAL_NEVER), LOCAL_AUTO),
        stall_timeout_ms=given.number("stallTimeoutMs") or limits.STALL_MS,
    )


def includes_headers(options: Mapping[str, str]) -> bool:
    """Whether the schema has headers: asked before the other options are complete."""
    values = {name.lower(): value for name, value in options.items()}
    return values.get("includeheaders", "false").lower() == "true"


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    given = _Given(options, SINK, "sink")
    application, version = given.text("txnAppId"), given.number("txnVersion", least=0)
    if version is not None and application is None:
        raise OptionError("option txnVersion needs txnAppId beside it")
    return SinkOptions(
        bootstrap=given.bootstrap(),
        request_timeout_ms=given.number("requestTimeoutMs") or _LOCAL_REQUEST_TIMEOUT_MS,
        topic=given.text("topic"),
        delivery=given.choice("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE),
        compression=given.choice("compression", COMPRESSIONS, "none"),
        application=application,
        version=version,
        transaction_timeout_ms=given.number("transactionTimeoutMs") or 300_000,
    )


def _subscription(given: _Given) -> Subscription:
    asked = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name)]
    if len(asked) != 1:
        said = f"{' and '.join(asked)} are both set" if asked else "none is set"
        raise OptionError(f"set one of the options subscribe, subscribePattern and assign: {said}")
    value = given.text(asked[0]) or ""
    if asked[0] == "subscribe":
        topics = tuple(sorted({name.strip() for name in value.split(",") if name.strip()}))
        if not topics:
            raise OptionError("option subscribe names no topic")
        return Subscription(topics=topics)
    if asked[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"option subscribePattern is no regular expression: {error}") from None
        return Subscription(pattern=value)
    return Subscription(partitions=_assignment(value))


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    problem = OptionError('option assign must be JSON like {"orders": [0, 1]}')
    try:
        parsed = json.loads(text)
    except ValueError:
        raise problem from None
    if not isinstance(parsed, dict) or not parsed:
        raise problem
    found: list[TopicPartition] = []
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not all(_whole(item, 0) for item in partitions):
            raise problem
        found += [TopicPartition(topic, item) for item in partitions]
    return tuple(sorted(set(found)))


def _bound(given: _Given, which: str) -> Bound | None:
    """`which` is starting or ending. The most precise of the options wins, as in Spark's Kafka source."""
    instant = given.number(f"{which}Timestamp", least=0)
    if instant is not None:
        return Bound(timestamp_ms=instant)
    by_time = given.text(f"{which}OffsetsByTimestamp")
    if by_time is not None:
        return Bound(timestamps_ms=_per_partition(by_time, f"{which}OffsetsByTimestamp", least=0))
    text = given.text(f"{which}Offsets")
    if text is None:
        return None
    if text.lower() in {"earliest", "latest"}:
        if which == "ending" and text.lower() == "earliest":
            raise OptionError("option endingOffsets cannot be earliest: nothing would be read")
        return Bound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    return Bound(offsets=_per_partition(text, f"{which}Offsets", least=EARLIEST))


def _per_partition(text: str, name: str, least: int) -> tuple[tuple[TopicPartition, int], ...]:
    problem = OptionError(f'option {name} must be JSON like {{"orders": {{"0": 23, "1": 42}}}}')
    try:
        parsed = json.loads(text)
    except ValueError:
        raise problem from None
    if not isinstance(parsed, dict) or not parsed:
        raise problem
    found: dict[TopicPartition, int] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise problem
        for partition, number in partitions.items():
            if not partition.isdecimal() or not _whole(number, least):
                raise problem
            found[TopicPartition(topic, int(partition))] = number
    return tuple(sorted(found.items()))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
