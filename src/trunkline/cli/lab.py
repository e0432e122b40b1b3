"""`trunkline lab`: simulate gossip and membership on Spark, and hold the outcome against published figures."""

from __future__ import annotations

import functools
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option
from trunkline.cli.output import print_json, print_table, remark
from trunkline.overlay.lab import report
from trunkline.overlay.lab.catalogue import EXPERIMENTS
from trunkline.overlay.lab.experiment import (
    MIN_SEEDS,
    Experiment,
    Judgement,
    Outcome,
    Result,
    Scale,
    Task,
    judge,
    tasks_of,
)
from trunkline.version import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL_SEEDS = 100
MAX_SEEDS = 100_000


@click.group
def lab() -> None:
    """Simulate gossip and membership on Spark, beside the published figures."""


@lab.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """List the experiments.

    \b
    trunkline lab list
    """
    if as_json:
        print_json([{"name": one.name, "title": one.title, "source": one.source} for one in EXPERIMENTS.values()])
    else:
        print_table(["name", "title", "source"], [(one.name, one.title, one.source) for one in EXPERIMENTS.values()])


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    scale: Scale
    seed: int
    master: str
    pictures: Path | None
    format: str
    as_json: bool
    as_markdown: bool
    strict: bool


def _wishing(function: Callable[..., None]) -> Callable[..., None]:
    """The options of a run; the command gets them as `wish`."""

    @click.option("--quick", is_flag=True, help="Smaller networks and fewer seeds: under two minutes for all.")
    @click.option(
        "--seeds",
        type=click.IntRange(2, MAX_SEEDS),
        metavar="N",
        help=f"Runs of each setting.  [default: {FULL_SEEDS}; {MIN_SEEDS} of large networks and with --quick]",
    )
    @click.option(
        "--nodes",
        type=click.IntRange(10, 100_000_000),
        metavar="N",
        help="Size of the networks, instead of the usual ones.",
    )
    @click.option("--seed", default=0, show_default=True, help="Another one gives other runs, the same one the same.")
    @click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs.")
    @click.option(
        "--pictures",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write a picture each into it.",
    )
    @click.option("--format", "format_", type=click.Choice(["png", "svg"]), default="png", show_default=True)
    @click.option("--strict", is_flag=True, help="Exit with 1 if a published figure is not within its interval.")
    @json_option
    @click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown.")
    @functools.wraps(function)
    def command(
        *args: object,
        quick: bool,
        seeds: int | None,
        nodes: int | None,
        seed: int,
        master: str,
        pictures: Path | None,
        format_: str,
        strict: bool,
        as_json: bool,
        as_markdown: bool,
        **kwargs: object,
    ) -> None:
        scale = Scale(seeds or (MIN_SEEDS if quick else FULL_SEEDS), seeds or MIN_SEEDS, quick, nodes)
        function(*args, wish=Wish(scale, seed, master, pictures, format_, as_json, as_markdown, strict), **kwargs)

    return command


