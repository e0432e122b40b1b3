"""How far a query is: what Spark reports of each batch, folded to what a person asks.

Spark's report is JSON of its own making, and fields come and go with versions: what is missing counts as unknown, never as
an error. Lag is the records that were in the log when the batch was planned and are not yet processed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trunkline.pipeline.home import Json

WAITING: Final = "waiting"
RUNNING: Final = "running"
RETRYING: Final = "retrying"
FINISHED: Final = "finished"
STOPPED: Final = "stopped"
FAILED: Final = "failed"


@dataclass
class QueryProgress:
    """One query's; totals are of this run."""

    name: str
    target: str
    state: str = WAITING
    batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    batch_ms: int | None = None
    lag: int | None = None
    restarts: int = 0
    error: str | None = None
    _seen: tuple[str, int] | None = field(default=None, repr=False)

    def take(self, report: Mapping[str, object]) -> bool:
        """Fold a report in; False for one that was seen before, or that brought nothing."""
        batch, run = _whole(report.get("batchId")), str(report.get("runId"))
        durations = report.get("durationMs")
        # An idle query repeats its last report with new times; only a batch that was written is progress.
        if batch is None or not isinstance(durations, dict) or self._seen == (run, batch):
            return False
        rows = _whole(report.get("numInputRows")) or 0
        self.lag = _lag(report.get("sources"))
        if "addBatch" not in durations:
            self.rows_per_second = 0.0
            return False
        self._seen = (run, batch)
        self.state, self.batch, self.error = RUNNING, batch, None
        self.rows += rows
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
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "batch_ms": self.batch_ms,
            "lag": self.lag,
            "restarts": self.restarts,
            "error": self.error,
        }


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
