"""The options of `format("trunkline")`, checked when a query is planned, so that a wrong one never reaches a task.

They have the names of Spark's Kafka source and sink where they mean the same, and are compared without regard to case, so
that a query for those needs only another format:

- what a Kafka client is told with `kafka.…` is done where there is such a thing here (`KAFKA`), and passed over otherwise;
- options of Spark's source that are about how its own consumers work (`PASSED_OVER`) are passed over too;
- what was passed over is said once, in one warning (`say_passed_over`);
- how to log in is said as to a Kafka client (`security_options`); a way that is not had here is an error, not passed over.

An option that neither side knows is an error that names the nearest one.

Offsets are written as Spark's Kafka source writes them: `earliest`, `latest`, or {"topic": {"0": 23, "1": -2}} with -2 for
earliest and -1 for latest.
"""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trunkline.client.login import Login
from trunkline.client.topics import EARLIEST, LATEST
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.security_options import NAMES as SECURITY
from trunkline.pipeline.security_options import SecurityOptionError, login_of

Offsets: TypeAlias = dict[str, dict[str, int]]
"""topic -> partition -> offset (or timestamp), as in JSON."""

COMMON = ("bootstrap", "bootstrap.servers", "requestTimeoutMs")
SOURCE = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "maxOffsetsPerTrigger",
    "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "startingOffsetsByTimestampStrategy",
    "failOnDataLoss", "isolation", "includeHeaders", "minPartitions", "maxRecordsPerPartition", "localSegments",
    "stallTimeoutMs", "kafkaConsumer.pollTimeoutMs",
)  # fmt: skip
SINK = ("topic", "delivery", "compression", "txnAppId", "txnVersion", "transactionTimeoutMs", "includeHeaders")
KAFKA_PREFIX = "kafka."
KAFKA = {
    "source": ("kafka.bootstrap.servers", "kafka.request.timeout.ms", "kafka.isolation.level"),
    "sink": (
        "kafka.bootstrap.servers", "kafka.request.timeout.ms", "kafka.acks", "kafka.compression.type",
        "kafka.transaction.timeout.ms",
    ),
}  # fmt: skip
PASSED_OVER = {"source": ("groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"), "sink": ()}
# Set by Spark itself on the options that it hands to a source or sink.
SPARKS_OWN = ("path", "checkpointLocation", "queryName", "includeExistingData")

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
LOCAL_AUTO, LOCAL_NEVER = "auto", "never"
LATEST_STRATEGY, ERROR_STRATEGY = "latest", "error"
ACKS = ("all", "-1", "0", "1")
MAX_TRIGGER_DELAY_MS = 15 * 60_000
_LOCAL_REQUEST_TIMEOUT_MS = 30_000


class OptionError(ValueError):
    """An option that does not mean anything; the message names it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read: exactly one field is set, beside `strict`."""

    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: tuple[tuple[TopicPartition, int], ...] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: tuple[tuple[TopicPartition, int], ...] | None = None
    strict: bool = False
    """Whether a partition without a record at or after the time is an error; otherwise its end is meant."""


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
    login: Login
    subscription: Subscription
    start: Bound | None
    end: Bound | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    committed: bool
    include_headers: bool
    min_partitions: int
    max_records_per_partition: int
    local_segments: str
    stall_timeout_ms: int
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bootstrap: str
    request_timeout_ms: int
    login: Login
    topic: str | None
    delivery: str
    compression: str
    application: str | None
    version: int | None
    transaction_timeout_ms: int
    passed_over: tuple[str, ...] = ()


_SPAN = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_SPAN_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def say_passed_over(names: tuple[str, ...], of: str) -> None:
    if names:
        told = f"the trunkline {of} has no use for the options {', '.join(names)}, and passes them over"
        warnings.warn(told, stacklevel=2)


