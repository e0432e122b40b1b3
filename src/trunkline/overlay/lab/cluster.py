"""Runs on Spark: each is a task with a seed of its own, so the outcome does not depend on where or in which order they run.

The workers need this package; in local mode they have it. Runs are dealt out to partitions like cards, so that each
partition gets long and short ones, and come back with their places.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from trunkline.overlay.lab.catalogue import simulate
from trunkline.overlay.lab.experiment import Outcome, Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS_PER_CORE = 16
"""Enough for a bar that moves, few enough that Spark's own work does not count."""
_POLL_S = 0.2


def run_on_spark(session: SparkSession, tasks: Sequence[Task], done: Callable[[float], None]) -> list[Outcome]:
    """The outcomes in the order of the tasks. `done` is told which part is done, now and then."""
    if not tasks:
        return []
    context = session.sparkContext
    partitions = min(len(tasks), PARTITIONS_PER_CORE * context.defaultParallelism)
    dealt = [list(enumerate(tasks))[at::partitions] for at in range(partitions)]
    group = f"lab-{uuid.uuid4().hex}"
    found: list[tuple[int, Outcome]] = []
    failures: list[BaseException] = []

    def collect() -> None:
        context.setJobGroup(group, "trunkline lab", interruptOnCancel=True)
        try:
            found.extend(context.parallelize(dealt, partitions).mapPartitions(_simulate_all).collect())
        except BaseException as error:
            failures.append(error)

    from pyspark import InheritableThread

    finished = _Finished(session, group)
    collecting = InheritableThread(target=collect, name=group)
    collecting.start()
    finished.start()
    try:
        # Only waiting here: a Ctrl-C in the middle of a call to Spark would break the connection to it.
        while collecting.is_alive():
            collecting.join(_POLL_S)
            done(finished.partitions / partitions)
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        finished.end()
    done(1.0)
    if failures:
        raise failures[0]
    return [outcome for _, outcome in sorted(found, key=lambda placed: placed[0])]


def _simulate_all(partition: Iterable[Sequence[tuple[int, Task]]]) -> Iterator[tuple[int, Outcome]]:
    for hand in partition:
        for place, task in hand:
            yield place, simulate(task)


class _Finished(threading.Thread):
    """Asks Spark, now and then, how many partitions of a job are done."""

    def __init__(self, session: SparkSession, group: str) -> None:
        super().__init__(name=f"{group}-progress", daemon=True)
        self.partitions = 0
        self._tracker = session.sparkContext.statusTracker()
        self._group = group
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_POLL_S):
            self.partitions = max(self.partitions, self._ask())

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _ask(self) -> int:
        jobs = [self._tracker.getJobInfo(job) for job in self._tracker.getJobIdsForGroup(self._group)]
        stages = [self._tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage)


def run_here(tasks: Sequence[Task]) -> list[Outcome]:
    """The same without Spark, one after the other."""
    return [simulate(task) for task in tasks]
