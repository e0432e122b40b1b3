"""`trunkline bench spark`: figures to stdout, progress and remarks to stderr. Spark is imported only when it runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trunkline import CODECS_COMPILED
from trunkline.bench.progress import progress_bar
from trunkline.bench.report import amount, machine
from trunkline.version import VERSION, install_command

if TYPE_CHECKING:
    from trunkline.bench.spark_contest import SparkFigure

MAX_REPETITIONS = 100
# What is good enough: a ratio below it is printed in red. Our sink writes exactly once, the connector at least once.
LEAST_RATIO = {"source": 1.0, "sink": 0.5}


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rows and repetitions: about three minutes.")
@click.option("--reps", type=click.IntRange(1, MAX_REPETITIONS), help="Repetitions; the median is reported.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {case, unit, ours, peer, ratio, ceiling}.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
def spark(*, quick: bool, reps: int | None, as_json: bool, as_markdown: bool) -> None:
    """The Spark source and sink beside Spark's own Kafka connector, and a Parquet file as the ceiling.

    \b
    trunkline bench spark --quick
    trunkline bench spark --json
    """
    if as_json and as_markdown:
        raise click.UsageError("Choose one of --json and --markdown.")
    try:
        from pyspark import __version__ as spark_version

        from trunkline.bench.librdkafka import LoadError
        from trunkline.bench.probe import ProbeError
        from trunkline.bench.spark_connector import ConnectorUnavailable
        from trunkline.bench.spark_contest import FULL, QUICK, SparkContest
        from trunkline.pipeline.session import JavaMissing, check_java
    except ModuleNotFoundError as error:
        raise click.ClickException(f"Spark is not installed: {install_command('spark,bench')} ({error}).") from error
    scale = QUICK if quick else FULL
    if reps is not None:
        scale = dataclasses.replace(scale, repetitions=reps)
    try:
        check_java()
        with progress_bar() as show:
            contest = SparkContest(scale, show)
            figures = contest.run()
    except (ConnectorUnavailable, JavaMissing, LoadError, ProbeError) as error:
        raise click.ClickException(str(error)) from error
    peer = f"Spark's Kafka connector {contest.connector.version}"
    about = f"trunkline {VERSION}, PySpark {spark_version}, {peer}; {machine()}"
    if not CODECS_COMPILED:
        click.echo(
            "The codecs are not compiled (python tools/compile_codecs.py): ours is slower than it can be.", err=True
        )
    if contest.connector.version != spark_version:
        click.echo(f"The connector of Spark {spark_version} was not to be had: compared with {peer}.", err=True)
    if as_json:
        click.echo(to_json(figures, peer))
    elif as_markdown:
        click.echo(to_markdown(figures, peer, about))
    else:
        print_table(figures, peer, Console())
        click.echo(about)


def to_json(figures: Sequence[SparkFigure], peer: str) -> str:
    rows = [
        {
            "case": figure.case,
            "unit": figure.unit,
            "ours": round(figure.ours, 3),
            "peer": round(figure.peer, 3),
            "peer_name": peer,
            "ratio": round(figure.ratio, 3),
            "ceiling": None if figure.ceiling is None else round(figure.ceiling, 3),
        }
        for figure in figures
    ]
    return json.dumps(rows, indent=2)


def to_markdown(figures: Sequence[SparkFigure], peer: str, about: str) -> str:
    lines = [about, "", f"| case | unit | trunkline | {peer} | ratio | Parquet |", "|---|---|---:|---:|---:|---:|"]
    for figure in figures:
        ceiling = "" if figure.ceiling is None else amount(figure.ceiling, figure.unit)
        ours, theirs = amount(figure.ours, figure.unit), amount(figure.peer, figure.unit)
        lines.append(f"| {figure.case} | {figure.unit} | {ours} | {theirs} | {figure.ratio:.2f} | {ceiling} |")
    return "\n".join(lines)


def print_table(figures: Sequence[SparkFigure], peer: str, console: Console) -> None:
    table = Table(
        box=SIMPLE_HEAD, header_style="bold cyan", pad_edge=False, caption="ratio above 1: trunkline is better"
    )
    for column in ("case", "unit"):
        table.add_column(column, no_wrap=True)
    for column in ("trunkline", peer, "ratio", "Parquet"):
        table.add_column(column, justify="right")
    for figure in figures:
        good = figure.ratio >= LEAST_RATIO.get(figure.case.partition("/")[0], 1.0)
        table.add_row(
            figure.case,
            figure.unit,
            amount(figure.ours, figure.unit),
            amount(figure.peer, figure.unit),
            Text(f"{figure.ratio:.2f}", style="bold green" if good else "bold red"),
            Text("-", style="dim") if figure.ceiling is None else amount(figure.ceiling, figure.unit),
        )
    console.print(table)