@lab.command
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_wishing
def run(*, names: Sequence[str], wish: Wish) -> None:
    """Run experiments by name.

    \b
    trunkline lab run rumor
    trunkline lab run averaging swim --quick --pictures pictures
    trunkline lab run anti-entropy --nodes 1000000 --seeds 30 --json
    trunkline lab run rumor --master spark://head:7077
    """
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise click.UsageError(f"no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    _run([EXPERIMENTS[name] for name in dict.fromkeys(names)], wish)


@lab.command("all")
@_wishing
def all_(*, wish: Wish) -> None:
    """Run every experiment.

    \b
    trunkline lab all --quick
    trunkline lab all --pictures pictures
    """
    _run(list(EXPERIMENTS.values()), wish)


def _run(experiments: Sequence[Experiment], wish: Wish) -> None:
    for package in ("pyspark", "matplotlib"):
        if find_spec(package) is None:
            raise CommandError(f"`trunkline lab` needs the package {package}", install_command("lab"))
    if wish.scale.seeds < MIN_SEEDS:
        remark(f"with fewer than {MIN_SEEDS} seeds the intervals are too narrow to judge by")
    judgements: list[Judgement] = []
    with _spark(wish) as session, _bars(experiments) as show:
        for experiment in experiments:
            settings = experiment.plan(wish.scale)
            tasks = tasks_of(experiment, settings, wish.scale, wish.seed)
            outcomes = _outcomes(session, tasks, functools.partial(show, experiment.name))
            results = [
                Result(setting, [outcome for task, outcome in zip(tasks, outcomes, strict=True) if task.setting == at])
                for at, setting in enumerate(settings)
            ]
            judgements += [judgement for result in results for judgement in judge(experiment, result)]
            if wish.pictures is not None:
                report.draw(experiment, results, wish.pictures / f"{experiment.name}.{wish.format}")
    if wish.as_json:
        print_json([report.as_json(judgement) for judgement in judgements])
    else:
        _print(experiments, judgements, as_markdown=wish.as_markdown)
    if wish.strict and any(judgement.within is False for judgement in judgements):
        raise click.exceptions.Exit(1)


def _print(experiments: Sequence[Experiment], judgements: Sequence[Judgement], *, as_markdown: bool) -> None:
    for experiment in experiments:
        own = [judgement for judgement in judgements if judgement.experiment == experiment.name]
        title = f"### {experiment.title}\n" if as_markdown else experiment.title
        click.echo(f"\n{title}\n{experiment.source}; {_seeds(own)} seeds\n")
        if as_markdown:
            click.echo(report.markdown(own))
        else:
            print_table(report.COLUMNS, [report.row(judgement) for judgement in own])
        for assumption in report.assumptions(own):
            click.echo(f"* {assumption}")
    compared = [judgement for judgement in judgements if judgement.within is not None]
    within = sum(judgement.within is True for judgement in compared)
    click.echo(f"\n{within} of {len(compared)} published figures lie within their interval.")


def _seeds(judgements: Sequence[Judgement]) -> str:
    return " or ".join(str(seeds) for seeds in sorted({judgement.seeds for judgement in judgements}, reverse=True))


def _outcomes(session: SparkSession, tasks: Sequence[Task], done: Callable[[float], None]) -> list[Outcome]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from trunkline.overlay.lab.cluster import run_on_spark
    from trunkline.pipeline.causes import cause_of

    try:
        return run_on_spark(session, tasks, done)
    except (Py4JError, PySparkException) as error:
        raise CommandError(f"Spark could not run it: {cause_of(error)}") from error


@contextmanager
def _spark(wish: Wish) -> Iterator[SparkSession]:
    from pyspark.errors import PySparkException

    from trunkline.pipeline.session import JavaMissing, local_session
    from trunkline.pipeline.spark_log import SparkLog

    if not wish.as_json:
        remark(f"starting Spark ({wish.master}) …")
    with tempfile.TemporaryDirectory(prefix="trunkline-lab-") as directory:
        log = SparkLog(Path(directory) / "spark.log")
        try:
            with log.launching():
                session = local_session("trunkline-lab", master=wish.master, quick_start=True)
        except JavaMissing as error:
            raise CommandError(str(error)) from error
        except PySparkException as error:
            raise CommandError(f"Spark does not start on {wish.master}: {log.first_complaint() or error}") from error
        session.sparkContext.setLogLevel("ERROR")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's own talks to Spark within any call to it
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def _bars(experiments: Sequence[Experiment]) -> Iterator[Callable[[str, float], None]]:
    """A bar for each experiment, on stderr, and only on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars = {one.name: progress.add_task(one.name, total=1.0, start=False) for one in experiments}

        def show(name: str, part: float) -> None:
            progress.start_task(bars[name])
            progress.update(bars[name], completed=part)

        yield show
