"""How far queries are: Spark's reports folded, each once, to what a person is shown."""

from __future__ import annotations

from pyspark.sql import Row

from trunkline.pipeline.definition import Source
from trunkline.pipeline.progress import OBSERVED, QueryProgress, Totals, after_its_process

ORDERS = Source(name="orders", topics=("t",))


def report(
    batch: int,
    *,
    rows: int,
    end: int,
    latest: int,
    run: str = "r",
    start: int | None = None,
    written: int | None = None,
    topic: str = "t",
) -> dict[str, object]:
    source = {
        "startOffset": None if start is None else {topic: {"0": start}},
        "endOffset": {topic: {"0": end}},
        "latestOffset": f'{{"{topic}": {{"0": {latest}}}}}',
        "numInputRows": rows,
    }
    return {
        "batchId": batch,
        "runId": run,
        "numInputRows": rows,
        "processedRowsPerSecond": 12.5,
        "durationMs": {"addBatch": 3, "triggerExecution": 40},
        "sources": [source],
        "sink": {"numOutputRows": rows if written is None else written},
    }


def test_reports_are_folded_once_each() -> None:
    progress = QueryProgress("q", "topic", (ORDERS,))
    assert progress.take(report(0, rows=10, end=10, latest=25))
    assert not progress.take(report(0, rows=10, end=10, latest=25))
    assert (progress.read, progress.lag, progress.batch_ms, progress.state) == (10, 15, 40, "running")
    assert progress.take(report(1, rows=15, end=25, latest=25))
    # A restarted query numbers on, and may report the batch that failed before.
    assert progress.take(report(1, rows=5, end=25, latest=25, run="other"))
    assert (progress.read, progress.written, progress.lag, progress.batch) == (30, 30, 0, 1)


def test_reports_that_spark_repeats_with_every_question_count_once() -> None:
    progress = QueryProgress("q", "topic", (ORDERS,))
    kept: list[dict[str, object]] = []
    for batch, rows in enumerate((100, 100, 100, 8)):
        end = sum((100, 100, 100, 8)[: batch + 1])
        kept.append(report(batch, rows=rows, end=end, latest=308, start=end - rows, written=rows // 2))
        for _ in range(3):
            for each in kept:
                progress.take(each)
    assert (progress.read, progress.written, progress.lag, progress.batch) == (308, 154, 0, 3)
    idle = {**report(4, rows=0, end=308, latest=310), "durationMs": {"latestOffset": 1}}
    for each in [*kept, idle]:
        assert not progress.take(each)
    assert (progress.read, progress.written, progress.lag, progress.batch) == (308, 154, 2, 3)


def test_what_a_sink_took_is_counted_where_spark_does_not_count_it() -> None:
    progress = QueryProgress("q", "table", (ORDERS,))
    observed = {"observedMetrics": {OBSERVED: {"rows": 4}}, "sink": {"numOutputRows": -1}}
    assert progress.take({**report(0, rows=10, end=10, latest=10), **observed})
    assert progress.take({**report(1, rows=10, end=20, latest=20), "sink": {"numOutputRows": -1}})
    assert progress.take(
        {**report(2, rows=1, end=21, latest=21), **observed, "observedMetrics": {OBSERVED: Row(rows=1)}}
    )
    assert (progress.read, progress.written) == (21, 5)


def test_a_view_that_reads_its_source_twice_does_not_double_the_records() -> None:
    progress = QueryProgress("q", "topic", (ORDERS,))
    assert progress.take(report(1, rows=40, start=10, end=30, latest=30))
    assert progress.read == 20


def test_reports_with_unknown_parts_leave_the_lag_unknown() -> None:
    progress = QueryProgress("q", "topic")
    unknown = {**report(0, rows=1, end=1, latest=1), "sources": [{"endOffset": None}], "sink": None}
    assert progress.take(unknown)
    assert progress.to_json()["lag"] is None
    assert not progress.take({"batchId": None})
    idle = {**report(1, rows=0, end=1, latest=4), "durationMs": {"latestOffset": 1}}
    assert not progress.take(idle)
    assert (progress.lag, progress.batch) == (3, 0)


def test_a_pipeline_has_read_a_record_once_however_many_of_its_queries_did() -> None:
    events = Source(name="events", pattern="e.*")
    sources = (ORDERS, events)
    out, table = QueryProgress("out", "out", sources), QueryProgress("table", "table", sources)
    letters = QueryProgress("letters", "dead", (ORDERS,), dead_letters=True)
    out.take(report(0, rows=100, end=100, latest=100, written=90))
    table.take(report(0, rows=60, end=60, latest=100, written=55))
    table.take(report(1, rows=7, end=7, latest=7, topic="e1"))
    letters.take(report(0, rows=100, end=100, latest=100, written=3))
    totals = Totals.of(item.to_json() for item in (out, table, letters))
    assert totals == Totals(read=107, written=90 + 55 + 7, dead_letters=3, lag=0)
    assert table.to_json()["read_by_source"] == {"orders": 60, "events": 7}
    assert Totals.of([{"query": "of an older release", "rows": 12, "lag": 1}]) == Totals(None, 0, 0, 1)


def test_queries_whose_process_is_gone_do_not_run() -> None:
    queries = [
        QueryProgress(state, "t", state=state, rows_per_second=5.0) for state in ("running", "failed", "retrying")
    ]
    left = after_its_process(item.to_json() for item in queries)
    assert [(item["state"], item["rows_per_second"]) for item in left] == [
        ("died", 0.0),
        ("failed", 5.0),
        ("died", 0.0),
    ]
