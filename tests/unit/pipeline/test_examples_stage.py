"""The examples' queries without Spark: tried again where its processes come late, and their failures raised otherwise."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import stage as stage_module
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from stage import LiveQuery, Stage

from trunkline.pipeline import patience
from trunkline.pipeline.causes import LATE_WORKER

LATE = StreamingQueryException("Python worker failed to connect back.\n\tat org.apache.spark")
BROKEN = StreamingQueryException("[X] broken\n\tat org.apache.spark")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.0)


@dataclass
class Query:
    failure: StreamingQueryException | None

    def exception(self) -> StreamingQueryException | None:
        return self.failure

    def processAllAvailable(self) -> None:  # noqa: N802 (Spark's name)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        pass


@dataclass
class Writer:
    """Its queries fail with these, one after the other; the last one runs."""

    failures: list[StreamingQueryException]
    started: int = field(default=0)

    def start(self) -> Query:
        self.started += 1
        return Query(self.failures.pop(0) if self.failures else None)


def live(*failures: StreamingQueryException) -> tuple[LiveQuery, Writer, list[str]]:
    writer, said = Writer(list(failures)), list[str]()
    return LiveQuery(cast(DataStreamWriter, writer), said.append), writer, said


def test_a_query_is_started_again_where_a_worker_came_late() -> None:
    query, writer, said = live(LATE, LATE)
    query.check()
    query.catch_up()
    query.stop()
    assert writer.started == 3
    assert [line.partition(";")[0] for line in said] == [LATE_WORKER] * 2


def test_any_other_failure_is_raised_by_whatever_is_asked_next() -> None:
    for ask in (LiveQuery.check, LiveQuery.catch_up, LiveQuery.stop):
        query, writer, _ = live(BROKEN)
        with pytest.raises(StreamingQueryException, match="broken"):
            ask(query)
        assert writer.started == 1


def test_a_pattern_that_is_tried_again_uses_other_names(tmp_path: Path) -> None:
    first = Stage("127.0.0.1:1", cast(SparkSession, None), tmp_path, console=Console(file=io.StringIO()))
    seen: list[tuple[str, Path]] = []

    def pattern(stage: Stage) -> str:
        seen.append((stage.name("orders"), stage.directory))
        if len(seen) < 3:
            raise LATE
        return "done"

    assert first.patiently(pattern) == "done"
    assert [name for name, _ in seen] == ["orders", "attempt-2-orders", "attempt-3-orders"]
    assert len({directory for _, directory in seen}) == 3


def test_an_example_that_fails_says_why_in_one_line_and_where_the_trace_is(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(stage_module, "_opened", nothing)
    with pytest.raises(SystemExit) as ended, stage_module.opened(argparse.Namespace(), Console(file=io.StringIO())):
        raise BROKEN
    line, where = str(ended.value).splitlines()
    log = Path(where.rpartition(" ")[2])
    try:
        assert line == "error: [X] broken"
        assert "at org.apache.spark" in log.read_text()
    finally:
        log.unlink()
