"""`trunkline bench`: the command line of the benchmark. Figures go to stdout; the progress bar and remarks to stderr."""

from __future__ import annotations

import dataclasses

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trunkline.bench import report
from trunkline.bench.apache_kafka import KafkaUnavailable, fetch_jars
from trunkline.bench.comparison import FULL, QUICK, Comparison
from trunkline.bench.librdkafka import LoadError
from trunkline.bench.probe import ProbeError

MAX_REPETITIONS = 100


@click.group()
def bench() -> None:
    """Measure a broker, also against its peer, in one run on this machine."""


@bench.command()
@click.option("--peer", is_flag=True, help="Also measure Apache Kafka, fetched from Maven Central and started here.")
@click.option("--quick", is_flag=True, help="Less load, one repetition: under two minutes with the peer.")
@click.option(
    "--case", "globs", multiple=True, metavar="GLOB", help="Only figures whose name matches; may be repeated."
)
@click.option(
    "--reps", type=click.IntRange(1, MAX_REPETITIONS), help="Repetitions; the median is reported.  [default: 3]"
)
@click.option("--bootstrap", metavar="HOST:PORT", help="Measure the broker running there instead of starting one.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {case, unit, ours, peer, ratio}.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
def kafka(
    *,
    peer: bool,
    quick: bool,
    globs: tuple[str, ...],
    reps: int | None,
    bootstrap: str | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Throughput, latency, memory and start-up of the Kafka listener.

    \b
    trunkline bench kafka --peer --quick
    trunkline bench kafka --peer --case 'produce/*' --case start-up
    trunkline bench kafka --bootstrap 127.0.0.1:9092 --json
    """
    if as_json and as_markdown:
        raise click.UsageError("Choose one of --json and --markdown.")
    scale = QUICK if quick else FULL
    if reps is not None:
        scale = dataclasses.replace(scale, repetitions=reps)
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    try:
        if peer:
            fetch_jars()
        with progress:
            task = progress.add_task("start", total=None)
            begun = 0

            def show(description: str, steps: int) -> None:
                nonlocal begun
                progress.update(task, description=description, total=steps, completed=begun)
                begun += 1

            figures = Comparison(scale, peer, globs, bootstrap, show).run()
    except (KafkaUnavailable, LoadError, ProbeError) as error:
        raise click.ClickException(str(error)) from error
    if not figures:
        raise click.ClickException(f"No figure has a name like {' or '.join(globs)}.")
    if as_json:
        click.echo(report.to_json(figures))
    elif as_markdown:
        click.echo(report.to_markdown(figures))
    else:
        report.print_table(figures, Console())
