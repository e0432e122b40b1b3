"""How far a query is: what Spark reports of each batch, folded to what a person asks.

    read      records of the log that the query has processed, by source; those of the batches that are done
    written   rows that went into its sink
    lag       records that were in the log when the last batch was planned, and are not yet processed

All of them are of the run, not of the pipeline's whole life. Every query of a pipeline reads for itself, so what the pipeline
has read of a source is what its furthest query has read of it: `Totals`, which everything that shows a pipeline as a whole uses.

Spark's report is JSON of its own making, and fields come and go with versions: what is missing counts as unknown, never as
an error. Spark repeats its last hundred reports with every question, so a batch counts only when its number is new to the run.
A view that reads its source twice makes Spark count a record twice; no more are counted than the batch has offsets, where the
report has both ends (that of a checkpoint's first batch has not).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trunkline.pipeline.definition import Source
from trunkline.pipeline.home import Json

WAITING: Final = "waiting"
RUNNING: Final = "running"
RETRYING: Final = "retrying"
FINISHED: Final = "finished"
STOPPED: Final = "stopped"
FAILED: Final = "failed"


DIED: Final = "died"
"""Of a pipeline whose process ended without saying so, and of its queries."""
UNFINISHED: Final = frozenset({WAITING, RUNNING, RETRYING})

OBSERVED: Final = "trunkline-written"
"""The metric with which a query counts its rows where Spark does not know what its sink has taken."""
OBSERVED_ROWS: Final = "rows"


@dataclass
class QueryProgress:
    """One query's; totals are of this run."""

    name: str
    target: str
    sources: tuple[Source, ...] = ()
    dead_letters: bool = False
    """Whether it writes what a source could not parse."""
    state: str = WAITING
    batch: int | None = None
    read_by_source: dict[str, int] = field(default_factory=dict)
    written: int = 0
    rows_per_second: float = 0.0
    batch_ms: int | None = None
    lag: int | None = None
    restarts: int = 0
    error: str | None = None
    _seen: tuple[str, int] | None = field(default=None, repr=False)

    @property
    def read(self) -> int:
        return sum(self.read_by_source.values())

    def take(self, report: Mapping[str, object]) -> bool:
        """Fold a report in; False for one that was seen before, or that brought nothing."""
        batch, run = _whole(report.get("batchId")), str(report.get("runId"))
        durations = report.get("durationMs")
        if batch is None or not isinstance(durations, dict) or self._has_seen(run, batch):
            return False
        sources = [item for item in _list(report.get("sources")) if isinstance(item, dict)]
        self.lag = _lag(report.get("sources"))
        # An idle query reports the batch that is to come, with new times; only a batch that was written is progress.
        if "addBatch" not in durations:
            self.rows_per_second = 0.0
            return False
        self._seen = (run, batch)
        self.state, self.batch, self.error = RUNNING, batch, None
        for source in sources:
            name = self._source_of(_topics(source.get("endOffset")))
            self.read_by_source[name] = self.read_by_source.get(name, 0) + _records(source)
        self.written += _written(report)
        self.batch_ms = _whole(durations.get("triggerExecution"))
        rate = report.get("processedRowsPerSecond")
        self.rows_per_second = float(rate) if isinstance(rate, int | float) else 0.0
        return True

    def to_json(self) -> dict[str, Json]:
        return {
            "query": self.name,
            "target": self.target,
            "state": self.state,
            "batch": self.batch,
            "read": self.read,
            "written": self.written,
            "rows_per_second": round(self.rows_per_second, 1),
            "batch_ms": self.batch_ms,
            "lag": self.lag,
            "restarts": self.restarts,
            "error": self.error,
            "dead_letters": self.dead_letters,
            "read_by_source": dict(self.read_by_source),
        }

    def _has_seen(self, run: str, batch: int) -> bool:
        return self._seen is not None and self._seen[0] == run and batch <= self._seen[1]

    def _source_of(self, topics: Collection[str]) -> str:
        """The name of the source that reads these topics."""
        for source in self.sources:
            if source.pattern is not None:
                if all(re.fullmatch(source.pattern, topic) for topic in topics):
                    return source.name
            elif set(topics) <= set(source.topics):
                return source.name
        return ",".join(sorted(topics))


class Totals(NamedTuple):
    """Of a pipeline's run."""

    read: int | None
    """None where the state on disk is of a release that did not say."""
    written: int
    dead_letters: int
    lag: int | None

    @classmethod
    def of(cls, queries: Iterable[Mapping[str, Json]]) -> Totals:
        """From what `QueryProgress.to_json` said of each query."""
        read: dict[str, int] = {}
        written = {False: 0, True: 0}
        lags: list[int] = []
        known = False
        for query in queries:
            by_source = query.get("read_by_source")
            if isinstance(by_source, dict):
                known = True
                for name, count in by_source.items():
                    read[name] = max(read.get(name, 0), _whole(count) or 0)
            written[query.get("dead_letters") is True] += _whole(query.get("written")) or 0
            lag = _whole(query.get("lag"))
            if lag is not None:
                lags.append(lag)
        return cls(sum(read.values()) if known else None, written[False], written[True], max(lags, default=None))


def after_its_process(queries: Iterable[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """What queries are that said they run, once their process is known to be gone."""
    return [
        {**query, "state": DIED, "rows_per_second": 0.0} if query.get("state") in UNFINISHED else dict(query)
        for query in queries
    ]


def _records(source: Mapping[str, object]) -> int:
    """How many records of the log a batch took from a source."""
    rows = _whole(source.get("numInputRows")) or 0
    start, end = _offsets(source.get("startOffset")), _offsets(source.get("endOffset"))
    if start is None or end is None:
        return rows
    return min(rows, sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items()))


def _written(report: Mapping[str, object]) -> int:
    sink, observed = report.get("sink"), report.get("observedMetrics")
    counted = _whole(sink.get("numOutputRows")) if isinstance(sink, dict) else None
    if counted is not None and counted >= 0:
        return counted
    metric = observed.get(OBSERVED) if isinstance(observed, dict) else None
    if metric is not None and hasattr(metric, "asDict"):  # a Row, which PySpark makes of the JSON object
        metric = metric.asDict()
    return (_whole(metric.get(OBSERVED_ROWS)) or 0) if isinstance(metric, dict) else 0


def _topics(offsets: object) -> set[str]:
    return {topic for topic, _ in _offsets(offsets) or {}}


def _lag(sources: object) -> int | None:
    if not isinstance(sources, list):
        return None
    total = 0
    for source in sources:
        if not isinstance(source, dict):
            return None
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is None or end is None:
            return None
        total += sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items())
    return total


def _offsets(value: object) -> dict[tuple[str, str], int] | None:
    """{"topic": {"0": 23}}, as text or parsed."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict):
        return None
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if isinstance(offset, int):
                found[str(topic), str(partition)] = offset
    return found


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
