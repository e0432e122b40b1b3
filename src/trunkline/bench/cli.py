"""`trunkline bench`: the command line of the benchmark. Figures go to stdout; the progress bar and remarks to stderr."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from trunkline import CODECS_COMPILED
from trunkline.bench import (
    amqp_contest,
    api_contest,
    elasticmq,
    mqtt_contest,
    report,
    share_contest,
    sqs_contest,
    stomp_contest,
)
from trunkline.bench.amqp_contest import AmqpContest, AmqpScale
from trunkline.bench.apache_kafka import KafkaUnavailable, fetch_jars
from trunkline.bench.api_contest import ApiContest, ApiScale
from trunkline.bench.comparison import CaseT, Comparison, Contest
from trunkline.bench.kafka_contest import FULL, QUICK, KafkaContest, Scale
from trunkline.bench.librdkafka import LoadError
from trunkline.bench.match_cli import match
from trunkline.bench.mosquitto import MosquittoUnavailable
from trunkline.bench.mqtt_contest import MqttContest, MqttScale
from trunkline.bench.probe import ProbeError
from trunkline.bench.progress import progress_bar
from trunkline.bench.rabbitmq import RabbitMQUnavailable
from trunkline.bench.share_contest import ShareContest, ShareScale
from trunkline.bench.spark_cli import spark
from trunkline.bench.sqs_contest import SqsContest, SqsScale
from trunkline.bench.stomp_contest import StompContest, StompScale

MAX_REPETITIONS = 100

T = TypeVar("T")
ScaleT = TypeVar("ScaleT", Scale, AmqpScale, MqttScale, ApiScale, ShareScale, SqsScale, StompScale)


@click.group()
def bench() -> None:
    """Measure a broker, also against its peer, in one run on this machine."""


bench.add_command(spark)
bench.add_command(match)


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    peer: bool
    quick: bool
    globs: tuple[str, ...]
    reps: int | None
    address: str | None
    as_json: bool
    as_markdown: bool
    tls: bool = False


def _wishing(
    peer: str, address_option: str = "--address", *, with_tls: bool = False
) -> Callable[[Callable[[Wish], None]], Callable[..., None]]:
    """The options that all contests have, and `--tls` for those that can be held over TLS."""

    def decorate(function: Callable[[Wish], None]) -> Callable[..., None]:
        @click.option("--peer", is_flag=True, help=f"Also measure {peer} here.")
        @click.option("--quick", is_flag=True, help="Less load, one repetition: under two minutes with the peer.")
        @click.option(
            "--case", "globs", multiple=True, metavar="GLOB", help="Only figures whose name matches; may be repeated."
        )
        @click.option(
            "--reps",
            type=click.IntRange(1, MAX_REPETITIONS),
            help="Repetitions; the median is reported.  [default: 1 with --quick, else 11 for kafka, 3 for the others]",
        )
        @click.option(
            address_option, "address", metavar="HOST:PORT", help="Measure the broker running there, start none."
        )
        @click.option("--json", "as_json", is_flag=True, help="Print a list of {case, unit, ours, peer, ratio}.")
        @click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
        @functools.wraps(function)
        def command(
            *,
            peer: bool,
            quick: bool,
            globs: tuple[str, ...],
            reps: int | None,
            address: str | None,
            as_json: bool,
            as_markdown: bool,
            tls: bool = False,
        ) -> None:
            if tls and address is not None:
                raise click.UsageError("--tls is for brokers that are started here.")
            function(Wish(peer, quick, globs, reps, address, as_json, as_markdown, tls))

        if with_tls:
            return click.option("--tls", is_flag=True, help="Over TLS, on both sides.")(command)
        return command

    return decorate


@bench.command()
@_wishing("Apache Kafka, fetched from Maven Central and started", "--bootstrap", with_tls=True)
def kafka(wish: Wish) -> None:
    """Throughput, latency, memory and start-up of the Kafka listener.

    \b
    trunkline bench kafka --peer --quick
    trunkline bench kafka --peer --case 'produce/*' --case start-up
    trunkline bench kafka --bootstrap 127.0.0.1:9092 --json
    trunkline bench kafka --peer --quick --tls
    """
    if wish.peer:
        _or_say(fetch_jars)
    with _certificates(wish) as certificates:
        _compare(KafkaContest(_scaled(FULL, QUICK, wish), certificates=certificates), wish)


@contextmanager
def _certificates(wish: Wish) -> Iterator[Path | None]:
    """For a run over TLS."""
    if not wish.tls:
        yield None
        return
    from trunkline.security.self_signed import make

    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory:
        make(Path(directory) / "certificates")
        yield Path(directory) / "certificates"


@bench.command()
@_wishing("RabbitMQ, from the system's packages, started")
def amqp(wish: Wish) -> None:
    """Throughput, latency, memory and start-up of the AMQP listener.

    \b
    trunkline bench amqp --peer --quick
    trunkline bench amqp --peer --case 'durable-*' --case start-up
    trunkline bench amqp --address 127.0.0.1:5672 --json
    """
    _compare(AmqpContest(_scaled(amqp_contest.FULL, amqp_contest.QUICK, wish)), wish)


@bench.command()
@_wishing("Mosquitto, from the system's packages, started")
def mqtt(wish: Wish) -> None:
    """Throughput, memory and start-up of the MQTT listener.

    \b
    trunkline bench mqtt --peer --quick
    trunkline bench mqtt --peer --case '1to1/qos1/*' --case start-up
    trunkline bench mqtt --address 127.0.0.1:1883 --json
    """
    scale = _scaled(mqtt_contest.FULL, mqtt_contest.QUICK, wish)
    _compare(MqttContest(scale, cases=mqtt_contest.cases_for(is_ours=wish.address is None)), wish)


@bench.command()
@_wishing("aio-pika and FastStream on RabbitMQ, from the system's packages, started")
def api(wish: Wish) -> None:
    """Messages per second of the Python API: put and get, publish and subscribe, request and reply.

    \b
    trunkline bench api --peer --quick
    trunkline bench api --peer --case 'put-*'
    """
    _compare(ApiContest(_scaled(api_contest.FULL, api_contest.QUICK, wish)), wish)


@bench.command()
@_wishing("Apache Kafka, fetched from Maven Central and started", "--bootstrap")
def share(wish: Wish) -> None:
    """How fast share groups work off topics.

    \b
    trunkline bench share --peer --quick
    trunkline bench share --peer --case 'commit/*'
    trunkline bench share --bootstrap 127.0.0.1:9092 --json
    """
    if wish.peer:
        _or_say(fetch_jars)
    _compare(ShareContest(_scaled(share_contest.FULL, share_contest.QUICK, wish)), wish)


@bench.command()
@_wishing("ElasticMQ, fetched from Maven Central and started")
def sqs(wish: Wish) -> None:
    """Throughput, memory and start-up of the SQS listener.

    \b
    trunkline bench sqs --peer --quick
    trunkline bench sqs --peer --case 'cycle/*'
    trunkline bench sqs --address 127.0.0.1:4566 --json
    """
    if wish.peer:
        _or_say(elasticmq.fetch_jars)
    _compare(SqsContest(_scaled(sqs_contest.FULL, sqs_contest.QUICK, wish)), wish)


@bench.command()
@_wishing("RabbitMQ with its STOMP plugin, from the system's packages, started")
def stomp(wish: Wish) -> None:
    """Throughput, memory and start-up of the STOMP listener.

    \b
    trunkline bench stomp --peer --quick
    trunkline bench stomp --peer --case 'persistent/*'
    trunkline bench stomp --address 127.0.0.1:61613 --json
    """
    _compare(StompContest(_scaled(stomp_contest.FULL, stomp_contest.QUICK, wish)), wish)


def _scaled(full: ScaleT, quick: ScaleT, wish: Wish) -> ScaleT:
    scale = quick if wish.quick else full
    return scale if wish.reps is None else dataclasses.replace(scale, repetitions=wish.reps)


def _or_say(work: Callable[[], T]) -> T:
    """Do it; what the benchmark cannot do is one line for the user."""
    try:
        return work()
    except (
        KafkaUnavailable,
        elasticmq.ElasticMQUnavailable,
        MosquittoUnavailable,
        RabbitMQUnavailable,
        LoadError,
        ProbeError,
    ) as error:
        raise click.ClickException(str(error)) from error


def _compare(contest: Contest[CaseT], wish: Wish) -> None:
    """Run a contest behind a progress bar and print its figures."""
    if wish.as_json and wish.as_markdown:
        raise click.UsageError("Choose one of --json and --markdown.")
    if not CODECS_COMPILED:
        click.echo("The frame codecs are plain Python here: AMQP and MQTT are slower than they need be.", err=True)
        click.echo(
            "Compile them with `python tools/compile_codecs.py`, or install where there is a C compiler.", err=True
        )
    with progress_bar() as show:
        figures = _or_say(Comparison(contest, wish.peer, wish.globs, wish.address, show).run)
    if not figures:
        raise click.ClickException(f"No figure has a name like {' or '.join(wish.globs)}.")
    if wish.as_json:
        click.echo(report.to_json(figures))
    elif wish.as_markdown:
        click.echo(report.to_markdown(figures, contest.peer_name, contest.peer_version))
    else:
        report.print_table(figures, contest.peer_name, Console())