class _Given:
    """The options as they were given, each taken by its name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], of: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in (*COMMON, *known, *KAFKA[of], *SECURITY, *PASSED_OVER[of])}
        accepted = names.keys() | {name.lower() for name in SPARKS_OWN}
        unknown = self._values.keys() - accepted
        over = {name.lower() for name in PASSED_OVER[of]} & self._values.keys()
        over |= {name for name in unknown if name.startswith(KAFKA_PREFIX)}
        self.passed_over = sorted(names.get(name, name) for name in over)
        for name in sorted(unknown - over):
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"; did you mean {names[near[0]]}?" if near else f": it knows {', '.join(sorted(names.values()))}"
            raise OptionError(f"the trunkline {of} has no option {name!r}{meant}")

    def text(self, *names: str) -> str | None:
        for name in names:
            value = self._values.get(name.lower())
            if value is not None:
                return value
        return None

    def number(self, *names: str, least: int = 1) -> int | None:
        """Of the first of the names that is given."""
        name = next((each for each in names if self.text(each) is not None), names[0])
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

    def choice(self, name: str, among: tuple[str, ...], default: str, *others: str) -> str:
        """`others` are names that mean the same."""
        name = next((each for each in (name, *others) if self.text(each)), name)
        found = (self.text(name) or default).lower()
        if found not in among:
            raise OptionError(f"option {name} is {found!r}; it must be one of {', '.join(among)}")
        return found

    def span_ms(self, name: str, default_ms: int) -> int:
        """As Spark writes it: 30s, 5m, 1h; milliseconds without a unit."""
        value = self.text(name)
        if value is None:
            return default_ms
        found = _SPAN.fullmatch(value.strip().lower())
        if found is None:
            raise OptionError(f"option {name} is {value!r}; it must be a time like 30s, 5m or 1h")
        return int(int(found[1]) * _SPAN_MS[found[2] or "ms"])

    def request_timeout_ms(self) -> int:
        return self.number("requestTimeoutMs", "kafka.request.timeout.ms") or _LOCAL_REQUEST_TIMEOUT_MS

    def login(self) -> Login:
        try:
            return login_of(self.text)
        except SecurityOptionError as error:
            raise OptionError(str(error)) from None

    def bootstrap(self) -> str:
        found = self.text("bootstrap", "bootstrap.servers", "kafka.bootstrap.servers")
        if not found:
            raise OptionError('where is the broker? Set option("bootstrap", "127.0.0.1:9092")')
        return found


def source_options(options: Mapping[str, str]) -> SourceOptions:
    given = _Given(options, SOURCE, "source")
    strategy = given.choice("startingOffsetsByTimestampStrategy", (LATEST_STRATEGY, ERROR_STRATEGY), LATEST_STRATEGY)
    most, least = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(f"option minOffsetsPerTrigger is {least}, which is more than maxOffsetsPerTrigger, {most}")
    levels = (READ_COMMITTED, READ_UNCOMMITTED)
    return SourceOptions(
        bootstrap=given.bootstrap(),
        request_timeout_ms=given.request_timeout_ms(),
        login=given.login(),
        subscription=_subscription(given),
        start=_bound(given, "starting", strict=strategy == ERROR_STRATEGY),
        end=_bound(given, "ending"),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=given.number("maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=given.span_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        committed=given.choice("isolation", levels, READ_COMMITTED, "kafka.isolation.level") == READ_COMMITTED,
        include_headers=given.flag("includeHeaders", False),
        min_partitions=given.number("minPartitions") or 1,
        max_records_per_partition=given.number("maxRecordsPerPartition") or limits.RECORDS_PER_SPARK_PARTITION,
        local_segments=given.choice("localSegments", (LOCAL_AUTO, LOCAL_NEVER), LOCAL_AUTO),
        stall_timeout_ms=given.number("stallTimeoutMs", "kafkaConsumer.pollTimeoutMs") or limits.STALL_MS,
        passed_over=tuple(given.passed_over),
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
    passed_over = list(given.passed_over)
    if given.choice("kafka.acks", ACKS, "all") not in {"all", "-1"}:
        passed_over.append("kafka.acks (records count when they are on disk)")
    return SinkOptions(
        bootstrap=given.bootstrap(),
        request_timeout_ms=given.request_timeout_ms(),
        login=given.login(),
        topic=given.text("topic"),
        delivery=given.choice("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE),
        compression=given.choice("compression", COMPRESSIONS, "none", "kafka.compression.type"),
        application=application,
        version=version,
        transaction_timeout_ms=given.number("transactionTimeoutMs", "kafka.transaction.timeout.ms") or 300_000,
        passed_over=tuple(passed_over),
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


def _bound(given: _Given, which: str, *, strict: bool = False) -> Bound | None:
    """`which` is starting or ending. The most precise of the options wins, as in Spark's Kafka source."""
    instant = given.number(f"{which}Timestamp", least=0)
    if instant is not None:
        return Bound(timestamp_ms=instant, strict=strict)
    by_time = given.text(f"{which}OffsetsByTimestamp")
    if by_time is not None:
        return Bound(timestamps_ms=_per_partition(by_time, f"{which}OffsetsByTimestamp", least=0), strict=strict)
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
