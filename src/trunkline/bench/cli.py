"""`trunkline bench`: the command line of the benchmark. Figures go to stdout; the progress bar and remarks to stderr."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trunkline import CODECS_COMPILED
from trunkline.bench import amqp_contest, mqtt_contest, report
from trunkline.bench.amqp_contest import AmqpContest, AmqpScale
from trunkline.bench.apache_kafka import KafkaUnavailable, fetch_jars
from trunkline.bench.comparison import CaseT, Comparison, Contest
from trunkline.bench.kafka_contest import FULL, QUICK, KafkaContest, Scale
from trunkline.bench.librdkafka import LoadError
from trunkline.bench.mosquitto import MosquittoUnavailable
from trunkline.bench.mqtt_contest import MqttContest, MqttScale
from trunkline.bench.probe import ProbeError
from trunkline.bench.rabbitmq import RabbitMQUnavailable
from trunkline.bench.spark_cli import spark

MAX_REPETITIONS = 100

T = TypeVar("T")
ScaleT = TypeVar("ScaleT", Scale, AmqpScale, MqttScale)


@click.group()
def bench() -> None:
    """Measure a broker, also against its peer, in one run on this machine."""


bench.add_command(spark)


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
    scale = _scaled(FULL, QUICK, quick, reps)
    if peer:
        _or_say(fetch_jars)
    _compare(KafkaContest(scale), peer, globs, bootstrap, as_json=as_json, as_markdown=as_markdown)


@bench.command()
@click.option("--peer", is_flag=True, help="Also measure RabbitMQ, from the system's packages, started here.")
@click.option("--quick", is_flag=True, help="Less load, one repetition: under two minutes with the peer.")
@click.option(
    "--case", "globs", multiple=True, metavar="GLOB", help="Only figures whose name matches; may be repeated."
)
@click.option(
    "--reps", type=click.IntRange(1, MAX_REPETITIONS), help="Repetitions; the median is reported.  [default: 3]"
)
@click.option("--address", metavar="HOST:PORT", help="Measure the broker running there instead of starting one.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {case, unit, ours, peer, ratio}.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
def amqp(
    *,
    peer: bool,
    quick: bool,
    globs: tuple[str, ...],
    reps: int | None,
    address: str | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Throughput, latency, memory and start-up of the AMQP listener.

    \b
    trunkline bench amqp --peer --quick
    trunkline bench amqp --peer --case 'durable-*' --case start-up
    trunkline bench amqp --address 127.0.0.1:5672 --json
    """
    contest = AmqpContest(_scaled(amqp_contest.FULL, amqp_contest.QUICK, quick, reps))
    _compare(contest, peer, globs, address, as_json=as_json, as_markdown=as_markdown)


@bench.command()
@click.option("--peer", is_flag=True, help="Also measure Mosquitto, from the system's packages, started here.")
@click.option("--quick", is_flag=True, help="Less load, one repetition: under two minutes with the peer.")
@click.option(
    "--case", "globs", multiple=True, metavar="GLOB", help="Only figures whose name matches; may be repeated."
)
@click.option(
    "--reps", type=click.IntRange(1, MAX_REPETITIONS), help="Repetitions; the median is reported.  [default: 3]"
)
@click.option("--address", metavar="HOST:PORT", help="Measure the broker running there instead of starting one.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {case, unit, ours, peer, ratio}.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
def mqtt(
    *,
    peer: bool,
    quick: bool,
    globs: tuple[str, ...],
    reps: int | None,
    address: str | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Throughput, memory and start-up of the MQTT listener.

    \b
    trunkline bench mqtt --peer --quick
    trunkline bench mqtt --peer --case '1to1/qos1/*' --case start-up
    trunkline bench mqtt --address 127.0.0.1:1883 --json
    """
    scale = _scaled(mqtt_contest.FULL, mqtt_contest.QUICK, quick, reps)
    contest = MqttContest(scale, cases=mqtt_contest.cases_for(is_ours=address is None))
    _compare(contest, peer, globs, address, as_json=as_json, as_markdown=as_markdown)


def _scaled(full: ScaleT, quick: ScaleT, is_quick: bool, reps: int | None) -> ScaleT:
    scale = quick if is_quick else full
    return scale if reps is None else dataclasses.replace(scale, repetitions=reps)


def _or_say(work: Callable[[], T]) -> T:
    """Do it; what the benchmark cannot do is one line for the user."""
    try:
        return work()
    except (KafkaUnavailable, MosquittoUnavailable, RabbitMQUnavailable, LoadError, ProbeError) as error:
        raise click.ClickException(str(error)) from error


def _compare(
    contest: Contest[CaseT],
    peer: bool,
    globs: tuple[str, ...],
    address: str | None,
    *,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Run a contest behind a progress bar and print its figures."""
    if as_json and as_markdown:
        raise click.UsageError("Choose one of --json and --markdown.")
    if not CODECS_COMPILED:
        click.echo("The frame codecs are plain Python here: AMQP and MQTT are slower than they need be.", err=True)
        click.echo(
            "Compile them with `python tools/compile_codecs.py`, or install where there is a C compiler.", err=True
        )
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task("start", total=None)
        begun = 0

        def show(description: str, steps: int) -> None:
            nonlocal begun
            progress.update(task, description=description, total=steps, completed=begun)
            begun += 1

        figures = _or_say(Comparison(contest, peer, globs, address, show).run)
    if not figures:
        raise click.ClickException(f"No figure has a name like {' or '.join(globs)}.")
    if as_json:
        click.echo(report.to_json(figures))
    elif as_markdown:
        click.echo(report.to_markdown(figures, contest.peer_name, contest.peer_version))
    else:
        report.print_table(figures, contest.peer_name, Console())
