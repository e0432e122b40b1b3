"""A query whose Python worker came late is started again without that counting as its failure; but not for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from trunkline.clock import ManualClock
from trunkline.pipeline.definition import DefinitionError, Pipeline, Source, TopicSink
from trunkline.pipeline.home import VersionHome
from trunkline.pipeline.patience import MAX_LATE
from trunkline.pipeline.progress import QueryProgress
from trunkline.pipeline.runner import PipelineFailed, Runner, _Running

LATE = "[X] Python worker failed to connect back.\n\tat org.apache.spark"
PIPELINE = Pipeline(
    name="p", sources=(Source(name="orders", topics=("orders",)),), sinks=(TopicSink(topic="out"),), restarts=0
)


class Query:
    """A streaming query that runs."""

    isActive = True  # noqa: N815 (Spark's name)
    recentProgress = ()  # noqa: N815


def refused() -> DefinitionError:
    """As `sinks` and `views` say that Spark refused a query, whatever for."""
    error = DefinitionError("sink 'out': Spark refused it")
    error.__cause__ = AnalysisException(LATE)
    return error


@pytest.mark.parametrize("failure", [lambda: RuntimeError(LATE), lambda: AnalysisException(LATE), refused])
def test_a_late_worker_is_no_failure_of_the_query(failure: Callable[[], Exception], tmp_path: Path) -> None:
    clock = ManualClock()
    runner = Runner(PIPELINE, cast(SparkSession, None), VersionHome(tmp_path, 1), "127.0.0.1:1", clock=clock)
    failures = [failure() for _ in range(MAX_LATE)]

    def start() -> StreamingQuery:
        if failures:
            raise failures.pop()
        return cast(StreamingQuery, Query())

    item = _Running(QueryProgress("out", "out"), start)
    runner._start(item)
    for attempt in range(MAX_LATE):
        assert (item.progress.state, item.progress.restarts) == ("retrying", attempt)
        assert f"({attempt + 1} of {MAX_LATE})" in (item.progress.error or "")
        assert "\n" not in (item.progress.error or "")
        runner._look_at(item)  # too early
        assert item.query is None
        clock.advance(60_000)
        runner._look_at(item)
    assert (item.progress.state, item.failures) == ("running", 0)


def test_workers_that_never_come_end_the_pipeline_with_one_sentence(tmp_path: Path) -> None:
    clock = ManualClock()
    runner = Runner(PIPELINE, cast(SparkSession, None), VersionHome(tmp_path, 1), "127.0.0.1:1", clock=clock)

    def start() -> StreamingQuery:
        raise RuntimeError(LATE)

    item = _Running(QueryProgress("out", "out"), start)
    runner._start(item)
    for _ in range(MAX_LATE - 1):
        clock.advance(60_000)
        runner._look_at(item)
    clock.advance(60_000)
    with pytest.raises(PipelineFailed, match=f"no worker came in {MAX_LATE + 1} attempts") as raised:
        runner._look_at(item)
    assert "\n" not in str(raised.value)
    assert item.progress.state == "failed"
