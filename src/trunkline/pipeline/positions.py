"""Where the subscribed partitions begin and end, asked of the broker by whoever plans a query.

The partitions of a subscription are looked up at most every `DISCOVERY_INTERVAL_MS`, because Spark asks an idle stream
for news about every 12 ms. Ends are asked for each time; under read_committed the end is the last stable offset, so nothing
is planned that a transaction may still abort.

A broker that is away is asked again until the request time-out is over; then the query fails with what the client says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from trunkline.client.client import Client
from trunkline.client.errors import ClientError
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.options import Bound, OptionError, SourceOptions, Subscription
from trunkline.pipeline.planning import DataLoss

_INTERNAL_PREFIX = "__"


class Positions:
    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._topics = Topics(client)
        self._options = options
        self._found: list[TopicPartition] = []
        self._found_at_ms: float | None = None

    def partitions(self, *, refresh: bool = False) -> list[TopicPartition]:
        """What the subscription covers now, in order."""
        now_ms = self._client.clock.monotonic_ms()
        if refresh or self._found_at_ms is None or now_ms - self._found_at_ms >= limits.DISCOVERY_INTERVAL_MS:
            self._client.forget()  # also how many partitions a topic has
            self._found = self._discover(self._options.subscription)
            self._found_at_ms = now_ms
        return self._found

    def existing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that there are at this moment."""
        wanted = set(partitions)
        topics = self._client.metadata(sorted({tp.topic for tp in wanted})).topics if wanted else {}
        return {tp for tp in wanted if tp.topic in topics and tp.partition < len(topics[tp.topic].partitions)}

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ask(lambda wanted: self._topics.offsets(wanted, EARLIEST), partitions)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        committed = self._options.committed
        return self._ask(lambda wanted: self._topics.offsets(wanted, LATEST, committed=committed), partitions)

    def resolve(self, bound: Bound, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset at which the bound lies in each partition."""
        if bound.everywhere == EARLIEST:
            return self.starts(partitions)
        if bound.everywhere == LATEST:
            return self.ends(partitions)
        if bound.timestamp_ms is not None:
            return self._at_times(dict.fromkeys(partitions, bound.timestamp_ms), strict=bound.strict)
        if bound.timestamps_ms is not None:
            return self._at_times(_complete(dict(bound.timestamps_ms), partitions), strict=bound.strict)
        given = _complete(dict(bound.offsets or ()), partitions)
        starts = self.starts(tp for tp, offset in given.items() if offset == EARLIEST)
        ends = self.ends(tp for tp, offset in given.items() if offset == LATEST)
        return {**given, **starts, **ends}

    def _at_times(self, times_ms: Mapping[TopicPartition, int], *, strict: bool) -> dict[TopicPartition, int]:
        """The first offset at or after the time; where no record is that young the end, or an OptionError."""
        ends = self.ends(times_ms)
        found: dict[TopicPartition, int] = {}
        for time_ms in set(times_ms.values()):
            wanted = [tp for tp, each in times_ms.items() if each == time_ms]
            for tp, offset in self._topics.offsets(wanted, time_ms, committed=self._options.committed).items():
                if strict and (offset < 0 or offset >= ends[tp]):
                    raise OptionError(
                        f"{tp}: no record is at or after {time_ms}, where reading is to start; "
                        'option("startingOffsetsByTimestampStrategy", "latest") waits for the next'
                    )
                found[tp] = ends[tp] if offset < 0 else min(offset, ends[tp])
        return found

    def _ask(
        self,
        ask: Callable[[list[TopicPartition]], dict[TopicPartition, int]],
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        try:
            return ask(wanted) if wanted else {}
        except ClientError as error:
            if error.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            self._found_at_ms = None
            raise DataLoss(f"{error}. It was deleted while the query ran") from error

    def _discover(self, subscription: Subscription) -> list[TopicPartition]:
        if subscription.partitions is not None:
            missing = set(subscription.partitions) - self.existing(subscription.partitions)
            if missing:
                raise OptionError(f"option assign names partitions that do not exist: {_listed(missing)}")
            return sorted(subscription.partitions)
        if subscription.topics is not None:
            topics = self._client.metadata(subscription.topics).topics
            absent = [name for name in subscription.topics if name not in topics]
            if absent:
                known = f"; `trunkline topic create {absent[0]}` makes it"
                raise DataLoss(f"there is no topic {', '.join(absent)}{known}")
        else:
            matches = re.compile(subscription.pattern or "").fullmatch
            found = self._client.metadata(None).topics
            topics = {
                name: topic
                for name, topic in found.items()
                if matches(name) and not topic.internal and not name.startswith(_INTERNAL_PREFIX)
            }
        return sorted(TopicPartition(name, part.index) for name, topic in topics.items() for part in topic.partitions)


def _complete(given: dict[TopicPartition, int], partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """What was given, which must be about exactly these partitions."""
    missing, unknown = set(partitions) - given.keys(), given.keys() - set(partitions)
    if missing:
        raise OptionError(f"offsets or times must be given for all partitions; missing: {_listed(missing)}")
    if unknown:
        raise OptionError(f"offsets or times are given for what is not subscribed: {_listed(unknown)}")
    return given


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in sorted(partitions))
