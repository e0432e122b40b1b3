"""Runs on Spark: each is a task with a seed of its own, so the outcome does not depend on where or in which order they run.

The workers need this package; in local mode they have it. Runs are dealt out to partitions like cards, so that each
partition gets long and short ones, and come back with their places.
"""

from __future__ import annotations

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

    thread = InheritableThread(target=collect, name=group)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            done(_finished(session, group) / partitions)
    except BaseException:
        context.cancelJobGroup(group)
        raise
    if failures:
        raise failures[0]
    return [outcome for _, outcome in sorted(found, key=lambda placed: placed[0])]


def _simulate_all(partition: Iterable[Sequence[tuple[int, Task]]]) -> Iterator[tuple[int, Outcome]]:
    for hand in partition:
        for place, task in hand:
            yield place, simulate(task)


def _finished(session: SparkSession, group: str) -> int:
    tracker = session.sparkContext.statusTracker()
    finished = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            finished += stage_info.numCompletedTasks if stage_info else 0
    return finished


def run_here(tasks: Sequence[Task]) -> list[Outcome]:
    """The same without Spark, one after the other."""
    return [simulate(task) for task in tasks]
