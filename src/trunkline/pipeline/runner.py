"""Runs a pipeline: one streaming query per sink, one per source with dead letters, restarted when they fail.

A query that fails is started again from its checkpoint after a pause that doubles from FIRST_PAUSE_MS to MAX_PAUSE_MS; a
batch that succeeds makes the next failure the first again. The pipeline gives up after `restarts` failures in a row, or at
once where waiting cannot help: a definition that Spark refuses, a topic that is gone, records that retention has removed.
Where only a Python worker of Spark came late, because the machine is busy, that is no failure of the query: it has MAX_LATE
attempts of its own.
The other queries go on while one pauses. Queries are started one after the other, each when the last has planned its first
batch: every one brings Python processes of its own, and a machine with few cores would otherwise time out on all of them.

`stop` may be called from a signal handler or another thread. Stopping interrupts the batch in the making: it is run again,
under the same number, by the next start. Crash behaviour is that of each sink: see `sinks`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from trunkline.client import Client, ClientError
from trunkline.client.topics import Topics
from trunkline.clock import Clock, SystemClock
from trunkline.pipeline import progress as states
from trunkline.pipeline import sinks
from trunkline.pipeline.causes import LATE_WORKER, cause_of, is_late_worker
from trunkline.pipeline.dead_letters import as_records
from trunkline.pipeline.definition import (
    DEAD_LETTER,
    RAW,
    VERSION,
    DefinitionError,
    Pipeline,
    Sink,
    Source,
    TopicSink,
)
from trunkline.pipeline.patience import MAX_LATE
from trunkline.pipeline.progress import QueryProgress
from trunkline.pipeline.views import Views

if TYPE_CHECKING:
    from trunkline.pipeline.home import Json, VersionHome

FIRST_PAUSE_MS: Final = 1_000
MAX_PAUSE_MS: Final = 60_000
START_TIMEOUT_MS: Final = 30_000
LOOK_INTERVAL_MS: Final = 200
WRITE_INTERVAL_MS: Final = 1_000
# What Spark says of a query that has got past its start.
_PAST_START: Final = frozenset({"Waiting for data to arrive", "Waiting for next trigger", "Stopped"})
# What a query's error says when no restart can help, whichever layer of Spark it came through.
_LOST: Final = ("DataLoss:", "DividedDifferently:")


class PipelineFailed(Exception):
    """The pipeline gave up; the message says which query, and why."""


@dataclass
class _Running:
    """A query that is to run, and how it is doing."""

    progress: QueryProgress
    start: Callable[[], StreamingQuery]
    query: StreamingQuery | None = None
    failures: int = 0
    late_workers: int = 0
    resume_at_ms: float = 0.0
    started_at_ms: float = 0.0

    def is_starting(self, now_ms: float) -> bool:
        """Whether it is still busy with coming up; a query that says nothing does not hold up the others for ever."""
        if self.query is None or now_ms - self.started_at_ms > START_TIMEOUT_MS:
            return False
        return self.progress.batch is None and self.query.status["message"] not in _PAST_START


@dataclass
class Runner:
    pipeline: Pipeline
    spark: SparkSession
    home: VersionHome
    bootstrap: str
    once: bool = False
    since_ms: int | None = None
    observe: Callable[[Sequence[QueryProgress]], None] = lambda queries: None
    clock: Clock = field(default_factory=SystemClock)
    first_pause_ms: int = FIRST_PAUSE_MS
    _stopping: threading.Event = field(default_factory=threading.Event)
    _master: str | None = None

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> list[QueryProgress]:
        """Until everything is processed (`once`), or `stop`; PipelineFailed or DefinitionError otherwise.

        The caller holds the version's lock.
        """
        # Spark looks for Python sources in the session that is active in its thread: there is none in one that is new.
        SparkSession._get_j_spark_session_class(self.spark._jvm).setActiveSession(self.spark._jsparkSession)
        self._master = self.spark.conf.get("spark.master")
        running: list[_Running] = []
        reports: list[QueryProgress] = []
        outcome, error = states.FAILED, None
        try:
            with Client(self.bootstrap) as client:
                self._check_topics(client)
            running += self._queries()
            reports += [item.progress for item in running]
            self._note(reports, states.RUNNING)
            self._watch(running, reports)
            outcome = states.STOPPED if self._stopping.is_set() else states.FINISHED
            return reports
        except Exception as problem:
            error = cause_of(problem)
            raise
        finally:
            for item in running:
                if item.query is not None:
                    # A query that does not end in time ends with the process; its checkpoint is whole either way. So is
                    # that of one whose JVM is gone.
                    with contextlib.suppress(PySparkException, Py4JError):
                        item.query.stop()
                if item.progress.state in states.UNFINISHED:
                    item.progress.state = outcome if outcome != states.FAILED else states.STOPPED
            self._note(reports, outcome, error)
            self.observe(reports)

    def _queries(self) -> list[_Running]:
        views = Views(self.spark, self.pipeline, bootstrap=self.bootstrap, home=self.home, since_ms=self.since_ms)
        found = []
        for sink in self.pipeline.sinks:
            setting = self._setting(self.pipeline.query_of(sink), sink)
            found.append(
                _Running(
                    QueryProgress(setting.query, setting.filled(sink.target), self.pipeline.sources),
                    lambda sink=sink, setting=setting: sinks.start(  # type: ignore[misc]
                        views.rows(self.pipeline.view_of(sink), sinks.batch_limit(sink)), sink, setting
                    ),
                )
            )
        return found + [self._dead_letters(views, source) for source in self._with_dead_letters()]

    def _with_dead_letters(self) -> list[Source]:
        return [item for item in self.pipeline.sources if item.format != RAW and item.on_error == DEAD_LETTER]

    def _dead_letters(self, views: Views, source: Source) -> _Running:
        sink = TopicSink(name=f"dead-letters.{source.name}", topic=source.dead_letters)
        setting = self._setting(sink.name, sink)

        def start() -> StreamingQuery:
            malformed = views.malformed(source)
            assert malformed is not None
            return sinks.start(as_records(malformed, self.pipeline.name), sink, setting)

        return _Running(QueryProgress(sink.name, sink.topic, (source,), dead_letters=True), start)

    def _setting(self, query: str, sink: Sink) -> sinks.Setting:
        place = self.pipeline.checkpoints
        if place is None:
            place = str(self.home.checkpoints)
        else:
            place = f"{place if '://' in place else self.pipeline.directory / place}/v{self.home.number}"
        return sinks.Setting(
            query=query,
            checkpoint=f"{place}/{query}",
            bootstrap=self.bootstrap,
            version=self.home.number,
            directory=self.pipeline.directory,
            once=self.once,
            trigger_ms=self.pipeline.trigger_ms if sink.trigger_ms is None else sink.trigger_ms,
        )

    def _check_topics(self, client: Client) -> None:
        """Every source is there, every topic that is written too; said now, not by a task."""
        known = client.metadata().topics
        for source in self.pipeline.sources:
            for topic in source.topics:
                if topic not in known:
                    raise DefinitionError(
                        f"source {source.name!r}: there is no topic {topic}; `trunkline topic create {topic}` makes one"
                    )
        written = [
            sink.topic.replace(VERSION, str(self.home.number))
            for sink in self.pipeline.sinks
            if isinstance(sink, TopicSink)
        ]
        written += [source.dead_letters for source in self._with_dead_letters()]
        for topic in sorted(set(written) - known.keys()):
            try:
                Topics(client).create(topic)
            except ClientError as error:
                if error.name != "TOPIC_ALREADY_EXISTS":
                    raise

    def _watch(self, running: list[_Running], reports: list[QueryProgress]) -> None:
        written_at_ms = self.clock.monotonic_ms()
        while not self._stopping.is_set():
            for item in running:
                self._look_at(item)
                self._begin_next(running)
            now_ms = self.clock.monotonic_ms()
            if now_ms - written_at_ms >= WRITE_INTERVAL_MS:
                written_at_ms = now_ms
                self._note(reports, states.RUNNING)
            self.observe(reports)
            if all(item.progress.state == states.FINISHED for item in running):
                return
            self._stopping.wait(LOOK_INTERVAL_MS / 1000)

    def _begin_next(self, running: list[_Running]) -> None:
        now_ms = self.clock.monotonic_ms()
        if any(item.is_starting(now_ms) for item in running):
            return
        waiting = [item for item in running if item.progress.state == states.WAITING]
        if waiting:
            self._start(waiting[0])

    def _look_at(self, item: _Running) -> None:
        if item.query is None:
            if item.progress.state == states.RETRYING and self.clock.monotonic_ms() >= item.resume_at_ms:
                item.progress.restarts += 1
                self._start(item)
            return
        alive = item.query.isActive
        for report in item.query.recentProgress:
            if item.progress.take(report):
                item.failures = item.late_workers = 0
        if alive:
            return
        error = item.query.exception()
        item.query = None
        if error is not None:
            self._failed(item, error)
        elif self.once:
            item.progress.state = states.FINISHED
            item.progress.rows_per_second = 0.0
        elif not self._stopping.is_set():
            self._failed(item, PipelineFailed("the query was stopped from outside"))

    def _start(self, item: _Running) -> None:
        try:
            item.started_at_ms = self.clock.monotonic_ms()
            item.query = item.start()
            item.progress.state = states.RUNNING
        except DefinitionError as error:
            if is_late_worker(error):
                self._failed(item, error)
                return
            item.progress.state = states.FAILED
            raise
        except Exception as error:
            self._failed(item, error)

    def _failed(self, item: _Running, error: Exception) -> None:
        item.progress.error = cause_of(error)
        if is_late_worker(error) and item.late_workers < MAX_LATE:
            item.late_workers += 1
            item.progress.error = f"{LATE_WORKER}; trying again ({item.late_workers} of {MAX_LATE})"
            self._pause(item, item.late_workers)
            return
        item.failures += 1
        hopeless = self._hopeless(error)
        if hopeless is not None or item.failures > self.pipeline.restarts:
            item.progress.state = states.FAILED
            why = hopeless or f"it failed {item.failures} times in a row"
            raise PipelineFailed(f"query {item.progress.name}: {why}: {cause_of(error)}") from error
        self._pause(item, item.failures)

    def _pause(self, item: _Running, attempt: int) -> None:
        item.progress.state = states.RETRYING
        item.progress.rows_per_second = 0.0
        pause_ms = min(MAX_PAUSE_MS, self.first_pause_ms * 2 ** (attempt - 1))
        item.resume_at_ms = self.clock.monotonic_ms() + pause_ms

    def _hopeless(self, error: Exception) -> str | None:
        """Why trying again will not help; None if it may."""
        text = str(error)
        if is_late_worker(error):
            return f"no worker came in {MAX_LATE + 1} attempts"
        if isinstance(error, AnalysisException) and not isinstance(error, StreamingQueryException):
            return "Spark refuses it"
        if "does not fit the schema of source" in text:
            return "a record is malformed and on_error is fail"
        if any(word in text for word in _LOST):
            return "records that it has to read are gone"
        try:
            with Client(self.bootstrap) as client:
                known = client.metadata().topics
        except ClientError:
            return None  # the broker is away: that passes
        for source in self.pipeline.sources:
            gone = [topic for topic in source.topics if topic not in known]
            if gone:
                return f"topic {gone[0]} of source {source.name} was deleted"
        return None

    def _note(self, reports: list[QueryProgress], state: str, error: str | None = None) -> None:
        queries: list[Json] = [item.to_json() for item in reports]
        self.home.write_progress(
            {
                "pid": os.getpid(),
                "state": state,
                "version": self.home.number,
                "master": self._master,
                "updated_ms": self.clock.wall_ms(),
                "error": error,
                "queries": queries,
            }
        )
