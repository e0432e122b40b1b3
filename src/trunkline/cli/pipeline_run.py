"""What `pipeline run`, `pipeline replay` and `topic archive` share: a Spark session, signals, and progress as it comes.

On a terminal the progress is a table that is drawn over itself; in a pipe it is a line every few seconds, on stderr.
SIGTERM and Ctrl-C stop the queries and end the command with exit code 0: everything goes on from the checkpoint next time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.options import config_file_of, parse_pairs
from trunkline.cli.output import print_json, remark
from trunkline.clock import Clock, SystemClock
from trunkline.pipeline.definition import DefinitionError, Pipeline
from trunkline.pipeline.home import Home, HomeError, VersionHome, default_home
from trunkline.pipeline.progress import QueryProgress, Totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.table import Table

    from trunkline.pipeline.runner import Runner

LINE_INTERVAL_MS = 5_000

P = ParamSpec("P")


@dataclass(frozen=True)
class SparkOptions:
    master: str
    memory: str
    conf: tuple[tuple[str, str], ...]
    verbose: bool
    as_json: bool
    bootstrap: str | None
    home: Home


def spark_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds what every command that runs Spark takes; the command gets it as `spark`."""

    @click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs.")
    @click.option("--memory", default="1g", show_default=True, metavar="SIZE", help="Heap of Spark's driver.")
    @click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="A setting of Spark; may be repeated."
    )
    @click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Broker to talk to.  [default: as configured]")
    @click.option("--verbose", is_flag=True, help="Show Spark's own log.")
    @state_option
    @click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
    @functools.wraps(function)
    def command(
        *,
        master: str,
        memory: str,
        conf: list[tuple[str, str]],
        bootstrap: str | None,
        verbose: bool,
        home: Home,
        as_json: bool,
        **rest: object,
    ) -> None:
        options = SparkOptions(master, memory, tuple(conf), verbose, as_json, bootstrap, home)
        with explained():
            function(spark=options, **rest)

    return command


def state_option(function: Callable[P, None]) -> Callable[P, None]:
    """Adds `--state`; the command gets the home of the pipelines as `home`."""
    return click.option(
        "--state",
        "home",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        callback=lambda ctx, param, value: Home(value or default_home()),
        help="Where pipelines keep state and checkpoints.  [default: $TRUNKLINE_PIPELINES, ~/.local/state/trunkline/pipelines]",
    )(function)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Errors of pipelines as the command line shows them."""
    try:
        yield
    except (DefinitionError, HomeError) as error:
        raise CommandError(str(error)) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in {"pyspark", "pyarrow"}:
            raise
        raise CommandError(f"pipelines need the package {error.name}", "pip install 'trunkline[spark]'") from error


def bootstrap_of(ctx: click.Context, given: str | None, pipeline: Pipeline | None = None) -> str:
    """The flag's broker, else the pipeline's, else the configured one."""
    from trunkline.config import load

    named = given or (pipeline.bootstrap if pipeline is not None else None)
    return load({"bootstrap": named}, config_file=config_file_of(ctx)).client_bootstrap()


@contextlib.contextmanager
def spark_session(name: str, options: SparkOptions, pipeline: Pipeline) -> Iterator[SparkSession]:
    from trunkline.pipeline.session import JavaMissing, local_session

    conf = {**pipeline.spark, **dict(options.conf)}
    if not options.master.startswith("local"):
        # Executors on other machines must reach the driver.
        host = socket.gethostname()
        os.environ.setdefault("SPARK_LOCAL_IP", "0.0.0.0")
        conf = {"spark.driver.host": host, "spark.driver.bindAddress": "0.0.0.0", **conf}
    if not options.as_json:
        remark(f"starting Spark ({options.master}) …")
    try:
        session = local_session(name, master=options.master, heap=options.memory, conf=conf)
    except JavaMissing as error:
        raise CommandError(str(error)) from error
    session.sparkContext.setLogLevel("WARN" if options.verbose else "OFF")
    try:
        yield session
    finally:
        session.stop()


def execute(
    session: SparkSession,
    pipeline: Pipeline,
    home: VersionHome,
    options: SparkOptions,
    *,
    bootstrap: str,
    once: bool,
    since_ms: int | None = None,
) -> bool:
    """Run a version until it is done or stopped; whether it was stopped. The caller holds the lock."""
    from trunkline.pipeline.runner import PipelineFailed, Runner

    shown = Display(pipeline.name, quiet=options.as_json)
    runner = Runner(pipeline, session, home, bootstrap, once=once, since_ms=since_ms, observe=shown.show)
    with shown, _stopped_by_signals(runner) as stopped:
        try:
            reports = runner.run()
        except PipelineFailed as error:
            hint = "`--verbose` shows Spark's log; once the cause is gone, the same command goes on where it stopped"
            raise CommandError(str(error), hint) from error
    if options.as_json:
        print_json([item.to_json() for item in reports])
    else:
        read = Totals.of(item.to_json() for item in reports).read or 0
        remark(
            f"{'stopped' if stopped else 'finished'} {pipeline.name}, version {home.number}: "
            f"{read:,} records read; written: {', '.join(_outcome(item) for item in reports)}"
        )
    return bool(stopped)


@contextlib.contextmanager
def _stopped_by_signals(runner: Runner) -> Iterator[list[int]]:
    """The signals that came."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Display:
    """Progress while it runs."""

    def __init__(self, name: str, *, quiet: bool, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._quiet = quiet
        self._said_at_ms = self._clock.monotonic_ms()
        self._said = ""
        self._stack = contextlib.ExitStack()
        self._draw: Callable[[Table], None] | None = None

    def __enter__(self) -> Display:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            live = self._stack.enter_context(Live(console=Console(stderr=True), auto_refresh=False))
            self._draw = lambda table: live.update(table, refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, queries: Sequence[QueryProgress]) -> None:
        if self._quiet:
            return
        if self._draw is not None:
            self._draw(self._table(queries))
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._said_at_ms < LINE_INTERVAL_MS:
            return
        text = "; ".join(_line(item) for item in queries)
        self._said_at_ms = now_ms
        if text != self._said:
            self._said = text
            remark(text)

    def _table(self, queries: Sequence[QueryProgress]) -> Table:
        from rich.table import Table

        table = Table(title=self._name, title_justify="left")
        for name in ("query", "to", "state"):
            table.add_column(name)
        for name in ("batch", "read", "written", "records/s", "lag", "batch ms"):
            table.add_column(name, justify="right")
        for item in queries:
            colour = {"failed": "red", "retrying": "yellow", "running": "green"}.get(item.state, "")
            state = f"[{colour}]{item.state}[/]" if colour else item.state
            table.add_row(
                item.name,
                item.target,
                f"{state}: {item.error}" if item.error else state,
                _number(item.batch),
                f"{item.read:,}",
                f"{item.written:,}",
                f"{item.rows_per_second:,.0f}",
                _number(item.lag),
                _number(item.batch_ms),
            )
        return table


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _outcome(item: QueryProgress) -> str:
    what = f"{item.written:,} dead letters" if item.dead_letters else f"{item.written:,}"
    return f"{what} to {item.target}"


def _line(item: QueryProgress) -> str:
    text = f"{item.name}: {item.state}, {item.read:,} read, {item.written:,} written"
    text += f", {item.rows_per_second:,.0f}/s, lag {_number(item.lag)}, batch {_number(item.batch_ms)} ms"
    return text + (f" ({item.error})" if item.error else "")
